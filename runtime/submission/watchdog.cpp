// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/watchdog.h"

#include <algorithm>

namespace vitamin::runtime {

void Watchdog::watch(Kernel& kernel, std::uint32_t sms, std::uint64_t predicted_ns,
                     MarkerRef marker, std::shared_ptr<Graph> graph) {
  if (!marker) return;
  if (watched_.empty()) core_.wake.notify_one();  // the mover sleeps while nothing is watched
  KernelRef held(graph == nullptr ? &kernel : nullptr);
  watched_.push_back({&kernel, sms, predicted_ns, std::move(marker),
                      std::chrono::steady_clock::now(), false, std::move(graph), std::move(held)});
}

void Watchdog::check() {
  const auto now = std::chrono::steady_clock::now();
  // In submission order: only the oldest that has not ended can be said to run; the others of its
  // stream may wait behind it. Its clock starts when the one ahead of it ended.
  bool anything_ended = false;
  for (Watched& watched : watched_) {
    if (!core_.markers.fired(watched.marker)) continue;
    watched.kernel->proven_sms = std::min(watched.kernel->proven_sms, watched.sms);
    anything_ended = true;
  }
  std::erase_if(watched_, [](const Watched& w) { return w.marker->fired; });
  if (watched_.empty()) return;
  Watched& oldest = watched_.front();
  if (anything_ended) oldest.since = now;
  const auto limit = std::max<std::chrono::nanoseconds>(
      core_.options.hang_after, std::chrono::nanoseconds(20 * oldest.predicted_ns));
  // Resident: another launch of it was named after this one was submitted.
  if (oldest.named || oldest.kernel->resident || now - oldest.since < limit) return;
  oldest.named = true;
  core_.kernels.remember_resident(*oldest.kernel);
  if (core_.options.on_hang != nullptr)
    core_.options.on_hang(oldest.kernel->name.c_str(), oldest.sms,
                          std::chrono::duration<double>(now - oldest.since).count());
}

}  // namespace vitamin::runtime
