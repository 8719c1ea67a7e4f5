// SPDX-License-Identifier: Apache-2.0
//
// Loads, stores and samples of images on gfx90a. Encodings are LLVM's; the fields of a resource are
// those of AMD's "Vega" Instruction Set Architecture.
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/amdgpu/instruction_rules.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

constexpr unsigned kResource = 8, kSampler = 16;  // s[8:15] and s[16:19] hold them
constexpr Code kStore{0xf0201f00, 0x00020004}, kLoad{0xf0001f00, 0x00020004};
constexpr Code kSample{0xf0800f00, 0x00820004};
const char* const kSampleText = "image_sample v[0:3], v4, s[8:15], s[16:19] dmask:0xf";
const char* const kStoreText = "image_store v[0:3], v4, s[8:15] dmask:0xf unorm";
const char* const kLoadText = "image_load v[0:3], v4, s[8:15] dmask:0xf unorm";

enum Type : U32 { kBuffer = 0, k1D = 8, k2D = 9, k3D = 10, k1DArray = 12, k2DArray = 13 };
enum Number : U32 { kNormalized = 0, kUnsigned = 4, kSigned = 5, kFloat = 7 };
enum Data : U32 { kNone = 0, k8 = 1, k16 = 2, k32 = 4, k8x2 = 3, k8x4 = 10, k32x4 = 14 };
constexpr U32 kSwizzled = 9;
enum Clamp : U32 { kWrap = 0, kMirror = 1, kLastElement = 2, kBorder = 6 };
constexpr U32 kUnnormalized = 1 << 15, kLinear = 1;

// Selects of the components X, Y, Z, W, three bits each.
constexpr U32 kAllFour = 4 | 5 << 3 | 6 << 6 | 7 << 9, kOnlyRed = 4 | 1 << 9;

struct Shape {
  U32 type = k2D, data = k32x4, number = kUnsigned, selects = kAllFour;
  U32 width = 8, height = 4, depth = 1, pitch = 16, mode = kSwizzled;
};

class ImageRules : public Rules {
 public:
  explicit ImageRules(const Shape& shape) : Rules("gfx90a") {
    U32* const word = &scalar(kResource);
    const U64 base = subject.memory() >> 8;
    word[0] = static_cast<U32>(base);
    word[1] = static_cast<U32>(base >> 32) | shape.data << 20 | shape.number << 26;
    word[2] = (shape.width - 1) | (shape.height - 1) << 14;
    word[3] = shape.selects | shape.mode << 20 | shape.type << 28;
    word[4] = (shape.depth - 1) | (shape.pitch - 1) << 13;
    word[5] = word[6] = word[7] = 0;
    std::memset(bytes(), 0, kMemoryBytes);
  }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(subject.memory()); }
  U32 word_at(std::size_t offset) {
    U32 word;
    std::memcpy(&word, bytes() + offset, sizeof word);
    return word;
  }
  void set_data(const std::vector<U32>& data) {
    for (unsigned at = 0; at < data.size(); ++at) row(at) = data[at];
  }
  void set_coordinates(const std::vector<U32>& coordinates) {
    for (unsigned at = 0; at < coordinates.size(); ++at) row(4 + at) = coordinates[at];
  }
  std::string store() { return run(kStore, kStoreText); }
  void set_sampler(U32 clamp, U32 flags = 0, U32 filter = 0) {
    scalar(kSampler) = clamp | clamp << 3 | clamp << 6 | flags;
    scalar(kSampler + 1) = 0xfff << 12;  // the last level
    scalar(kSampler + 2) = filter << 20 | filter << 22;
    scalar(kSampler + 3) = 0;
  }
  std::string sample(const std::vector<float>& at) {
    for (unsigned axis = 0; axis < at.size(); ++axis) row(4 + axis) = std::bit_cast<U32>(at[axis]);
    return run(kSample, kSampleText);
  }
  std::string load() { return run(kLoad, kLoadText); }
};

TEST_CASE("an image's type says how many coordinates an element has") {
  const struct {
    Type type;
    std::size_t index;  // of the element at 3, 2, 1
  } kCases[] = {{k1D, 3},
                {k1DArray, 2 * 16 + 3},
                {k2D, 2 * 16 + 3},
                {k2DArray, (4 + 2) * 16 + 3},
                {k3D, (4 + 2) * 16 + 3}};
  for (const auto& [type, index] : kCases) {
    ImageRules rules({.type = type, .data = k32, .selects = kOnlyRed, .depth = 3});
    rules.set_data({0xabcd1234, 0, 0, 0});
    rules.set_coordinates({3, 2, 1});
    CHECK(rules.store().empty());
    CHECK(rules.word_at(4 * index) == 0xabcd1234);
    CHECK(rules.load().empty());
    CHECK(rules.row(0) == 0xabcd1234);
  }
}

