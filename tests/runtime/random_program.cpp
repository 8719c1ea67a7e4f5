// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/random_program.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "backends/soft/device.h"
#include "backends/soft/kernel.h"
#include "daemon/client/local_arbiter.h"
#include "runtime/audit/audit.h"
#include "runtime/virtual_context.h"

namespace vitamin::tests {
namespace {

// Where kernels and copies write down that they ran. One program runs at a time.
std::vector<unsigned>* ran = nullptr;

VITAMIN_KERNEL_WITH((.block_ns = 700), note_kernel, unsigned step, unsigned salt) {
  VITAMIN_ONCE {
    if (block.linear_index() == 0) ran->push_back(step);
  }
  (void)salt;
}

bool is_device_work(StepKind kind) {
  switch (kind) {
    case StepKind::kLaunch:
    case StepKind::kCopy:
    case StepKind::kPageableCopy:
    case StepKind::kBridged:
    case StepKind::kHostFunction:
    case StepKind::kValueWait:
    case StepKind::kBlockingCopy:
      return true;
    default:
      return false;
  }
}

const char* name_of(StepKind kind) {
  static const char* const names[] = {
      "launch",       "copy",        "pageable copy", "bridged call", "host function", "value wait",
      "allocate",     "record",      "wait",          "open flag",    "sync stream",   "sync event",
      "query stream", "query event", "blocking copy", "drain",        "advance"};
  return names[static_cast<unsigned>(kind)];
}

}  // namespace

// --- the program -----------------------------------------------------------------------------

Program random_program(std::uint64_t seed, const Shape& shape) {
  std::mt19937_64 random(seed);
  auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  Program program;
  program.blocking = below(3);
  program.nonblocking = 1 + below(3);
  std::vector<bool> closed(program.flags, false);  // an operation waits for it
  std::vector<bool> used(program.flags, false);
  auto open_all = [&] {
    for (unsigned flag = 0; flag < program.flags; ++flag)
      if (closed[flag]) program.steps.push_back({StepKind::kOpenFlag, 0, flag, 0});
    closed.assign(program.flags, false);
  };
  while (program.steps.size() < shape.steps) {
    Step step;
    step.stream = below(program.streams());
    step.event = below(program.events);
    const unsigned dice = below(100);
    if (dice < 38)
      step.kind = StepKind::kLaunch;
    else if (dice < 46)
      step.kind = StepKind::kCopy;
    else if (dice < 49)
      step.kind = StepKind::kPageableCopy;
    else if (dice < 53)
      step.kind = StepKind::kBridged;
    else if (dice < 57)
      step.kind = shape.gates ? StepKind::kHostFunction : StepKind::kLaunch;
    else if (dice < 60)
      step.kind = StepKind::kAllocate;
    else if (dice < 70)
      step.kind = StepKind::kRecord;
    else if (dice < 81)
      step.kind = StepKind::kWait;
    else if (dice < 84)
      step.kind = shape.gates ? StepKind::kValueWait : StepKind::kWait;
    else if (dice < 86)
      step.kind = StepKind::kQueryStream;
    else if (dice < 88)
      step.kind = StepKind::kQueryEvent;
    else if (dice < 95)
      step.kind = StepKind::kAdvance;
    else if (dice < 96)
      step.kind = StepKind::kSyncStream;
    else if (dice < 97)
      step.kind = StepKind::kSyncEvent;
    else if (dice < 98)
      step.kind = StepKind::kBlockingCopy;
    else
      step.kind = StepKind::kDrain;
    if (step.kind == StepKind::kAdvance) step.amount = 1 + below(12);
    if (step.kind == StepKind::kValueWait) {
      step.event = below(program.flags);
      if (used[step.event]) continue;  // a flag opens once
      used[step.event] = closed[step.event] = true;
    }
    // The host waits only where natively it would not wait for ever.
    if (step.kind == StepKind::kSyncStream || step.kind == StepKind::kSyncEvent ||
        step.kind == StepKind::kBlockingCopy || step.kind == StepKind::kDrain)
      open_all();
    program.steps.push_back(step);
  }
  open_all();
  return program;
}

std::string text(const Program& program) {
  std::ostringstream out;
  out << "streams: legacy 0, blocking 1.." << program.blocking << ", non-blocking the rest of "
      << program.streams() << "\n";
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    out << "  " << i << ": " << name_of(step.kind) << " stream " << step.stream << " event "
        << step.event << " amount " << step.amount << "\n";
  }
  return out.str();
}

