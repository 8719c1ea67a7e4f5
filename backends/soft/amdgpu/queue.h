// SPDX-License-Identifier: Apache-2.0
//
// Hardware queues: a thread each, which reads packets from a ring that the runtime writes.
#pragma once

#include <hsakmt.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace vitamin::soft::amdgpu {

struct Device;

// Polls politely: spins, then yields, then sleeps for longer and longer.
class Patience {
 public:
  void reset() { rounds_ = 0; }
  void wait();

 private:
  unsigned rounds_ = 0;
};

class Queue {
 public:
  enum class Kind : std::uint8_t { kCompute, kCopy };

  Queue(std::uint32_t id, Kind kind, void* ring, std::uint64_t bytes, HsaQueueResource& resource,
        std::uint64_t* doorbell);
  ~Queue();  // stops in the middle of whatever it does
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void start(Device& device);
  std::uint32_t id() const { return id_; }
  Kind kind() const { return kind_; }
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  void set_mask(std::vector<std::uint32_t> mask);
  // Indices of the CUs that the mask allows, in mask order.
  std::vector<unsigned> allowed_cus(const Device& device) const;

  // The packet processors, aql.cpp and sdma.cpp.
  void run_compute(Device& device);
  void run_copies(Device& device);

 private:
  bool run_packet(Device& device, std::uint8_t* packet);
  std::uint32_t run_copy_packet(Device& device, const std::uint32_t* packet);  // dwords
  void abandon(std::uint32_t error);  // tells the runtime that the queue is inactive

  std::uint32_t id_;
  Kind kind_;
  std::uint8_t* ring_;
  std::uint64_t bytes_;
  std::uint64_t* read_index_ = nullptr;
  std::uint64_t* write_index_ = nullptr;
  std::uint64_t* doorbell_ = nullptr;
  std::uint64_t own_indices_[2] = {};  // of a copy queue: the thunk provides them
  std::atomic<bool> stop_{false};
  bool inactive_ = false;
  mutable std::mutex mask_mutex_;
  bool masked_ = false;
  std::vector<std::uint32_t> mask_;
  std::thread thread_;
};

class Queues {
 public:
  Queues();
  HSAKMT_STATUS create(Device& device, HSA_QUEUE_TYPE type, void* ring, std::uint64_t bytes,
                       HsaQueueResource& resource);
  bool destroy(Device& device, std::uint64_t id);
  HSAKMT_STATUS set_mask(Device& device, std::uint64_t id, std::vector<std::uint32_t> mask);
  std::uint64_t created() const { return created_.load(); }
  std::uint64_t masks_set() const { return masks_set_.load(); }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<Queue>> queues_;
  std::uint32_t next_id_ = 1;
  std::uint64_t* doorbells_;
  std::atomic<std::uint64_t> created_{0}, masks_set_{0};
};

// Takes one from a signal, stamps it and wakes who sleeps on it. 0: no signal.
void complete_signal(Device& device, std::uint64_t signal, std::uint64_t start_ns);

}  // namespace vitamin::soft::amdgpu