TEST_CASE("components of an image have the width and the sign of its format") {
  const struct {
    Data data;
    Number number;
    std::vector<U32> values;
    std::vector<std::uint8_t> bytes;
  } kCases[] = {
      {k8, kUnsigned, {0xfe}, {0xfe}},
      {k8x2, kSigned, {0xffffff80, 5}, {0x80, 5}},
      {k16, kSigned, {0xffff8001}, {0x01, 0x80}},
      {k8x4, kUnsigned, {1, 2, 3, 255}, {1, 2, 3, 255}},
      {k32, kFloat, {0x7fa00001}, {0x01, 0x00, 0xa0, 0x7f}},
      {k32x4, kSigned, {1, ~0u, 3, 4}, {1, 0, 0, 0, 255, 255, 255, 255, 3, 0, 0, 0, 4, 0, 0, 0}}};
  for (const auto& [data, number, values, bytes] : kCases) {
    constexpr U32 kSelects[] = {0, 4 | 1 << 9, 4 | 5 << 3 | 1 << 9, 0, kAllFour};
    ImageRules rules({.data = data, .number = number, .selects = kSelects[values.size()]});
    rules.set_data({9, 9, 9, 9});
    rules.set_data(values);
    rules.set_coordinates({1, 0});
    CHECK(rules.store().empty());
    CHECK(std::memcmp(rules.bytes() + bytes.size(), bytes.data(), bytes.size()) == 0);
    CHECK(rules.bytes()[0] == 0);
    CHECK(rules.bytes()[2 * bytes.size()] == 0);
    CHECK(rules.load().empty());
    for (unsigned at = 0; at < values.size(); ++at) CHECK(rules.row(at) == values[at]);
    if (values.size() == 4) continue;
    CHECK(rules.row(2) == 0);
    CHECK(rules.row(3) == (number == kFloat ? 0x3f800000 : 1));
  }
}

TEST_CASE("a load writes the components of its mask to consecutive registers") {
  ImageRules rules({});
  for (U32 at = 0; at < 4; ++at) std::memset(rules.bytes() + 4 * at, static_cast<int>(at), 1);
  rules.row(5) = 77, rules.set_coordinates({0, 0});
  CHECK(rules.run(0xf0001400, 0x00020504, "image_load v5, v4, s[8:15] dmask:0x4 unorm").empty());
  CHECK(rules.row(5) == 2);
}

// Each element is its index.
void number_elements(ImageRules& rules, U32 elements) {
  for (U32 at = 0; at < elements; ++at) std::memcpy(rules.bytes() + 4 * std::size_t{at}, &at, 4);
}

TEST_CASE("a sample is the element that its coordinates lie in, normalized or not") {
  for (const U32 type : {k1D, k2D, k3D}) {
    ImageRules rules({.type = type, .data = k32, .selects = kOnlyRed, .depth = 2});
    number_elements(rules, 16 * 4 * 2);
    const U32 index = type == k1D ? 3 : type == k2D ? 2 * 16 + 3 : (4 + 2) * 16 + 3;
    rules.set_sampler(kLastElement, kUnnormalized);
    CHECK(rules.sample({3.0f, 2.75f, 1.5f}).empty());
    CHECK(rules.row(0) == index);
    rules.set_sampler(kLastElement);
    CHECK(rules.sample({3.0f / 8, 2.75f / 4, 1.5f / 2}).empty());
    CHECK(rules.row(0) == index);
    CHECK(rules.row(3) == 1);
  }
}

TEST_CASE("a sample from outside of an image is what the sampler says") {
  const struct {
    U32 clamp;
    float at;
    U32 element;
  } kCases[] = {{kWrap, 1.25f, 2},       {kWrap, -0.125f, 7},     {kMirror, 1.0f, 7},
                {kMirror, 1.125f, 6},    {kMirror, -0.125f, 0},   {kLastElement, 5.0f, 7},
                {kLastElement, -3.f, 0}, {kLastElement, 1e30f, 7}};
  for (const auto& sample : kCases) {
    ImageRules rules({.type = k1D, .data = k32, .selects = kOnlyRed});
    number_elements(rules, 8);
    rules.set_sampler(sample.clamp);
    INFO(sample.clamp << " at " << sample.at);
    CHECK(rules.sample({sample.at}).empty());
    CHECK(rules.row(0) == sample.element);
  }
  ImageRules rules({.type = k1D, .data = k32, .selects = kOnlyRed});
  std::memset(rules.bytes(), 1, 64);
  rules.set_sampler(kBorder);
  CHECK(rules.sample({1.0f}).empty());
  CHECK(rules.row(0) == 0);
  CHECK(rules.row(3) == 1);
}

