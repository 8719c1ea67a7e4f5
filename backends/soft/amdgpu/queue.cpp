// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/queue.h"

#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu {
namespace {

std::string hex(const std::vector<std::uint32_t>& mask) {
  std::string text;
  for (auto word = mask.rbegin(); word != mask.rend(); ++word) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08x", *word);
    text += digits;
  }
  return text;
}

unsigned long long wide(std::uint64_t value) { return value; }

// Chosen for this model: the quantum of the firmware is not known.
constexpr std::uint64_t kQuantumNs = 1'000'000;

// Whether the mask has both CUs of each workgroup processor or neither, as Linux demands since GC
// 10.0.0 (kfd_process_queue_manager.c, pqm_update_mqd).
bool is_pairwise(const std::vector<std::uint32_t>& mask) {
  constexpr std::uint32_t kFirsts = 0x55555555;
  return std::all_of(mask.begin(), mask.end(),
                     [](std::uint32_t word) { return (word & kFirsts) == (word >> 1 & kFirsts); });
}

const char* caller() { return ::gettid() == ::getpid() ? "main" : "other"; }

}  // namespace

void Backoff::wait() {
  constexpr unsigned kYields = 400, kShortSleeps = 4000;
  ++rounds_;
  if (rounds_ < kYields)
    ::sched_yield();
  else
    ::usleep(rounds_ < kShortSleeps ? 50 : 500);
}

void complete_signal(Machine& machine, std::uint64_t handle, std::uint64_t start_ns) {
  if (handle == 0) return;
  auto* const signal = reinterpret_cast<amd_signal_t*>(handle);
  signal->start_ts = start_ns;
  signal->end_ts = now_ns();
  __atomic_fetch_sub(const_cast<std::int64_t*>(&signal->value), 1, __ATOMIC_ACQ_REL);
  if (signal->event_mailbox_ptr == 0) return;
  *reinterpret_cast<volatile std::uint64_t*>(signal->event_mailbox_ptr) = signal->event_id;
  machine.events.raise(signal->event_id);
}

Queue::Queue(Gpu& gpu, std::uint32_t id, Kind kind, const QueueMemory& memory)
    : gpu_(gpu),
      id_(id),
      kind_(kind),
      read_index_(memory.read_index),
      write_index_(memory.write_index),
      doorbell_(memory.doorbells + id) {
  set_ring(memory.ring);
}

Queue::~Queue() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Queue::start(Machine& machine) {
  thread_ = std::thread([this, &machine] {
    if (kind_ == Kind::kCompute)
      run_compute(machine);
    else
      run_copies(machine);
  });
}

void Queue::set_ring(const PacketRing& ring) {
  const std::lock_guard lock(mutex_);
  ring_ = ring;
  ring_.active = ring.active && read_index_ != nullptr && write_index_ != nullptr;
  active_ = ring_.active;
}

PacketRing Queue::ring() const {
  const std::lock_guard lock(mutex_);
  return ring_;
}

bool Queue::map() {
  mapped_ = mapped_ || gpu_.hardware_queues.map(stop_);
  mapped_ns_ = now_ns();
  return mapped_;
}

void Queue::unmap() {
  if (std::exchange(mapped_, false)) gpu_.hardware_queues.unmap();
}

bool Queue::turn_is_over() const {
  if (!active_) return true;
  return gpu_.hardware_queues.oversubscribed() && now_ns() - mapped_ns_ >= kQuantumNs;
}

void Queue::end_turn() {
  unmap();
  gpu_.turns.fetch_add(1);
  Backoff backoff;
  while (!active_ && !stopped() && !gpu_.lost) backoff.wait();
  map();
}

void Queue::set_mask(std::vector<std::uint32_t> mask) {
  const std::lock_guard lock(mutex_);
  masked_ = true;
  mask_ = std::move(mask);
}

std::vector<unsigned> Queue::allowed_cus(const Machine& machine) const {
  const std::lock_guard lock(mutex_);
  std::vector<unsigned> allowed;
  for (unsigned bit = 0; bit < machine.cus.size(); ++bit) {
    const bool named = bit / 32 < mask_.size() && (mask_[bit / 32] >> (bit % 32) & 1) != 0;
    if (!masked_ || named) allowed.push_back(bit);
  }
  return allowed;
}

