// SPDX-License-Identifier: Apache-2.0
//
// The two threads of the pipeline: the mover submits deferred work, watches and reads times, the
// worker does what is slow (pipeline.h).
#include <chrono>
#include <utility>

#include "runtime/submission/pipeline.h"

namespace vitamin::runtime {
namespace {

// Of the watchdog, and of the profiler.
constexpr std::chrono::milliseconds kBetweenLooks{100};
// A process that is killed has lost so much of what it learnt.
constexpr std::chrono::seconds kBetweenKeeps{5};
// Reports are at most this late: short beside a step of an engine, which takes 5 ms and more.
constexpr std::chrono::milliseconds kBetweenReports{1};
// How soon a change of our share of the device's queues is noticed.
constexpr std::chrono::milliseconds kShareEvery{500};
// A handler of another library may wait for what our threads have to do.
constexpr std::chrono::seconds kLongestFork{1};

}  // namespace

constinit std::atomic<int> Pipeline::forking{0};

void Pipeline::stop() {
  {
    const Lock lock(core_.mutex);
    core_.stopping = true;
  }
  core_.wake.notify_all();
  core_.work.notify_all();
  if (mover_.joinable()) mover_.join();
  if (worker_.joinable()) worker_.join();
  finish_timing();
  core_.arbiter->on_change(nullptr);
}

void Pipeline::serve_arbiter() {
  if (!core_.arbiter->wants_service()) return;
  // What drains is returned only when it was seen to have ended.
  if (core_.arbiter->draining()) {
    completion_.look_at_parts();
    completion_.look_at_whole();
  }
  core_.arbiter->service();
  completion_.report_if(core_.arbiter->reports());
}

void Pipeline::run_mover() {
  hal::LockRule::moves_deferred_work();
  core_.device.attach_thread();
  Lock lock(core_.mutex);
  --busy_;
  Backoff backoff;
  auto next_look = std::chrono::steady_clock::now(), next_keep = next_look + kBetweenKeeps;
  auto next_report = next_look;
  const auto looks = [&] { return watchdog_.watches() || core_.profiler.awaits(); };
  const auto moves = [&] { return !deferred_.streams().empty() || core_.arbiter->wants_service(); };
  while (!core_.stopping) {
    if (forking > 0) rest_while_forking(lock);
    const auto now = std::chrono::steady_clock::now();
    if (looks() && now >= next_look) {
      watchdog_.check();
      core_.profiler.collect();
      next_look = now + kBetweenLooks;
    }
    if (completion_.reports_due() && now >= next_report) {
      completion_.report();
      next_report = now + kBetweenReports;
    }
    if (now >= next_keep) {
      keep_due_ = true;
      core_.work.notify_one();
      next_keep = now + kBetweenKeeps;
    }
    if (moves()) {
      if (pump()) {
        backoff.reset();
      } else {
        const bool urgent = core_.arbiter->draining();
        lock.unlock();
        backoff.pause(urgent);
        lock.lock();
      }
      continue;
    }
    backoff.reset();
    if (completion_.reports_due()) {
      core_.wake.wait_until(lock, next_report);
    } else if (looks()) {
      core_.wake.wait_for(lock, kBetweenLooks);
    } else if (unkept()) {
      core_.wake.wait_until(lock, next_keep);
    } else {
      // Checked in the wait: a wake-up may be spurious, or for what was served already.
      core_.wake.wait(
          lock, [&] { return core_.stopping || moves() || completion_.reports_due() || looks(); });
    }
  }
}

void Pipeline::run_worker() {
  core_.device.attach_thread();
  Lock lock(core_.mutex);
  --busy_;
  auto next_share = std::chrono::steady_clock::now() + kShareEvery;
  while (!core_.stopping) {
    if (forking > 0) rest_while_forking(lock);
    ++busy_;
    const bool slots = core_.pool.slots();
    if (slots && std::chrono::steady_clock::now() >= next_share) {
      queues_.keep_to_share(lock);
      next_share = std::chrono::steady_clock::now() + kShareEvery;
    }
    if (queues_.awaited()) queues_.grow(lock);
    if (graphs_.awaited()) graphs_.make_wanted(lock);
    if (std::exchange(keep_due_, false)) {
      lock.unlock();
      finish_timing();
      lock.lock();
    }
    // Without a time limit where nothing changes by itself: a thread that wakes takes the lock, and
    // a launch that holds the lock meanwhile has to wake it again, by a system call.
    const auto rung = [&] { return core_.stopping || work_awaited(); };
    --busy_;
    if (slots)
      core_.work.wait_until(lock, next_share, rung);
    else
      core_.work.wait(lock, rung);
  }
}

// Wants the lock, and drops it meanwhile.
void Pipeline::rest_while_forking(Lock& lock) {
  const auto end = std::chrono::steady_clock::now() + kLongestFork;
  while (forking > 0 && !core_.stopping && std::chrono::steady_clock::now() < end) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock.lock();
  }
}

void Pipeline::await_rest() {
  const auto end = std::chrono::steady_clock::now() + kLongestFork;
  Lock lock(core_.mutex);  // the mover calls the vendor under it
  while (busy_ > 0 && std::chrono::steady_clock::now() < end) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
  }
}

void Pipeline::finish_timing() {
  Profile learnt;
  {
    const Lock lock(core_.mutex);
    core_.profiler.collect();
    if (!unkept()) return;
    kept_version_ = core_.profiler.learnt().version();
    learnt = core_.profiler.learnt();
  }
  core_.options.keep_profile(learnt);
}

}  // namespace vitamin::runtime
