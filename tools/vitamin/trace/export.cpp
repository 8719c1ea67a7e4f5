// SPDX-License-Identifier: Apache-2.0
//
// A trace as Chrome's JSON, which Perfetto reads, too.
//
// When an operation ran is not known, only when it was submitted and when its end was seen. What is
// drawn fits all that is known: an operation begins after its submission, after the one before it
// in its stream, and after what it comes behind; it ends before its end was seen, and before the
// end of whatever comes behind it was.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/stream.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/trace/replay.h"
#include "tools/vitamin/trace/verbs.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;
using runtime::OperationKind;
using runtime::trace::TraceEntry;
using runtime::trace::TraceKind;

struct Drawn {
  std::uint32_t stream = 0;
  std::uint64_t serial = 0;
  OperationKind kind = OperationKind::kFollow;
  std::uint64_t kernel = 0;
  std::uint64_t arrived_ns = 0, submitted_ns = 0;
  bool submitted = false, deferred = false;
  runtime::PartitionId partition = runtime::kNoPartition;
  std::uint64_t begin_ns = 0, end_ns = ~0ULL;
  std::size_t alike = 1;                 // operations of the stream from here whose end is the same
  std::vector<std::size_t> behind;       // what it comes behind, in other streams
  std::size_t before = ~std::size_t{0};  // in its own
};

class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) { out_ << "{\"traceEvents\":[\n"; }
  void event(const json& event) {
    // A kernel's name need not be UTF-8.
    out_ << (first_ ? "" : ",\n") << event.dump(-1, ' ', false, json::error_handler_t::replace);
    first_ = false;
  }
  void end() { out_ << "\n],\"displayTimeUnit\":\"ns\"}\n"; }
  std::uint64_t next_flow() { return ++flows_; }

 private:
  std::ostream& out_;
  bool first_ = true;
  std::uint64_t flows_ = 0;
};

// Nanoseconds since the first moment of all traces, in Chrome's microseconds.
struct Clock {
  std::uint64_t zero_ns = ~0ULL;
  double us(std::uint64_t ns) const {
    return static_cast<double>(ns - std::min(ns, zero_ns)) / 1e3;
  }
};

