// SPDX-License-Identifier: Apache-2.0
//
// The engine's front: making and giving back handles, enqueuing, memory. Waiting is in
// engine_completion.cpp; device state moves in engine_step.cpp and kernel_run.cpp.
#include "backends/soft/engine.h"

#include <algorithm>
#include <cstdlib>

#include "backends/soft/engine_state.h"

namespace vitamin::soft {

namespace {

constexpr std::size_t kMemoryAlignment = 512;
constexpr unsigned char kFreedByte = 0xdd;

bool valid(const DeviceDescription& device, std::string* why) {
  if (device.units() == 0) *why = "a device has at least one unit";
  if (device.sms() > SmSet::kMaxSms) *why = "a device has at most 512 SMs";
  if (device.gpc_of_sm.size() != device.sms()) *why = "gpc_of_sm needs one element for each SM";
  if (device.copy_bytes_per_us == 0) *why = "copy_bytes_per_us is not 0";
  return why->empty();
}

}  // namespace

void Block::AlignedDelete::operator()(unsigned char* at) const { std::free(at); }

Engine::Impl::Impl(EngineOptions given, std::unique_ptr<ResidencyLedger> ledger)
    : options(std::move(given)),
      real(options.clock == Clock::kReal),
      whole_rule(std::make_shared<const ClusterRule>(options.device.whole_rule())),
      random(options.seed),
      residency(options.device.sms(), options.device.sm, std::move(ledger)) {}

Engine::Impl::~Impl() {
  const auto discard = [](Block* block) {
    if (block->coroutine != nullptr)
      std::coroutine_handle<>::from_address(block->coroutine).destroy();
    block->~Block();
  };
  for (Block* block : spinning) discard(block);
  for (const TimedEvent& event : timed)
    for (Block* block = event.blocks; block != nullptr;) discard(std::exchange(block, block->next));
  for (Queue* queue : queues) {
    for (Operation* operation = queue->head; operation != nullptr;) {
      if (operation->run != nullptr) operation->run->~KernelRun();
      std::exchange(operation, operation->next)->~Operation();
    }
    delete queue;
  }
  for (Event* event : events) delete event;
  for (Gate* gate : gates) delete gate;
  for (const auto& allocation : allocations) std::free(reinterpret_cast<void*>(allocation.first));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

hal::Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  if (options.device.unit_sms.empty()) options.device = DeviceDescription::h200();
  std::string why;
  if (!valid(options.device, &why))
    return hal::fail(hal::Errc::kInvalidArgument, "the device description is not valid: " + why);
  std::unique_ptr<ResidencyLedger> ledger;
  if (!options.ledger_path.empty()) {
    if (options.clock != Clock::kReal)
      return hal::fail(hal::Errc::kInvalidArgument, "a device in virtual time cannot be shared");
    auto attached = ResidencyLedger::attach(options.ledger_path, options.device.sms());
    if (!attached) return tl::unexpected(attached.error());
    ledger = std::move(*attached);
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(ledger));
  if (impl->real) {
    Impl* const state = impl.get();
    impl->device = std::thread([state] { state->device_thread(); });
    for (std::uint32_t i = 0; i < impl->options.host_threads; ++i)
      impl->hosts.emplace_back([state] { state->host_thread(); });
  }
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::~Engine() {
  {
    const Lock lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->device_changed.notify_all();
  impl_->host_changed.notify_all();
  if (impl_->device.joinable()) impl_->device.join();
  for (std::thread& host : impl_->hosts) host.join();
}

const DeviceDescription& Engine::device() const { return impl_->options.device; }
Clock Engine::clock() const { return impl_->options.clock; }

Nanoseconds Engine::Impl::wall() const {
  return static_cast<Nanoseconds>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - epoch)
          .count());
}

Nanoseconds Engine::now() const {
  if (impl_->real) return impl_->wall();
  const Lock lock(impl_->mutex);
  return impl_->now;
}

// ------------------------------------------------------------------------------- queues and events

Status Engine::create_queue(const QueueOptions& options, Queue** queue) {
  if (options.sms.empty() || !device().all().contains(options.sms)) return kInvalidArgument;
  const Lock lock(impl_->mutex);
  Status status = impl_->fault;
  if (status != kOk) return status;
  if (impl_->injected(FaultPoint::kCreateQueue, &options.sms, &status)) return status;
  auto& group = impl_->groups[options.sync_group];
  if (group == nullptr) group = std::make_unique<SyncGroup>();
  if (options.sync == SyncClass::kLegacy && group->legacy != nullptr) return kInvalidArgument;

  auto made = std::make_unique<Queue>();
  made->options = options;
  if (made->options.clusters == nullptr) made->options.clusters = impl_->whole_rule;
  made->serial = ++impl_->queue_serial;
  made->group = group.get();
  made->order_seed = combine(impl_->options.seed, options.sms.hash());
  made->sms = options.sms.list();
  for (const SmSet& cluster_group : made->options.clusters->groups)
    made->cluster_groups.push_back((cluster_group & options.sms).list());
  group->members.push_back(made.get());
  if (options.sync == SyncClass::kLegacy) group->legacy = made.get();
  impl_->queues.insert(made.get());
  *queue = made.release();
  return kOk;
}

void Engine::destroy_queue(Queue* queue) {
  const Lock lock(impl_->mutex);
  queue->destroyed = true;
  impl_->retire_if_drained(*queue);
}

const QueueOptions& Engine::options_of(const Queue* queue) const { return queue->options; }
std::uint64_t Engine::serial_of(const Queue* queue) const { return queue->serial; }

Status Engine::create_event(Event** event) {
  const Lock lock(impl_->mutex);
  Status status = impl_->fault;
  if (status != kOk) return status;
  if (impl_->injected(FaultPoint::kCreateEvent, nullptr, &status)) return status;
  *event = new Event;
  impl_->events.insert(*event);
  return kOk;
}

void Engine::destroy_event(Event* event) {
  const Lock lock(impl_->mutex);
  impl_->drop(event->newest);
  impl_->events.erase(event);
  delete event;
}

Gate* Engine::create_gate() {
  const Lock lock(impl_->mutex);
  auto* gate = new Gate;
  impl_->gates.insert(gate);
  return gate;
}

void Engine::open_gate(Gate* gate) {
  const Lock lock(impl_->mutex);
  if (std::exchange(gate->open, true)) return;
  if (impl_->real) gate->opened_at = impl_->wall();
  for (Queue* queue = std::exchange(gate->waiters, nullptr); queue != nullptr;)
    impl_->make_ready_from_outside(*std::exchange(queue, queue->next_waiter));
}

void Engine::destroy_gate(Gate* gate) {
  open_gate(gate);
  const Lock lock(impl_->mutex);
  gate->destroyed = true;
  ++gate->references;
  impl_->drop(gate);
}

// -------------------------------------------------------------------------------------- operations

bool Engine::Impl::injected(FaultPoint point, const SmSet* sms, Status* status) {
  for (InjectedFault& fault_ahead : faults) {
    if (fault_ahead.point != point) continue;
    if (!fault_ahead.sms.empty() && (sms == nullptr || *sms != fault_ahead.sms)) continue;
    if (fault_ahead.skip != 0) {
      --fault_ahead.skip;
      continue;
    }
    if (fault_ahead.count == 0) continue;
    --fault_ahead.count;
    *status = fault_ahead.status;
    return true;
  }
  return false;
}

Status Engine::Impl::begin_enqueue(FaultPoint point, const Queue& queue) {
  if (fault != kOk) return fault;
  if (faults.empty()) return kOk;
  Status status = kOk;
  if (injected(FaultPoint::kSubmit, &queue.options.sms, &status)) return status;
  if (point != FaultPoint::kSubmit && injected(point, &queue.options.sms, &status)) return status;
  return kOk;
}

void Engine::Impl::wake_device() {
  if (device_sleeps) device_changed.notify_one();
}

void Engine::Impl::make_ready_from_outside(Queue& queue) {
  if (!real) return make_ready(queue);
  if (queue.ready) return;
  queue.ready = true;
  arrivals.push_back({wall(), &queue});
  wake_device();
}

Operation* Engine::Impl::append(Queue& queue, EngineOperationKind kind) {
  order_implicitly(queue);
  Operation* operation = operations.make();
  operation->kind = kind;
  return operation;
}

void Engine::Impl::commit(Queue& queue, Operation* operation) {
  if (real) operation->not_before = wall();
  if (!operation->implicit) {
    operation->ticket = ++queue.submitted;
    set_outstanding(outstanding + 1);
    if (sink) trace(TraceRecord::Phase::kEnqueue, queue, *operation);
  }
  if (queue.tail == nullptr) {
    queue.head = queue.tail = operation;
    make_ready_from_outside(queue);
  } else {
    queue.tail->next = operation;
    queue.tail = operation;
  }
}

// The legacy default stream's rule, made explicit: waits put into the queue ahead of the operation,
// one for each queue that has something to be waited for which is not waited for yet.
void Engine::Impl::order_implicitly(Queue& queue) {
  if (queue.options.sync == SyncClass::kNonBlocking) return;
  if (queue.options.sync == SyncClass::kBlocking) {
    Queue* const legacy = queue.group->legacy;
    if (legacy == nullptr || legacy->completed == legacy->submitted) return;
    if (queue.covered < legacy->submitted) await(queue, *legacy);
    queue.covered = legacy->submitted;
    return;
  }
  for (Queue* other : queue.group->members) {
    if (other->options.sync != SyncClass::kBlocking || other->completed == other->submitted)
      continue;
    if (other->legacy_covered < other->submitted) await(queue, *other);
    other->legacy_covered = other->submitted;
  }
}

void Engine::Impl::await(Queue& queue, Queue& target) {
  Operation* operation = operations.make();
  operation->implicit = true;
  operation->await_queue = &target;
  operation->await_ticket = target.submitted;
  ++target.references;
  commit(queue, operation);
}

Status Engine::launch(Queue* queue, const Launch& launch) {
  const Status size = check_launch(queue, launch);
  if (size == kOk && launch.parameters == nullptr && launch.kernel->parameter_bytes != 0)
    return kInvalidArgument;
  if (size != kOk) return size;
  Impl& impl = *impl_;
  const Lock lock(impl.mutex);
  const Status status = impl.begin_enqueue(FaultPoint::kLaunch, *queue);
  if (status != kOk) return status;
  KernelRun* const run = impl.runs.make();
  run->queue = queue;
  run->launch = launch;
  run->parameters.assign(launch.parameters, launch.kernel->parameter_bytes);
  run->launch.parameters = run->parameters.data();
  run->footprint = impl.footprint(*launch.kernel, launch.block.volume(), launch.dynamic_shared);
  run->total = launch.grid.volume();
  run->order = combine(queue->order_seed, hash_bytes(&launch.grid, sizeof launch.grid));
  run->late = impl.options.seeded_effect_time && (run->order >> 40 & 1) != 0;
  if (impl.sink) {
    std::uint64_t hash = hash_bytes(launch.kernel->name, std::strlen(launch.kernel->name));
    const std::uint64_t words[] = {
        launch.grid.x,      launch.grid.y,  launch.grid.z,         launch.block.x,
        launch.block.y,     launch.block.z, launch.dynamic_shared, launch.cluster_blocks,
        launch.cooperative, launch.form};
    hash = hash_bytes(words, sizeof words, hash);
    hash = hash_bytes(run->parameters.data(), launch.kernel->parameter_bytes, hash);
    run->launch_hash = hash_bytes(launch.attributes, launch.attribute_bytes, hash);
  }
  run->launch.attributes = nullptr;  // borrowed until here
  Operation* const operation = impl.append(*queue, EngineOperationKind::kKernel);
  operation->run = run;
  impl.commit(*queue, operation);
  return kOk;
}

Status Engine::work(Queue* queue, Task<void()> function, Nanoseconds duration) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kWork);
  operation->task = std::move(function);
  operation->duration = duration;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::record(Queue* queue, Event* event) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  impl_->drop(event->newest);
  event->newest = impl_->records.make();
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kRecord);
  operation->record = event->newest;
  ++event->newest->references;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::wait(Queue* queue, Event* event) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kWait);
  operation->record = event->newest;
  if (event->newest != nullptr) ++event->newest->references;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::host_function(Queue* queue, Task<void(Status)> function, bool even_on_error) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kHostFunction);
  operation->host = std::move(function);
  operation->even_on_error = even_on_error;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::wait_value(Queue* queue, const void* address, std::uint64_t value, Width width,
                          Compare compare) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kValueWait);
  operation->address = const_cast<void*>(address);
  operation->value = value;
  operation->width = width;
  operation->compare = compare;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::write_value(Queue* queue, void* address, std::uint64_t value, Width width) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kValueWrite);
  operation->address = address;
  operation->value = value;
  operation->width = width;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::wait_gate(Queue* queue, Gate* gate) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  Operation* const operation = impl_->append(*queue, EngineOperationKind::kGate);
  operation->gate = gate;
  ++gate->references;
  impl_->commit(*queue, operation);
  return kOk;
}

