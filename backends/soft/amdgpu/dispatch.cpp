// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/dispatch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <utility>

#include "backends/soft/amdgpu/machine.h"
#include "backends/soft/hash.h"

namespace vitamin::soft::amdgpu {
namespace {

constexpr std::uint32_t kQuantum = 20'000;  // instructions of a wave before the next one has a turn
constexpr std::uint32_t kWavesPerSimd = 8;
constexpr std::uint32_t kLdsBytesPerCu = 64 * 1024;

unsigned long long wide(std::uint64_t value) { return value; }

isa::Dispatch describe(Machine& machine, const amd_queue_t& shared,
                       const hsa_kernel_dispatch_packet_t& packet, isa::GridBarrier& barrier) {
  isa::Dispatch dispatch;
  dispatch.descriptor = packet.kernel_object;
  dispatch.packet = reinterpret_cast<std::uint64_t>(&packet);
  dispatch.queue = reinterpret_cast<std::uint64_t>(&shared);
  dispatch.kernarg = reinterpret_cast<std::uint64_t>(packet.kernarg_address);
  dispatch.grid = {packet.grid_size_x, packet.grid_size_y, packet.grid_size_z};
  dispatch.block = {packet.workgroup_size_x, packet.workgroup_size_y, packet.workgroup_size_z};
  for (unsigned axis = 0; axis < 3; ++axis) {
    dispatch.grid[axis] = std::max(dispatch.grid[axis], 1u);
    dispatch.block[axis] = std::max(dispatch.block[axis], 1u);
    dispatch.groups[axis] = (dispatch.grid[axis] + dispatch.block[axis] - 1) / dispatch.block[axis];
  }
  dispatch.lds_bytes = packet.group_segment_size;
  dispatch.private_bytes = packet.private_segment_size;
  dispatch.shared_aperture = shared.group_segment_aperture_base_hi;
  dispatch.private_aperture = shared.private_segment_aperture_base_hi;
  dispatch.packed_ids = machine.part.packed_ids;
  dispatch.wave32_part = machine.part.wave_width == 32;
  dispatch.architected_scratch = machine.part.architected_scratch;
  dispatch.xcc_ids = machine.part.xccs > 1;
  dispatch.code = &machine.code;
  dispatch.barrier = &barrier;
  return dispatch;
}

// What the launch is, without where it runs: addresses, signals and fences are left out, so that
// one launch has one hash in every run of the program, on every queue.
std::uint64_t packet_hash(const isa::Dispatch& dispatch, const hsa_kernel_dispatch_packet_t& packet,
                          const KernelInfo& kernel) {
  std::uint64_t hash = hash_bytes(kernel.name.data(), kernel.name.size());
  hash = hash_bytes(reinterpret_cast<const void*>(dispatch.descriptor), 64, hash);
  for (unsigned axis = 0; axis < 3; ++axis)
    hash = combine(combine(hash, dispatch.grid[axis]), dispatch.block[axis]);
  hash = combine(hash, packet.setup);
  return combine(combine(hash, dispatch.lds_bytes), dispatch.private_bytes);
}

// Explicit arguments, byte for byte, except addresses: an aligned word inside an argument that
// points into memory the device knows becomes a mark. Padding and the runtime's own arguments are
// left out.
std::uint64_t kernarg_hash(const Machine& machine, const isa::Dispatch& dispatch,
                           const KernelInfo& kernel) {
  constexpr std::uint64_t kAddressMark = 0x61646472;
  std::uint64_t hash = 0;
  for (const KernelArgument& argument : kernel.arguments) {
    if (argument.hidden) continue;
    hash = combine(hash, argument.offset);
    const auto* const bytes =
        reinterpret_cast<const std::uint8_t*>(dispatch.kernarg) + argument.offset;
    std::uint32_t at = 0;
    for (; at + 8 <= argument.bytes && argument.offset % 8 == 0; at += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at, sizeof word);
      const bool address = word != 0 && (argument.pointer || machine.memory.find(word));
      hash = combine(hash, address ? kAddressMark : word);
    }
    hash = hash_bytes(bytes + at, argument.bytes - at, hash);
  }
  return hash;
}

// A workgroup slot of a CU.
struct Slot {
  static constexpr std::uint64_t kNone = ~0ull;

