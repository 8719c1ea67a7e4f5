// SPDX-License-Identifier: Apache-2.0
//
// Hardware queues: a thread each, which reads packets from a ring that the runtime writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace vitamin::soft::amdgpu {

struct Gpu;
struct Machine;

// Between two polls of a queue or signal: yields the CPU, after 400 polls sleeps for 50 us, after
// 4,000 for 500 us. reset() when a poll found work.
class Backoff {
 public:
  void reset() { rounds_ = 0; }
  void wait();

 private:
  unsigned rounds_ = 0;
};

// The packets of a queue. An inactive queue runs none.
struct PacketRing {
  std::uint8_t* packets = nullptr;
  std::uint64_t bytes = 0;
  bool active = false;
};

// Where a queue's packets and indices lie. Doorbells are one for each queue of the GPU and process,
// by the queue's number.
struct QueueMemory {
  PacketRing ring;
  std::uint64_t* read_index = nullptr;  // null, as the next: the queue is never active
  std::uint64_t* write_index = nullptr;
  std::uint64_t* doorbells = nullptr;
  std::size_t doorbell_count = 0;
};

class Queue {
 public:
  enum class Kind : std::uint8_t { kCompute, kCopy };

  Queue(Gpu& gpu, std::uint32_t id, Kind kind, const QueueMemory& memory);
  ~Queue();  // stops its thread, also in the middle of a packet
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void start(Machine& machine);
  Gpu& gpu() const { return gpu_; }
  std::uint32_t id() const { return id_; }
  Kind kind() const { return kind_; }
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  void set_ring(const PacketRing& ring);
  void set_mask(std::vector<std::uint32_t> mask);
  // Indices of the CUs that the mask allows, in mask order.
  std::vector<unsigned> allowed_cus(const Machine& machine) const;

  // A compute queue is mapped to a hardware queue while it runs packets. False: it was stopped.
  bool map();
  void unmap();
  // At any point where a packet may be interrupted: whether the queue's turn is over, because
  // others wait for a hardware queue and it has had one for a quantum, or because it became
  // inactive.
  bool turn_is_over() const;
  // Gives the hardware queue back and waits for the next turn.
  void end_turn();

  // The packet processors, aql.cpp and sdma.cpp.
  void run_compute(Machine& machine);
  void run_copies(Machine& machine);

 private:
  bool run_packet(Machine& machine, std::uint8_t* packet);
  bool refuse_packet(const char* what, unsigned number);                         // false
  std::uint32_t run_copy_packet(Machine& machine, const std::uint32_t* packet);  // dwords
  void abandon(std::uint32_t error);  // runs no more packets and signals `error` to the runtime
  PacketRing ring() const;

  Gpu& gpu_;
  std::uint32_t id_;
  Kind kind_;
  std::uint64_t* read_index_ = nullptr;
  std::uint64_t* write_index_ = nullptr;
  std::uint64_t* doorbell_ = nullptr;
  std::atomic<bool> stop_{false}, active_{false};
  bool abandoned_ = false;
  bool mapped_ = false;
  std::uint64_t mapped_ns_ = 0;  // since when
  mutable std::mutex mutex_;     // of what callers may change
  PacketRing ring_;
  bool masked_ = false;
  std::vector<std::uint32_t> mask_;
  std::thread thread_;
};

enum class QueueStatus : std::uint8_t {
  kDone,
  kNoResources,  // there are no more doorbells, or a fault of the settings
  kNoQueue,      // there is no such queue
  kUnpaired,     // the mask has one CU of a workgroup processor without the other
  kLost,         // the GPU is lost, or a fault of the settings
};

class Queues {
 public:
  QueueStatus create(Machine& machine, Gpu& gpu, Queue::Kind kind, const QueueMemory& memory,
                     std::uint32_t& id, std::uint64_t& doorbell);
  bool destroy(Machine& machine, std::uint64_t id);
  QueueStatus set_mask(Machine& machine, std::uint64_t id, std::vector<std::uint32_t> mask);
  // False: no such queue.
  bool update(std::uint64_t id, const PacketRing& ring);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<Queue>> queues_;
  std::uint32_t next_id_ = 1;  // ids are reused only when all have been used
};

// Decrements a signal, writes its time stamps and wakes the threads that sleep on it. 0: no signal.
void complete_signal(Machine& machine, std::uint64_t signal, std::uint64_t start_ns);

}  // namespace vitamin::soft::amdgpu
