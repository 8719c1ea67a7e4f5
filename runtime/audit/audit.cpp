// SPDX-License-Identifier: Apache-2.0
#include "runtime/audit/audit.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/audit/argument_hash.h"
#include "runtime/descriptor.h"
#include "runtime/graph.h"

namespace vitamin::runtime {
namespace {

using Hash = hal::ContentHash;

// Of the box's bytes as if they lay side by side, so that one result has one digest whatever the
// shape of the copy. The program may have freed its memory since: read in a way that cannot fault.
std::optional<std::uint64_t> hash_of(const HostBox& box) {
  std::vector<std::byte> piece(std::min<std::size_t>(box.bytes(), 1 << 20));
  std::size_t held = 0;
  Hash hash;
  const auto take = [&](const std::byte* from, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      iovec to{piece.data() + held, std::min(piece.size() - held, bytes - done)};
      iovec source{const_cast<std::byte*>(from + done), to.iov_len};
      const ssize_t got = ::process_vm_readv(::getpid(), &to, 1, &source, 1, 0);
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
      held += static_cast<std::size_t>(got);
      if (held == piece.size()) hash.bytes(piece.data(), std::exchange(held, 0));
    }
    return true;
  };
  // Rows that lie side by side are one.
  const bool flat = box.rows == 1 || box.pitch == box.width;
  for (std::size_t slice = 0; slice < box.slices; ++slice)
    for (std::size_t row = 0; row < (flat ? 1 : box.rows); ++row)
      if (!take(box.host + slice * box.slice_pitch + row * box.pitch,
                flat ? box.width * box.rows : box.width))
        return std::nullopt;
  if (held > 0) hash.bytes(piece.data(), held);
  return hash.value();
}

}  // namespace

// --- clocks ----------------------------------------------------------------------------------

void Audit::Clock::raise(StreamId stream_id, std::uint64_t serial) {
  if (stream_id >= upto_.size()) upto_.resize(stream_id + 1, 0);
  upto_[stream_id] = std::max(upto_[stream_id], serial);
}

void Audit::Clock::join(const Clock& other) {
  if (upto_.size() < other.upto_.size()) upto_.resize(other.upto_.size(), 0);
  for (std::size_t i = 0; i < other.upto_.size(); ++i)
    upto_[i] = std::max(upto_[i], other.upto_[i]);
}

// --- the watched device ----------------------------------------------------------------------

class WatchedQueue final : public hal::Queue {
 public:
  // `ours`: made by the device, so that its handle ends with it.
  WatchedQueue(std::shared_ptr<Audit> audit, std::uint32_t sms, bool ours,
               std::unique_ptr<hal::Queue> queue)
      : audit_(std::move(audit)), ours_(ours), queue_(std::move(queue)) {
    const std::lock_guard lock(audit_->mutex_);
    audit_->queues_[native()].sms = sms;
  }
  ~WatchedQueue() override {
    const std::lock_guard lock(audit_->mutex_);
    if (ours_) audit_->queues_.erase(native());
  }
  void* native() const noexcept override { return queue_->native(); }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override {
    Audit::Launched seen{native(), {}};
    {
      const std::lock_guard lock(audit_->mutex_);
      seen.shape = audit_->shape_of(launch);
    }
    const hal::NativeStatus status = queue_->launch(launch);
    const std::lock_guard lock(audit_->mutex_);
    if (status == hal::kNativeOk) audit_->launched_.push_back(std::move(seen));
    return status;
  }
  hal::NativeStatus record(hal::Event event) noexcept override {
    const hal::NativeStatus status = queue_->record(event);
    const std::lock_guard lock(audit_->mutex_);
    if (status == hal::kNativeOk) audit_->recorded(native(), event);
    return status;
  }
  hal::NativeStatus wait(hal::Event event) noexcept override {
    const hal::NativeStatus status = queue_->wait(event);
    const std::lock_guard lock(audit_->mutex_);
    if (status == hal::kNativeOk) audit_->waited(native(), event);
    return status;
  }
  hal::NativeStatus query() noexcept override {
    return observed([this] { return queue_->query(); });
  }
  hal::NativeStatus synchronize() noexcept override {
    return observed([this] { return queue_->synchronize(); });
  }

