// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/sandbox.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace vitamin::scheduler {

struct Sandbox::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;
  std::exception_ptr thrown;
  bool pending = false, stop = false;
  pid_t thread = 0;
  std::optional<clockid_t> processor_clock;  // of the thread, once it runs

  std::chrono::nanoseconds processor_time() const {
    timespec time{};
    if (!processor_clock || ::clock_gettime(*processor_clock, &time) != 0) return {};
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
};

Sandbox::Sandbox() : state_(std::make_shared<State>()) { std::thread(serve, state_).detach(); }

Sandbox::~Sandbox() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void Sandbox::serve(std::shared_ptr<State> state) {
  std::unique_lock lock(state->mutex);
  state->thread = static_cast<pid_t>(::syscall(SYS_gettid));
  if (clockid_t clock = 0; ::pthread_getcpuclockid(::pthread_self(), &clock) == 0)
    state->processor_clock = clock;
  while (true) {
    state->changed.wait(lock, [&] { return state->pending || state->stop; });
    if (state->stop) return;
    std::function<void()> call = std::exchange(state->call, nullptr);
    lock.unlock();
    std::exception_ptr thrown;
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
    call = nullptr;
    lock.lock();
    state->thrown = std::move(thrown);
    state->pending = false;
    state->changed.notify_all();
  }
}

Sandbox::Outcome Sandbox::run(std::function<void()> call, const SandboxLimits& limits) {
  using Clock = std::chrono::steady_clock;
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stop || state.pending) return Outcome::kEnded;
  const Clock::time_point deadline = Clock::now() + limits.clock;
  const std::chrono::nanoseconds used_before = state.processor_time();
  state.call = std::move(call);
  state.pending = true;
  state.changed.notify_all();
  std::chrono::nanoseconds left = limits.processor;
  while (state.pending) {
    // By the clock, `left` of processor time cannot be used up any sooner.
    state.changed.wait_until(lock, std::min(deadline, Clock::now() + left));
    if (!state.pending) break;
    left = limits.processor - (state.processor_time() - used_before);
    const bool used_up = left <= std::chrono::nanoseconds(0);
    if (!used_up && Clock::now() < deadline) continue;
    state.stop = true;
    const sched_param lowest{};
    ::sched_setscheduler(state.thread, SCHED_IDLE, &lowest);
    return used_up ? Outcome::kProcessorTime : Outcome::kClock;
  }
  if (state.thrown) std::rethrow_exception(std::exchange(state.thrown, nullptr));
  return Outcome::kReturned;
}

}  // namespace vitamin::scheduler
