// SPDX-License-Identifier: Apache-2.0
//
// The stepper: takes the next thing that can happen and lets it happen.
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "backends/soft/engine_state.h"

namespace vitamin::soft {

// ------------------------------------------------------------------------------------ who may step

AdvanceResult Engine::Impl::advance_one(Lock& lock) {
  if (stepping) {
    ++steppers_waiting;
    stepper_left.wait(lock, [this] { return !stepping; });
    --steppers_waiting;
    return AdvanceResult::kMoved;  // by the other thread
  }
  stepping = true;
  const Step result = step(lock);
  stepping = false;
  if (steppers_waiting != 0) stepper_left.notify_all();
  switch (result) {
    case Step::kIdle:
      return AdvanceResult::kIdle;
    case Step::kBlocked:
      return AdvanceResult::kBlocked;
    default:
      return AdvanceResult::kMoved;
  }
}

void Engine::Impl::device_thread() {
  // The default slack of 50 us would be longer than most kernels.
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  Lock lock(mutex);
  while (!stop) {
    stepping = true;
    const Step result = step(lock);
    stepping = false;
    if (result == Step::kMoved || stop) continue;
    std::optional<Nanoseconds> wake = next_due();
    if (has_pollable()) wake = wake ? std::min(*wake, poll_at) : poll_at;
    device_sleeps = true;
    if (wake)
      device_changed.wait_until(lock, epoch + std::chrono::nanoseconds(*wake));
    else
      device_changed.wait(lock);
    device_sleeps = false;
  }
}

void Engine::Impl::host_thread() {
  Lock lock(mutex);
  for (;;) {
    host_changed.wait(lock, [this] { return stop || !host_calls.empty(); });
    if (stop) return;
    run_host_call(lock, 0);
  }
}

// ------------------------------------------------------------------------------------ what is next

std::optional<Nanoseconds> Engine::Impl::next_due() const {
  std::optional<Nanoseconds> due;
  if (!timed.empty()) due = timed.front().at;
  if (!arrivals.empty()) due = due ? std::min(*due, arrivals.front().at) : arrivals.front().at;
  return due;
}

bool Engine::Impl::has_pollable() const {
  // With a ledger, another process may make room for a kernel of ours at any time.
  return !polled.empty() || !spinning.empty() ||
         (!dispatching.empty() && residency.ledger() != nullptr);
}

Engine::Impl::Step Engine::Impl::step(Lock& lock) {
  if (const Status status = std::exchange(lost, kOk); status != kOk && fault == kOk) {
    fault = status;
    abort_everything();
    return Step::kMoved;
  }
  const std::size_t host_choices = real ? 0 : host_calls.size();
  if (const std::size_t choices = ready.size() + host_choices; choices != 0) {
    const std::size_t choice = random.below(choices);
    if (choice >= ready.size()) {
      run_host_call(lock, choice - ready.size());
      return Step::kMoved;
    }
    Queue& queue = *ready[choice];
    ready[choice] = ready.back();
    ready.pop_back();
    queue.ready = false;
    process(lock, queue);
    return Step::kMoved;
  }
  if (has_pollable() && (!real || something_moved || wall() >= poll_at) && poll(lock))
    return Step::kMoved;
  const std::optional<Nanoseconds> due = next_due();
  if (!due) return outstanding == 0 ? Step::kIdle : Step::kBlocked;
  if (real && *due > wall()) return Step::kLater;
  now = std::max(now, *due);
  if (!arrivals.empty() && arrivals.front().at <= *due) {
    ready.push_back(arrivals.front().queue);
    arrivals.pop_front();
    return Step::kMoved;
  }
  std::pop_heap(timed.begin(), timed.end(), std::greater<>());
  const TimedEvent event = timed.back();
  timed.pop_back();
  fire(lock, event);
  return Step::kMoved;
}

void Engine::Impl::fire(Lock& lock, const TimedEvent& event) {
  if (event.queue != nullptr) return process(lock, *event.queue);
  woken.clear();
  for (Block* block = event.blocks; block != nullptr; block = block->next) woken.push_back(block);
  run_blocks(lock, woken);
  dispatch(lock);
}

// Looks at the memory that queues and blocks wait for. True: something went on.
bool Engine::Impl::poll(Lock& lock) {
  something_moved = false;
  if (real) {
    // What is found now was written by now at the latest, not when device time last moved.
    const Nanoseconds at = wall();
    poll_at = at + options.poll_ns;
    now = std::max(now, std::min(at, next_due().value_or(at)));
  }
  std::erase_if(polled, [this](Queue* queue) {
    if (!value_matches(*queue->head)) return false;
    make_ready(*queue);
    return true;
  });
  if (!spinning.empty()) {
    std::vector<Block*> looking;
    looking.swap(spinning);
    for (std::size_t i = looking.size(); i > 1; --i)
      std::swap(looking[i - 1], looking[random.below(i)]);
    run_blocks(lock, looking);
    dispatch(lock);
  }
  if (!dispatching.empty() && residency.ledger() != nullptr) {
    residency.lock();
    residency.ledger()->reclaim_dead();
    residency.unlock();
    place_everywhere = true;
    dispatch(lock);
  }
  return something_moved || !ready.empty();
}

// ----------------------------------------------------------------------------------- one operation

void Engine::Impl::make_ready(Queue& queue) {
  something_moved = true;
  if (queue.ready) return;
  queue.ready = true;
  ready.push_back(&queue);
}

void Engine::Impl::schedule(Queue& queue, Nanoseconds at) {
  timed.push_back({at, real ? ++tie_counter : random.next(), &queue, nullptr});
  std::push_heap(timed.begin(), timed.end(), std::greater<>());
}

// Lets the head of a queue go as far as it can. Called again whenever what it waited for may be
// there.
void Engine::Impl::process(Lock& lock, Queue& queue) {
  Operation& operation = *queue.head;
  if (operation.state == Operation::State::kQueued) {
    // A device that is behind may not begin what the host had not asked for by then.
    if (operation.not_before > now) return schedule(queue, operation.not_before);
    return start(lock, queue, operation);
  }
  switch (operation.kind) {
    case EngineOperationKind::kWork:
      operation.state = Operation::State::kFinished;
      if (operation.late && fault == kOk) {
        lock.unlock();
        operation.task();
        lock.lock();
      }
      return complete(queue);
    case EngineOperationKind::kRecord:
      finish_record(*operation.record);
      return complete(queue);
    case EngineOperationKind::kWait:
      if (fault == kOk && !operation.record->done) return;
      return complete(queue);
    default:
      return complete(queue);
  }
}

void Engine::Impl::start(Lock& lock, Queue& queue, Operation& operation) {
  if (operation.kind == EngineOperationKind::kKernel) return start_kernel(lock, queue, operation);
  operation.state = Operation::State::kStarted;
  if (operation.implicit) {
    if (operation.await_queue->completed >= operation.await_ticket) return complete(queue);
    operation.await_queue->awaiting.push_back(&queue);
    return;
  }
  if (sink) trace(TraceRecord::Phase::kStart, queue, operation);
  switch (operation.kind) {
    case EngineOperationKind::kWork:
      return start_work(lock, queue, operation);
    case EngineOperationKind::kRecord:
      if (const Nanoseconds late = event_delay()) return schedule(queue, now + late);
      finish_record(*operation.record);
      return complete(queue);
    case EngineOperationKind::kWait:
      if (operation.record == nullptr || operation.record->done || fault != kOk)
        return complete(queue);
      queue.next_waiter = std::exchange(operation.record->waiters, &queue);
      return;
    case EngineOperationKind::kGate:
      if (fault != kOk) return complete(queue);
      if (operation.gate->open && operation.gate->opened_at > now)
        return schedule(queue, operation.gate->opened_at);
      if (operation.gate->open) return complete(queue);
      queue.next_waiter = std::exchange(operation.gate->waiters, &queue);
      return;
    case EngineOperationKind::kHostFunction:
      if (fault != kOk && !operation.even_on_error) return complete(queue);
      host_calls.push_back({&queue, std::move(operation.host), fault});
      if (real) host_changed.notify_one();
      return;
    case EngineOperationKind::kValueWait:
      if (fault != kOk || value_matches(operation)) return complete(queue);
      polled.push_back(&queue);
      return;
    case EngineOperationKind::kValueWrite:
      if (fault == kOk && operation.width == Width::k32)
        __atomic_store_n(static_cast<std::uint32_t*>(operation.address),
                         static_cast<std::uint32_t>(operation.value), __ATOMIC_RELEASE);
      else if (fault == kOk)
        __atomic_store_n(static_cast<std::uint64_t*>(operation.address), operation.value,
                         __ATOMIC_RELEASE);
      return complete(queue);
    default:
      return complete(queue);
  }
}

// Its own queue's kernels have ended: whatever runs is another's.
Nanoseconds Engine::Impl::event_delay() {
  if (options.event_beside_ns == 0 || kernels_running == 0) return options.event_ns;
  const double chance = static_cast<double>(random.next() >> 11) * 0x1p-53;
  return options.event_ns + static_cast<Nanoseconds>(static_cast<double>(options.event_beside_ns) *
                                                     chance * chance * chance);
}

void Engine::Impl::start_work(Lock& lock, Queue& queue, Operation& operation) {
  if (fault != kOk) return complete(queue);
  const std::uint64_t choice = random.next();
  const Nanoseconds duration = stretched(operation.duration, choice);
  operation.late = options.seeded_effect_time && duration != 0 && (choice >> 40 & 1) != 0;
  if (!operation.late) {
    lock.unlock();
    operation.task();
    lock.lock();
  }
  if (duration == 0) return complete(queue);
  schedule(queue, now + duration);
}

void Engine::Impl::start_kernel(Lock& lock, Queue& queue, Operation& operation) {
  const Nanoseconds earliest = queue.kernel_end + options.device.kernel_gap_ns;
  if (queue.had_kernel && now < earliest && fault == kOk) return schedule(queue, earliest);
  operation.state = Operation::State::kStarted;
  if (fault != kOk) return complete(queue);
  ++kernels_running;
  // Served by priority, then in order of arrival.
  KernelRun* const run = operation.run;
  const auto at = std::upper_bound(dispatching.begin(), dispatching.end(), queue.options.priority,
                                   [](int priority, const KernelRun* other) {
                                     return priority < other->queue->options.priority;
                                   });
  dispatching.insert(at, run);
  dispatch(lock);
}

// CUDA's comparisons: GEQ is cyclic, NOR is true when a bit is clear in both.
bool Engine::Impl::value_matches(const Operation& operation) const {
  std::uint64_t seen;
  std::uint64_t mask = ~std::uint64_t{0};
  if (operation.width == Width::k32) {
    seen = __atomic_load_n(static_cast<std::uint32_t*>(operation.address), __ATOMIC_ACQUIRE);
    mask = 0xffffffff;
  } else {
    seen = __atomic_load_n(static_cast<std::uint64_t*>(operation.address), __ATOMIC_ACQUIRE);
  }
  const std::uint64_t value = operation.value & mask;
  switch (operation.compare) {
    case Compare::kGreaterOrEqual:
      return ((seen - value) & (mask ^ mask >> 1)) == 0;
    case Compare::kEqual:
      return seen == value;
    case Compare::kAnd:
      return (seen & value) != 0;
    case Compare::kNor:
      return (~(seen | value) & mask) != 0;
  }
  return false;
}

void Engine::Impl::run_host_call(Lock& lock, std::size_t index) {
  HostCall call = std::move(host_calls[index]);
  host_calls.erase(host_calls.begin() + static_cast<std::ptrdiff_t>(index));
  lock.unlock();
  call.function(call.status);
  call.function.reset();
  lock.lock();
  something_moved = true;
  make_ready_from_outside(*call.queue);
}

// ------------------------------------------------------------------------------------------
// endings

void Engine::Impl::wake_waiters(Queue*& list) {
  for (Queue* queue = std::exchange(list, nullptr); queue != nullptr;)
    make_ready(*std::exchange(queue, queue->next_waiter));
}

void Engine::Impl::finish_record(EventRecording& record) {
  record.done = true;
  record.at = now;
  wake_waiters(record.waiters);
}

void Engine::Impl::drop(EventRecording* record) {
  if (record != nullptr && --record->references == 0) records.destroy(record);
}

void Engine::Impl::drop(Gate* gate) {
  if (gate == nullptr || --gate->references != 0 || !gate->destroyed) return;
  gates.erase(gate);
  delete gate;
}

void Engine::Impl::complete(Queue& queue) {
  Operation* const operation = queue.head;
  queue.head = operation->next;
  if (queue.head == nullptr) queue.tail = nullptr;
  if (!operation->implicit) {
    queue.completed = operation->ticket;
    set_outstanding(outstanding - 1);
    if (sink) trace(TraceRecord::Phase::kEnd, queue, *operation, fault);
  }
  drop(operation->record);
  drop(operation->gate);
  if (operation->run != nullptr) runs.destroy(operation->run);
  if (Queue* const target = operation->await_queue; target != nullptr) {
    --target->references;
    retire_if_drained(*target);
  }
  operations.destroy(operation);
  if (!queue.awaiting.empty())
    std::erase_if(queue.awaiting, [&](Queue* other) {
      if (other->head->await_ticket > queue.completed) return false;
      make_ready(*other);
      return true;
    });
  something_moved = true;
  if (waiting_threads != 0) done_changed.notify_all();
  if (queue.head != nullptr)
    make_ready(queue);
  else
    retire_if_drained(queue);
}

void Engine::Impl::retire_if_drained(Queue& queue) {
  if (!queue.destroyed || queue.head != nullptr || queue.references != 0) return;
  std::erase(queue.group->members, &queue);
  if (queue.group->legacy == &queue) queue.group->legacy = nullptr;
  queues.erase(&queue);
  delete &queue;
}

}  // namespace vitamin::soft
