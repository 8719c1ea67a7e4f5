// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/loadable.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "scheduler/policies/adapter.h"
#include "scheduler/policies/flat.h"

namespace vitamin::scheduler {
namespace {

using hal::Errc;

// A policy may be compiled with an earlier header of this ABI, whose structures are smaller. Of a
// table all up to `allocate` is needed; of a row all that rows of ABI 2 had from the beginning.
constexpr std::size_t kLeastTableBytes = offsetof(vitamin_policy_functions, place);
constexpr std::size_t kLeastRowBytes =
    offsetof(vitamin_row, until_ns) + sizeof(vitamin_row::until_ns);

// The shared object; closed when no call can be in it any more.
struct Library {
  void* handle = nullptr;
  vitamin_policy_functions functions{};  // what the library's table lacks is null
  ~Library() {
    if (handle != nullptr) ::dlclose(handle);
  }
};

hal::Result<std::shared_ptr<Library>> open(const std::string& path) {
  const auto failed = [&](const std::string& why) {
    return hal::fail(Errc::kInvalidArgument, "policy library " + path + ": " + why);
  };
  auto library = std::make_shared<Library>();
  library->handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) return failed(::dlerror());
  using Entry = const vitamin_policy_functions* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library->handle, "vitamin_policy"));
  if (entry == nullptr)
    return failed("it exports no function vitamin_policy (see vitamin_policy.h)");
  const vitamin_policy_functions* const table = entry();
  if (table == nullptr) return failed("vitamin_policy() returns null");
  if (table->abi != VITAMIN_POLICY_ABI)
    return failed("it was compiled for policy ABI " + std::to_string(table->abi) +
                  ", this Vitamin has " + std::to_string(VITAMIN_POLICY_ABI) +
                  "; compile it again with this Vitamin's vitamin_policy.h");
  const bool whole = table->size >= kLeastTableBytes;
  if (whole) library->functions = complete<vitamin_policy_functions>(table, table->size);
  const vitamin_policy_functions& functions = library->functions;
  if (!whole || functions.name == nullptr || functions.create == nullptr ||
      functions.destroy == nullptr)
    return failed("its table is incomplete: name, create and destroy are needed");
  const int interfaces = (functions.allocate != nullptr) + (functions.place != nullptr) +
                         (functions.select != nullptr);
  if (interfaces != 1)
    return failed("its table sets " + std::to_string(interfaces) +
                  " of allocate, place and select; exactly one is needed");
  return library;
}

// A snapshot that owns all that it refers to.
class OwnedSnapshot {
 public:
  void fill(const Snapshot& from) {
    pool_.assign(from.pool.begin(), from.pool.end());
    clients_.assign(from.clients.begin(), from.clients.end());
    grants_.assign(from.grants.begin(), from.grants.end());
    changed_.assign(from.changed.begin(), from.changed.end());
    if (from.current != nullptr) current_ = *from.current;
    streams_.clear(), steps_.clear();
    for (const Client& client : clients_) {
      streams_.insert(streams_.end(), client.streams.begin(), client.streams.end());
      steps_.insert(steps_.end(), client.steps.begin(), client.steps.end());
    }
    std::span<const StreamDemand> streams(streams_);
    std::span<const Step> steps(steps_);
    for (Client& client : clients_) {
      client.streams = streams.first(client.streams.size());
      client.steps = steps.first(client.steps.size());
      streams = streams.subspan(client.streams.size());
      steps = steps.subspan(client.steps.size());
    }
    view_ = {from.now_ns, from.revision, pool_, clients_, grants_, changed_, &current_, nullptr};
  }
  const Snapshot& view() const { return view_; }

 private:
  std::vector<Partition> pool_;
  std::vector<Client> clients_;
  std::vector<StreamDemand> streams_;
  std::vector<Step> steps_;
  std::vector<Grant> grants_;
  std::vector<ClientId> changed_;
  Allocation current_;
  Snapshot view_;
};

// What a call reads and writes. Shared with the thread that runs the call.
struct Exchange {
  // A row of a policy that was compiled with a later header of this ABI may be larger than ours.
  static constexpr std::size_t kRowBytes = 256;
  std::shared_ptr<Library> library;
  std::string parameters;
  std::array<char, 256> refusal{};  // of create()
  void* self = nullptr;
  FlatSnapshot flat;
  OwnedSnapshot owned;
  Policy adapter;  // callbacks: over `owned`
  Allocation answer;
  std::vector<std::uint64_t> rows;
  std::uint32_t capacity = 0;
  std::int64_t written = 0;
  std::uint64_t wake_ns = kNever;
  std::vector<vitamin_partition> partitions;
  std::vector<std::uint32_t> eligible;
  vitamin_launch launch{};
  vitamin_choice choice{};
  ClientId client = kNoClient;
  const vitamin_policy_functions& functions() const { return library->functions; }
  ~Exchange() {
    if (self != nullptr) functions().destroy(self);
  }
};

// Runs calls under limits; a call that exceeds them throws.
class Caller {
 public:
  Caller(std::shared_ptr<Exchange> exchange, const SandboxLimits& limits)
      : exchange_(std::move(exchange)), limits_(limits) {}

