// SPDX-License-Identifier: Apache-2.0
//
// ds_: the workgroup's memory, lane exchanges through its crossbar, global wave synchronisation.
#include <algorithm>

#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/isa/atomics.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

// Where the lanes' words are if all lanes are active and their words lie in a row inside the
// workgroup's memory; otherwise null.
std::uint8_t* words_in_a_row(Wave& wave, const U32* address, U64 offset) {
  if (!wave.all_active() || !are_words_in_a_row(address, wave.width)) return nullptr;
  return shared_memory(wave, address[0] + offset, 4 * wave.width);
}

// Where `offset` is in the workgroup's memory, if all lanes are active and inside it. Null: each
// lane has to be looked at.
std::uint8_t* common_memory(Wave& wave, const U32* address, U64 offset, unsigned bytes) {
  if (!wave.all_active()) return nullptr;
  U32 highest = 0;
  each_lane(wave.width, [&](std::ptrdiff_t lane) { highest = std::max(highest, address[lane]); });
  return shared_memory(wave, highest + offset, bytes) != nullptr ? wave.group->lds.data() + offset
                                                                 : nullptr;
}

template <class E>
void read(Wave& wave, const Instruction& instruction) {
  static constexpr std::uint8_t kZeros[16] = {};
  const U32* const address = wave.row(instruction.operand[1].reg);
  U32* const to = wave.row(instruction.operand[0].reg);
  const auto offset = static_cast<U32>(instruction.offset);
  if constexpr (E::kIsWord)
    if (const std::uint8_t* const words = words_in_a_row(wave, address, offset))
      return copy_words(to, words, wave.width);
  if (const std::uint8_t* const memory = common_memory(wave, address, offset, E::kSize)) {
    for (unsigned lane = 0; lane < wave.width; ++lane) E::load(to, lane, memory + address[lane]);
    return;
  }
  each_active_lane(wave, [&](unsigned lane) {
    const std::uint8_t* const from = shared_memory(wave, U64{address[lane]} + offset, E::kSize);
    E::load(to, lane, from == nullptr ? kZeros : from);
  });
}

template <class E>
void write(Wave& wave, const Instruction& instruction) {
  const U32* const address = wave.row(instruction.operand[0].reg);
  const U32* const data = wave.row(instruction.operand[1].reg);
  const auto offset = static_cast<U32>(instruction.offset);
  if constexpr (E::kIsWord)
    if (std::uint8_t* const words = words_in_a_row(wave, address, offset))
      return copy_words(words, data, wave.width);
  if (std::uint8_t* const memory = common_memory(wave, address, offset, E::kSize)) {
    for (unsigned lane = 0; lane < wave.width; ++lane) E::store(data, lane, memory + address[lane]);
    return;
  }
  each_active_lane(wave, [&](unsigned lane) {
    std::uint8_t* const to = shared_memory(wave, U64{address[lane]} + offset, E::kSize);
    if (to != nullptr) E::store(data, lane, to);
  });
}

// Two elements at two offsets, counted in elements (or in 64 of them).
template <class E, unsigned kStep>
void read_two(Wave& wave, const Instruction& instruction) {
  static constexpr std::uint8_t kZeros[16] = {};
  const Operand& source = instruction.operand[1];
  alignas(64) std::array<U32, kLanes> address;
  std::copy_n(wave.row(source.reg), kLanes, address.begin());
  U32* const to = wave.row(instruction.operand[0].reg);
  const U64 offsets[] = {U64(instruction.offset) * kStep, U64(instruction.offset1) * kStep};
  each_active_lane(wave, [&](unsigned lane) {
    for (unsigned at = 0; at < 2; ++at) {
      const std::uint8_t* const from = shared_memory(wave, address[lane] + offsets[at], E::kSize);
      E::load(to + at * E::kRegisters * kLanes, lane, from == nullptr ? kZeros : from);
    }
  });
}

template <class E, unsigned kStep>
void write_two(Wave& wave, const Instruction& instruction) {
  const U32* const address = wave.row(instruction.operand[0].reg);
  const U64 offsets[] = {U64(instruction.offset) * kStep, U64(instruction.offset1) * kStep};
  each_active_lane(wave, [&](unsigned lane) {
    for (unsigned at = 0; at < 2; ++at) {
      std::uint8_t* const to = shared_memory(wave, address[lane] + offsets[at], E::kSize);
      if (to != nullptr) E::store(wave.row(instruction.operand[1 + at].reg), lane, to);
    }
  });
}

// Whether memory must hold the first or the second datum for the other one to be written: up to
// gfx10 the first, from gfx11 on the second, as in global memory.
enum class Swap { kAlways, kIfFirst, kIfSecond };