Status Engine::marker(Queue* queue) {
  const Lock lock(impl_->mutex);
  const Status status = impl_->begin_enqueue(FaultPoint::kSubmit, *queue);
  if (status != kOk) return status;
  impl_->commit(*queue, impl_->append(*queue, EngineOperationKind::kMarker));
  return kOk;
}

// ------------------------------------------------------------------------- faults, trace and
// memory

Status Engine::fault() const {
  const Lock lock(impl_->mutex);
  return impl_->fault;
}

void Engine::clear_fault() {
  Lock lock(impl_->mutex);
  // What was in flight when the fault came ends by itself; nothing new begins.
  if (impl_->real) {
    ++impl_->waiting_threads;
    impl_->done_changed.wait(lock, [this] { return impl_->outstanding == 0; });
    --impl_->waiting_threads;
  } else {
    while (impl_->outstanding != 0 && impl_->advance_one(lock) == AdvanceResult::kMoved) {
    }
  }
  impl_->fault = kOk;
}

void Engine::lose_context(Status status) {
  const Lock lock(impl_->mutex);
  if (impl_->fault != kOk) return;
  impl_->lost = status;
  impl_->wake_device();
}

void Engine::on_fault(std::function<void(Status)> told) {
  const Lock lock(impl_->mutex);
  impl_->told_of_fault = std::move(told);
}

