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

// The longest wait of a caller, and the most that one wait counts (see SandboxLimits).
constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(10);

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
  using std::chrono::nanoseconds;
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stop || state.pending) return Outcome::kEnded;
  nanoseconds processor_left = limits.processor, clock_left = limits.clock;
  nanoseconds processor_before = state.processor_time();
  Clock::time_point before = Clock::now();
  state.call = std::move(call);
  state.pending = true;
  state.changed.notify_all();
  while (state.pending) {
    // By the clock, what is left of processor time cannot be used up any sooner.
    const nanoseconds slice = std::min({kSlice, processor_left, clock_left});
    state.changed.wait_until(lock, before + slice);
    if (!state.pending) break;
    const Clock::time_point now = Clock::now();
    const nanoseconds processor = state.processor_time();
    clock_left -= std::min(now - before, kSlice);
    processor_left -= std::min(processor - processor_before, kSlice);
    before = now;
    processor_before = processor;
    const bool used_up = processor_left <= nanoseconds(0);
    if (!used_up && clock_left > nanoseconds(0)) continue;
    state.stop = true;
    const sched_param lowest{};
    ::sched_setscheduler(state.thread, SCHED_IDLE, &lowest);
    return used_up ? Outcome::kProcessorTime : Outcome::kClock;
  }
  if (state.thrown) std::rethrow_exception(std::exchange(state.thrown, nullptr));
  return Outcome::kReturned;
}

}  // namespace vitamin::scheduler
