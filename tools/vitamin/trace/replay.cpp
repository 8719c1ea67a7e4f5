// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/trace/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/trace/verbs.h"

namespace vitamin::tools {

using runtime::trace::TraceEntry;
using runtime::trace::TraceKind;

namespace {

bool is_answer(const TraceEntry& record) {
  return record.kind == TraceKind::kWord || record.kind == TraceKind::kGrant ||
         record.kind == TraceKind::kGates;
}

std::string line_of(const TraceEntry& record, std::uint64_t since_ns) {
  const std::string who =
      fmt::format("{:>12} client {} lane {}", since_ns, record.client, record.stream);
  if (record.kind == TraceKind::kGrant)
    return fmt::format("{} grant entry {} launches {} word {:016x}{}", who, record.partition,
                       record.a, record.b, record.flags != 0 ? "" : " (not delivered)");
  if (record.kind == TraceKind::kWord) return fmt::format("{} word {:016x}", who, record.a);
  return fmt::format("{:>12} client {} gates closed", since_ns, record.client);
}

}  // namespace

hal::Result<std::unique_ptr<Replay>> Replay::create(const TraceFile& trace) {
  const auto& header = trace.header;
  if (header.dropped > 0)
    return hal::fail(hal::Errc::kInvalidArgument,
                     fmt::format("'{}' is not whole: {} records were dropped", trace.file,
                                 grouped(header.dropped)));
  std::unique_ptr<Replay> replay(new Replay(trace));
  daemon::ArbiterSettings settings;
  settings.scheduler.quantum_ns = header.quantum_ns;
  settings.scheduler.starving_after_ns = header.starving_after_ns;
  settings.answer_within_ns = header.answer_within_ns;
  replay->layout_ = runtime::PoolLayout::build(trace.device(), trace.limits());
  replay->arbiter_ =
      std::make_unique<daemon::DeviceArbiter>(replay->layout_, settings, header.epoch, *replay);
  auto policy = scheduler::make(header.policy, replay->arbiter_->context(header.seed));
  if (!policy) return tl::unexpected(policy.error());
  replay->arbiter_->use(std::move(*policy));
  return replay;
}

bool Replay::step() {
  const std::vector<TraceEntry>& all = trace_.records;
  // Answers without a question belong to no step: the trace begins in the middle, or is damaged.
  while (next_ < all.size() && is_answer(all[next_])) ++next_;
  if (next_ >= all.size()) return false;
  if (all[next_].kind == TraceKind::kReload) reloaded_ = true;
  if (reloaded_) return false;
  told_ = &all[next_++];
  const TraceEntry* bytes = nullptr;
  if (runtime::trace::has_bytes(told_->kind)) {
    if (next_ >= all.size()) return false;  // its second half was not written any more
    bytes = &all[next_++];
  }
  const std::size_t first = next_;
  while (next_ < all.size() && is_answer(all[next_])) ++next_;
  recorded_ = std::span(all).subspan(first, next_ - first);
  answers_.clear();
  if (told_->time != 0) now_ns_ = told_->time;
  tell(*told_, bytes);
  return true;
}

void Replay::tell(const TraceEntry& record, const TraceEntry* bytes) {
  switch (record.kind) {
    case TraceKind::kAttach:
      attach(record, *bytes);
      break;
    case TraceKind::kQuotas:
      for (const std::uint64_t word : {record.a, record.b, record.c})
        quotas_.push_back(
            {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word)});
      break;
    case TraceKind::kRequest: {
      protocol::Record copy;
      std::memcpy(static_cast<void*>(&copy), bytes, sizeof copy);
      const protocol::Bounds bounds{layout_.size(), trace_.header.sms};
      if (const auto request = protocol::decode_request(copy, bounds))
        arbiter_->request(record.client, *request, record.time);
      break;
    }
    case TraceKind::kDying:
      arbiter_->dying(record.client, record.time);
      break;
    case TraceKind::kForget:
      arbiter_->forget(record.client, record.time);
      break;
    case TraceKind::kBefore:
      arbiter_->accept_earlier_work(record.client, record.partition, record.a);
      break;
    case TraceKind::kExpect:
      arbiter_->reserve_for_absent(record.client, record.serial, record.partition, record.a,
                                   record.time);
      break;
    case TraceKind::kProgress:
      arbiter_->set_progress(record.client, {record.a, record.b, record.c, record.serial, record.d},
                             record.time);
      break;
    case TraceKind::kStep:
      arbiter_->step(record.time);
      break;
    default:
      break;
  }
}

