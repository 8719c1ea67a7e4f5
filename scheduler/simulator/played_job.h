// SPDX-License-Identifier: Apache-2.0
//
// A recorded job in virtual time: what its host has asked for by when, and what may start.
//
// The host goes through the calls at its recorded pace, whatever the device does, and stops where
// it was recorded to wait, until what it waits for has ended. So a job that is bound by its host
// catches up where a neighbour has held it up, and one that is bound by the device does not.
// Kernels run one after the other, in the order of their calls; copies on other streams run beside
// them, each direction's behind one another, on a link that all jobs share.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "scheduler/simulator/job.h"

namespace vitamin::sim {

inline constexpr double kForever = std::numeric_limits<double>::infinity();  // a time

class PlayedJob {
 public:
  explicit PlayedJob(const RecordedJob& job);

  // The host goes on with this part once it has issued what came before, `at_ns` at the earliest.
  // `pace`: times what its host was recorded to need.
  void play(const RecordedJob::Part& part, double at_ns, double pace = 1);

  // The next kernel in order, not yet begun; null: the host has not got so far. When it may start:
  // never before anything that it waits for is known to end.
  const RecordedJob::Operation* next() const;
  double ready_ns() const;
  double issued_ns() const { return kernels_.front().at_ns; }  // when its host asked for it
  // It ends at `now_ns`. True: and with it its part, of which the host may yet wait for the end.
  bool ended(double now_ns);
  // When the host went on behind the wait for the part that ended last.
  double seen_ns() const { return seen_ns_; }

  // Starts the copies that may start by now; `link_free_ns`: when the link is next free.
  void copy(double now_ns, double* link_free_ns);
  double next_copy_ns() const;  // when there is one to start

  const RecordedJob& job() const { return job_; }
  // Kernels that have been asked for by then and have not ended, next() included.
  std::size_t asked(double by_ns) const;
  const RecordedJob::Operation& ahead(std::size_t i) const { return *kernels_[i].operation; }

 private:
  struct Issued {
    const RecordedJob::Operation* operation;
    std::uint64_t serial;
    std::uint64_t after;  // serial; kNothing
    double at_ns;
    bool last;  // kernel of its part
  };
  struct Playing {
    const RecordedJob::Part* part;
    double at_ns;
    double pace;
  };
  static constexpr std::uint64_t kNothing = ~0ULL;

  void run_host();
  double end_of(std::uint64_t serial) const;
  void set_end(std::uint64_t serial, double ns) { ends_[serial % ends_.size()] = ns; }
  double ready_ns(const Issued& issued) const;

  const RecordedJob& job_;
  std::deque<Playing> parts_;  // [0]: the host is in it
  std::size_t call_ = 0;       // of the host in it
  std::uint64_t first_ = 0;    // serial of its first operation
  double host_ns_ = 0;         // when the last call was made
  double seen_ns_ = 0;
  std::deque<Issued> kernels_, copies_;
  std::vector<double> stream_ns_;  // by stream of copies: when it is free
  std::vector<double> ends_;       // of the newest operations, by serial
};

// Nanoseconds of a part that is repeated alone on so many SMs, two at most under way.
double alone_ns(const RecordedJob& job, const RecordedJob::Part& part, std::uint32_t sms);

}  // namespace vitamin::sim