 private:
  // What is submitted while the host looks is not what it sees.
  template <class Look>
  hal::NativeStatus observed(const Look& look) {
    Audit::Clock before;
    {
      const std::lock_guard lock(audit_->mutex_);
      before = audit_->queues_[native()].clock;
    }
    const hal::NativeStatus status = look();
    const std::lock_guard lock(audit_->mutex_);
    if (status == hal::kNativeOk) audit_->completed_.join(before);
    return status;
  }
  std::shared_ptr<Audit> audit_;
  bool ours_;
  std::unique_ptr<hal::Queue> queue_;
};

namespace {

class WatchedContext final : public hal::PhysicalContext {
 public:
  WatchedContext(std::shared_ptr<Audit> audit, std::unique_ptr<hal::PhysicalContext> context)
      : audit_(std::move(audit)), context_(std::move(context)) {}
  hal::ComputeSet compute() const noexcept override { return context_->compute(); }
  std::uint32_t sms() const noexcept override { return context_->sms(); }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override {
    auto queue = context_->create_queue(priority);
    if (!queue) return queue;
    return std::make_unique<WatchedQueue>(audit_, sms(), true, std::move(*queue));
  }
  hal::PhysicalContext& context() { return *context_; }

 private:
  std::shared_ptr<Audit> audit_;
  std::unique_ptr<hal::PhysicalContext> context_;
};

}  // namespace

class WatchedDevice final : public hal::Device {
 public:
  WatchedDevice(std::shared_ptr<Audit> audit, std::unique_ptr<hal::Device> device)
      : audit_(std::move(audit)), device_(std::move(device)) {
    audit_->device_ = device_.get();
  }
  ~WatchedDevice() override { audit_->device_ = nullptr; }

