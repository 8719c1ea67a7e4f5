// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitamin::runtime {

// Waiting of one thread for what it must look at itself. Spins first, since most waits end within
// microseconds, then sleeps: near 20 us until the wait has lasted for some 10 ms, which keeps a
// thread below a tenth of a core. A CPU that sleeps wakes late, by 50 to 100 us in a virtual
// machine; where another process waits for what this wait is for (`urgent`), it yields the CPU
// instead, for 20 ms.
class Backoff {
 public:
  Backoff() = default;
  ~Backoff();  // gives the thread back the slack that its timers had
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  void pause(bool urgent = false);
  void reset() { rounds_ = 0; }

 private:
  unsigned rounds_ = 0;
  int slack_ns_ = -1;  // what it was; -1: untouched
};

}  // namespace vitamin::runtime
