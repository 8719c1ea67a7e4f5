// SPDX-License-Identifier: Apache-2.0
//
// image_load, image_store and image_sample of gfx9: elements of an image, which eight scalar
// registers describe, the last one through a sampler, which four describe ("Vega" Instruction Set
// Architecture, definitions of the resources of images and samplers). A sample is one element.
//
// Elements lie in rows of the resource's pitch, whatever its swizzle mode: only image instructions
// see how the hardware tiles them, and a tiled image takes no less memory than its rows.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

enum Type : U32 { k1D = 8, k2D = 9, k3D = 10, k1DArray = 12, k2DArray = 13 };
enum NumberFormat : U32 { kUnsigned = 4, kSigned = 5, kFloat = 7 };
enum Select : U32 { kZero = 0, kOne = 1, kFirstComponent = 4 };  // dst_sel
enum Clamp : U32 { kWrap = 0, kMirror = 1, kLastElement = 2, kBorder = 6 };
constexpr unsigned kComponents = 4, kAxes = 3;

struct DataFormat {
  unsigned components = 0, bytes = 0;  // of one component
};
// By number. No components: unknown.
constexpr DataFormat kDataFormats[] = {{}, {1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {},    {},
                                       {}, {},     {4, 1}, {2, 4}, {4, 2}, {},     {4, 4}};

constexpr U32 field(U64 word, unsigned first, unsigned bits) {
  return static_cast<U32>(word >> first & ((1u << bits) - 1));
}

[[noreturn]] void refuse(const std::string& what) {
  throw Fault("the software GPU does not know " + what);
}

class Image {
 public:
  Image(const Wave& wave, const Operand& resource) {
    const U32* const word = &wave.scalar[resource.reg];
    base_ = (word[0] | static_cast<U64>(field(word[1], 0, 8)) << 32) << 8;
    const U32 data_format = field(word[1], 20, 6);
    number_format_ = field(word[1], 26, 4);
    type_ = field(word[3], 28, 4);
    size_[0] = field(word[2], 0, 14) + 1;
    has_rows_ = type_ == k2D || type_ == k3D || type_ == k2DArray;
    size_[1] = has_rows_ ? field(word[2], 14, 14) + 1 : 1;
    size_[2] = type_ == k1D || type_ == k2D ? 1 : field(word[4], 0, 13) + 1;
    pitch_ = field(word[4], 13, 16) + 1;
    for (unsigned at = 0; at < kComponents; ++at) select_[at] = field(word[3], 3 * at, 3);
    if (!has_rows_ && type_ != k1D && type_ != k1DArray)
      refuse("images of type " + std::to_string(type_));
    const U32 levels = field(word[3], 12, 8);
    if (levels != 0 || word[5] != 0 || word[6] != 0 || word[7] != 0)
      refuse("images with levels, a first layer or compression");
    if (data_format < std::size(kDataFormats)) format_ = kDataFormats[data_format];
    const bool single = number_format_ == kFloat && format_.bytes == 4;
    if (format_.components == 0 ||
        (number_format_ != kUnsigned && number_format_ != kSigned && !single))
      refuse("images of data format " + std::to_string(data_format) + " with number format " +
             std::to_string(number_format_));
  }

  // Null: outside of the image.
  std::uint8_t* element(Wave& wave, const Operand& coordinates, unsigned lane) const {
    const auto coordinate = [&](unsigned at) { return wave.row(coordinates.reg + at)[lane]; };
    U32 z = 0;
    if (type_ == k1DArray) z = coordinate(1);
    if (type_ == k3D || type_ == k2DArray) z = coordinate(2);
    return element({coordinate(0), has_rows_ ? coordinate(1) : 0, z});
  }

  std::uint8_t* element(const std::array<U32, kAxes>& at) const {
    for (unsigned axis = 0; axis < kAxes; ++axis)
      if (at[axis] >= size_[axis]) return nullptr;
    const U64 index = (U64{at[2]} * size_[1] + at[1]) * pitch_ + at[0];
    return global_memory(base_ + index * format_.components * format_.bytes);
  }

  // What a load returns as `component`.
  U32 load(const std::uint8_t* element, unsigned component) const {
    const U32 select = select_[component];
    if (select == kZero) return 0;
    if (select == kOne) return number_format_ == kFloat ? 0x3f800000 : 1;
    if (select < kFirstComponent || select - kFirstComponent >= format_.components)
      refuse("loads of a component that an image does not have");
    U32 value = 0;
    std::memcpy(&value, element + (select - kFirstComponent) * format_.bytes, format_.bytes);
    return number_format_ == kSigned ? sign_extended(value) : value;
  }

  // `mask`: the components that registers hold.
  void check_store(unsigned mask) const {
    for (unsigned at = 0; at < format_.components; ++at)
      if (select_[at] != kFirstComponent + at || (mask >> at & 1) == 0)
        refuse("stores of images that reorder components or leave some out");
  }

  void store(std::uint8_t* element, unsigned component, U32 value) const {
    const U32 kept = value & (format_.bytes == 4 ? ~0u : (1u << 8 * format_.bytes) - 1);
    if ((number_format_ == kSigned ? sign_extended(kept) : kept) != value)
      refuse("stores of integers that an image's components cannot hold");
    std::memcpy(element + component * format_.bytes, &value, format_.bytes);
  }

  unsigned components() const { return format_.components; }
  U32 size(unsigned axis) const { return size_[axis]; }

  // Coordinates of a sample. The third one of an array is a layer, which is rounded.
  unsigned axes() const {
    if (type_ == k1DArray || type_ == k2DArray)
      refuse("samples of images of type " + std::to_string(type_));
    return type_ == k1D ? 1 : type_ == k2D ? 2 : 3;
  }

 private:
  U32 sign_extended(U32 value) const {
    const unsigned unused = 32 - 8 * format_.bytes;
    return static_cast<U32>(static_cast<std::int32_t>(value << unused) >> unused);
  }

  U64 base_ = 0;
  U32 type_ = 0, number_format_ = 0, pitch_ = 0;
  std::array<U32, kAxes> size_{};  // width, height, depth
  bool has_rows_ = false;
  DataFormat format_;
  std::array<U32, kComponents> select_{};
};

unsigned mask_of(const Instruction& instruction) {
  return static_cast<unsigned>(instruction.raw >> 8 & 0xf);
}

using Elements = std::array<const std::uint8_t*, kLanes>;

void write_components(Wave& wave, const Instruction& instruction, const Image& image,
                      const Elements& from) {
  unsigned reg = instruction.operand[0].reg;
  for (unsigned component = 0; component < kComponents; ++component) {
    if ((mask_of(instruction) >> component & 1) == 0) continue;
    U32* const to = wave.row(reg++);
    each_active_lane(wave, [&](unsigned lane) { to[lane] = image.load(from[lane], component); });
  }
}

// Data, coordinates, resource. The disassembler names the first register of the coordinates only;
// the image's type says how many there are.
void image_load(Wave& wave, const Instruction& instruction) {
  const Image image(wave, instruction.operand[2]);
  Elements from;  // before anything is written, because the destination may hold the coordinates
  each_active_lane(wave, [&](unsigned lane) {
    from[lane] = image.element(wave, instruction.operand[1], lane);
    if (from[lane] == nullptr) refuse("loads from outside of an image");
  });
  write_components(wave, instruction, image, from);
}

class Sampler {
 public:
  Sampler(const Wave& wave, const Instruction& instruction) {
    const U32* const word = &wave.scalar[instruction.operand[3].reg];
    normalized_ = field(word[0], 15, 1) == 0 && field(instruction.raw, 12, 1) == 0;
    for (unsigned axis = 0; axis < kAxes; ++axis) {
      clamp_[axis] = field(word[0], 3 * axis, 3);
      const bool repeats = clamp_[axis] == kWrap || clamp_[axis] == kMirror;
      if (!repeats && clamp_[axis] != kLastElement && clamp_[axis] != kBorder)
        refuse("samples with the clamp mode " + std::to_string(clamp_[axis]));
      if (repeats && !normalized_) refuse("samples that repeat without normalized coordinates");
    }
    if (field(word[2], 20, 8) != 0) refuse("samples with a filter");
    if (field(word[3], 30, 2) != 0) refuse("samples with a border that is not transparent black");
  }

  // The element on an axis of `size` elements; `size`: the border.
  U32 index(float coordinate, unsigned axis, U32 size) const {
    const double at = normalized_ ? double{coordinate} * size : double{coordinate};
    if (!std::isfinite(at)) refuse("samples at no number");
    // Hardware rounds to 1/256 of an element.
    double whole = std::floor(at);
    if (std::floor(at + 1.0 / 512) != whole)
      refuse("samples so close below the edge of an element");
    const auto modulo = [](double x, double period) {
      const double rest = std::fmod(x, period);
      return rest < 0 ? rest + period : rest;
    };
    switch (clamp_[axis]) {
      case kWrap:
        whole = modulo(whole, size);
        break;
      case kMirror:
        whole = modulo(whole, 2.0 * size);
        if (whole >= size) whole = 2.0 * size - 1 - whole;
        break;
      case kLastElement:
        whole = std::clamp(whole, 0.0, size - 1.0);
        break;
      default:
        if (whole < 0 || whole >= size) whole = size;
    }
    return static_cast<U32>(whole);
  }

 private:
  bool normalized_ = false;
  std::array<U32, kAxes> clamp_{};
};

// As a load; coordinates are real numbers.
void image_sample(Wave& wave, const Instruction& instruction) {
  static constexpr std::uint8_t kTransparentBlack[16] = {};
  const Image image(wave, instruction.operand[2]);
  const Sampler sampler(wave, instruction);
  const unsigned axes = image.axes();
  Elements from;
  each_active_lane(wave, [&](unsigned lane) {
    std::array<U32, kAxes> at{};
    for (unsigned axis = 0; axis < axes; ++axis) {
      const U32 bits = wave.row(instruction.operand[1].reg + axis)[lane];
      at[axis] = sampler.index(std::bit_cast<float>(bits), axis, image.size(axis));
    }
    from[lane] = image.element(at);
    if (from[lane] == nullptr) from[lane] = kTransparentBlack;
  });
  write_components(wave, instruction, image, from);
}

// Stores outside of the image have no effect.
void image_store(Wave& wave, const Instruction& instruction) {
  const Image image(wave, instruction.operand[2]);
  image.check_store(mask_of(instruction));
  const unsigned data = instruction.operand[0].reg;
  each_active_lane(wave, [&](unsigned lane) {
    std::uint8_t* const to = image.element(wave, instruction.operand[1], lane);
    if (to == nullptr) return;
    for (unsigned component = 0; component < image.components(); ++component)
      image.store(to, component, wave.row(data + component)[lane]);
  });
}

}  // namespace

void add_image(InstructionSet& set) {
  set.add("image_load", {.execute = image_load});
  set.add("image_sample", {.execute = image_sample});
  set.add("image_store", {.execute = image_store, .first_source = 0});
}

}  // namespace vitamin::soft::amdgpu::isa
