// SPDX-License-Identifier: Apache-2.0
//
// Baselines that give the whole device to one client at a time. They differ in when they hand over:
//
//   exclusive   when the client has been idle for a while
//   temporal    after a slice, as the driver's time slices do; a turn begins when the client's
//               grant opens: while it waits for the drain of the client before it, it has nothing
//               of it
//   salus       when a step ends (a training iteration, a request), as Salus (MLSys '20) does, or
//               when the client has been idle for a while
//
// The next turn is of the client that has waited longest.
#include <algorithm>

#include "scheduler/policies/builtin.h"

namespace vitamin::scheduler {
namespace {

enum class HandOver : std::uint8_t { kIdle, kSlice, kStep };

class Turns final : public AllocationPolicy {
 public:
  Turns(HandOver when, const TurnOptions& options) : when_(when), options_(options) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    const Client* const holder = snapshot.find(holder_);
    if (holder != nullptr && !begun_) note_begin(snapshot);
    const Client* const next = longest_wait(snapshot);
    if (holder == nullptr || (next != nullptr && ends(snapshot, *holder))) {
      if (next == nullptr) {
        holder_ = kNoClient;
        return;
      }
      begin(snapshot, *next);
    }
    const Client* const now = snapshot.find(holder_);
    note_step(*now);
    Row& row = out.rows.emplace_back();
    row.client = holder_;
    row.partition = kWholeDevice;
    row.mode = Mode::kExclusive;
    row.hold = true;
    // A stream that ends a step asks for another grant; nothing else ends so many launches.
    if (when_ == HandOver::kStep) row.launches = 1U << 30;
    if (now->active) idle_since_ns_ = kNever;
    if (longest_wait(snapshot) == nullptr) return;
    // While no other client waits, nothing has to be looked at.
    if (when_ == HandOver::kSlice && now->active)
      out.wake_ns = (begun_ ? since_ns_ : snapshot.now_ns) + options_.slice_ns;
    if (!now->active) {
      idle_since_ns_ = std::min(idle_since_ns_, snapshot.now_ns);
      out.wake_ns = std::min(out.wake_ns, idle_since_ns_ + quiet_ns());
    }
  }

  void forget(ClientId client) override {
    if (client == holder_) holder_ = kNoClient;
  }

 private:
  std::uint64_t quiet_ns() const { return when_ == HandOver::kSlice ? 0 : options_.quiet_ns; }

  // Of the clients without the turn.
  const Client* longest_wait(const Snapshot& snapshot) const {
    const Client* longest = nullptr;
    std::uint64_t since_ns = kNever;
    for (const Client& client : snapshot.clients) {
      if (client.id == holder_) continue;
      for (const StreamDemand& stream : client.streams)
        if (stream.state == StreamDemand::State::kWaiting && stream.waiting_since_ns < since_ns) {
          since_ns = stream.waiting_since_ns;
          longest = &client;
        }
    }
    return longest;
  }

  bool ends(const Snapshot& snapshot, const Client& holder) const {
    if (!holder.active)
      return quiet_ns() == 0 ||
             (idle_since_ns_ != kNever && snapshot.now_ns - idle_since_ns_ >= quiet_ns());
    if (when_ == HandOver::kSlice)
      return begun_ && snapshot.now_ns - since_ns_ >= options_.slice_ns;
    return when_ == HandOver::kStep && step_ != 0 && running_step(holder) != step_;
  }

  void begin(const Snapshot& snapshot, const Client& client) {
    holder_ = client.id;
    since_ns_ = snapshot.now_ns;
    begun_ = false;
    idle_since_ns_ = kNever;
    step_ = 0;
  }

  void note_begin(const Snapshot& snapshot) {
    std::uint64_t opened_ns = kNever;
    for (const Grant& grant : snapshot.grants)
      if (grant.client == holder_ && grant.state == Grant::State::kOpen)
        opened_ns = std::min(opened_ns, grant.opened_ns);
    begun_ = opened_ns != kNever;
    if (begun_) since_ns_ = std::max(since_ns_, opened_ns);
  }

  static std::uint64_t running_step(const Client& client) {
    std::uint64_t begin_ns = 0, id = 0;
    for (const Step& step : client.steps)
      if (step.begin_ns > begin_ns) begin_ns = step.begin_ns, id = step.id;
    return id;
  }

  void note_step(const Client& client) {
    if (const std::uint64_t step = running_step(client); step != 0) step_ = step;
  }

  HandOver when_;
  TurnOptions options_;
  ClientId holder_ = kNoClient;
  std::uint64_t since_ns_ = 0;            // its turn
  bool begun_ = false;                    // its grant has opened in this turn
  std::uint64_t idle_since_ns_ = kNever;  // the holder
  std::uint64_t step_ = 0;                // of the holder, that began last in its turn
};

constexpr Parameter kQuiet[] = {{"quiet", "how long an idle client keeps its turn (default 20ms)"}};
constexpr Parameter kSlice[] = {{"slice", "length of a turn while others wait (default 2ms)"}};

Policy make(std::string_view name, std::string_view summary, std::span<const Parameter> parameters,
            HandOver when, const TurnOptions& options) {
  PolicyDescription description;
  description.name = name;
  description.summary = summary;
  description.parameters = parameters;
  description.may_starve = true;
  description.uses_progress = true;
  description.uses_streams = true;
  description.uses_steps = when == HandOver::kStep;
  return {description, std::make_unique<Turns>(when, options), nullptr};
}

}  // namespace

Policy make_exclusive(const TurnOptions& options) {
  return make("exclusive", "the whole device to one client until it is idle: a baseline", kQuiet,
              HandOver::kIdle, options);
}

Policy make_temporal(const TurnOptions& options) {
  return make("temporal", "the whole device to each client in turn, for a slice: a baseline",
              kSlice, HandOver::kSlice, options);
}

Policy make_salus(const TurnOptions& options) {
  return make("salus", "the whole device to each client in turn, for a step: a baseline", kQuiet,
              HandOver::kStep, options);
}

}  // namespace vitamin::scheduler