// --- the order -------------------------------------------------------------------------------

std::vector<std::vector<bool>> happens_before(const Program& program) {
  const std::size_t count = program.steps.size();
  using Set = std::vector<bool>;
  const Set nothing(count, false);
  auto add = [](Set& to, const Set& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = to[i] || from[i];
  };
  // Everything that has ended once the newest operation of a stream has ended.
  std::vector<Set> tail(program.streams(), nothing);
  std::vector<Set> event(program.events, nothing);
  std::vector<Set> before(count, nothing);
  auto blocking = [&](unsigned stream) { return stream >= 1 && stream <= program.blocking; };

  for (std::size_t i = 0; i < count; ++i) {
    const Step& step = program.steps[i];
    Set& own = tail[step.stream];
    const bool action =
        is_device_work(step.kind) || step.kind == StepKind::kRecord || step.kind == StepKind::kWait;
    if (action) {
      // "the legacy stream first waits on all blocking streams, the action is queued in the legacy
      // stream, and then all blocking streams wait on the legacy stream" (CUDA Runtime API).
      if (step.stream == 0)
        for (unsigned s = 1; s <= program.blocking; ++s) add(own, tail[s]);
      if (blocking(step.stream)) add(own, tail[0]);
    }
    if (step.kind == StepKind::kWait) add(own, event[step.event]);
    if (step.kind == StepKind::kRecord) event[step.event] = own;
    if (is_device_work(step.kind)) {
      before[i] = own;
      own[i] = true;
    }
    if (step.kind == StepKind::kBlockingCopy) before[i] = own;  // itself included
    if (step.kind == StepKind::kSyncStream || step.kind == StepKind::kQueryStream) {
      before[i] = own;
      // Of the legacy stream they cover the blocking streams, without being a barrier (measured).
      if (step.stream == 0)
        for (unsigned s = 1; s <= program.blocking; ++s) add(before[i], tail[s]);
    }
    if (step.kind == StepKind::kSyncEvent || step.kind == StepKind::kQueryEvent)
      before[i] = event[step.event];
    if (step.kind == StepKind::kDrain)
      for (const Set& set : tail) add(before[i], set);
  }
  return before;
}

// --- the execution ---------------------------------------------------------------------------

namespace {

using hal::NativeStatus;
using runtime::call;
using runtime::Keep;

class Execution {
 public:
  Execution(const Program& program, const Setting& setting)
      : program_(program), setting_(setting), before_(happens_before(program)) {}
  Outcome run();

