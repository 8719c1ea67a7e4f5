// SPDX-License-Identifier: Apache-2.0
#include "policies/guarded.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "policies/builtin.h"

namespace vitamin::policies {

using runtime::Choice;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolView;
using runtime::ReadyOperation;

Guarded::Guarded(std::unique_ptr<runtime::Policy> policy, Sink sink)
    : policy_(std::move(policy)),
      sink_(std::move(sink)),
      name_(policy_->name()),
      terms_(policy_->terms()),
      lanes_share_(policy_->lanes_share()),
      wants_profile_(policy_->wants_profile()) {}

void Guarded::replace(std::string why) {
  why_ = "policy " + name_ + " " + std::move(why) + "; fifo decides from now on";
  Parameters none = Parameters::parse("");
  spent_ = std::move(policy_);
  policy_ = make_fifo(none, 0);
  replaced_.store(true, std::memory_order_relaxed);
  untold_ = why_;
  if (sink_) sink_(why_);
}

// `call` answers what it was told, and puts down what is wrong with that, if anything is.
template <class Answer, class Call>
Answer Guarded::guard(const char* callback, Answer otherwise, Call call) {
  std::string wrong, problem;
  try {
    Answer answer = call(*policy_, problem);
    if (problem.empty()) [[likely]]
      return answer;
    wrong = "answers nonsense in " + std::string(callback) + " (" + problem + ")";
  } catch (const std::exception& error) {
    wrong = "fails in " + std::string(callback) + " (" + error.what() + ")";
  } catch (...) {
    wrong = "throws in " + std::string(callback);
  }
  if (replaced()) return otherwise;  // fifo itself: out of memory, at worst
  replace(std::move(wrong));
  return guard(callback, std::move(otherwise), call);
}

std::optional<std::size_t> Guarded::pick(std::span<const ReadyOperation> ready,
                                         const PoolView& pool) {
  using Answer = std::optional<std::size_t>;
  auto asked = [&](runtime::Policy& policy, std::string& problem) {
    const Answer answer = policy.pick(ready, pool);
    if (answer && *answer >= ready.size())
      problem = "operation " + std::to_string(*answer) + " of " + std::to_string(ready.size());
    return answer;
  };
  return guard("Pick", Answer(), asked);
}

Choice Guarded::select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                       const PoolView& pool) {
  auto asked = [&](runtime::Policy& policy, std::string& problem) {
    const Choice answer = policy.select(operation, eligible, pool);
    if (answer.entry == kNoEntry) return answer;
    if (answer.entry != eligible.back() &&
        std::find(eligible.begin(), eligible.end(), answer.entry) == eligible.end())
      problem = "entry " + std::to_string(answer.entry) + ", which is not eligible";
    else if (answer.launches == 0)
      problem = "a grant for no launch";
    return answer;
  };
  return guard("Select", Choice{eligible.back(), 1}, asked);
}

runtime::Plan Guarded::prepare(const runtime::Hint& hint, const PoolView& pool) {
  auto asked = [&](runtime::Policy& policy, std::string& problem) {
    const runtime::Plan answer = policy.prepare(hint, pool);
    for (const EntryId entry : {answer.target, answer.standing})
      if (entry != kNoEntry && entry >= pool.entries.size())
        problem = "entry " + std::to_string(entry) + ", which is none";
    if (answer.standing == runtime::kWholeDevice)
      problem = "the whole device, which cannot be reserved";
    return answer;
  };
  return guard("Prepare", runtime::Plan{}, asked);
}

void Guarded::forget(runtime::ClientId client) {
  auto asked = [&](runtime::Policy& policy, std::string&) {
    policy.forget(client);
    return 0;
  };
  guard("forget", 0, asked);
}

std::string Guarded::take_message() {
  if (!untold_.empty()) return std::exchange(untold_, {});
  return guard("take_message", std::string(),
               [&](runtime::Policy& policy, std::string&) { return policy.take_message(); });
}

// --- TimedThread -----------------------------------------------------------------------------

struct TimedThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;
  std::exception_ptr thrown;
  bool pending = false;
  bool stop = false;
  pid_t thread = 0;
  std::optional<clockid_t> processor_time;  // of the thread, once it runs
  std::chrono::nanoseconds used() const {
    timespec time{};
    if (!processor_time || ::clock_gettime(*processor_time, &time) != 0) return {};
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
};

TimedThread::TimedThread() : state_(std::make_shared<State>()) {
  std::thread(serve, state_).detach();
}

TimedThread::~TimedThread() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void TimedThread::serve(std::shared_ptr<State> state) {
  std::unique_lock lock(state->mutex);
  state->thread = static_cast<pid_t>(::syscall(SYS_gettid));
  if (clockid_t clock = 0; ::pthread_getcpuclockid(::pthread_self(), &clock) == 0)
    state->processor_time = clock;
  while (true) {
    state->changed.wait(lock, [&] { return state->pending || state->stop; });
    if (state->stop) return;
    const std::function<void()> call = std::move(state->call);
    lock.unlock();
    std::exception_ptr thrown;
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    state->thrown = thrown;
    state->pending = false;
    state->changed.notify_all();
  }
}

TimedThread::Outcome TimedThread::run(std::function<void()> call, const Limits& limits) {
  using std::chrono::steady_clock;
  std::unique_lock lock(state_->mutex);
  if (state_->stop || state_->pending) return Outcome::kStopped;
  const steady_clock::time_point until = steady_clock::now() + limits.clock;
  const std::chrono::nanoseconds before = state_->used();
  std::chrono::nanoseconds left = limits.processor;
  state_->call = std::move(call);
  state_->thrown = nullptr;
  state_->pending = true;
  state_->changed.notify_all();
  // It cannot have used up its processor time sooner than after that time by the clock.
  while (!state_->changed.wait_until(lock, std::min(until, steady_clock::now() + left),
                                     [&] { return !state_->pending; })) {
    left = limits.processor - (state_->used() - before);
    const bool used_up = left <= std::chrono::nanoseconds(0);
    if (!used_up && steady_clock::now() < until) continue;
    state_->stop = true;
    sched_param lowest{};
    ::sched_setscheduler(state_->thread, SCHED_IDLE, &lowest);
    return used_up ? Outcome::kProcessorTime : Outcome::kClock;
  }
  if (state_->thrown) std::rethrow_exception(std::exchange(state_->thrown, nullptr));
  return Outcome::kReturned;
}

}  // namespace vitamin::policies