// [dst,] address, data[, data]. A workgroup runs on one thread, so nothing here needs to be atomic.
template <auto F, class T, bool kReturns, Swap kSwap>
void modify(Wave& wave, const Instruction& instruction) {
  constexpr unsigned kFirst = kReturns ? 1 : 0;
  constexpr unsigned kWords = sizeof(T) / 4;
  const auto offset = static_cast<U32>(instruction.offset);
  alignas(64) U32 words[2][kLanes] = {};
  const auto element = [&](unsigned operand, unsigned lane) {
    T value = 0;
    for (unsigned at = 0; at < kWords; ++at)
      value |= static_cast<T>(wave.row(instruction.operand[operand].reg + at)[lane])
               << (32 * (at % 2));
    return value;
  };
  each_active_lane(wave, [&](unsigned lane) {
    const U64 address = wave.row(instruction.operand[kFirst].reg)[lane];
    std::uint8_t* const at = shared_memory(wave, address + offset, sizeof(T));
    if (at == nullptr) return;
    T old;
    std::memcpy(&old, at, sizeof old);
    const T first = element(kFirst + 1, lane);
    T next;
    if constexpr (kSwap == Swap::kIfFirst)
      next = old == first ? element(kFirst + 2, lane) : old;
    else if constexpr (kSwap == Swap::kIfSecond)
      next = old == element(kFirst + 2, lane) ? first : old;
    else
      next = F(old, first);
    std::memcpy(at, &next, sizeof next);
    words[0][lane] = static_cast<U32>(old);
    if (kWords == 2) words[1][lane] = static_cast<U32>(static_cast<U64>(old) >> 32);
  });
  if (!kReturns) return;
  for (unsigned at = 0; at < kWords; ++at)
    write_row(wave, instruction.operand[0].reg + at, words[at]);
}

template <auto F, class T, Swap kSwap = Swap::kAlways>
void add_modify(InstructionSet& set, const std::string& operation, const std::string& type) {
  set.add("ds_" + operation + "_" + type,
          {.execute = modify<F, T, false, kSwap>, .first_source = 0});
  set.add("ds_" + operation + "_rtn_" + type, {.execute = modify<F, T, true, kSwap>});
}

// Each lane takes the word of the lane that its address names (bpermute), or gives its own to that
// lane (permute); addresses count bytes.
void backward_permute(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 words[kLanes] = {};
  const U32* const address = wave.row(instruction.operand[1].reg);
  const U32* const data = wave.row(instruction.operand[2].reg);
  const U64 exec = wave.exec();
  for (unsigned lane = 0; lane < wave.width; ++lane) {
    const unsigned from =
        (address[lane] + static_cast<U32>(instruction.offset)) / 4 & (wave.width - 1);
    words[lane] = (exec >> from & 1) != 0 ? data[from] : 0;
  }
  write_row(wave, instruction.operand[0].reg, words);
}

void forward_permute(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 words[kLanes] = {};
  const U32* const address = wave.row(instruction.operand[1].reg);
  const U32* const data = wave.row(instruction.operand[2].reg);
  each_active_lane(wave, [&](unsigned lane) {
    const unsigned to =
        (address[lane] + static_cast<U32>(instruction.offset)) / 4 & (wave.width - 1);
    words[to] = data[lane];
  });
  write_row(wave, instruction.operand[0].reg, words);
}

