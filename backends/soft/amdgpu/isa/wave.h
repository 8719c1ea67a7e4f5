// SPDX-License-Identifier: Apache-2.0
//
// The state of one wave, and of the workgroup that it belongs to. One thread runs a workgroup.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace vitamin::soft::amdgpu::isa {

class CodeRegion;
class CodeCache;
struct Instruction;

constexpr unsigned kLanes = 64;
constexpr unsigned kRealtimeMhz = 100;  // the clock that s_memrealtime reads, as of the real parts

// Numbers of the scalar registers that have names. Constants of the hardware that a kernel can read
// as a register lie in the same file, at numbers of our own.
constexpr unsigned kFlatScratch = 102, kVcc = 106, kTrapTemporaries = 108, kM0 = 124, kExec = 126;
constexpr unsigned kSharedBase = 235, kSharedLimit = 237, kPrivateBase = 239, kPrivateLimit = 241;
constexpr unsigned kScc = 253, kSink = 254;

// Vector rows: v0…v255, a0…a255, and two for the permuted source of an instruction.
constexpr unsigned kAccumulators = 256, kPermutedRow = 512, kVectorRows = 514;

// The instruction stream did what the model cannot do: an unknown instruction, a trap, a wild jump.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Global wave synchronisation: a counter of the device that a cooperative grid meets at.
struct GridBarrier {
  std::uint32_t expected = 0;  // waves that must arrive, from ds_gws_init
  std::uint32_t arrived = 0;
  std::uint64_t generation = 0;
};

// Calls body(lane) for the lanes of a wave, 32 or 64, so that the compiler turns it into host
// vector instructions without a rest. Nothing may depend on the order.
template <class Body>
inline void each_lane(unsigned width, Body&& body) {
  for (std::ptrdiff_t half = 0; half < width; half += 32) {
#pragma GCC ivdep
    for (std::ptrdiff_t lane = half; lane < half + 32; ++lane) body(lane);
  }
}

// One word a lane, all ones where the lane's bit is set. Shifts of 32 bits, so that the compiler
// turns them into host vector instructions.
inline void expand_mask(std::uint64_t mask, std::uint32_t* words) {
  for (unsigned half = 0; half < 2; ++half) {
    const auto bits = static_cast<std::uint32_t>(mask >> 32 * half);
    for (unsigned lane = 0; lane < 32; ++lane) words[32 * half + lane] = 0u - (bits >> lane & 1);
  }
}

// What all workgroups of one dispatch share. Addresses are the packet's.
struct Dispatch {
  std::uint64_t descriptor = 0, packet = 0, queue = 0, kernarg = 0;
  std::array<std::uint32_t, 3> grid{}, block{}, groups{};
  std::uint32_t lds_bytes = 0, private_bytes = 0;
  std::uint32_t shared_aperture = 0, private_aperture = 0;  // upper halves of flat addresses
  bool packed_ids = false, wave32_part = false;
  // The hardware knows where private memory is (architected flat scratch), so no kernel asks for
  // it.
  bool architected_scratch = false;
  bool xcc_ids = false;  // waves can read the number of their XCC
  CodeCache* code = nullptr;
  GridBarrier* barrier = nullptr;
};

struct Workgroup;

constexpr std::size_t kRowAlignment = 64;
constexpr std::size_t kRegisterBytes = kVectorRows * kLanes * sizeof(std::uint32_t);
struct AlignedDelete {
  void operator()(void* memory) const {
    ::operator delete(memory, std::align_val_t{kRowAlignment});
  }
};

struct Wave {
  enum class State : std::uint8_t { kRunning, kAtBarrier, kAtGridBarrier, kDone };

  std::uint32_t* row(unsigned reg) { return vector.get() + static_cast<std::size_t>(reg) * kLanes; }
  std::uint64_t exec() const { return mask64(kExec); }
  void set_exec(std::uint64_t mask) { set_mask64(kExec, mask); }
  // A lane mask: one scalar register in wave32, two in wave64.
  std::uint64_t mask64(unsigned reg) const {
    const std::uint64_t low = scalar[reg];
    return width == 64 ? low | static_cast<std::uint64_t>(scalar[reg + 1]) << 32 : low;
  }
  void set_mask64(unsigned reg, std::uint64_t mask) {
    scalar[reg] = static_cast<std::uint32_t>(mask);
    if (width == 64) scalar[reg + 1] = static_cast<std::uint32_t>(mask >> 32);
  }
  std::uint64_t pair(unsigned reg) const {
    return scalar[reg] | static_cast<std::uint64_t>(scalar[reg + 1]) << 32;
  }
  void set_pair(unsigned reg, std::uint64_t value) {
    scalar[reg] = static_cast<std::uint32_t>(value);
    scalar[reg + 1] = static_cast<std::uint32_t>(value >> 32);
  }
  // One word a lane, all ones where the lane is active.
  const std::uint32_t* lane_words() {
    if (exec() != expanded_) [[unlikely]]
      expand_exec();
    return words_.data();
  }
  bool all_active() const { return exec() == (width == 64 ? ~0ull : 0xffffffffull); }

  std::uint64_t pc = 0;
  unsigned width = 64;
  State state = State::kRunning;
  bool yielded = false;  // it executed s_sleep: another wave should run
  std::uint64_t barrier_generation = 0;
  std::uint32_t hardware_id = 0, hardware_id1 = 0, xcc_id = 0;
  std::uint64_t executed = 0;
  Workgroup* group = nullptr;
  CodeRegion* code = nullptr;
  std::array<std::uint32_t, 256> scalar{};
  // Aligned: a host vector must not lie on two cache lines.
  std::unique_ptr<std::uint32_t[], AlignedDelete> vector{
      static_cast<std::uint32_t*>(::operator new(kRegisterBytes, std::align_val_t{kRowAlignment}))};
  std::vector<std::uint8_t> scratch;  // private memory, lane after lane

 private:
  void expand_exec();

  std::uint64_t expanded_ = 0;
  alignas(64) std::array<std::uint32_t, kLanes> words_{};
};

// Where a workgroup runs; visible to the kernel through its hardware id registers.
struct WorkgroupPlace {
  unsigned index = 0;  // bit of the CU mask
  unsigned xcc = 0, engine = 0, array = 0, cu = 0;
};

struct Workgroup {
  // kAsleep: every wave that ran executed s_sleep.
  enum class Progress : std::uint8_t { kRunning, kAsleep, kAtGridBarrier, kDone };

  Workgroup(const Dispatch& shared, std::array<std::uint32_t, 3> id, const WorkgroupPlace& place);
  ~Workgroup();
  Workgroup(const Workgroup&) = delete;
  Workgroup& operator=(const Workgroup&) = delete;

  // Runs every wave that can run for at most `quantum` instructions. Throws Fault.
  Progress run(std::uint32_t quantum);
  std::uint64_t executed() const;

  const Dispatch& dispatch;
  std::vector<std::uint8_t> lds;
  std::vector<std::unique_ptr<Wave>> waves;
};

}  // namespace vitamin::soft::amdgpu::isa
