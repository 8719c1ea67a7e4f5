// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/read_times.h"

#include <algorithm>

namespace vitamin::kubernetes {

bool ReadTimes::is_due(const PodSigns& now_seen, Clock::time_point now) const {
  const bool is_known = std::includes(seen_.unknown.begin(), seen_.unknown.end(),
                                      now_seen.unknown.begin(), now_seen.unknown.end());
  return now >= next_ || now_seen.named != seen_.named || !is_known;
}

void ReadTimes::was_read(const PodSigns& seen, Clock::time_point now, Clock::duration wait) {
  if (now >= next_) seen_.unknown.clear();
  seen_.unknown.insert(seen.unknown.begin(), seen.unknown.end());
  seen_.named = seen.named;
  next_ = now + wait;
}

}  // namespace vitamin::kubernetes
