// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a device, told again what it was told in a trace.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "tools/vitamin/trace/read.h"

namespace vitamin::tools {

class Replay final : public daemon::GrantSink {
 public:
  using Record = runtime::trace::TraceEntry;

  // The error says why this trace cannot be replayed: not vitamind's, not whole, or a policy that
  // is not there.
  static hal::Result<std::unique_ptr<Replay>> create(const TraceFile& trace);

  // Tells the next thing. False: there is none left.
  bool step();
  // Of the last step: when, what was told, and what was answered now and then.
  std::uint64_t now_ns() const { return now_ns_; }
  const Record& told() const { return *told_; }
  const std::vector<Record>& answers() const { return answers_; }
  std::span<const Record> recorded() const { return recorded_; }
  bool same() const;
  // It ended where the configuration was read again: what the trace holds behind that depends on a
  // state that it does not tell.
  bool reloaded() const { return reloaded_; }
  const daemon::DeviceArbiter& arbiter() const { return *arbiter_; }

 private:
  explicit Replay(const TraceFile& trace) : trace_(trace), layout_() {}
  void set_word(daemon::ClientId client, protocol::LaneId lane, protocol::LeaseWord word) override;
  bool grant(daemon::ClientId client, const protocol::Grant& grant) override;
  void gates_closed(daemon::ClientId client) override;
  void tell(const Record& record, const Record* bytes);
  void attach(const Record& record, const Record& bytes);

  const TraceFile& trace_;
  runtime::PoolLayout layout_;
  std::unique_ptr<daemon::DeviceArbiter> arbiter_;
  bool reloaded_ = false;
  std::size_t next_ = 0;
  std::uint64_t now_ns_ = 0;
  const Record* told_ = nullptr;
  std::vector<scheduler::GroupQuota> quotas_;  // of the client that is attached next
  std::vector<Record> answers_;
  std::span<const Record> recorded_;
};

}  // namespace vitamin::tools
