// SPDX-License-Identifier: Apache-2.0
//
// Branches, barriers, the end of a wave, hardware registers, and what does nothing in this model.
#include <ctime>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;

void nothing(Wave&, const Instruction&) {}

void fence(Wave&, const Instruction&) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// A kernel executes s_sleep while it waits for another wave, so the others get a turn.
void sleep(Wave& wave, const Instruction&) { wave.yielded = true; }

void end_program(Wave& wave, const Instruction&) { wave.state = Wave::State::kDone; }

void barrier(Wave& wave, const Instruction&) { wave.state = Wave::State::kAtBarrier; }

[[noreturn]] void trap(Wave&, const Instruction&) {
  throw Fault("the kernel executed s_trap: an assertion or __builtin_trap() of the program");
}

void jump_by_immediate(Wave& wave, const Instruction& instruction) {
  wave.pc +=
      static_cast<U64>(std::int64_t{static_cast<std::int16_t>(instruction.immediate16())} * 4);
}

template <auto kTaken>
void branch(Wave& wave, const Instruction& instruction) {
  if (kTaken(wave)) jump_by_immediate(wave, instruction);
}

template <auto kTaken>
void add_branch(InstructionSet& set, const char* name) {
  set.add(name, {.execute = branch<kTaken>});
}

U64 target(const Wave& wave, const Operand& operand) { return wave.pair(operand.reg); }

void get_pc(Wave& wave, const Instruction& instruction) {
  wave.set_pair(instruction.operand[0].reg, wave.pc);
}

void set_pc(Wave& wave, const Instruction& instruction) {
  wave.pc = target(wave, instruction.operand[0]);
}

void swap_pc(Wave& wave, const Instruction& instruction) {
  const U64 next = target(wave, instruction.operand[1]);
  wave.set_pair(instruction.operand[0].reg, wave.pc);
  wave.pc = next;
}

void call(Wave& wave, const Instruction& instruction) {
  wave.set_pair(instruction.operand[0].reg, wave.pc);
  jump_by_immediate(wave, instruction);
}

U64 nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<U64>(now.tv_sec) * 1'000'000'000 + static_cast<U64>(now.tv_nsec);
}

void read_cycles(Wave& wave, const Instruction& instruction) {
  wave.set_pair(instruction.operand[0].reg, nanoseconds());
}

void read_realtime(Wave& wave, const Instruction& instruction) {
  wave.set_pair(instruction.operand[0].reg, nanoseconds() / (1000 / kRealtimeMhz));
}

// gfx11. The encoding holds which message is sent; the answer to this one is the time.
void ask_by_message(Wave& wave, const Instruction& instruction) {
  constexpr U32 kGetRealtime = 131;
  const U32 message = instruction.immediate16() & 0xff;
  if (message != kGetRealtime)
    throw Fault("the software GPU does not know the message " + std::to_string(message));
  read_realtime(wave, instruction);
}

enum HardwareRegister : unsigned {
  kHwId = 4,  // gfx9
  kShaderMemoryBases = 15,
  kXccId = 20,  // gfx942; of gfx10 and gfx11 it is another one
  kHwId1 = 23,  // gfx10, gfx11
  kShaderCycles = 29,
};

U32 hardware_register(const Wave& wave, unsigned id) {
  const Dispatch& dispatch = wave.group->dispatch;
  switch (id) {
    case kHwId:
      return wave.hardware_id;
    case kHwId1:
      return wave.hardware_id1;
    case kXccId:
      if (dispatch.xcc_ids) return wave.xcc_id;
      break;
    case kShaderMemoryBases:
      return dispatch.private_aperture >> 16 | (dispatch.shared_aperture & 0xffff0000);
    case kShaderCycles:
      return static_cast<U32>(nanoseconds()) & 0xfffff;
    default:
      break;
  }
  throw Fault("the software GPU does not know the hardware register " + std::to_string(id));
}

// The encoding holds which register, the first bit and how many of them.
void get_register(Wave& wave, const Instruction& instruction) {
  const U32 code = instruction.immediate16();
  const U32 bits = (code >> 11 & 31) + 1;
  const U32 value = hardware_register(wave, code & 63) >> (code >> 6 & 31);
  wave.scalar[instruction.operand[0].reg] = bits == 32 ? value : value & ((1u << bits) - 1);
}

void add_branches(InstructionSet& set) {
  add_branch<[](const Wave&) { return true; }>(set, "s_branch");
  add_branch<[](const Wave& w) { return w.scalar[kScc] == 0; }>(set, "s_cbranch_scc0");
  add_branch<[](const Wave& w) { return w.scalar[kScc] != 0; }>(set, "s_cbranch_scc1");
  add_branch<[](const Wave& w) { return w.mask64(kVcc) == 0; }>(set, "s_cbranch_vccz");
  add_branch<[](const Wave& w) { return w.mask64(kVcc) != 0; }>(set, "s_cbranch_vccnz");
  add_branch<[](const Wave& w) { return w.exec() == 0; }>(set, "s_cbranch_execz");
  add_branch<[](const Wave& w) { return w.exec() != 0; }>(set, "s_cbranch_execnz");
  set.add("s_getpc_b64", {.execute = get_pc});
  set.add("s_setpc_b64", {.execute = set_pc, .first_source = 0});
  set.add("s_swappc_b64", {.execute = swap_pc});
  set.add("s_call_b64", {.execute = call});
}

}  // namespace

void add_control(InstructionSet& set) {
  add_branches(set);
  set.add("s_endpgm", {.execute = end_program});
  set.add("s_barrier", {.execute = barrier});
  set.add("s_sleep", {.execute = sleep});
  set.add("s_trap", {.execute = trap});
  set.add("s_getreg_b32", {.execute = get_register});
  set.add("s_memtime", {.execute = read_cycles});
  set.add("s_memrealtime", {.execute = read_realtime});
  set.add("s_sendmsg_rtn_b64", {.execute = ask_by_message});
  for (const char* name : {"s_nop",
                           "s_waitcnt",
                           "s_waitcnt_vscnt",
                           "s_waitcnt_vmcnt",
                           "s_waitcnt_lgkmcnt",
                           "s_waitcnt_expcnt",
                           "s_waitcnt_depctr",
                           "s_sendmsg",
                           "s_setprio",
                           "s_clause",
                           "s_inst_prefetch",
                           "s_code_end",
                           "s_ttracedata",
                           "s_ttracedata_imm",
                           "s_setreg_b32",
                           "s_setreg_imm32_b32",
                           "s_round_mode",
                           "s_denorm_mode",
                           "s_icache_inv",
                           "s_dcache_inv",
                           "s_dcache_wb",
                           "s_dcache_inv_vol",
                           "s_dcache_wb_vol",
                           "s_version",
                           "s_sethalt"})
    set.add(name, {.execute = nothing});
  for (const char* name : {"buffer_wbl2", "buffer_inv", "buffer_invl2", "buffer_wbinvl1",
                           "buffer_wbinvl1_vol", "buffer_gl0_inv", "buffer_gl1_inv", "s_gl1_inv"})
    set.add(name, {.execute = fence});
}

}  // namespace vitamin::soft::amdgpu::isa