json named(const char* what, std::uint64_t process, std::uint64_t thread, const std::string& name) {
  return {
      {"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kRecord:
      return "record an event";
    case OperationKind::kWait:
      return "wait for an event";
    case OperationKind::kBridge:
    case OperationKind::kBridgeHostWait:
    case OperationKind::kBridgePlacelessHostWait:
      return "bridged call";
    default:
      return "copy or fill";
  }
}

class Program {
 public:
  Program(const TraceFile& trace, const Clock& clock, Writer& writer)
      : trace_(trace),
        clock_(clock),
        writer_(writer),
        layout_(runtime::PoolLayout::build(trace.device(), trace.limits())) {}

  void write() {
    for (const TraceEntry& record : trace_.records) take(record);
    bound_ends();
    place();
    const std::uint64_t process = trace_.header.process;
    writer_.event(named("process_name", process, 0, trace_.header.program));
    std::set<std::uint32_t> streams;
    for (const std::size_t i : order_) {
      if (streams.insert(all_[i].stream).second)
        writer_.event(named("thread_name", process, all_[i].stream + 1,
                            fmt::format("stream {}", all_[i].stream)));
      write(all_[i]);
    }
    write_sms();
  }

 private:
  std::size_t& at(std::uint32_t stream, std::uint64_t serial) {
    const auto [found, fresh] = index_.try_emplace({stream, serial}, all_.size());
    if (fresh) {
      all_.emplace_back();
      all_.back().stream = stream;
      all_.back().serial = serial;
    }
    return found->second;
  }

  void take(const TraceEntry& record) {
    const std::uint64_t ns = trace_.nanoseconds(record.time);
    if (record.kind == TraceKind::kArrived) {
      const std::size_t i = at(record.stream, record.serial);
      all_[i].arrived_ns = ns;
      all_[i].kind = static_cast<OperationKind>(record.flags);
      all_[i].kernel = record.a;
      if (all_[i].kind == OperationKind::kRecord) events_[record.b] = i;
      if (all_[i].kind == OperationKind::kWait)
        if (const auto event = events_.find(record.b); event != events_.end())
          all_[i].behind.push_back(event->second);
    } else if (record.kind == TraceKind::kPredecessor) {
      const std::size_t before = at(static_cast<std::uint32_t>(record.a), record.b);
      all_[at(record.stream, record.serial)].behind.push_back(before);
    } else if (record.kind == TraceKind::kDeferred) {
      all_[at(record.stream, record.serial)].deferred = true;
    } else if (record.kind == TraceKind::kSubmitted) {
      const std::size_t i = at(record.stream, record.serial);
      Drawn& drawn = all_[i];
      if (drawn.submitted) return;
      drawn.submitted = true;
      drawn.submitted_ns = ns;
      drawn.partition = record.partition;
      const auto before = newest_.find(record.stream);
      if (before != newest_.end()) drawn.before = before->second;
      newest_[record.stream] = i;
      order_.push_back(i);
    } else if (record.kind == TraceKind::kCompleted) {
      std::uint64_t& done = completed_[record.stream];
      for (; done < record.serial; ++done)
        if (const auto i = index_.find({record.stream, done + 1}); i != index_.end())
          all_[i->second].end_ns = ns;
    }
  }

  // Backwards in the order of submission, which extends happens-before.
  void bound_ends() {
    const std::uint64_t last = trace_.nanoseconds(trace_.header.last_ticks);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      Drawn& drawn = all_[*it];
      drawn.end_ns = std::max(std::min(drawn.end_ns, last), drawn.submitted_ns);
      auto no_later = [&](std::size_t before) {
        if (before < all_.size()) all_[before].end_ns = std::min(all_[before].end_ns, drawn.end_ns);
      };
      no_later(drawn.before);
      for (const std::size_t before : drawn.behind) no_later(before);
      if (drawn.before < all_.size() && all_[drawn.before].end_ns == drawn.end_ns)
        all_[drawn.before].alike = drawn.alike + 1;
    }
  }

  void place() {
    for (const std::size_t i : order_) {
      Drawn& drawn = all_[i];
      drawn.begin_ns = drawn.submitted_ns;
      auto not_before = [&](std::size_t before) {
        if (before < all_.size() && all_[before].submitted)
          drawn.begin_ns = std::max(drawn.begin_ns, all_[before].end_ns);
      };
      not_before(drawn.before);
      for (const std::size_t before : drawn.behind) not_before(before);
      drawn.end_ns = std::max(drawn.begin_ns, drawn.end_ns);
      // Several whose end was seen at once share the time.
      drawn.end_ns = drawn.begin_ns + (drawn.end_ns - drawn.begin_ns) / drawn.alike;
    }
  }

  void write(const Drawn& drawn) {
    const bool launch = drawn.kind == OperationKind::kLaunch;
    const auto kernel = trace_.kernels.find(drawn.kernel);
    json args = {{"serial", drawn.serial},
                 {"arrived_us", clock_.us(drawn.arrived_ns)},
                 {"submitted_us", clock_.us(drawn.submitted_ns)},
                 {"deferred", drawn.deferred}};
    if (drawn.partition < layout_.size()) {
      args["entry"] = drawn.partition;
      args["processors"] = layout_.at(drawn.partition).sms;
    }
    slice(drawn, kernel != trace_.kernels.end() ? kernel->second : name_of(drawn.kind),
          launch ? "launch" : "other", args);
    for (const std::size_t before : drawn.behind)
      if (all_[before].submitted && all_[before].stream != drawn.stream) arrow(all_[before], drawn);
  }

  void slice(const Drawn& drawn, const std::string& name, const char* kind, const json& args) {
    writer_.event({{"ph", "X"},
                   {"name", name},
                   {"cat", kind},
                   {"pid", trace_.header.process},
                   {"tid", drawn.stream + 1},
                   {"ts", clock_.us(drawn.begin_ns)},
                   {"dur", static_cast<double>(drawn.end_ns - drawn.begin_ns) / 1e3},
                   {"args", args}});
  }

  void arrow(const Drawn& from, const Drawn& to) {
    json event = {{"ph", "s"},
                  {"name", "happens before"},
                  {"cat", "order"},
                  {"id", writer_.next_flow()},
                  {"pid", trace_.header.process},
                  {"tid", from.stream + 1},
                  {"ts", clock_.us(from.end_ns)}};
    writer_.event(event);
    event["ph"] = "f";
    event["bp"] = "e";
    event["tid"] = to.stream + 1;
    event["ts"] = clock_.us(to.begin_ns);
    writer_.event(event);
  }

  // How many SMs this program's launches may use at each moment.
  void write_sms() {
    std::multimap<std::uint64_t, std::pair<runtime::PartitionId, int>> changes;
    for (const std::size_t i : order_) {
      const Drawn& drawn = all_[i];
      if (drawn.kind != OperationKind::kLaunch || drawn.partition >= layout_.size()) continue;
      changes.insert({drawn.begin_ns, {drawn.partition, 1}});
      changes.insert({drawn.end_ns, {drawn.partition, -1}});
    }
    std::map<runtime::PartitionId, int> running;
    for (auto it = changes.begin(); it != changes.end();) {
      const std::uint64_t now = it->first;
      for (; it != changes.end() && it->first == now; ++it)
        running[it->second.first] += it->second.second;
      hal::ComputeSet units;
      for (const auto& [partition, count] : running)
        if (count > 0) units |= layout_.at(partition).compute;
      writer_.event(counter(trace_, clock_.us(now), "SMs bound", units));
    }
  }

 public:
  static json counter(const TraceFile& trace, double us, const char* name, hal::ComputeSet units) {
    std::uint32_t sms = 0;
    for (unsigned unit = 0; unit < trace.header.units; ++unit)
      if (units.has(unit)) sms += trace.header.per_unit[unit];
    return {{"ph", "C"},
            {"name", fmt::format("{} of {}", name, trace.header.uuid)},
            {"pid", trace.header.process},
            {"ts", us},
            {"args", {{"processors", sms}}}};
  }

 private:
  const TraceFile& trace_;
  const Clock& clock_;
  Writer& writer_;
  runtime::PoolLayout layout_;
  std::vector<Drawn> all_;
  std::vector<std::size_t> order_;  // of submission
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> index_;
  std::map<std::uint32_t, std::size_t> newest_;
  std::map<std::uint32_t, std::uint64_t> completed_;
  std::map<std::uint64_t, std::size_t> events_;
};

