// SPDX-License-Identifier: Apache-2.0
#include "hal/open_captures.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace vitamin::hal {
namespace {

enum class Mode { kGlobal, kRelaxed };

// The mode that the vendor knows of this thread, and how often it was exchanged.
thread_local Mode now = Mode::kGlobal;
thread_local int exchanges = 0;
bool exchange(Mode* mode) {
  std::swap(now, *mode);
  ++exchanges;
  return true;
}

TEST_CASE("without a capture no mode is exchanged") {
  OpenCaptures captures;
  ThreadCaptureMode<Mode> mode;
  exchanges = 0;
  mode.enter(&captures, Mode::kRelaxed, exchange);
  mode.enter(nullptr, Mode::kRelaxed, exchange);
  mode.leave(exchange);
  mode.leave(exchange);
  CHECK(exchanges == 0);
  captures.begins();  // no scope is left to wait for
  CHECK(captures.any());
}

TEST_CASE("beside a capture the outermost scope is relaxed and gives the mode back") {
  OpenCaptures captures;
  ThreadCaptureMode<Mode> mode;
  captures.begins();
  exchanges = 0;
  mode.enter(&captures, Mode::kRelaxed, exchange);
  CHECK(now == Mode::kRelaxed);
  mode.enter(&captures, Mode::kRelaxed, exchange);
  mode.leave(exchange);
  CHECK(now == Mode::kRelaxed);
  captures.ended();
  mode.leave(exchange);
  CHECK(now == Mode::kGlobal);
  CHECK(exchanges == 2);
}

TEST_CASE("a thread that is relaxed for good exchanges nothing and delays no capture") {
  OpenCaptures captures;
  std::thread([&] {
    ThreadCaptureMode<Mode> mode;
    mode.relax_for_good(Mode::kRelaxed, exchange);
    exchanges = 0;
    mode.enter(&captures, Mode::kRelaxed, exchange);
    captures.begins();
    mode.leave(exchange);
    CHECK(exchanges == 0);
    CHECK(now == Mode::kRelaxed);
  }).join();
}

TEST_CASE("a call that does not return delays a capture, and does not stop it") {
  OpenCaptures captures;
  REQUIRE(captures.enter_unaware());
  captures.begins();
  CHECK(captures.any());
  CHECK_FALSE(captures.enter_unaware());
  captures.leave_unaware();
}

TEST_CASE("no capture is open while a thread calls in its own mode") {
  OpenCaptures captures;
  std::atomic<bool> open{false}, stop{false};
  std::atomic<int> broken{0}, seen{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      ThreadCaptureMode<Mode> mode;
      while (!stop.load()) {
        mode.enter(&captures, Mode::kRelaxed, exchange);
        for (int call = 0; call < 10; ++call)
          if (open.load()) {
            seen.fetch_add(1);
            if (now == Mode::kGlobal) broken.fetch_add(1);
          }
        mode.leave(exchange);
      }
    });
  for (int round = 0; round < 500 || seen.load() == 0; ++round) {
    const auto start = std::chrono::steady_clock::now();
    captures.begins();
    // It waits no longer for a caller that gets no processor.
    const bool waited = std::chrono::steady_clock::now() - start < OpenCaptures::kLongest;
    open.store(waited);
    std::this_thread::yield();
    open.store(false);
    captures.ended();
  }
  stop.store(true);
  for (std::thread& caller : callers) caller.join();
  CHECK(broken.load() == 0);
}

}  // namespace
}  // namespace vitamin::hal