TEST_CASE("what a sample would have to be guessed for is refused by name") {
  const std::string prefix = "the software GPU does not know ";
  const auto refused = [&](U32 clamp, U32 flags, U32 filter, float at, const char* what) {
    ImageRules rules({.type = k1D, .data = k32, .selects = kOnlyRed});
    rules.set_sampler(clamp, flags, filter);
    CHECK(rules.sample({at}) == prefix + what);
  };
  refused(kLastElement, 0, kLinear, 0, "samples with a filter");
  refused(4, 0, 0, 0, "samples with the clamp mode 4");
  refused(kWrap, kUnnormalized, 0, 0.5f, "samples that repeat without normalized coordinates");
  refused(kLastElement, 0, 0, 0.49999f, "samples so close below the edge of an element");
  refused(kLastElement, 0, 0, std::numeric_limits<float>::quiet_NaN(), "samples at no number");
  ImageRules layers({.type = k2DArray, .data = k32, .selects = kOnlyRed});
  layers.set_sampler(kLastElement);
  CHECK(layers.sample({0, 0, 0}) == prefix + "samples of images of type 13");
}

TEST_CASE("each active lane has its own element") {
  ImageRules rules({.data = k32, .selects = kOnlyRed});
  rules.exec = 0x5;
  for (unsigned lane = 0; lane < 3; ++lane)
    rules.row(0, lane) = 100 + lane, rules.row(4, lane) = 2 * lane, rules.row(5, lane) = lane;
  CHECK(rules.store().empty());
  CHECK(rules.word_at(0) == 100);
  CHECK(rules.word_at(4 * (16 + 2)) == 0);
  CHECK(rules.word_at(4 * (2 * 16 + 4)) == 102);
}

TEST_CASE("a store outside of an image has no effect and a load from there is refused") {
  for (const std::vector<U32>& at : {std::vector<U32>{8, 0}, {0, 4}, {~0u, 0}}) {
    ImageRules rules({.data = k32, .selects = kOnlyRed});
    const std::vector<std::uint8_t> before(rules.bytes(), rules.bytes() + kMemoryBytes);
    rules.set_data({1, 1, 1, 1}), rules.set_coordinates(at);
    CHECK(rules.store().empty());
    CHECK(std::memcmp(rules.bytes(), before.data(), kMemoryBytes) == 0);
    CHECK(rules.load() == "the software GPU does not know loads from outside of an image");
  }
}

TEST_CASE("what an image would have to be guessed for is refused by name") {
  const std::string prefix = "the software GPU does not know ";
  CHECK(ImageRules({.type = kBuffer}).load() == prefix + "images of type 0");
  CHECK(ImageRules({.data = k8x4, .number = kNormalized}).load() ==
        prefix + "images of data format 10 with number format 0");
  CHECK(ImageRules({.data = kNone}).store() ==
        prefix + "images of data format 0 with number format 4");
  CHECK(ImageRules({.data = k16, .number = kFloat, .selects = kOnlyRed}).load() ==
        prefix + "images of data format 2 with number format 7");
  const std::string reorders =
      prefix + "stores of images that reorder components or leave some out";
  CHECK(ImageRules({.selects = 6 | 5 << 3 | 4 << 6 | 7 << 9}).store() == reorders);
  {
    ImageRules rules({});
    CHECK(rules.run(0xf0201100, 0x00020004, "image_store v0, v4, s[8:15] dmask:0x1 unorm") ==
          reorders);
    rules.refused(0xf0209300, 0x00020004, "image_store v[0:1], v4, s[8:15] dmask:0x3 unorm a16");
    for (const unsigned word : {5u, 6u, 7u}) {
      rules.scalar(kResource + word) = 1;
      CHECK(rules.load() == prefix + "images with levels, a first layer or compression");
      rules.scalar(kResource + word) = 0;
    }
  }
  ImageRules bytes({.data = k8, .selects = kOnlyRed});
  bytes.set_data({256, 0, 0, 0}), bytes.set_coordinates({0, 0});
  CHECK(bytes.store() == prefix + "stores of integers that an image's components cannot hold");
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