// vitamind's leases: the replay is asked after each step who holds what.
class Daemon {
 public:
  Daemon(const TraceFile& trace, const Clock& clock, Writer& writer)
      : trace_(trace), clock_(clock), writer_(writer) {}

  void write(Replay& replay) {
    writer_.event(named("process_name", trace_.header.process, 0,
                        fmt::format("vitamind, {}", trace_.header.device)));
    while (replay.step()) {
      const std::uint64_t now = std::max(replay.now_ns(), trace_.header.first_ns);
      const TraceKind kind = replay.told().kind;
      if (kind == TraceKind::kRequest || kind == TraceKind::kDying || kind == TraceKind::kForget)
        said(replay.told(), now);
      look(replay, now);
      last_ns_ = now;
    }
    for (auto& [key, lease] : standing_) end(key, lease, last_ns_);
  }

 private:
  struct Key {
    std::uint32_t client, stream, partition;
    // NOLINTNEXTLINE(modernize-use-nullptr): the check takes what the compiler compares for a null
    auto operator<=>(const Key&) const = default;
  };
  struct Lease {
    std::uint64_t since_ns = 0, closed_ns = 0;
    std::uint32_t sms = 0;
    bool seen = false;
  };

  std::uint64_t track(const Key& key) {
    const auto [found, fresh] = tracks_.try_emplace(key, tracks_.size() + 1);
    if (fresh)
      writer_.event(named(
          "thread_name", trace_.header.process, found->second,
          fmt::format("client {} stream {} entry {}", key.client, key.stream, key.partition)));
    return found->second;
  }

