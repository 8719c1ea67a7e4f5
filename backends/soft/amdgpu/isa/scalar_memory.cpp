// SPDX-License-Identifier: Apache-2.0
//
// s_load: constants, kernel arguments, packets.
#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

// dst, base, offset (a register or a constant) and, in some encodings, both.
template <unsigned kWords>
void load(Wave& wave, const Instruction& instruction) {
  std::uint64_t address = wave.pair(instruction.operand[1].reg);
  const Operand& offset = instruction.operand[2];
  if (offset.kind == Operand::Kind::kScalar) address += wave.scalar[offset.reg];
  if (offset.kind == Operand::Kind::kConstant)
    address += static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(offset.bits)});
  address += static_cast<std::uint64_t>(std::int64_t{instruction.offset});
  std::memcpy(&wave.scalar[instruction.operand[0].reg], global_memory(address & ~3ull),
              kWords * sizeof(std::uint32_t));
}

// As load, through a buffer resource without a stride; outside its range zeros are read.
template <unsigned kWords>
void buffer_load(Wave& wave, const Instruction& instruction) {
  const unsigned resource = instruction.operand[1].reg;
  const std::uint64_t base = wave.pair(resource) & 0xffffffffffff;
  const std::uint64_t bytes = wave.scalar[resource + 2];
  const Operand& operand = instruction.operand[2];
  std::uint64_t offset =
      operand.kind == Operand::Kind::kScalar ? wave.scalar[operand.reg] : operand.bits & 0xffffffff;
  offset = (offset + static_cast<std::uint32_t>(instruction.offset)) & ~3ull;
  for (unsigned at = 0; at < kWords; ++at, offset += 4) {
    std::uint32_t& to = wave.scalar[instruction.operand[0].reg + at];
    if (offset + 4 <= bytes)
      std::memcpy(&to, global_memory(base + offset), 4);
    else
      to = 0;
  }
}

template <unsigned kWords>
void add_loads(InstructionSet& set, const std::string& suffix) {
  set.add("s_load_dword" + suffix,
          {.execute = load<kWords>, .sources = {OperandType::kB64, OperandType::kB32}});
  set.add("s_buffer_load_dword" + suffix,
          {.execute = buffer_load<kWords>, .sources = {OperandType::kB64, OperandType::kB32}});
}

}  // namespace

void add_scalar_memory(InstructionSet& set) {
  add_loads<1>(set, "");
  add_loads<2>(set, "x2");
  add_loads<4>(set, "x4");
  add_loads<8>(set, "x8");
  add_loads<16>(set, "x16");
}

}  // namespace vitamin::soft::amdgpu::isa
