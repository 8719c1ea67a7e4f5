// SPDX-License-Identifier: Apache-2.0
//
// How a workgroup comes to life from a kernel descriptor, and the interpreter's loop.
#include <algorithm>
#include <cstring>

#include "backends/soft/amdgpu/isa/code.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

// The kernel descriptor of the HSA ABI, version 3 to 5: what the packet's kernel object points to.
struct KernelDescriptor {
  std::uint32_t group_bytes, private_bytes, kernarg_bytes, reserved0;
  std::int64_t entry_offset;
  std::uint8_t reserved1[20];
  std::uint32_t rsrc3, rsrc1, rsrc2;
  std::uint16_t properties, reserved2;
  std::uint8_t reserved3[4];
};
static_assert(sizeof(KernelDescriptor) == 64);

enum Property : unsigned {
  kPrivateBuffer = 1 << 0,
  kDispatchPointer = 1 << 1,
  kQueuePointer = 1 << 2,
  kKernargPointer = 1 << 3,
  kDispatchId = 1 << 4,
  kFlatScratchInit = 1 << 5,
  kPrivateSize = 1 << 6,
  kWave32 = 1 << 10,
};

constexpr std::uint32_t kPrivateResourceFlags = 1u << 23;  // see private_memory.cpp

// Waves are large and short-lived. Each queue's thread keeps those it used.
std::vector<std::unique_ptr<Wave>>& spare_waves() {
  thread_local std::vector<std::unique_ptr<Wave>> spare;
  return spare;
}

std::unique_ptr<Wave> make_wave() {
  auto& spare = spare_waves();
  if (spare.empty()) return std::make_unique<Wave>();
  auto wave = std::move(spare.back());
  spare.pop_back();
  wave->scalar.fill(0);
  wave->state = Wave::State::kRunning;
  wave->yielded = false;
  wave->code = nullptr;
  wave->executed = 0;
  return wave;
}

// User registers in the order of the ABI, then the workgroup's.
void init_scalars(Wave& wave, const KernelDescriptor& kernel, const Dispatch& dispatch,
                  const std::array<std::uint32_t, 3>& id) {
  unsigned next = 0;
  const auto pair = [&](std::uint64_t value) {
    wave.set_pair(next, value);
    next += 2;
  };
  if ((kernel.properties & kPrivateBuffer) != 0) {
    wave.scalar[3] = kPrivateResourceFlags;
    next = 4;
  }
  if ((kernel.properties & kDispatchPointer) != 0) pair(dispatch.packet);
  if ((kernel.properties & kQueuePointer) != 0) pair(dispatch.queue);
  if ((kernel.properties & kKernargPointer) != 0) pair(dispatch.kernarg);
  if ((kernel.properties & kDispatchId) != 0) pair(0);
  if ((kernel.properties & kFlatScratchInit) != 0) pair(0);
  if ((kernel.properties & kPrivateSize) != 0) wave.scalar[next] = dispatch.private_bytes;
  next = kernel.rsrc2 >> 1 & 0x1f;
  for (unsigned axis = 0; axis < 3; ++axis)
    if ((kernel.rsrc2 >> (7 + axis) & 1) != 0) wave.scalar[next++] = id[axis];
  wave.scalar[kSharedBase + 1] = wave.scalar[kSharedLimit + 1] = dispatch.shared_aperture;
  wave.scalar[kPrivateBase + 1] = wave.scalar[kPrivateLimit + 1] = dispatch.private_aperture;
  wave.scalar[kSharedLimit] = wave.scalar[kPrivateLimit] = ~0u;
}

// Work-item ids: packed into v0, or one register an axis on gfx1030.
void init_vectors(Wave& wave, const KernelDescriptor& kernel, const Dispatch& dispatch,
                  const std::array<std::uint32_t, 3>& shape, std::uint32_t first) {
  const unsigned granule = wave.width == 32 || dispatch.packed_ids ? 8 : 4;
  const unsigned rows = std::min(((kernel.rsrc1 & 0x3f) + 1) * granule, 512u);
  std::memset(wave.row(0), 0, rows * kLanes * sizeof(std::uint32_t));
  const std::uint32_t items = shape[0] * shape[1] * shape[2];
  std::uint64_t exec = 0;
  for (unsigned lane = 0; lane < wave.width && first + lane < items; ++lane) {
    const std::uint32_t item = first + lane;
    const std::uint32_t x = item % shape[0], y = item / shape[0] % shape[1],
                        z = item / (shape[0] * shape[1]);
    exec |= 1ull << lane;
    if (dispatch.packed_ids) {
      wave.row(0)[lane] = x | y << 10 | z << 20;
    } else {
      wave.row(0)[lane] = x;
      wave.row(1)[lane] = y;
      wave.row(2)[lane] = z;
    }
  }
  wave.set_exec(exec);
}

