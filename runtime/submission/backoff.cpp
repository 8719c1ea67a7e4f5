// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/backoff.h"

#include <sys/prctl.h>

#include <chrono>
#include <thread>

#include "hal/processor.h"

namespace vitamin::runtime {

namespace {
// About 0.1 ms of spinning, then 10 ms of short sleeps, or 20 ms between urgent looks.
constexpr unsigned kSpins = 64, kShortSleeps = 400, kUrgentLooks = 2000;
constexpr std::chrono::microseconds kShortSleep{20}, kLongSleep{200}, kBetweenUrgentLooks{10};
}  // namespace

void Backoff::pause(bool urgent) {
  ++rounds_;
  if (rounds_ <= kSpins) {
    for (int i = 0; i < 32; ++i) hal::spin_pause();
    return;
  }
  if (urgent && rounds_ <= kSpins + kUrgentLooks) {
    const auto until = std::chrono::steady_clock::now() + kBetweenUrgentLooks;
    do std::this_thread::yield();
    while (std::chrono::steady_clock::now() < until);
    return;
  }
  // By default a timer is late by 50 us, so that the CPU wakes less often.
  if (slack_ns_ < 0) {
    slack_ns_ = ::prctl(PR_GET_TIMERSLACK);
    ::prctl(PR_SET_TIMERSLACK, 1000UL);
  }
  std::this_thread::sleep_for(rounds_ <= kSpins + kShortSleeps ? kShortSleep : kLongSleep);
}

Backoff::~Backoff() {
  if (slack_ns_ >= 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_));
}

}  // namespace vitamin::runtime