// A fixed exchange inside groups of four or of 32 lanes, from the 16 offset bits of the encoding.
void swizzle(Wave& wave, const Instruction& instruction) {
  alignas(64) U32 words[kLanes] = {};
  const U32* const data = wave.row(instruction.operand[1].reg);
  const U32 pattern = instruction.immediate16();
  const U64 exec = wave.exec();
  for (unsigned lane = 0; lane < wave.width; ++lane) {
    unsigned from = 0;
    if ((pattern & 0x8000) != 0)
      from = (lane & ~3u) | (pattern >> (2 * (lane & 3)) & 3);
    else
      from = (lane & 32) |
             ((((lane & 31) & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31));
    words[lane] = (exec >> from & 1) != 0 ? data[from] : 0;
  }
  write_row(wave, instruction.operand[0].reg, words);
}

U32 first_active_word(Wave& wave, const Operand& operand) {
  const U64 exec = wave.exec();
  return lane_word(wave, operand, exec == 0 ? 0 : static_cast<unsigned>(std::countr_zero(exec)));
}

// The operand is one less than the number of waves that meet.
void init_grid_barrier(Wave& wave, const Instruction& instruction) {
  GridBarrier& barrier = *wave.group->dispatch.barrier;
  barrier.expected = first_active_word(wave, instruction.operand[0]) + 1;
  barrier.arrived = 0;
}

void wait_at_grid_barrier(Wave& wave, const Instruction&) {
  GridBarrier& barrier = *wave.group->dispatch.barrier;
  if (++barrier.arrived >= barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  wave.barrier_generation = barrier.generation;
  wave.state = Wave::State::kAtGridBarrier;
}

void add_reads_and_writes(InstructionSet& set) {
  const auto both = [&](const std::string& read_name, const std::string& write_name, auto element) {
    using E = decltype(element);
    set.add("ds_read_" + read_name, {.execute = read<E>});
    set.add("ds_write_" + write_name, {.execute = write<E>, .first_source = 0});
  };
  both("u8", "b8", Plain<1>{});
  both("u16", "b16", Plain<2>{});
  both("b32", "b32", Plain<4>{});
  both("b64", "b64", Plain<8>{});
  both("b96", "b96", Plain<12>{});
  both("b128", "b128", Plain<16>{});
  const auto signed_read = [&](const char* name, auto element) {
    set.add(name, {.execute = read<decltype(element)>});
  };
  signed_read("ds_read_i8", Element<1, true, false, false>{});
  signed_read("ds_read_i16", Element<2, true, false, false>{});
  signed_read("ds_read_u8_d16", Element<1, false, false, true>{});
  signed_read("ds_read_u8_d16_hi", Element<1, false, true, true>{});
  signed_read("ds_read_i8_d16", Element<1, true, false, true>{});
  signed_read("ds_read_i8_d16_hi", Element<1, true, true, true>{});
  signed_read("ds_read_u16_d16", Element<2, false, false, true>{});
  signed_read("ds_read_u16_d16_hi", Element<2, false, true, true>{});
  const auto high_write = [&](const char* name, auto element) {
    set.add(name, {.execute = write<decltype(element)>, .first_source = 0});
  };
  high_write("ds_write_b8_d16_hi", Element<1, false, true, false>{});
  high_write("ds_write_b16_d16_hi", Element<2, false, true, false>{});
  set.add("ds_read2_b32", {.execute = read_two<Plain<4>, 4>});
  set.add("ds_read2_b64", {.execute = read_two<Plain<8>, 8>});
  set.add("ds_read2st64_b32", {.execute = read_two<Plain<4>, 256>});
  set.add("ds_read2st64_b64", {.execute = read_two<Plain<8>, 512>});
  set.add("ds_write2_b32", {.execute = write_two<Plain<4>, 4>, .first_source = 0});
  set.add("ds_write2_b64", {.execute = write_two<Plain<8>, 8>, .first_source = 0});
  set.add("ds_write2st64_b32", {.execute = write_two<Plain<4>, 256>, .first_source = 0});
  set.add("ds_write2st64_b64", {.execute = write_two<Plain<8>, 512>, .first_source = 0});
}

template <class T>
void add_modifications(InstructionSet& set, const std::string& bits) {
  add_modify<kAdd<T>, T>(set, "add", "u" + bits);
  add_modify<kSubtract<T>, T>(set, "sub", "u" + bits);
  add_modify<kReverseSubtract<T>, T>(set, "rsub", "u" + bits);
  add_modify<kIncrement<T>, T>(set, "inc", "u" + bits);
  add_modify<kDecrement<T>, T>(set, "dec", "u" + bits);
  add_modify<kSignedMin<T>, T>(set, "min", "i" + bits);
  add_modify<kSignedMax<T>, T>(set, "max", "i" + bits);
  add_modify<kUnsignedMin<T>, T>(set, "min", "u" + bits);
  add_modify<kUnsignedMax<T>, T>(set, "max", "u" + bits);
  add_modify<kAnd<T>, T>(set, "and", "b" + bits);
  add_modify<kOr<T>, T>(set, "or", "b" + bits);
  add_modify<kXor<T>, T>(set, "xor", "b" + bits);
  add_modify<kExchange<T>, T, Swap::kIfFirst>(set, "cmpst", "b" + bits);
  add_modify<kExchange<T>, T, Swap::kIfSecond>(set, "cmpstore", "b" + bits);
  set.add("ds_wrxchg_rtn_b" + bits, {.execute = modify<kExchange<T>, T, true, Swap::kAlways>});
}

}  // namespace

void add_shared_memory(InstructionSet& set) {
  add_reads_and_writes(set);
  add_modifications<U32>(set, "32");
  add_modifications<U64>(set, "64");
  add_modify<kRealAdd<U32, float>, U32>(set, "add", "f32");
  add_modify<kRealAdd<U64, double>, U64>(set, "add", "f64");
  add_modify<kRealMin<U32, float>, U32>(set, "min", "f32");
  add_modify<kRealMax<U32, float>, U32>(set, "max", "f32");
  set.add("ds_bpermute_b32", {.execute = backward_permute});
  set.add("ds_permute_b32", {.execute = forward_permute});
  set.add("ds_swizzle_b32", {.execute = swizzle});
  set.add("ds_gws_init", {.execute = init_grid_barrier, .first_source = 0});
  set.add("ds_gws_barrier", {.execute = wait_at_grid_barrier, .first_source = 0});
  set.add("ds_nop", {.execute = [](Wave&, const Instruction&) {}});
}

}  // namespace vitamin::soft::amdgpu::isa