  const hal::DeviceInfo& info() const noexcept override { return device_->info(); }
  hal::KernelInspector& inspector() noexcept override { return device_->inspector(); }
  const hal::ErrorClassifier& errors() const noexcept override { return device_->errors(); }
  std::uint32_t pool_queues_now() override { return device_->pool_queues_now(); }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(
      hal::ComputeSet compute) override {
    auto context = device_->create_context(compute);
    if (!context) return context;
    return std::make_unique<WatchedContext>(audit_, std::move(*context));
  }
  std::unique_ptr<hal::Queue> adopt_queue(void* native) override {
    return std::make_unique<WatchedQueue>(audit_, info().sms, false, device_->adopt_queue(native));
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override {
    auto queue = device_->create_whole_queue(priority);
    if (!queue) return queue;
    return std::make_unique<WatchedQueue>(audit_, info().sms, true, std::move(*queue));
  }
  hal::Result<hal::Event> create_event() override { return device_->create_event(); }
  hal::Result<hal::Event> create_timed_event() override { return device_->create_timed_event(); }
  hal::NativeStatus elapsed(hal::Event from, hal::Event to, double& ns) noexcept override {
    return device_->elapsed(from, to, ns);
  }
  void destroy_event(hal::Event event) noexcept override {
    {
      // Before the handle may become another's: a wait for that, unrecorded, waits for nothing.
      const std::lock_guard lock(audit_->mutex_);
      audit_->events_.erase(event.native);
    }
    device_->destroy_event(event);
  }
  hal::NativeStatus query(hal::Event event) noexcept override {
    return observed(event, [&] {
      const hal::NativeStatus status = device_->query(event);
      if (status != hal::kNativeOk && device_->errors().classify(status) != hal::Outcome::kNotReady)
        audit_->broken_ = true;
      return status;
    });
  }
  hal::NativeStatus synchronize(hal::Event event) noexcept override {
    return observed(event, [&] { return device_->synchronize(event); });
  }
  std::uint64_t free_bytes() noexcept override { return device_->free_bytes(); }
  void attach_thread() noexcept override { device_->attach_thread(); }
  void enter_internal() noexcept override { device_->enter_internal(); }
  void leave_internal() noexcept override { device_->leave_internal(); }

 private:
  // The event may be recorded again while the host looks: what it sees is the record before.
  template <class Look>
  hal::NativeStatus observed(hal::Event event, const Look& look) {
    Audit::Clock before;
    {
      const std::lock_guard lock(audit_->mutex_);
      before = audit_->events_[event.native];
    }
    const hal::NativeStatus status = look();
    const std::lock_guard lock(audit_->mutex_);
    if (status == hal::kNativeOk) audit_->completed_.join(before);
    return status;
  }
  std::shared_ptr<Audit> audit_;
  std::unique_ptr<hal::Device> device_;
};

// --- making ----------------------------------------------------------------------------------

std::shared_ptr<Audit> Audit::create(const char* directory, std::uint32_t ordinal) {
  std::unique_ptr<audit::Log> log = audit::Log::create(directory, ordinal);
  return log ? std::shared_ptr<Audit>(new Audit(std::move(log))) : nullptr;
}

Audit::~Audit() = default;

std::unique_ptr<hal::Device> Audit::watch(std::shared_ptr<Audit> audit,
                                          std::unique_ptr<hal::Device> device) {
  return std::make_unique<WatchedDevice>(std::move(audit), std::move(device));
}

hal::PhysicalContext& Audit::watched(hal::PhysicalContext& context) {
  return static_cast<WatchedContext&>(context).context();
}

// --- launches --------------------------------------------------------------------------------

Audit::KernelFacts& Audit::facts_of(hal::KernelHandle kernel) {
  const auto known = kernels_.find(kernel);
  if (known != kernels_.end()) return known->second;
  const std::string text =
      device_->inspector().origin(kernel) + ": " + device_->inspector().name(kernel);
  Hash hash;
  hash.bytes(text.data(), text.size());
  return kernels_
      .emplace(kernel,
               KernelFacts{device_->inspector().layout(kernel), name_of(text), hash.value()})
      .first->second;
}

std::uint32_t Audit::name_of(const std::string& text) {
  const auto [name, fresh] = names_.emplace(text, static_cast<std::uint32_t>(names_.size()));
  if (fresh) log_->name(name->second, text);
  return name->second;
}

void Audit::hash_arguments(const hal::KernelLaunch& launch, const KernelFacts& facts,
                           Shape& shape) {
  Hash exact, arguments;
  auto add = [&](const void* bytes, std::size_t count) {
    exact.bytes(bytes, count);
    arguments.add(argument_hash(bytes, count));
  };
  if (launch.extra != nullptr) {
    const PackedParameters packed = packed_parameters(launch.extra);
    const bool complete = packed.bytes != nullptr && packed.size != nullptr;
    add(packed.bytes, complete ? *packed.size : 0);
  } else if (launch.arguments != nullptr && facts.layout) {
    for (std::size_t i = 0; i < facts.layout->parameters.size(); ++i)
      add(launch.arguments[i], facts.layout->parameters[i].size);
  } else {
    shape.readable = launch.arguments == nullptr;
  }
  shape.exact ^= exact.value();
  shape.arguments = arguments.value();
}

Audit::Shape Audit::shape_of(const hal::KernelLaunch& launch) {
  const KernelFacts& facts = facts_of(launch.kernel);
  Shape shape;
  Hash head;
  head.add(facts.name_hash);
  for (const hal::Dim3& size : {launch.grid, launch.block})
    for (const std::uint32_t part : {size.x, size.y, size.z}) head.add(part);
  head.add(launch.shared_bytes);
  head.add(static_cast<std::uint64_t>(launch.form));
  head.add(launch.cooperative ? 1 : 0);
  head.add(launch.cluster_blocks);
  shape.exact = head.value();
  shape.blocks = static_cast<std::uint32_t>(launch.grid.volume());
  shape.programmatic = launch.programmatic;
  shape.attributes =
      attributes_of(launch.attributes.records,
                    launch.attributes.count * device_->inspector().attribute_record_bytes());
  hash_arguments(launch, facts, shape);
  return shape;
}

// A record begins with the number of its attribute.
std::vector<Audit::Attribute> Audit::attributes_of(const void* records, std::size_t bytes) const {
  const std::size_t record_bytes = device_->inspector().attribute_record_bytes();
  std::vector<Attribute> attributes(bytes / record_bytes);
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const auto* record = static_cast<const std::byte*>(records) + i * record_bytes;
    Hash hash;
    hash.bytes(record, record_bytes);
    std::memcpy(&attributes[i].id, record, sizeof attributes[i].id);
    attributes[i].hash = hash.value();
  }
  return attributes;
}

