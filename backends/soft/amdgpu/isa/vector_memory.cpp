// SPDX-License-Identifier: Apache-2.0
//
// global_ and flat_: loads, stores and atomics of every lane.
#include <optional>

#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/isa/atomics.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

enum class Space { kGlobal, kFlat };

// Where each lane's element lies: 64-bit addresses in vector registers, or a scalar base and
// 32-bit offsets in one vector register.
template <Space kSpace>
class Addresses {
 public:
  Addresses(Wave& wave, const Instruction& instruction, const Operand& vector, const Operand& base)
      : wave_(wave), offset_(static_cast<U64>(std::int64_t{instruction.offset})) {
    low_ = wave.row(vector.reg);
    if (kSpace == Space::kGlobal && base.kind == Operand::Kind::kScalar && base.reg != kSink)
      base_ = wave.pair(base.reg) + offset_;
    else
      high_ = wave.row(vector.reg + 1);
  }

  std::uint8_t* at(unsigned lane, unsigned bytes) const {
    const U64 address = high_ == nullptr
                            ? base_ + low_[lane]
                            : (low_[lane] | static_cast<U64>(high_[lane]) << 32) + offset_;
    if constexpr (kSpace == Space::kGlobal)
      return global_memory(address);
    else
      return flat_memory(wave_, lane, address, bytes);
  }

  // Where the first lane's word is, if all lanes are active, their words lie in a row and all are
  // memory at its own address. Null: each lane has to be looked at.
  std::uint8_t* words_in_a_row() const {
    const unsigned width = wave_.width;
    if (!wave_.all_active() || !are_words_in_a_row(low_, width)) return nullptr;
    if (U64{low_[0]} + 4 * width > 1ull << 32) return nullptr;  // the lower halves wrap
    U64 first = base_ + low_[0];
    if (high_ != nullptr) {
      U32 differs = 0;
      each_lane(width, [&](std::ptrdiff_t lane) { differs |= high_[lane] ^ high_[0]; });
      if (differs != 0) return nullptr;
      first = (low_[0] | static_cast<U64>(high_[0]) << 32) + offset_;
    }
    const U64 last = first + 4 * width - 1;
    if (kSpace == Space::kFlat && (in_an_aperture(wave_, first) || in_an_aperture(wave_, last)))
      return nullptr;
    return may_have_alias(first, last) ? nullptr : reinterpret_cast<std::uint8_t*>(first);
  }

 private:
  Wave& wave_;
  U64 offset_, base_ = 0;
  const U32* low_;
  const U32* high_ = nullptr;
};

template <Space kSpace, class E>
void load(Wave& wave, const Instruction& instruction) {
  const Addresses<kSpace> addresses(wave, instruction, instruction.operand[1],
                                    instruction.operand[2]);
  U32* const to = wave.row(instruction.operand[0].reg);
  if constexpr (E::kIsWord)
    if (const std::uint8_t* const words = addresses.words_in_a_row())
      return copy_words(to, words, wave.width);
  // The destination may hold the addresses, so they are read before anything is written.
  std::array<const std::uint8_t*, kLanes> from;
  each_active_lane(wave, [&](unsigned lane) { from[lane] = addresses.at(lane, E::kSize); });
  each_active_lane(wave, [&](unsigned lane) { E::load(to, lane, from[lane]); });
}

template <Space kSpace, class E>
void store(Wave& wave, const Instruction& instruction) {
  const Addresses<kSpace> addresses(wave, instruction, instruction.operand[0],
                                    instruction.operand[2]);
  const U32* const data = wave.row(instruction.operand[1].reg);
  if constexpr (E::kIsWord)
    if (std::uint8_t* const words = addresses.words_in_a_row())
      return copy_words(words, data, wave.width);
  each_active_lane(wave,
                   [&](unsigned lane) { E::store(data, lane, addresses.at(lane, E::kSize)); });
}

// [dst,] address, data, base.
template <Space kSpace, auto F, class T, bool kSwapsIf>
void atomic(Wave& wave, const Instruction& instruction) {
  const unsigned first = instruction.returns ? 1 : 0;
  const Addresses<kSpace> addresses(wave, instruction, instruction.operand[first],
                                    instruction.operand[first + 2]);
  each_lane_atomically<F, T, kSwapsIf>(
      wave, instruction, instruction.operand[first + 1].reg, instruction.operand[0].reg,
      [&](unsigned lane) { return addresses.at(lane, sizeof(T)); });
}

}  // namespace

void add_vector_memory(InstructionSet& set) {
  each_load([&](const std::string& name, auto element) {
    using E = decltype(element);
    set.add("global_load_" + name, {.execute = load<Space::kGlobal, E>});
    set.add("flat_load_" + name, {.execute = load<Space::kFlat, E>});
  });
  each_store([&](const std::string& name, auto element) {
    using E = decltype(element);
    set.add("global_store_" + name, {.execute = store<Space::kGlobal, E>, .first_source = 0});
    set.add("flat_store_" + name, {.execute = store<Space::kFlat, E>, .first_source = 0});
  });
  each_atomic([&]<auto F, class T, bool kSwapsIf>(const std::string& name) {
    set.add("global_atomic_" + name,
            {.execute = atomic<Space::kGlobal, F, T, kSwapsIf>, .first_source = 0});
    set.add("flat_atomic_" + name,
            {.execute = atomic<Space::kFlat, F, T, kSwapsIf>, .first_source = 0});
  });
}

}  // namespace vitamin::soft::amdgpu::isa
