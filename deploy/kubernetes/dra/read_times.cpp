// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/read_times.h"

#include <algorithm>

namespace vitamin::kubernetes {

bool ReadTimes::has_changed(const PodSigns& now_seen) const {
  return now_seen.named != seen_.named ||
         !std::includes(seen_.others.begin(), seen_.others.end(), now_seen.others.begin(),
                        now_seen.others.end());
}

bool ReadTimes::is_due(const PodSigns& now_seen, Clock::time_point now) const {
  return now >= next_ || has_changed(now_seen);
}

void ReadTimes::was_read(const PodSigns& seen, Clock::time_point now, Clock::duration wait) {
  if (now >= next_) seen_.others.clear();
  seen_.others.insert(seen.others.begin(), seen.others.end());
  seen_.named = seen.named;
  refused_for_ = {};
  next_ = now + wait;
}

void ReadTimes::was_refused(const PodSigns& seen, Clock::time_point now, Clock::duration shortest,
                            Clock::duration longest) {
  const Clock::duration wait =
      std::min(has_changed(seen) ? shortest : std::max(2 * refused_for_, shortest), longest);
  was_read(seen, now, wait);
  refused_for_ = wait;
}

}  // namespace vitamin::kubernetes