bool Audit::is_changed(const Stream& stream, const PhysicalQueue& queue, const Pending& pending,
                       std::uint64_t last_serial) const {
  const QueueState& state = queues_.at(queue.queue->native());
  if (!queue.whole() && state.sms != queue.sms) return true;
  if (pending.kind == audit::AuditKind::kGraph) {
    if (!launched_.empty() || launched_graphs_.size() != 1) return true;
    const LaunchedGraph& graph = launched_graphs_.front();
    return graph.queue != queue.queue->native() || (graph.shape && graph.shape != pending.graph);
  }
  if (!launched_graphs_.empty()) return true;
  if (pending.kind != audit::AuditKind::kLaunch) return !launched_.empty();
  if (launched_.size() != 1 || launched_.front().queue != queue.queue->native()) return true;
  const Shape& got = launched_.front().shape;
  if (got.exact != pending.shape.exact) return true;
  // The stream's attributes that the launch does not set itself, where the stream is not there to
  // lend them; then the launch's own.
  const std::vector<Attribute>& own = pending.shape.attributes;
  std::vector<Attribute> wanted;
  if (!queue.whole()) wanted = attributes_of(stream.attributes.data(), stream.attributes.size());
  std::erase_if(wanted, [&](const Attribute& lent) {
    return std::any_of(own.begin(), own.end(), [&](const Attribute& a) { return a.id == lent.id; });
  });
  wanted.insert(wanted.end(), own.begin(), own.end());
  if (got.attributes != wanted) return true;
  return got.programmatic && (!pending.shape.programmatic || state.waited ||
                              state.stream_id != stream.id || state.serial != last_serial);
}

// --- the logical side ------------------------------------------------------------------------

Audit::StreamState& Audit::state_of(const Stream& stream) {
  if (stream.id >= states_.size()) states_.resize(stream.id + 1);
  StreamState& state = states_[stream.id];
  if (state.number != stream.number) {
    state = {};
    state.number = stream.number;
  }
  return state;
}

Audit::Edge Audit::edge_to(const Stream& stream, std::uint64_t serial) {
  return {stream.id, serial, stream.number, serial - stream.serials_from};
}

void Audit::waits_for(const Stream& stream, const EventState& event) {
  const std::lock_guard lock(mutex_);
  state_of(stream).waits_for = &event;
}