void Replay::attach(const TraceEntry& record, const TraceEntry& bytes) {
  runtime::trace::Attached said;
  std::memcpy(static_cast<void*>(&said), &bytes, sizeof said);
  daemon::ClientTraits traits;
  traits.terms.weight = said.weight;
  scheduler::Limits& limits = traits.terms.limits;
  limits = {said.max_sms, said.reserved_sms, said.group, said.may_share != 0, {}};
  std::copy_n(quotas_.begin(), std::min(quotas_.size(), limits.outer.size()), limits.outer.begin());
  quotas_.clear();
  traits.terms.slo = {said.ttft_ns, said.tpot_ns, said.latency_ns, said.step_ns, said.quantile};
  traits.program = said.program;
  traits.minor = record.flags;
  traits.process = record.serial;
  arbiter_->attach(record.client, traits);
}

bool Replay::same() const {
  if (answers_.size() != recorded_.size()) return false;
  return answers_.empty() ||
         std::memcmp(answers_.data(), recorded_.data(), answers_.size() * sizeof(TraceEntry)) == 0;
}

void Replay::set_word(daemon::ClientId client, protocol::LaneId lane, protocol::LeaseWord word) {
  TraceEntry record;
  record.kind = TraceKind::kWord;
  record.client = client;
  record.stream = lane;
  record.a = word;
  answers_.push_back(record);
}

bool Replay::grant(daemon::ClientId client, const protocol::Grant& grant) {
  TraceEntry record;
  record.kind = TraceKind::kGrant;
  record.client = client;
  record.stream = grant.head.lane;
  record.partition = static_cast<std::uint16_t>(grant.partition);
  record.a = grant.launches;
  record.b = grant.word;
  record.c = grant.amends;
  // Whether the client's ring had room is not the arbiter's to decide.
  const std::size_t i = answers_.size();
  const bool known = i < recorded_.size() && recorded_[i].kind == TraceKind::kGrant;
  record.flags = known ? recorded_[i].flags : 1;
  answers_.push_back(record);
  return record.flags != 0;
}

void Replay::gates_closed(daemon::ClientId client) {
  TraceEntry record;
  record.kind = TraceKind::kGates;
  record.client = client;
  answers_.push_back(record);
}

int replay_trace(const std::string& directory, const std::string& decisions) {
  const auto traces = read_traces(directory);
  if (!traces) {
    say(Problem::kCannotRead, traces.error().message + ".");
    return kExitFailed;
  }
  std::ofstream out;
  if (!decisions.empty()) out.open(decisions, std::ios::trunc);
  std::uint64_t steps = 0, answers = 0;
  bool any = false, reloaded = false;
  for (const TraceFile& trace : *traces) {
    if (!trace.of_daemon()) continue;
    any = true;
    auto made = Replay::create(trace);
    if (!made) {
      say(Problem::kTraceDropped, made.error().message + ".");
      return kExitFailed;
    }
    Replay& replay = **made;
    for (; replay.step(); ++steps) {
      answers += replay.answers().size();
      for (const TraceEntry& record : replay.answers())
        if (out.is_open()) out << line_of(record, replay.now_ns() - trace.header.first_ns) << '\n';
      if (replay.same()) continue;
      say(Problem::kReplayDiffers,
          fmt::format("the {}th thing that vitamind was told in '{}' is answered otherwise: {} "
                      "answers then, {} now.",
                      steps + 1, trace.file, replay.recorded().size(), replay.answers().size()));
      return kExitUnhealthy;
    }
    reloaded = reloaded || replay.reloaded();
  }
  if (!any) {
    say(Problem::kCannotRead,
        fmt::format("there is no trace of vitamind in '{}': record with --daemon.", directory));
    return kExitFailed;
  }
  if (!decisions.empty() && !out.flush()) {
    say(Problem::kCannotWrite, fmt::format("cannot write '{}'.", decisions));
    return kExitFailed;
  }
  fmt::print("{} messages and steps, {} answers: every one the same, byte for byte\n",
             grouped(steps), grouped(answers));
  if (reloaded)
    fmt::print("up to where the configuration was read again: what follows is not replayed\n");
  return 0;
}

}  // namespace vitamin::tools
