// SPDX-License-Identifier: Apache-2.0
//
// buffer_ and scratch_: private memory, and buffers that a resource in scalar registers describes.
#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/isa/atomics.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

// The resource that a wave is born with for its private memory adds the thread's number to an
// address; no other resource of compiled code does.
constexpr U32 kAddThreadId = 1u << 23;

struct Buffer {
  bool is_private = false;
  U64 base = 0, bytes = 0, stride = 0;
  U32 scalar_offset = 0;

  Buffer(const Wave& wave, const Instruction& instruction) {
    const unsigned resource = instruction.operand[2].reg;
    is_private = (wave.scalar[resource + 3] & kAddThreadId) != 0;
    base = wave.pair(resource) & 0xffffffffffff;
    stride = wave.scalar[resource + 1] >> 16 & 0x3fff;
    bytes = wave.scalar[resource + 2];
    if (stride != 0) bytes *= stride;
    const Operand& offset = instruction.operand[3];
    scalar_offset = offset.kind == Operand::Kind::kScalar ? wave.scalar[offset.reg]
                                                          : static_cast<U32>(offset.bits);
  }
};

// Null: out of the buffer's range.
std::uint8_t* locate(Wave& wave, const Instruction& instruction, const Buffer& buffer,
                     unsigned lane, unsigned size) {
  const Operand& vector = instruction.operand[1];
  U64 index = 0, offset = static_cast<U32>(instruction.offset);
  if (instruction.per_lane_index) index = wave.row(vector.reg)[lane];
  if (instruction.per_lane_offset)
    offset += wave.row(vector.reg + (instruction.per_lane_index ? 1u : 0u))[lane];
  // The scalar offset counts bytes of the whole wave: a stack pointer moves by every lane's frame.
  if (buffer.is_private)
    return private_memory(wave, lane, offset + buffer.scalar_offset / wave.width, size);
  const U64 at = index * buffer.stride + offset;
  if (at + size > buffer.bytes) return nullptr;
  return global_memory(buffer.base + buffer.scalar_offset + at);
}

template <class E>
void buffer_load(Wave& wave, const Instruction& instruction) {
  static constexpr std::uint8_t kZeros[16] = {};
  const Buffer buffer(wave, instruction);
  U32* const to = wave.row(instruction.operand[0].reg);
  std::array<const std::uint8_t*, kLanes> from;
  each_active_lane(wave, [&](unsigned lane) {
    from[lane] = locate(wave, instruction, buffer, lane, E::kSize);
    if (from[lane] == nullptr) from[lane] = kZeros;
  });
  each_active_lane(wave, [&](unsigned lane) { E::load(to, lane, from[lane]); });
}

template <class E>
void buffer_store(Wave& wave, const Instruction& instruction) {
  const Buffer buffer(wave, instruction);
  const U32* const data = wave.row(instruction.operand[0].reg);
  each_active_lane(wave, [&](unsigned lane) {
    std::uint8_t* const to = locate(wave, instruction, buffer, lane, E::kSize);
    if (to != nullptr) E::store(data, lane, to);
  });
}

// data, which takes what was there, address, resource, offset. No compiled code has one for the
// private memory of a lane.
template <auto F, class T, bool kSwapsIf>
void buffer_atomic(Wave& wave, const Instruction& instruction) {
  const Buffer buffer(wave, instruction);
  const unsigned data = instruction.operand[0].reg;
  each_lane_atomically<F, T, kSwapsIf>(wave, instruction, data, data, [&](unsigned lane) {
    return locate(wave, instruction, buffer, lane, sizeof(T));
  });
}

// scratch_: a vector offset or "off", and a scalar offset or "off", in bytes of a lane.
std::uint8_t* scratch_at(Wave& wave, const Instruction& instruction, const Operand& vector,
                         const Operand& base, unsigned lane, unsigned size) {
  U32 offset = static_cast<U32>(instruction.offset);
  if (vector.kind == Operand::Kind::kVector) offset += wave.row(vector.reg)[lane];
  if (base.kind == Operand::Kind::kScalar) offset += wave.scalar[base.reg];
  return private_memory(wave, lane, offset, size);
}

template <class E>
void scratch_load(Wave& wave, const Instruction& instruction) {
  std::array<const std::uint8_t*, kLanes> from;
  each_active_lane(wave, [&](unsigned lane) {
    from[lane] = scratch_at(wave, instruction, instruction.operand[1], instruction.operand[2], lane,
                            E::kSize);
  });
  U32* const to = wave.row(instruction.operand[0].reg);
  each_active_lane(wave, [&](unsigned lane) { E::load(to, lane, from[lane]); });
}

template <class E>
void scratch_store(Wave& wave, const Instruction& instruction) {
  const U32* const data = wave.row(instruction.operand[1].reg);
  each_active_lane(wave, [&](unsigned lane) {
    E::store(data, lane,
             scratch_at(wave, instruction, instruction.operand[0], instruction.operand[2], lane,
                        E::kSize));
  });
}

}  // namespace

void add_private_memory(InstructionSet& set) {
  const std::array<OperandType, 4> words{OperandType::kB32, OperandType::kB32, OperandType::kB32,
                                         OperandType::kB32};
  each_load([&](const std::string& name, auto element) {
    using E = decltype(element);
    set.add("buffer_load_" + name, {.execute = buffer_load<E>, .sources = words});
    set.add("scratch_load_" + name, {.execute = scratch_load<E>, .sources = words});
  });
  each_store([&](const std::string& name, auto element) {
    using E = decltype(element);
    set.add("buffer_store_" + name,
            {.execute = buffer_store<E>, .first_source = 0, .sources = words});
    set.add("scratch_store_" + name,
            {.execute = scratch_store<E>, .first_source = 0, .sources = words});
  });
  each_atomic([&]<auto F, class T, bool kSwapsIf>(const std::string& name) {
    set.add("buffer_atomic_" + name,
            {.execute = buffer_atomic<F, T, kSwapsIf>, .first_source = 0, .sources = words});
  });
}

}  // namespace vitamin::soft::amdgpu::isa