  Exchange& exchange() { return *exchange_; }

  // Before any other call. Once a policy and not for each plan: it may use all of its time.
  void create() {
    const std::chrono::milliseconds processor = std::exchange(limits_.processor, limits_.clock);
    call("create", [](Exchange& e) {
      e.self = e.functions().create(e.parameters.c_str(), e.refusal.data(), e.refusal.size());
      e.refusal.back() = 0;
    });
    limits_.processor = processor;
  }

  void call(const char* name, void (*function)(Exchange&)) {
    using Outcome = Sandbox::Outcome;
    const Outcome outcome =
        sandbox_.run([exchange = exchange_, function] { function(*exchange); }, limits_);
    if (outcome == Outcome::kReturned) return;
    const bool slept = outcome == Outcome::kClock;
    throw std::runtime_error("no answer to " + std::string(name) + " within " +
                             std::to_string((slept ? limits_.clock : limits_.processor).count()) +
                             (slept ? " ms" : " ms of processor time"));
  }

  void forget(ClientId client) {
    exchange_->client = client;
    if (exchange_->functions().forget != nullptr)
      call("forget", [](Exchange& e) { e.functions().forget(e.self, e.client); });
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  SandboxLimits limits_;
  Sandbox sandbox_;
};

class LoadedAllocation final : public AllocationPolicy {
 public:
  explicit LoadedAllocation(std::unique_ptr<Caller> caller) : caller_(std::move(caller)) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    Exchange& e = caller_->exchange();
    e.flat.fill(snapshot);
    std::size_t streams = 0;
    for (const Client& client : snapshot.clients) streams += client.streams.size();
    e.capacity = static_cast<std::uint32_t>(2 * (snapshot.clients.size() + streams) + 64);
    e.rows.assign(e.capacity * Exchange::kRowBytes / sizeof(std::uint64_t), 0);
    e.wake_ns = kNever;
    caller_->call("allocate", [](Exchange& x) {
      x.written = x.functions().allocate(x.self, &x.flat.view(),
                                         reinterpret_cast<vitamin_row*>(x.rows.data()), x.capacity,
                                         &x.wake_ns);
    });
    if (e.written < 0 || e.written > e.capacity)
      throw std::runtime_error("allocate() returned " + std::to_string(e.written) + " rows");
    // All of one size, that of the first: it is what VITAMIN_AT steps by.
    const auto* const rows = reinterpret_cast<const std::byte*>(e.rows.data());
    const std::size_t size = reinterpret_cast<const vitamin_row*>(rows)->size;
    if (e.written > 0 && (size < kLeastRowBytes || size > Exchange::kRowBytes))
      throw std::runtime_error("allocate() returned a row without a valid size");
    for (std::size_t i = 0; i < static_cast<std::size_t>(e.written); ++i)
      out.rows.push_back(from_flat(complete<vitamin_row>(rows + i * size, size)));
    out.wake_ns = e.wake_ns;
  }
  void forget(ClientId client) override { caller_->forget(client); }

 private:
  std::unique_ptr<Caller> caller_;
};

// The whole of a plan, Pick, Select and Prepare of every stream and step, is one hand-off.
class LoadedCallbacks final : public AllocationPolicy {
 public:
  explicit LoadedCallbacks(std::unique_ptr<Caller> caller) : caller_(std::move(caller)) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    Exchange& e = caller_->exchange();
    e.flat.fill(snapshot);
    e.owned.fill(snapshot);
    e.answer.rows.clear();
    e.answer.wake_ns = kNever;
    caller_->call("pick, select and prepare",
                  [](Exchange& x) { x.adapter.allocation->allocate(x.owned.view(), x.answer); });
    out.rows = e.answer.rows;
    out.wake_ns = e.answer.wake_ns;
  }
  void forget(ClientId client) override { caller_->forget(client); }

 private:
  std::unique_ptr<Caller> caller_;
};

class LoadedPlacement final : public PlacementPolicy {
 public:
  explicit LoadedPlacement(std::unique_ptr<Caller> caller) : caller_(std::move(caller)) {}

  Placement place(const PlacementRequest& launch, std::span<const PartitionId> eligible) override {
    Exchange& e = caller_->exchange();
    if (e.partitions.size() != launch.pool.size()) {
      e.partitions.clear();
      for (const Partition& partition : launch.pool) e.partitions.push_back(flat(partition));
    }
    e.eligible.assign(eligible.begin(), eligible.end());
    e.launch = {sizeof(vitamin_launch),
                launch.client,
                launch.demand.id,
                launch.demand.min_sms,
                launch.last,
                static_cast<std::uint32_t>(e.partitions.size()),
                launch.demand.profile_key,
                launch.demand.predicted_ns,
                launch.demand.waiting_since_ns,
                launch.now_ns,
                e.partitions.data()};
    caller_->call("place", [](Exchange& x) {
      x.choice = x.functions().place(x.self, &x.launch, x.eligible.data(),
                                     static_cast<std::uint32_t>(x.eligible.size()));
    });
    return {partition_from_flat(e.choice.partition), e.choice.launches};
  }
  void forget(ClientId client) override { caller_->forget(client); }

