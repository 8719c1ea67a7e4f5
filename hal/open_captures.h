// SPDX-License-Identifier: Apache-2.0
//
// Counts the application's open captures, so that calls of the runtime do not break them.
//
// While a capture in global mode is open, calls like cuEventQuery are refused on every thread and
// break the capture (CUDA Driver API, cuThreadExchangeStreamCaptureMode; HIP alike), unless the
// thread exchanged its capture mode for the relaxed one. Calls of the runtime must never do that to
// a capture, and to exchange the mode around each of them costs two driver calls. So a scope of
// runtime calls exchanges the mode only if a capture is open, and a capture does not begin before
// every scope that found none open has ended.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace vitamin::hal {

// One for a process. Any thread.
class OpenCaptures {
 public:
  bool any() const noexcept { return open_.load(std::memory_order_relaxed) > 0; }

  // Called before the call that begins a capture, which may fail. Waits until scopes that found no
  // capture have ended (mostly single driver calls), at most kLongest: a call in such a scope may
  // wait for what the caller does next. The caller must be in no scope.
  static constexpr std::chrono::seconds kLongest{2};
  void begins() noexcept {
    open_.fetch_add(1, std::memory_order_seq_cst);
    const auto until = std::chrono::steady_clock::now() + kLongest;
    for (unsigned round = 0; unaware_.load(std::memory_order_seq_cst) > 0; ++round) {
      if (round < 100)
        std::this_thread::yield();
      else if (std::chrono::steady_clock::now() >= until)
        return;
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void ended(int captures = 1) noexcept { open_.fetch_sub(captures, std::memory_order_relaxed); }

  // True: no capture is open, and none begins before leave_unaware().
  bool enter_unaware() noexcept {
    unaware_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst) == 0) return true;
    leave_unaware();
    return false;
  }
  void leave_unaware() noexcept { unaware_.fetch_sub(1, std::memory_order_release); }

 private:
  std::atomic<int> open_{0};
  // On a line of its own: written around calls of every thread.
  alignas(64) std::atomic<int> unaware_{0};
};

// The capture mode of one thread around calls of the runtime (hal::Device::enter_internal). Mode:
// the vendor's type. `exchange`, bool(Mode*): the vendor's call for it. A thread_local of the
// backend, aligned to eight bytes: mold 1.10 misplaces smaller ones.
template <class Mode>
class alignas(8) ThreadCaptureMode {
 public:
  // For a thread that makes calls of the runtime only: its mode stays relaxed.
  template <class Exchange>
  void relax_for_good(Mode relaxed, Exchange exchange) noexcept {
    relaxed_ = exchange(&relaxed);
  }

  template <class Exchange>
  void enter(OpenCaptures* captures, Mode relaxed, Exchange exchange) noexcept {
    if (depth_++ > 0 || captures == nullptr || relaxed_) return;
    if (captures->enter_unaware()) {
      unaware_of_ = captures;
      return;
    }
    before_ = relaxed;
    exchanged_ = exchange(&before_);
  }

  template <class Exchange>
  void leave(Exchange exchange) noexcept {
    if (--depth_ > 0) return;
    if (unaware_of_ != nullptr) unaware_of_->leave_unaware();
    unaware_of_ = nullptr;
    if (exchanged_) exchange(&before_);
    exchanged_ = false;
  }

 private:
  OpenCaptures* unaware_of_ = nullptr;
  int depth_ = 0;
  bool relaxed_ = false, exchanged_ = false;
  Mode before_{};
};

}  // namespace vitamin::hal