void Audit::arrived(const Stream& stream, const Submission& submission,
                    std::span<const Predecessor> predecessors) {
  Operation* const operation = submission.operation;
  const LaunchOperation* const kernel = operation != nullptr ? operation->as_launch() : nullptr;
  const hal::KernelLaunch* const launch = kernel != nullptr ? &kernel->launch() : nullptr;
  GraphOperation* const replay = operation != nullptr ? operation->as_graph() : nullptr;
  const std::optional<hal::GraphShape> graph = replay != nullptr ? replay->asked() : std::nullopt;
  const std::lock_guard lock(mutex_);
  StreamState& state = state_of(stream);
  Pending pending;
  state.stream = &stream;
  pending.serial = stream.timeline.issued + 1;
  pending.required = default_stream_edges(stream);
  // Whether a destroyed stream is still named depends on when its work was seen to end.
  for (const Predecessor& p : predecessors)
    (p.stream->retired ? pending.required : pending.predecessors)
        .push_back(edge_to(*p.stream, p.token.serial()));
  if (launch != nullptr) {
    pending.kind = audit::AuditKind::kLaunch;
    pending.shape = shape_of(*launch);
    pending.name = facts_of(launch->kernel).name;
    Hash structure;
    structure.add(facts_of(launch->kernel).name_hash);
    for (const hal::Dim3& size : {launch->grid, launch->block})
      for (const std::uint32_t part : {size.x, size.y, size.z}) structure.add(part);
    structure.add(launch->shared_bytes);
    structure.add(static_cast<std::uint64_t>(launch->form));
    structure.add(launch->cluster_blocks);
    structure.add(launch->cooperative ? 1 : 0);
    structure.add(launch->programmatic ? 1 : 0);
    // An attribute's value may hold a handle or an address; that there is one is structure.
    structure.add(launch->attributes.count);
    pending.structure = structure.value();
  } else if (graph) {
    pending.kind = audit::AuditKind::kGraph;
    pending.graph = graph;
    pending.structure = graph->structure;
    pending.shape.arguments = graph->arguments;
    pending.shape.blocks = graph->nodes;
    pending.name = name_of("graph of " + std::to_string(graph->nodes) + " nodes");
  } else if (const EventState* event = std::exchange(state.waits_for, nullptr)) {
    pending.kind = audit::AuditKind::kWait;
    // Another process or a graph may have recorded a shared event since: the driver knows which.
    const auto record = records_.find(event);
    if (record != records_.end() && !event->shared) pending.predecessors.push_back(record->second);
  } else if (submission.event != nullptr && submission.kind != OperationKind::kWait) {
    pending.kind = audit::AuditKind::kRecord;
    records_[submission.event] = edge_to(stream, pending.serial);
  }
  while (!state.pending.empty() && state.pending.back().serial >= pending.serial)
    state.pending.pop_back();
  state.pending.push_back(std::move(pending));
}

// CUDA Driver API, "Legacy default stream": what the operation comes behind whatever the runtime
// says (default_stream_order.h remembers who is dirty; here everything is named every time).
std::vector<Audit::Edge> Audit::default_stream_edges(const Stream& stream) const {
  std::vector<Edge> edges;
  if (stream.kind == StreamKind::kNonBlocking) return edges;
  const StreamKind other =
      stream.kind == StreamKind::kLegacy ? StreamKind::kBlocking : StreamKind::kLegacy;
  for (const StreamState& state : states_)
    if (state.stream != nullptr && state.stream->kind == other)
      edges.push_back(edge_to(*state.stream, state.stream->timeline.issued));
  return edges;
}

void Audit::refused(const Stream& stream, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  StreamState& state = state_of(stream);
  std::erase_if(state.pending, [&](const Pending& pending) { return pending.serial == serial; });
  launched_.clear();
  launched_graphs_.clear();
}

void Audit::retired(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  void* const native = stream.app_stream.queue->native();
  std::erase(blocking_, native);
  queues_.erase(native);
}

void Audit::forget(const EventState& event) {
  const std::lock_guard lock(mutex_);
  records_.erase(&event);
}

// --- the physical side -----------------------------------------------------------------------

// The driver itself orders real legacy and real blocking streams against each other.
void Audit::native_order(const Stream& stream, const PhysicalQueue& queue) {
  if (!queue.whole()) return;
  void* const native = queue.queue->native();
  Clock& clock = queues_[native].clock;
  if (stream.kind == StreamKind::kLegacy) {
    legacy_ = native;
    for (void* blocking : blocking_) clock.join(queues_[blocking].clock);
  } else if (stream.kind == StreamKind::kBlocking) {
    if (std::find(blocking_.begin(), blocking_.end(), native) == blocking_.end())
      blocking_.push_back(native);
    if (legacy_ != nullptr) clock.join(queues_[legacy_].clock);
  }
}

bool Audit::is_uncovered(const Pending& pending, const Clock& clock) const {
  const auto missing = [&](const Edge& edge) {
    return clock.of(edge.stream_id) < edge.serial && completed_.of(edge.stream_id) < edge.serial;
  };
  return std::any_of(pending.predecessors.begin(), pending.predecessors.end(), missing) ||
         std::any_of(pending.required.begin(), pending.required.end(), missing);
}