 private:
  std::unique_ptr<Caller> caller_;
};

// Called by the adapter, on the sandbox's thread.
class FlatCallbacks final : public CallbackPolicy {
 public:
  // `exchange` owns this object.
  explicit FlatCallbacks(Exchange& exchange) : exchange_(exchange) {}

  std::optional<std::size_t> pick(std::span<const Operation> ready, const State&) override {
    const vitamin_policy_functions& functions = exchange_.functions();
    if (functions.pick == nullptr) return 0;
    ready_.clear();
    for (const Operation& operation : ready) ready_.push_back(flat_of(operation));
    const std::int64_t picked =
        functions.pick(exchange_.self, ready_.data(), static_cast<std::uint32_t>(ready_.size()),
                       &exchange_.flat.view());
    if (picked < 0) return std::nullopt;
    if (picked >= static_cast<std::int64_t>(ready.size()))
      throw std::runtime_error("pick() returned operation " + std::to_string(picked) + " of " +
                               std::to_string(ready.size()));
    return static_cast<std::size_t>(picked);
  }

  Selection select(const Operation& operation, std::span<const PartitionId> eligible,
                   const State&) override {
    const vitamin_operation flat_operation = flat_of(operation);
    eligible_.assign(eligible.begin(), eligible.end());
    const vitamin_choice choice = exchange_.functions().select(
        exchange_.self, &flat_operation, eligible_.data(),
        static_cast<std::uint32_t>(eligible_.size()), &exchange_.flat.view());
    return {partition_from_flat(choice.partition), choice.launches, kNever};
  }

  Plan prepare(const Step& step, const State&) override {
    if (exchange_.functions().prepare == nullptr) return {};
    const vitamin_step flat_step = flat(step);
    const vitamin_plan plan =
        exchange_.functions().prepare(exchange_.self, &flat_step, &exchange_.flat.view());
    return {partition_from_flat(plan.target), plan.revoke_others != 0, plan.until_ns};
  }

 private:
  static vitamin_operation flat_of(const Operation& operation) {
    return {sizeof(vitamin_operation), operation.client,
            operation.stream,          static_cast<std::uint32_t>(operation.phase),
            operation.min_sms,         operation.kernel,
            operation.predicted_ns,    operation.since_ns,
            operation.due_ns};
  }

  Exchange& exchange_;
  std::vector<vitamin_operation> ready_;
  std::vector<std::uint32_t> eligible_;
};

}  // namespace

hal::Result<Policy> load(const std::string& path, const std::string& parameters,
                         const SandboxLimits& limits) {
  auto library = open(path);
  if (!library) return tl::unexpected(library.error());
  auto exchange = std::make_shared<Exchange>();
  exchange->library = *library;
  exchange->parameters = parameters;
  const vitamin_policy_functions& functions = exchange->functions();
  auto caller = std::make_unique<Caller>(exchange, limits);
  const auto refused = [&](const std::string& why) {
    return hal::fail(Errc::kInvalidArgument,
                     "policy library " + path + " refuses '" + parameters + "': " + why);
  };
  try {
    caller->create();
  } catch (const std::exception& error) {
    return refused(std::string("create() failed: ") + error.what());
  } catch (...) {
    return refused("create() threw an exception");
  }
  if (exchange->self == nullptr)
    return refused(exchange->refusal[0] != 0 ? exchange->refusal.data() : "no reason given");
  Policy policy;
  PolicyDescription& description = policy.description;
  description.name = functions.name;
  description.summary = functions.summary != nullptr ? functions.summary : "";
  description.may_starve = (functions.flags & VITAMIN_MAY_STARVE) != 0;
  description.isolate_streams = (functions.flags & VITAMIN_ISOLATE_STREAMS) != 0;
  description.uses_progress = functions.allocate != nullptr;
  description.uses_kernel_times = true;
  description.uses_steps = (functions.flags & VITAMIN_USES_STEPS) != 0;
  description.uses_returns = (functions.flags & VITAMIN_USES_RETURNS) != 0;
  description.uses_streams = (functions.flags & VITAMIN_USES_STREAMS) != 0;
  if (functions.allocate != nullptr) {
    policy.allocation = std::make_unique<LoadedAllocation>(std::move(caller));
  } else if (functions.place != nullptr) {
    policy.placement = std::make_unique<LoadedPlacement>(std::move(caller));
  } else {
    exchange->adapter = adapt(std::make_unique<FlatCallbacks>(*exchange), description);
    description = exchange->adapter.description;
    policy.allocation = std::make_unique<LoadedCallbacks>(std::move(caller));
  }
  return policy;
}

hal::Result<LoadableDescription> describe(const std::string& path) {
  const auto library = open(path);
  if (!library) return tl::unexpected(library.error());
  const vitamin_policy_functions& functions = (*library)->functions;
  return LoadableDescription{functions.name, functions.summary != nullptr ? functions.summary : ""};
}

}  // namespace vitamin::scheduler