 private:
  void open();
  void step(std::size_t index);
  NativeStatus device_step(std::size_t index, const Step& step);
  void finish();
  void check_order();
  // Everything that must have ended before the answer of a waiting step did so.
  void check_answer(std::size_t index, const char* what);
  void fail(const std::string& what) {
    if (outcome_.error.empty()) outcome_.error = what;
  }
  void advance_or_give_up() {
    if (engine_->advance() == soft::AdvanceResult::kMoved)
      idle_rounds_ = 0;
    else if (++idle_rounds_ > 10'000)
      throw std::string("nothing can move: hang");
  }
  soft::Queue* queue(void* native) { return static_cast<soft::Queue*>(native); }

  const Program& program_;
  const Setting& setting_;
  const std::vector<std::vector<bool>> before_;
  Outcome outcome_;
  std::vector<unsigned> order_;
  std::shared_ptr<runtime::Audit> audit_;
  std::unique_ptr<runtime::stats::DevicePage> page_;
  soft::Engine* engine_ = nullptr;
  std::unique_ptr<runtime::VirtualContext> context_;
  std::vector<runtime::Stream*> streams_;
  std::vector<soft::Event*> events_;
  std::vector<std::unique_ptr<runtime::EventState>> states_;
  std::deque<std::uint32_t> flags_;
  std::vector<std::uint64_t> submitted_hashes_, arrived_hashes_;
  unsigned idle_rounds_ = 0;
};

void Execution::open() {
  soft::EngineOptions options;
  options.device = soft::DeviceDescription::uniform(setting_.units, 2);
  options.seed = setting_.seed;
  options.jitter_percent = 40;
  auto opened = soft::open_device(options);
  if (!opened) throw opened.error().message;
  soft::Device& device = **opened;
  engine_ = &device.engine();

  runtime::DispatchOptions dispatch;
  dispatch.window.ahead_ns = setting_.window_ns;
  dispatch.markers = 64;
  dispatch.thread = false;
  dispatch.idle = [this] { advance_or_give_up(); };
  page_ = std::make_unique<runtime::stats::DevicePage>();
  dispatch.page = page_.get();
  auto policy = client::local_arbiter(setting_.policy, setting_.seed);
  if (!policy) throw policy.error().message;

  std::vector<void*> natives;
  for (unsigned s = 1; s < program_.streams(); ++s)
    natives.push_back(*device.create_stream(
        s <= program_.blocking ? soft::SyncClass::kBlocking : soft::SyncClass::kNonBlocking));
  void* legacy = device.legacy_stream();
  std::unique_ptr<hal::Device> seen = std::move(*opened);
  if (!setting_.audit_directory.empty()) {
    audit_ = dispatch.audit = runtime::Audit::create(setting_.audit_directory.c_str(), 0);
    if (audit_ == nullptr) throw std::string("no audit");
    seen = runtime::Audit::watch(audit_, std::move(seen));
  }
  auto context = runtime::VirtualContext::create(std::move(seen), *policy, dispatch, legacy);
  if (!context) throw context.error().message;
  context_ = std::move(*context);
  streams_.push_back(&context_->legacy());
  for (unsigned s = 1; s < program_.streams(); ++s)
    streams_.push_back(&context_->adopt(
        natives[s - 1],
        s <= program_.blocking ? runtime::StreamKind::kBlocking : runtime::StreamKind::kNonBlocking,
        0));
  for (unsigned e = 0; e < program_.events; ++e) {
    events_.emplace_back();
    if (engine_->create_event(&events_.back()) != soft::kOk) throw std::string("no event");
    states_.push_back(std::make_unique<runtime::EventState>());
    states_.back()->native = {events_.back()};
  }
  flags_.assign(program_.flags, 0);
  engine_->set_trace([this](const soft::TraceRecord& record) {
    if (record.phase == soft::TraceRecord::Phase::kEnd &&
        record.kind == soft::EngineOperationKind::kKernel)
      arrived_hashes_.push_back(record.launch_hash);
  });
}

NativeStatus Execution::device_step(std::size_t index, const Step& step) {
  runtime::Stream& stream = *streams_[step.stream];
  const auto id = static_cast<unsigned>(index);
  std::vector<unsigned>* order = &order_;
  soft::Engine* engine = engine_;
  switch (step.kind) {
    case StepKind::kLaunch: {
      // The arguments live on this stack frame only: a launch that is submitted later must have
      // copied them. The grid differs from step to step, so that a mix-up of descriptors shows.
      unsigned argument = id, salt = 0x5a5a0000U + id;
      void* arguments[] = {&argument, &salt};
      hal::KernelLaunch launch;
      launch.kernel = VITAMIN_SOFT_KERNEL(note_kernel);
      launch.grid = {1 + id % 3, 1, 1};
      launch.block = {32, 1, 1};
      launch.arguments = arguments;
      ++outcome_.launches;
      const NativeStatus status = context_->launch(stream, launch);
      argument = salt = ~0U;
      return status;
    }
    case StepKind::kCopy:
    case StepKind::kPageableCopy: {
      auto copy = call(
          [=](void* q) {
            return engine->work(
                static_cast<soft::Queue*>(q), [=] { order->push_back(id); }, 900);
          },
          step.kind == StepKind::kCopy ? Keep::kYes : Keep::kNo);
      return context_->enqueue(stream, copy);
    }
    case StepKind::kBridged:
    case StepKind::kBlockingCopy: {
      auto work = call([=](void* q) {
        return engine->work(
            static_cast<soft::Queue*>(q), [=] { order->push_back(id); }, 1100);
      });
      return context_->bridge(
          stream, work, runtime::CallKind::kWork,
          step.kind == StepKind::kBridged ? runtime::Host::kReturns : runtime::Host::kMayBlock);
    }
    case StepKind::kHostFunction: {
      auto function = call([=](void* q) {
        return engine->host_function(static_cast<soft::Queue*>(q),
                                     [=](soft::Status) { order->push_back(id); });
      });
      return context_->bridge(stream, function, runtime::CallKind::kHostWait);
    }
    case StepKind::kValueWait: {
      const std::uint32_t* flag = &flags_[step.event];
      auto wait = call([=](void* q) {
        const soft::Status status = engine->wait_value(static_cast<soft::Queue*>(q), flag, 1,
                                                       soft::Width::k32, soft::Compare::kEqual);
        if (status != soft::kOk) return status;
        return engine->work(
            static_cast<soft::Queue*>(q), [=] { order->push_back(id); }, 0);
      });
      return context_->bridge(stream, wait, runtime::CallKind::kHostWait);
    }
    default:
      return hal::kNativeOk;
  }
}

void Execution::step(std::size_t index) {
  const Step& step = program_.steps[index];
  runtime::Stream& stream = *streams_[step.stream];
  soft::Event* event = events_[step.event % program_.events];
  runtime::EventState& state = *states_[step.event % program_.events];
  soft::Engine* engine = engine_;
  NativeStatus status = hal::kNativeOk;
  switch (step.kind) {
    case StepKind::kRecord: {
      auto record =
          call([=](void* q) { return engine->record(static_cast<soft::Queue*>(q), event); });
      status = context_->record(stream, state, record);
      break;
    }
    case StepKind::kWait: {
      auto wait = call([=](void* q) { return engine->wait(static_cast<soft::Queue*>(q), event); });
      status = context_->wait(stream, state, wait);
      break;
    }
    case StepKind::kAllocate: {
      auto allocate = call([=](void* q) {
        return engine->work(
            static_cast<soft::Queue*>(q), [] {}, 50);
      });
      runtime::MemoryBlock block;
      status = context_->allocate(stream, block, allocate);
      break;
    }
    case StepKind::kOpenFlag:
      flags_[step.event] = 1;
      break;
    case StepKind::kAdvance:
      for (unsigned i = 0; i < step.amount; ++i) engine->advance();
      break;
    case StepKind::kSyncStream:
      status = context_->synchronize(stream);
      check_answer(index, "stream synchronised");
      break;
    case StepKind::kSyncEvent:
      status = context_->synchronize(state, [=] { return engine->synchronize(event); });
      check_answer(index, "event synchronised");
      break;
    case StepKind::kQueryStream:
      if (context_->query(stream) == hal::kNativeOk) check_answer(index, "stream query");
      break;
    case StepKind::kQueryEvent:
      if (context_->query(state, [=] { return engine->query(event); }) == hal::kNativeOk)
        check_answer(index, "event query");
      break;
    case StepKind::kDrain:
      status = context_->call_for_context(runtime::Deferred::kAwait, [=] {
        engine->drain();
        return hal::kNativeOk;
      });
      check_answer(index, "context synchronised");
      break;
    default:
      status = device_step(index, step);
      if (step.kind == StepKind::kBlockingCopy) {
        engine->synchronize(queue(context_->native(stream)));
        check_answer(index, "blocking copy");
      }
      break;
  }
  if (status != hal::kNativeOk)
    fail("step " + std::to_string(index) + " answered " + std::to_string(status));
}

void Execution::check_answer(std::size_t index, const char* what) {
  for (std::size_t other = 0; other < before_.size(); ++other)
    if (before_[index][other] && std::find(order_.begin(), order_.end(), other) == order_.end())
      return fail(std::string(what) + " (step " + std::to_string(index) +
                  ") before the end of step " + std::to_string(other));
}

void Execution::finish() {
  for (runtime::Stream* stream : streams_)
    if (const NativeStatus status = context_->synchronize(*stream); status != hal::kNativeOk)
      fail("the last synchronisation answered " + std::to_string(status));
  engine_->drain();
}

void Execution::check_order() {
  std::vector<std::size_t> position(program_.steps.size(), 0);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (position[order_[i]] != 0) fail("step " + std::to_string(order_[i]) + " ran twice");
    position[order_[i]] = i + 1;
  }
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    if (!is_device_work(program_.steps[i].kind)) continue;
    if (position[i] == 0) fail("step " + std::to_string(i) + " never ran");
    for (std::size_t other = 0; other < program_.steps.size(); ++other)
      if (other != i && before_[i][other] && position[other] > position[i])
        fail("step " + std::to_string(i) + " ran before step " + std::to_string(other));
  }
  // The descriptors: hash of kernel, geometry, arguments and attributes, native against ours.
  std::sort(arrived_hashes_.begin(), arrived_hashes_.end());
  std::sort(submitted_hashes_.begin(), submitted_hashes_.end());
  if (arrived_hashes_ != submitted_hashes_) fail("a launch arrived other than it was submitted");
}