// The runtime watches this signal of a compute queue; its value says what went wrong.
void Queue::abandon(std::uint32_t error) {
  abandoned_ = true;
  if (write_index_ == nullptr) return;
  auto* const shared = reinterpret_cast<amd_queue_t*>(
      reinterpret_cast<std::uint8_t*>(write_index_) - offsetof(amd_queue_t, write_dispatch_id));
  auto* const signal = reinterpret_cast<amd_signal_t*>(shared->queue_inactive_signal.handle);
  if (signal == nullptr) return;
  __atomic_store_n(const_cast<std::int64_t*>(&signal->value), std::int64_t{error},
                   __ATOMIC_RELEASE);
  if (signal->event_mailbox_ptr != 0) machine().events.raise(signal->event_id);
}

QueueStatus Queues::create(Machine& machine, Gpu& gpu, Queue::Kind kind, const QueueMemory& memory,
                           std::uint32_t& id, std::uint64_t& doorbell) {
  const bool compute = kind == Queue::Kind::kCompute;
  if (gpu.lost) return QueueStatus::kLost;
  if (compute && machine.fails(FaultPoint::kCreateQueue)) {
    machine.trace.line("refused call=create_queue");
    return QueueStatus::kNoResources;
  }
  const std::lock_guard lock(mutex_);
  id = 1;
  if (next_id_ < memory.doorbell_count)
    id = next_id_++;
  else
    while (queues_.contains(id)) ++id;
  if (id >= memory.doorbell_count) return QueueStatus::kNoResources;
  doorbell = id;
  memory.doorbells[id] = 0;
  auto queue = std::make_unique<Queue>(gpu, id, kind, memory);
  ++gpu.queues;
  machine.trace.line("create gpu=%u queue=%u kind=%s caller=%s preemptions=%llu", gpu.number, id,
                     compute ? "compute" : "copy", caller(), wide(gpu.count_preemption()));
  queue->start(machine);
  queues_.emplace(id, std::move(queue));
  return QueueStatus::kDone;
}

bool Queues::destroy(Machine& machine, std::uint64_t id) {
  std::unique_ptr<Queue> queue;
  {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(id);
    if (found == queues_.end()) return false;
    queue = std::move(found->second);
    queues_.erase(found);
  }
  machine.trace.line("destroy gpu=%u queue=%llu kind=%s caller=%s preemptions=%llu",
                     queue->gpu().number, wide(id),
                     queue->kind() == Queue::Kind::kCompute ? "compute" : "copy", caller(),
                     wide(queue->gpu().count_preemption()));
  return true;
}

bool Queues::update(std::uint64_t id, const PacketRing& ring) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(id);
  if (found == queues_.end()) return false;
  found->second->set_ring(ring);
  found->second->gpu().count_preemption();
  return true;
}

QueueStatus Queues::set_mask(Machine& machine, std::uint64_t id, std::vector<std::uint32_t> mask) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(id);
  if (found == queues_.end()) return QueueStatus::kNoQueue;
  Gpu& gpu = found->second->gpu();
  if (gpu.lost) return QueueStatus::kLost;
  if (machine.part.cu_pairs && !is_pairwise(mask)) return QueueStatus::kUnpaired;
  if (machine.fails(FaultPoint::kSetMask)) {
    machine.trace.line("refused call=set_mask queue=%llu", wide(id));
    return QueueStatus::kLost;
  }
  if (machine.fails(FaultPoint::kEmptyMask)) mask.assign(mask.size(), 0);
  ++gpu.masks;
  found->second->set_mask(mask);
  machine.trace.line("mask queue=%llu bits=%zu mask=%s cus=%zu caller=%s preemptions=%llu",
                     wide(id), mask.size() * 32, hex(mask).c_str(),
                     found->second->allowed_cus(machine).size(), caller(),
                     wide(gpu.count_preemption()));
  return QueueStatus::kDone;
}

}  // namespace vitamin::soft::amdgpu
