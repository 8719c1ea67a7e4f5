// SPDX-License-Identifier: Apache-2.0
//
// When a claim that pods may join is read from the API server again. The API server answers the
// drivers of all nodes, so a claim is read when this node shows a pod that may have joined it, and
// else seldom. No I/O. Threads: one at a time.
#pragma once

#include <chrono>
#include <set>
#include <string>

namespace vitamin::kubernetes {

// What the node shows of pods that may use a claim.
struct PodSigns {
  std::set<std::string> named;  // those that have the claim, by the kubelet, which says no UIDs
  // UIDs of pods that use a GPU here and are not known to have the claim. A pod that was made anew
  // under its name is one of them.
  std::set<std::string> others;
};

class ReadTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // At once when the kubelet names other pods than at the last read, or when there is another pod
  // than at the reads since the last one that was due by time; else by time.
  bool is_due(const PodSigns& now_seen, Clock::time_point now) const;

  // The claim was read; the next time is after `wait`.
  void was_read(const PodSigns& seen, Clock::time_point now, Clock::duration wait);

  // The API server answered that it cannot be read, or the claim makes no sense. The next time is
  // after `shortest`, and after twice as long each time that nothing else has changed; `longest` at
  // most.
  void was_refused(const PodSigns& seen, Clock::time_point now, Clock::duration shortest,
                   Clock::duration longest);

 private:
  bool has_changed(const PodSigns& now_seen) const;

  PodSigns seen_;
  Clock::duration refused_for_ = {};  // the last wait after a refusal; 0: it was read since
  Clock::time_point next_ = {};
};

}  // namespace vitamin::kubernetes