  unsigned cu = 0;              // bit of the mask
  std::uint64_t first = kNone;  // the workgroup that starts at the next turn
  std::unique_ptr<isa::Workgroup> group;
};

// Slots are dealt over the CUs in mask order, one to each CU before the second to any.
std::vector<Slot> make_slots(const Machine& machine, const isa::Dispatch& dispatch,
                             const std::vector<unsigned>& cus, std::uint64_t groups) {
  const std::uint64_t items =
      std::uint64_t{dispatch.block[0]} * dispatch.block[1] * dispatch.block[2];
  const std::uint64_t waves =
      std::max<std::uint64_t>((items + machine.part.wave_width - 1) / machine.part.wave_width, 1);
  std::uint64_t each =
      std::max<std::uint64_t>(machine.part.simds_per_cu() * kWavesPerSimd / waves, 1);
  if (dispatch.lds_bytes != 0)
    each = std::min<std::uint64_t>(each, std::max(kLdsBytesPerCu / dispatch.lds_bytes, 1u));
  std::vector<Slot> slots;
  for (std::uint64_t round = 0; round < each; ++round)
    for (const unsigned cu : cus)
      if (slots.size() < groups) slots.emplace_back().cu = cu;
  return slots;
}

// The order in which resident workgroups have their turns is a function of the CUs: what depends on
// the order of workgroups comes out differently on another mask, as it does on hardware.
std::vector<std::size_t> turn_order(const std::vector<Slot>& slots,
                                    const std::vector<unsigned>& cus) {
  std::uint64_t seed = 0;
  for (const unsigned cu : cus) seed = combine(seed, cu);
  std::vector<std::size_t> order(slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Random random(seed);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

std::vector<unsigned> held_cus(const std::vector<Slot>& slots) {
  std::vector<unsigned> cus;
  for (const Slot& slot : slots) cus.push_back(slot.cu);
  std::sort(cus.begin(), cus.end());
  cus.erase(std::unique(cus.begin(), cus.end()), cus.end());
  return cus;
}

// Workgroups of one dispatch, started in their order and run in turns.
class Grid {
 public:
  Grid(const Machine& machine, Gpu& gpu, const isa::Dispatch& dispatch,
       const std::vector<unsigned>& cus)
      : machine_(machine),
        gpu_(gpu),
        dispatch_(dispatch),
        total_(std::uint64_t{dispatch.groups[0]} * dispatch.groups[1] * dispatch.groups[2]),
        slots_(make_slots(machine, dispatch, cus, total_)),
        order_(turn_order(slots_, cus)) {}

  // Its waves leave the CUs while the queue is not mapped to a hardware queue.
  DispatchOutcome run(Queue& queue) {
    const std::vector<unsigned> held = held_cus(slots_);
    gpu_.occupancy.enter(held);
    DispatchOutcome outcome = DispatchOutcome::kDone;
    try {
      while (finished_ < total_ && outcome == DispatchOutcome::kDone) {
        if (queue.stopped() || gpu_.lost)
          outcome = DispatchOutcome::kHung;
        else
          take_turns();
        if (!queue.turn_is_over()) continue;
        gpu_.occupancy.leave(held);
        queue.end_turn();
        gpu_.occupancy.enter(held);
      }
    } catch (...) {
      gpu_.occupancy.leave(held);
      throw;
    }
    gpu_.occupancy.leave(held);
    return outcome;
  }

  std::uint64_t executed() const { return executed_; }

 private:
  // One turn for every slot. Where every wave sleeps, something else has to happen first, as a host
  // that writes what they wait for, and the CPU is left to it.
  void take_turns() {
    bool moved = false, awake = false;
    // Workgroups start in the grid's order, whatever the order of turns, because kernels count on
    // earlier ones being resident or finished.
    for (Slot& slot : slots_)
      if (slot.group == nullptr && next_ < total_) slot.first = next_++;
    for (const std::size_t at : order_) {
      Slot& slot = slots_[at];
      if (slot.group == nullptr && !start(slot)) continue;
      using Progress = isa::Workgroup::Progress;
      const Progress progress = slot.group->run(kQuantum);
      moved |= progress != Progress::kAtGridBarrier;
      awake |= progress == Progress::kRunning || progress == Progress::kDone;
      if (progress != Progress::kDone) continue;
      executed_ += slot.group->executed();
      slot.group.reset();
      ++finished_;
    }
    if (!moved)
      throw isa::Fault("every workgroup waits at a grid barrier that more waves must reach");
    if (awake)
      asleep_.reset();
    else
      asleep_.wait();
  }

  // Workgroups are made when their first turn comes, so that the ones that finish in one turn share
  // the memory of one.
  bool start(Slot& slot) {
    if (slot.first == Slot::kNone) return false;
    const std::uint64_t index = std::exchange(slot.first, Slot::kNone);
    const std::array<std::uint32_t, 3> id = {
        static_cast<std::uint32_t>(index % dispatch_.groups[0]),
        static_cast<std::uint32_t>(index / dispatch_.groups[0] % dispatch_.groups[1]),
        static_cast<std::uint32_t>(index / dispatch_.groups[0] / dispatch_.groups[1])};
    slot.group = std::make_unique<isa::Workgroup>(dispatch_, id, machine_.cus[slot.cu]);
    return true;
  }

  const Machine& machine_;
  Gpu& gpu_;
  const isa::Dispatch& dispatch_;
  std::uint64_t total_, next_ = 0, finished_ = 0, executed_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::size_t> order_;
  Backoff asleep_;
};

// Of the calling thread: what a dispatch cost on a machine that others use.
std::uint64_t cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

void hold(std::uint64_t start, std::uint64_t microseconds, Queue& queue) {
  while (!queue.stopped() && now_ns() - start < microseconds * 1000) {
    ::usleep(20);
    if (queue.turn_is_over()) queue.end_turn();
  }
}

}  // namespace

DispatchOutcome run_dispatch(Machine& machine, Queue& queue, const amd_queue_t& shared,
                             const hsa_kernel_dispatch_packet_t& packet) {
  if (machine.fails(FaultPoint::kDeviceLost)) {
    machine.lose(queue.gpu(), "as VITAMIN_SOFT_AMDGPU_FAULTS says");
    return DispatchOutcome::kHung;
  }
  Gpu& gpu = queue.gpu();
  const isa::Dispatch dispatch = describe(machine, shared, packet, gpu.barrier);
  const std::vector<unsigned> cus = queue.allowed_cus(machine);
  if (machine.trace.on() || machine.settings.verbose || cus.empty()) {
    const KernelInfo kernel = machine.kernels.read(machine.memory, dispatch.descriptor);
    machine.trace.line(
        "dispatch gpu=%u queue=%u kernel=%s grid=%u,%u,%u block=%u,%u,%u lds=%u private=%u "
        "packet=%016llx kernarg=%016llx cus=%zu",
        gpu.number, queue.id(), kernel.name.c_str(), dispatch.grid[0], dispatch.grid[1],
        dispatch.grid[2], dispatch.block[0], dispatch.block[1], dispatch.block[2],
        dispatch.lds_bytes, dispatch.private_bytes, wide(packet_hash(dispatch, packet, kernel)),
        wide(kernarg_hash(machine, dispatch, kernel)), cus.size());
    if (machine.settings.verbose || cus.empty())
      std::fprintf(stderr, "software AMD GPU: queue %u runs %s on %zu CUs%s\n", queue.id(),
                   kernel.name.c_str(), cus.size(),
                   cus.empty() ? "; a queue with an empty CU mask hangs" : "");
  }
  if (cus.empty()) {
    Backoff backoff;
    while (!queue.stopped()) {
      backoff.wait();
      if (queue.turn_is_over()) queue.end_turn();
    }
    return DispatchOutcome::kHung;
  }
  const std::uint64_t start = now_ns(), cpu_start = cpu_ns();
  ++gpu.dispatches;
  Grid grid(machine, gpu, dispatch, cus);
  DispatchOutcome outcome = DispatchOutcome::kFaulted;
  try {
    outcome = grid.run(queue);
    hold(start, machine.settings.hold_us, queue);
  } catch (const isa::Fault& fault) {
    const KernelInfo kernel = machine.kernels.read(machine.memory, dispatch.descriptor);
    std::fprintf(stderr, "software AMD GPU: kernel %s failed: %s\n", kernel.name.c_str(),
                 fault.what());
    machine.trace.line("fault queue=%u kernel=%s", queue.id(), kernel.name.c_str());
  }
  gpu.instructions += grid.executed();
  machine.trace.line("done queue=%u instructions=%llu ns=%llu cpu_ns=%llu", queue.id(),
                     wide(grid.executed()), wide(now_ns() - start), wide(cpu_ns() - cpu_start));
  return outcome;
}

}  // namespace vitamin::soft::amdgpu