  void said(const TraceEntry& record, std::uint64_t now) {
    const TraceEntry* const bytes = &record + 1;
    const char* name = record.kind == TraceKind::kDying ? "dying" : "gone";
    if (record.kind == TraceKind::kRequest) {
      protocol::Head head;
      std::memcpy(static_cast<void*>(&head), bytes, sizeof head);
      switch (static_cast<protocol::RecordType>(head.type)) {
        case protocol::RecordType::kReady:
          name = "ready";
          break;
        case protocol::RecordType::kIdle:
          name = "idle";
          break;
        case protocol::RecordType::kReturned:
          name = "returned";
          break;
        case protocol::RecordType::kHint:
          name = "hint";
          break;
        case protocol::RecordType::kHolding:
          name = "holding";
          break;
        default:
          name = "draining";
      }
    }
    writer_.event({{"ph", "i"},
                   {"s", "p"},
                   {"name", fmt::format("client {}: {}", record.client, name)},
                   {"cat", "message"},
                   {"pid", trace_.header.process},
                   {"tid", 0},
                   {"ts", clock_.us(now)}});
  }

  void look(const Replay& replay, std::uint64_t now) {
    hal::ComputeSet units;
    for (auto& [key, lease] : standing_) lease.seen = false;
    for (const daemon::DeviceArbiter::GrantStatus& held : replay.arbiter().held()) {
      const runtime::Partition& partition = replay.arbiter().layout().at(held.partition);
      if (!partition.whole()) units |= partition.compute;
      Lease& lease = standing_[{held.client, held.lane, held.partition}];
      if (lease.since_ns == 0) lease = {now, 0, partition.sms, true};
      lease.seen = true;
      if (!held.open && lease.closed_ns == 0) lease.closed_ns = now;
      if (held.open) lease.closed_ns = 0;
    }
    for (auto it = standing_.begin(); it != standing_.end();) {
      if (!it->second.seen) {
        end(it->first, it->second, now);
        it = standing_.erase(it);
      } else {
        ++it;
      }
    }
    if (!counted_ || units != units_)
      writer_.event(Program::counter(trace_, clock_.us(now), "SMs leased", units));
    counted_ = true;
    units_ = units;
  }

  void end(const Key& key, const Lease& lease, std::uint64_t now) {
    auto slice = [&](const std::string& name, std::uint64_t from) {
      writer_.event({{"ph", "X"},
                     {"name", name},
                     {"cat", "lease"},
                     {"pid", trace_.header.process},
                     {"tid", track(key)},
                     {"ts", clock_.us(from)},
                     {"dur", static_cast<double>(now - from) / 1e3}});
    };
    slice(fmt::format("{} SMs", lease.sms), lease.since_ns);
    if (lease.closed_ns != 0) slice("gate closed, draining", lease.closed_ns);
  }

  const TraceFile& trace_;
  const Clock& clock_;
  Writer& writer_;
  std::map<Key, Lease> standing_;
  std::map<Key, std::uint64_t> tracks_;
  hal::ComputeSet units_;
  bool counted_ = false;
  std::uint64_t last_ns_ = 0;
};

void write_all(const std::vector<TraceFile>& traces, std::ostream& out) {
  Clock clock;
  for (const TraceFile& trace : traces)
    clock.zero_ns = std::min(clock.zero_ns, trace.header.first_ns);
  Writer writer(out);
  for (const TraceFile& trace : traces) {
    if (!trace.of_daemon()) {
      Program(trace, clock, writer).write();
      continue;
    }
    auto replay = Replay::create(trace);
    if (replay)
      Daemon(trace, clock, writer).write(**replay);
    else
      say(Problem::kTraceDropped, replay.error().message + "; its leases are not drawn.");
  }
  writer.end();
}

}  // namespace

int export_trace(const std::string& directory, const std::string& output) {
  const auto traces = read_traces(directory);
  if (!traces) {
    say(Problem::kCannotRead, traces.error().message + ".");
    return kExitFailed;
  }
  std::ofstream file;
  if (output != "-") file.open(output, std::ios::trunc);
  std::ostream& out = output == "-" ? std::cout : file;
  write_all(*traces, out);
  if (out.flush()) return 0;
  say(Problem::kCannotWrite, fmt::format("cannot write '{}'.", output));
  return kExitFailed;
}

}  // namespace vitamin::tools
