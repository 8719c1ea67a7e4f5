// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/adapter.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;

class Adapter final : public AllocationPolicy {
 public:
  Adapter(std::unique_ptr<CallbackPolicy> policy, bool isolate_streams)
      : policy_(std::move(policy)), isolate_streams_(isolate_streams) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    keep_grants(snapshot, out);
    prepare_steps(snapshot, out);
    collect(snapshot, out);
    while (!ready_.empty()) {
      const CallbackPolicy::State state{snapshot, out.rows};
      const std::optional<std::size_t> picked = policy_->pick(ready_, state);
      if (!picked || *picked >= ready_.size()) return;
      const CallbackPolicy::Operation operation = ready_[*picked];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(*picked));
      find_eligible(snapshot, operation, out);
      if (eligible_.empty()) continue;  // asked again when a grant is returned
      const CallbackPolicy::Selection choice = policy_->select(operation, eligible_, state);
      if (choice.partition == kNoPartition) continue;
      if (std::find(eligible_.begin(), eligible_.end(), choice.partition) == eligible_.end())
        throw std::runtime_error("select() returned a partition that is not eligible");
      Row& row = out.rows.emplace_back();
      row.client = operation.client;
      row.stream = operation.stream;
      row.partition = choice.partition;
      row.mode = choice.partition == kWholeDevice ? Mode::kShared : Mode::kExclusive;
      row.rank = row.mode == Mode::kShared ? kSharedRank : kNewRank;
      row.launches = choice.launches;
      row.run_ahead_ns = choice.run_ahead_ns;
    }
  }

  void forget(ClientId client) override { policy_->forget(client); }

 private:
  // Rows are placed in this order, so that what is new narrows no exclusive grant that is kept. A
  // shared row makes room for exclusive ones, whatever these are for.
  static constexpr std::uint8_t kKeptRank = 0, kNewRank = 1, kSharedRank = 2;

  static bool open_and_wanted(const Snapshot& snapshot, const Grant& grant) {
    if (grant.state != Grant::State::kOpen) return false;
    const Client* const client = snapshot.find(grant.client);
    return client != nullptr && client->active;
  }

  // What Select chose stays. What the scheduler gave by itself does not: a grant of a starving
  // stream ends with its quantum, one inside a partition that is not free yet gives way to the
  // grant that waits for it.
  void keep_grants(const Snapshot& snapshot, Allocation& out) {
    for (const Grant& grant : snapshot.grants) {
      if (!open_and_wanted(snapshot, grant) || grant.reason == Reason::kStarving) continue;
      const Grant& chosen = is_interim(grant.reason) ? awaited(snapshot, grant) : grant;
      Row& row = out.rows.emplace_back();
      row.client = grant.client;
      row.stream = grant.stream;
      row.partition = chosen.partition;
      row.mode = chosen.mode;
      row.rank = row.mode == Mode::kShared ? kSharedRank : kKeptRank;
      row.launches = chosen.launches;
      row.run_ahead_ns = chosen.run_ahead_ns;
    }
    std::sort(out.rows.begin(), out.rows.end(), [](const Row& a, const Row& b) {
      return a.client != b.client ? a.client < b.client : a.stream < b.stream;
    });
  }

  // The pending grant of the stream; this one, where it has none.
  static const Grant& awaited(const Snapshot& snapshot, const Grant& meanwhile) {
    for (const Grant& grant : snapshot.grants)
      if (grant.state == Grant::State::kPending && grant.client == meanwhile.client &&
          grant.stream == meanwhile.stream)
        return grant;
    return meanwhile;
  }

  void prepare_steps(const Snapshot& snapshot, Allocation& out) {
    for (const Client& client : snapshot.clients)
      for (const Step& step : client.steps) {
        if (step.begin_ns != 0) continue;
        const CallbackPolicy::State state{snapshot, out.rows};
        const CallbackPolicy::Plan plan = policy_->prepare(step, state);
        if (plan.target == kNoPartition || plan.target >= snapshot.pool.size() ||
            plan.until_ns <= snapshot.now_ns)
          continue;
        const ComputeSet units = snapshot.pool[plan.target].compute;
        // One row for each stream. A plan for all streams of the client leaves the row of a stream
        // that has a grant, which overrides it; one for a single stream replaces its row, and moves
        // the stream at once where it runs elsewhere.
        std::erase_if(out.rows, [&](const Row& row) {
          if (row.client == client.id && row.stream == step.stream) return true;
          return plan.revoke_others && row.client != client.id && row.mode == Mode::kExclusive &&
                 snapshot.pool[row.partition].compute.overlaps(units);
        });
        Row& row = out.rows.emplace_back();
        row.client = client.id;
        row.stream = step.stream;
        row.partition = plan.target;
        row.mode = Mode::kExclusive;
        row.rank = plan.revoke_others ? kKeptRank : kNewRank;
        row.hold = true;
        row.until_ns = plan.until_ns;
      }
  }

  // Streams that wait and have no row yet, oldest first.
  void collect(const Snapshot& snapshot, const Allocation& out) {
    ready_.clear();
    for (const Client& client : snapshot.clients) {
      const bool covered = std::any_of(out.rows.begin(), out.rows.end(), [&](const Row& row) {
        return row.client == client.id && row.stream == kAllStreams;
      });
      if (covered) continue;
      for (const StreamDemand& stream : client.streams) {
        if (stream.state != StreamDemand::State::kWaiting || has_row(client.id, stream.id, out))
          continue;
        CallbackPolicy::Operation& operation = ready_.emplace_back();
        operation.client = client.id;
        operation.stream = stream.id;
        operation.phase = client.phase;
        operation.min_sms = stream.min_sms;
        operation.kernel = stream.profile_key;
        operation.predicted_ns = stream.predicted_ns;
        operation.since_ns = stream.waiting_since_ns;
        if (!client.steps.empty()) operation.due_ns = client.steps.front().due_ns;
      }
    }
    std::stable_sort(ready_.begin(), ready_.end(),
                     [](const auto& a, const auto& b) { return a.since_ns < b.since_ns; });
  }

  static bool has_row(ClientId client, StreamId stream, const Allocation& out) {
    return std::any_of(out.rows.begin(), out.rows.end(), [&](const Row& row) {
      return row.client == client && row.stream == stream;
    });
  }

  // Without units that others hold, drain or have a row for: other clients, and under isolation
  // other streams.
  void find_eligible(const Snapshot& snapshot, const CallbackPolicy::Operation& operation,
                     const Allocation& out) {
    const auto is_other = [&](ClientId client, StreamId stream) {
      return client != operation.client || (isolate_streams_ && stream != operation.stream);
    };
    ComputeSet others;
    for (const Row& row : out.rows)
      if (is_other(row.client, row.stream) && row.mode == Mode::kExclusive)
        others |= snapshot.pool[row.partition].compute;
    for (const Grant& grant : snapshot.grants)
      if (is_other(grant.client, grant.stream) && grant.mode == Mode::kExclusive &&
          grant.state != Grant::State::kPending)
        others |= snapshot.pool[grant.partition].compute;
    eligible_.clear();
    bool any_runs_it = false;
    for (const Partition& partition : snapshot.pool.subspan(1)) {
      if (partition.sms < operation.min_sms) continue;
      any_runs_it = true;
      if (!partition.compute.overlaps(others)) eligible_.push_back(partition.id);
    }
    if (others.empty() || !any_runs_it) eligible_.push_back(kWholeDevice);
  }

  std::unique_ptr<CallbackPolicy> policy_;
  bool isolate_streams_;
  std::vector<CallbackPolicy::Operation> ready_;
  std::vector<PartitionId> eligible_;
};

}  // namespace

Policy adapt(std::unique_ptr<CallbackPolicy> policy, PolicyDescription description) {
  description.uses_steps = true;
  description.uses_returns = true;
  description.uses_streams = true;
  return {description, std::make_unique<Adapter>(std::move(policy), description.isolate_streams),
          nullptr};
}

}  // namespace vitamin::scheduler