void Engine::inject(const InjectedFault& fault) {
  const Lock lock(impl_->mutex);
  impl_->faults.push_back(fault);
}

void Engine::clear_injected() {
  const Lock lock(impl_->mutex);
  impl_->faults.clear();
}

void Engine::set_trace(TraceSink sink) {
  const Lock lock(impl_->mutex);
  impl_->sink = std::move(sink);
}

void Engine::Impl::trace(TraceRecord::Phase phase, const Queue& queue, const Operation& operation,
                         Status status) {
  TraceRecord record;
  record.phase = phase;
  record.kind = operation.kind;
  record.status = status;
  record.at = phase == TraceRecord::Phase::kEnqueue && real ? wall() : now;
  record.queue = queue.serial;
  record.queue_tag = queue.options.tag;
  record.ticket = operation.ticket;
  record.sms = &queue.options.sms;
  if (operation.run != nullptr) {
    const Launch& launch = operation.run->launch;
    record.tag = launch.tag;
    record.kernel = launch.kernel;
    record.grid = launch.grid;
    record.block = launch.block;
    record.dynamic_shared = launch.dynamic_shared;
    record.launch_hash = operation.run->launch_hash;
  }
  sink(record);
}

Status Engine::allocate(std::size_t bytes, void** address) {
  if (bytes == 0) return kInvalidArgument;
  const Lock lock(impl_->mutex);
  Status status = kOk;
  if (impl_->injected(FaultPoint::kAllocate, nullptr, &status)) return status;
  if (!impl_->take_memory(bytes)) return kOutOfMemory;
  const std::size_t rounded = (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  void* const made = std::aligned_alloc(kMemoryAlignment, rounded);
  if (made == nullptr) {
    impl_->give_memory(bytes);
    return kOutOfMemory;
  }
  impl_->allocations.emplace(reinterpret_cast<std::uintptr_t>(made), bytes);
  *address = made;
  return kOk;
}

Status Engine::take_memory(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  return impl_->take_memory(bytes) ? kOk : kOutOfMemory;
}

void Engine::give_memory(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->give_memory(bytes);
}

bool Engine::Impl::take_memory(std::size_t bytes) {
  const std::size_t limit = options.device.memory_bytes;
  if (memory_used + bytes > memory_limit) return false;
  if (ResidencyLedger* const ledger = residency.ledger()) {
    if (!ledger->take_memory(bytes, limit)) return false;
  } else if (bytes > limit - memory_used) {
    return false;
  }
  memory_used += bytes;
  return true;
}

void Engine::Impl::give_memory(std::size_t bytes) {
  if (ResidencyLedger* const ledger = residency.ledger()) ledger->give_memory(bytes);
  memory_used -= bytes;
}

Status Engine::free_memory(void* address) {
  const Lock lock(impl_->mutex);
  const auto found = impl_->allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == impl_->allocations.end()) return kInvalidArgument;
  impl_->give_memory(found->second);
  std::memset(address, kFreedByte, found->second);
  impl_->allocations.erase(found);
  std::free(address);
  return kOk;
}