// Fields of HW_ID (gfx9) and HW_ID1 (gfx10, gfx11), and XCC_ID (gfx942).
void init_hardware_id(Wave& wave, const WorkgroupPlace& place, unsigned number) {
  const std::uint32_t simd = number & 3;
  wave.hardware_id =
      (number / 4 & 15) | simd << 4 | place.cu << 8 | place.array << 12 | place.engine << 13;
  wave.hardware_id1 = (number / 2 & 31) | ((place.cu & 1) << 1 | (number & 1)) << 8 |
                      (place.cu / 2) << 10 | place.array << 16 | place.engine << 18;
  wave.xcc_id = place.xcc;
}

// Runs one wave until it stops, sleeps or has had its share.
void run_wave(Wave& wave, std::uint32_t quantum) {
  CodeRegion* code = wave.code;
  std::uint32_t left = quantum;
  wave.yielded = false;
  do {
    if (code == nullptr || !code->contains(wave.pc)) [[unlikely]]
      code = wave.code = &wave.group->dispatch.code->region_of(wave.pc);
    const Instruction& instruction = code->at(wave.pc);
    wave.pc += instruction.size;
    instruction.execute(wave, instruction);
  } while (--left != 0 && wave.state == Wave::State::kRunning && !wave.yielded);
  wave.executed += quantum - left;
}

}  // namespace

Workgroup::Workgroup(const Dispatch& shared, std::array<std::uint32_t, 3> id,
                     const WorkgroupPlace& place)
    : dispatch(shared), lds(shared.lds_bytes) {
  const auto& kernel = *reinterpret_cast<const KernelDescriptor*>(shared.descriptor);
  if (shared.architected_scratch && (kernel.properties & (kPrivateBuffer | kFlatScratchInit)) != 0)
    throw Fault("the kernel asks where private memory is: its code is of another GPU");
  const unsigned width = shared.wave32_part && (kernel.properties & kWave32) != 0 ? 32 : 64;
  std::array<std::uint32_t, 3> shape{};  // the last workgroups of a grid may be partial
  for (unsigned axis = 0; axis < 3; ++axis)
    shape[axis] = std::min(shared.block[axis], shared.grid[axis] - id[axis] * shared.block[axis]);
  const std::uint32_t items = shape[0] * shape[1] * shape[2];
  for (std::uint32_t first = 0; first < items; first += width) {
    Wave& wave = *waves.emplace_back(make_wave());
    wave.width = width;
    wave.group = this;
    wave.pc = shared.descriptor + static_cast<std::uint64_t>(kernel.entry_offset);
    wave.scratch.assign(static_cast<std::size_t>(shared.private_bytes) * width, 0);
    init_scalars(wave, kernel, shared, id);
    init_vectors(wave, kernel, shared, shape, first);
    init_hardware_id(wave, place, first / width);
  }
}

Workgroup::~Workgroup() {
  constexpr std::size_t kKept = 64;
  auto& spare = spare_waves();
  for (auto& wave : waves)
    if (spare.size() < kKept) spare.push_back(std::move(wave));
}

Workgroup::Progress Workgroup::run(std::uint32_t quantum) {
  bool moved = false, awake = false, all_done = true;
  for (auto& wave : waves) {
    if (wave->state == Wave::State::kAtGridBarrier &&
        wave->barrier_generation != dispatch.barrier->generation)
      wave->state = Wave::State::kRunning;
    if (wave->state == Wave::State::kRunning) {
      moved = true;
      run_wave(*wave, quantum);
      awake |= !wave->yielded;
    }
  }
  unsigned waiting = 0, living = 0;
  for (auto& wave : waves) {
    living += wave->state != Wave::State::kDone ? 1 : 0;
    waiting += wave->state == Wave::State::kAtBarrier ? 1 : 0;
  }
  all_done = living == 0;
  // A wave that has ended counts as arrived.
  if (waiting != 0 && waiting == living) {
    for (auto& wave : waves)
      if (wave->state == Wave::State::kAtBarrier) wave->state = Wave::State::kRunning;
    moved = awake = true;
  }
  if (all_done) return Progress::kDone;
  if (!moved) return Progress::kAtGridBarrier;
  return awake ? Progress::kRunning : Progress::kAsleep;
}

std::uint64_t Workgroup::executed() const {
  std::uint64_t sum = 0;
  for (const auto& wave : waves) sum += wave->executed;
  return sum;
}

}  // namespace vitamin::soft::amdgpu::isa
