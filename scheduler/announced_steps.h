// SPDX-License-Identifier: Apache-2.0
//
// What a program says of the work of one stream (advice, interpose/advice/vitamin_advice.h), as
// messages to a Scheduler: one step of the stream at a time, and one more that is expected. The
// same for a process without a daemon (daemon/client/local_arbiter) and for vitamind
// (daemon/arbiter/device_arbiter).
//
// A step that is said of a launch lasts until the end of the iteration, until the stream is idle,
// until another step begins, or until a launch follows of which nothing is said. A step that was
// announced ahead of its launches ends likewise, but not by a launch of which nothing is said.
// Deadlines are moments: a launch with the kind and the deadline of the step that runs is part of
// it.
// Threads: as Scheduler.
#pragma once

#include <cstdint>

#include "runtime/demand.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {

struct Announcement {
  runtime::WorkKind kind = runtime::WorkKind::kUnknown;
  std::uint64_t ready_ns = 0;  // later than now: it is expected
  std::uint64_t due_ns = 0;    // 0: none
  std::uint64_t work_ns = 0;   // 0: not known
  std::uint32_t min_sms = 1;
  bool iteration_end = false;  // of a launch: the first one of another iteration
};

class AnnouncedSteps {
 public:
  // `ids` is the client's: the number of the last step that was announced, of any stream.
  // The next launch of the stream, and what is said of it.
  void launch(Scheduler& scheduler, ClientId client, StreamId stream, std::uint64_t& ids,
              const Announcement& said, std::uint64_t now_ns);
  // Ahead of launches.
  void announce(Scheduler& scheduler, ClientId client, StreamId stream, std::uint64_t& ids,
                const Announcement& said, std::uint64_t now_ns);
  // The expected step does not come.
  void cancel(Scheduler& scheduler, ClientId client, std::uint64_t now_ns);
  // The stream has nothing more to submit.
  void end(Scheduler& scheduler, ClientId client, std::uint64_t now_ns);

 private:
  void put(Scheduler& scheduler, ClientId client, StreamId stream, std::uint64_t& ids,
           const Announcement& said, StepKind kind, std::uint64_t now_ns);

  std::uint64_t begun_ = 0;     // 0: none
  std::uint64_t expected_ = 0;  // 0: none
  // Of the begun one.
  bool of_launch_ = false;  // it ends with the launches of which it is said
  StepKind kind_ = StepKind::kUnknown;
  std::uint64_t due_ns_ = 0;
};

}  // namespace vitamin::scheduler