void Engine::find_allocation(const void* address, void** base, std::size_t* bytes) const {
  const Lock lock(impl_->mutex);
  *base = nullptr;
  *bytes = 0;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto found = impl_->allocations.upper_bound(at);
  if (found == impl_->allocations.begin()) return;
  --found;
  if (at - found->first >= found->second) return;
  *base = reinterpret_cast<void*>(found->first);
  *bytes = found->second;
}

std::size_t Engine::memory_used() const {
  const Lock lock(impl_->mutex);
  ResidencyLedger* const ledger = impl_->residency.ledger();
  return ledger != nullptr ? ledger->memory_used() : impl_->memory_used;
}

void Engine::limit_memory(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->memory_limit = bytes;
}

std::size_t Engine::memory_free() const {
  const std::size_t used = memory_used();
  const Lock lock(impl_->mutex);
  return std::min(impl_->options.device.memory_bytes - used,
                  impl_->memory_limit - std::min(impl_->memory_limit, impl_->memory_used));
}

ResidencyLedger* Engine::ledger() const { return impl_->residency.ledger(); }

std::vector<SmSharing> Engine::sharing() const {
  const Lock lock(impl_->mutex);
  ResidencyLedger* const ledger = impl_->residency.ledger();
  if (ledger == nullptr) return {};
  ledger->lock();
  std::vector<SmSharing> result = ledger->sharing();
  ledger->unlock();
  return result;
}

}  // namespace vitamin::soft