// The one log in the directory, read and removed.
std::string audited(const std::string& directory) {
  namespace fs = std::filesystem;
  namespace audit = runtime::audit;
  std::map<unsigned, std::ostringstream> lanes;
  for (const fs::directory_entry& partition : fs::directory_iterator(directory)) {
    std::ifstream file(partition.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::uint64_t count = 0;
    std::memcpy(&count, bytes.data() + offsetof(audit::AuditHeader, records), sizeof count);
    for (std::uint64_t i = 0; i < count; ++i) {
      audit::AuditRecord record;
      std::memcpy(&record, bytes.data() + sizeof(audit::AuditHeader) + i * sizeof record,
                  sizeof record);
      if (record.kind == audit::AuditKind::kName)
        i += (record.stream + sizeof record - 1) / sizeof record;
      else
        lanes[record.stream] << record.stream << ": " << static_cast<unsigned>(record.kind) << ' '
                             << record.structure << ' ' << record.content << ' ' << record.edges
                             << (record.flags == 0 ? "" : " flagged") << '\n';
    }
    fs::remove(partition.path());
  }
  std::string all;
  for (const auto& [lane, text] : lanes) all += text.str();
  return all;
}

// What the launches of the program hash to when they are made natively, on a device of their own.
std::vector<std::uint64_t> native_hashes(const Program& program) {
  static std::vector<std::uint64_t> of_step;  // the launch of a step depends on its index alone
  std::vector<unsigned> ignored;
  ran = &ignored;
  while (of_step.size() < program.steps.size()) {
    auto device = *soft::open_device({});
    soft::Engine& engine = device->engine();
    engine.set_trace([&](const soft::TraceRecord& record) {
      if (record.phase == soft::TraceRecord::Phase::kEnd) of_step.push_back(record.launch_hash);
    });
    const auto id = static_cast<unsigned>(of_step.size());
    unsigned argument = id, salt = 0x5a5a0000U + id;
    void* arguments[] = {&argument, &salt};
    hal::KernelLaunch launch;
    launch.kernel = VITAMIN_SOFT_KERNEL(note_kernel);
    launch.grid = {1 + id % 3, 1, 1};
    launch.block = {32, 1, 1};
    launch.arguments = arguments;
    device->adopt_queue(device->legacy_stream())->launch(launch);
    engine.drain();
    engine.set_trace({});
  }
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    if (program.steps[i].kind == StepKind::kLaunch) hashes.push_back(of_step[i]);
  return hashes;
}

Outcome Execution::run() {
  try {
    submitted_hashes_ = native_hashes(program_);
    ran = &order_;
    open();
    for (unsigned unit = 0; unit < setting_.refusing_units; ++unit)
      engine_->inject({soft::FaultPoint::kLaunch, unit % 3, 2, soft::kClusterTooLarge,
                       soft::SmSet::range(2 * unit, 2)});
    for (std::size_t i = 0; i < program_.steps.size() && outcome_.error.empty(); ++i) step(i);
    if (outcome_.error.empty()) finish();
    if (outcome_.error.empty()) check_order();
    if (audit_ != nullptr && audit_->changed() + audit_->uncovered() > 0)
      fail("the audit found " + std::to_string(audit_->changed()) + " changed and " +
           std::to_string(audit_->uncovered()) + " uncovered operations");
  } catch (const std::string& what) {
    fail(what);
  }
  if (page_ != nullptr) {
    outcome_.moved = static_cast<unsigned>(page_->launches.moved.get());
    outcome_.deferred = static_cast<unsigned>(page_->launches.deferred.get());
    outcome_.retried = static_cast<unsigned>(page_->launches.retried.get());
    if (outcome_.error.empty() && page_->launches.bound.get() != outcome_.launches)
      fail("not every launch was counted as bound");
  }
  if (engine_ != nullptr) engine_->set_trace({});
  states_.clear();
  context_.reset();
  audit_.reset();
  if (!setting_.audit_directory.empty()) outcome_.audited = audited(setting_.audit_directory);
  return outcome_;
}

}  // namespace

Outcome run(const Program& program, const Setting& setting) {
  return Execution(program, setting).run();
}

}  // namespace vitamin::tests