void Audit::launched_graph(const PhysicalQueue& queue, const hal::GraphShape* got) {
  const std::lock_guard lock(mutex_);
  launched_graphs_.push_back(
      {queue.queue->native(), got != nullptr ? std::optional(*got) : std::nullopt});
}

void Audit::submitted(const Stream& stream, const PhysicalQueue& queue) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t serial = stream.timeline.submitted;
  StreamState& state = state_of(stream);
  // One that got lost, or that was not asked for.
  bool stray = false;
  for (; !state.pending.empty() && state.pending.front().serial < serial; state.pending.pop_front())
    stray = true;
  if (state.pending.empty() || state.pending.front().serial != serial) {
    stray = true;
    state.pending.emplace_front().serial = serial;
  }
  native_order(stream, queue);
  QueueState& expected = queues_[queue.queue->native()];
  Pending pending = std::move(state.pending.front());
  state.pending.pop_front();
  Hash edges;
  for (const Edge& edge : pending.predecessors) {
    edges.add(edge.stream);
    edges.add(edge.position);
  }
  // Its own stream's order is the first edge of every operation.
  const std::uint64_t last_serial = std::exchange(state.last_serial, serial);
  if (last_serial > 0) pending.predecessors.push_back(edge_to(stream, last_serial));
  audit::AuditRecord record{};
  record.kind = pending.kind;
  record.index = pending.name;
  record.stream = static_cast<std::uint32_t>(stream.number);
  record.structure = pending.structure;
  record.content = pending.shape.arguments;
  record.edges = edges.value();
  record.sms = queue.whole() ? device_->info().sms : queue.sms;
  record.grid = pending.shape.blocks;
  if (stray || is_changed(stream, queue, pending, last_serial)) {
    record.flags |= audit::kChanged;
    ++changed_;
  }
  if (!pending.shape.readable) record.flags |= audit::kUnreadable;
  if (broken_) {
    record.flags |= audit::kUnordered;
  } else if (is_uncovered(pending, expected.clock)) {
    record.flags |= audit::kUncovered;
    ++uncovered_;
  }
  // Where the backend has it, that is where it is.
  QueueState& truly = launched_.empty() ? expected : queues_[launched_.back().queue];
  truly.clock.raise(stream.id, serial);
  truly.stream_id = stream.id;
  truly.serial = serial;
  truly.waited = false;
  launched_.clear();
  launched_graphs_.clear();
  ++operations_;
  log_->add(record);
}

void Audit::submitted_elsewhere(const Stream& stream, const MarkerRef& marker) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t serial = stream.timeline.submitted + 1;
  events_[marker->event.native].raise(stream.id, serial);
  state_of(stream).last_serial = serial;
  state_of(stream).pending.clear();  // nothing is deferred: what is left there was refused
}

// --- results ---------------------------------------------------------------------------------

void Audit::copied(const Stream& stream, const HostBox& box) {
  const std::lock_guard lock(mutex_);
  copied_.push_back({stream.id, stream.timeline.issued, stream.number, box});
}

void Audit::reached(const Stream& stream, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  write_results(stream.id, serial);
}

void Audit::reached(const EventState& event) {
  const std::lock_guard lock(mutex_);
  const auto record = records_.find(&event);
  if (record != records_.end()) write_results(record->second.stream_id, record->second.serial);
}

void Audit::reached_all() {
  const std::lock_guard lock(mutex_);
  for (const Copied& copy : copied_) write_result(copy);
  copied_.clear();
}

void Audit::write_results(StreamId stream_id, std::uint64_t up_to) {
  std::erase_if(copied_, [&](const Copied& copy) {
    if (copy.stream_id != stream_id || copy.serial > up_to) return false;
    write_result(copy);
    return true;
  });
}

void Audit::write_result(const Copied& copy) {
  audit::AuditRecord record{};
  record.kind = audit::AuditKind::kResult;
  record.stream = static_cast<std::uint32_t>(copy.stream);
  record.structure = copy.box.bytes();
  if (const auto content = hash_of(copy.box))
    record.content = *content;
  else
    record.flags |= audit::kUnreadable;
  log_->add(record);
}

}  // namespace vitamin::runtime
