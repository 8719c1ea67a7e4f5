// SPDX-License-Identifier: Apache-2.0
#include "policies/loadable.h"

#include <dlfcn.h>

#include <stdexcept>
#include <vector>

#include "policies/curves.h"
#include "policies/vitamin_policy.h"

namespace vitamin::policies {
namespace {

using hal::Errc;
using runtime::Choice;
using runtime::EntryId;
using runtime::PoolView;
using runtime::ReadyOperation;

// The shared object; closed when nobody can be in it any more.
struct Library {
  void* handle = nullptr;
  const vitamin_policy_functions* functions = nullptr;
  ~Library() {
    if (handle != nullptr) ::dlclose(handle);
  }
};

hal::Result<std::shared_ptr<Library>> open(const std::string& path) {
  auto failed = [&](const std::string& why) {
    return hal::fail(Errc::kInvalidArgument, "policy library " + path + ": " + why);
  };
  auto library = std::make_shared<Library>();
  library->handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) return failed(::dlerror());
  using Entry = const vitamin_policy_functions* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library->handle, "vitamin_policy"));
  if (entry == nullptr)
    return failed("it exports no function vitamin_policy (see policies/vitamin_policy.h)");
  const vitamin_policy_functions* functions = entry();
  if (functions == nullptr) return failed("vitamin_policy() answers null");
  if (functions->abi != VITAMIN_POLICY_ABI)
    return failed("it was compiled for policy ABI " + std::to_string(functions->abi) +
                  ", this Vitamin has " + std::to_string(VITAMIN_POLICY_ABI) +
                  "; compile it again with this Vitamin's vitamin_policy.h");
  if (functions->size < offsetof(vitamin_policy_functions, prepare) || functions->name == nullptr ||
      functions->create == nullptr || functions->destroy == nullptr || functions->pick == nullptr ||
      functions->select == nullptr)
    return failed("its table is incomplete: name, create, destroy, pick and select are needed");
  library->functions = functions;
  return library;
}

// What a call reads and writes. Shared with the thread that runs it: a call that never returns
// keeps it.
struct Exchange {
  std::shared_ptr<Library> library;
  void* self = nullptr;
  std::vector<vitamin_entry> entries;
  std::vector<vitamin_operation> ready, waiting;
  std::vector<vitamin_holding> holdings;
  std::vector<std::uint32_t> eligible;
  std::vector<std::vector<float>> times;
  vitamin_pool pool{};
  vitamin_operation operation{};
  vitamin_hint hint{};
  std::int64_t picked = 0;
  vitamin_choice choice{};
  vitamin_plan plan{};
  ~Exchange() {
    if (self != nullptr) library->functions->destroy(self);
  }
};

class Loadable final : public runtime::Policy {
 public:
  Loadable(std::shared_ptr<Exchange> exchange, const Limits& limits)
      : exchange_(std::move(exchange)),
        name_(exchange_->library->functions->name),
        limits_(limits) {}
  std::string_view name() const override { return name_; }
  bool wants_profile() const override { return true; }

  std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                  const PoolView& pool) override {
    fill(pool);
    exchange_->ready.clear();
    for (const ReadyOperation& operation : ready) exchange_->ready.push_back(of(operation, pool));
    call("Pick", [](Exchange& e) {
      e.picked = e.library->functions->pick(e.self, e.ready.data(),
                                            static_cast<std::uint32_t>(e.ready.size()), &e.pool);
    });
    if (exchange_->picked < 0) return std::nullopt;
    return static_cast<std::size_t>(exchange_->picked);
  }

  Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                const PoolView& pool) override {
    fill(pool);
    exchange_->operation = of(operation, pool);
    exchange_->eligible.assign(eligible.begin(), eligible.end());
    call("Select", [](Exchange& e) {
      e.choice =
          e.library->functions->select(e.self, &e.operation, e.eligible.data(),
                                       static_cast<std::uint32_t>(e.eligible.size()), &e.pool);
    });
    return {entry(exchange_->choice.entry), exchange_->choice.launches};
  }

  runtime::Plan prepare(const runtime::Hint& hint, const PoolView& pool) override {
    const vitamin_policy_functions& functions = *exchange_->library->functions;
    if (functions.size < sizeof functions || functions.prepare == nullptr) return {};
    fill(pool);
    exchange_->hint = {
        sizeof(vitamin_hint), hint.client,    hint.lane,     static_cast<std::uint32_t>(hint.kind),
        hint.processors,      hint.held,      hint.kernel,   hint.ready_at_ns,
        hint.deadline_ns,     hint.queued_ns, hint.cancelled};
    call("Prepare",
         [](Exchange& e) { e.plan = e.library->functions->prepare(e.self, &e.hint, &e.pool); });
    const vitamin_plan& plan = exchange_->plan;
    return {entry(plan.target), plan.close_gates != 0, plan.expires_ns, entry(plan.standing)};
  }

 private:
  // Beyond any entry stays beyond any entry, for the validation to see.
  static EntryId entry(std::uint32_t id) {
    return static_cast<EntryId>(id > VITAMIN_NO_ENTRY ? VITAMIN_NO_ENTRY - 1 : id);
  }

  void call(const char* callback, void (*function)(Exchange&)) {
    using Outcome = TimedThread::Outcome;
    const Outcome outcome =
        thread_.run([exchange = exchange_, function] { function(*exchange); }, limits_);
    if (outcome == Outcome::kReturned) return;
    const bool slept = outcome == Outcome::kClock;
    throw std::runtime_error(std::string("no answer to ") + callback + " within " +
                             std::to_string((slept ? limits_.clock : limits_.processor).count()) +
                             (slept ? " ms" : " ms of processor time"));
  }

  vitamin_operation of(const ReadyOperation& operation, const PoolView& pool) {
    const std::span<const float> times = curves_.of(operation.kernel, pool);
    // The inner vectors stay where they are when the outer one grows.
    exchange_->times.emplace_back(times.begin(), times.end());
    return {sizeof(vitamin_operation),
            operation.client,
            operation.lane,
            static_cast<std::uint32_t>(operation.kind),
            operation.processors,
            operation.last_entry,
            operation.id,
            operation.kernel,
            operation.since_ns,
            operation.ready_at_ns,
            operation.deadline_ns,
            operation.predicted_ns,
            operation.queued_ns,
            exchange_->times.back().data(),
            operation.iteration_end,
            operation.target_ns};
  }

  void fill(const PoolView& view) {
    Exchange& e = *exchange_;
    e.times.clear();
    e.entries.clear();
    for (const runtime::PoolEntry& entry : view.entries)
      e.entries.push_back({sizeof(vitamin_entry), entry.processors, entry.compute.bits()});
    e.waiting.clear();
    for (const ReadyOperation& operation : view.waiting) e.waiting.push_back(of(operation, view));
    e.holdings.clear();
    for (const runtime::Holding& holding : view.holdings)
      e.holdings.push_back(
          {sizeof(vitamin_holding), holding.entry, holding.granted_at_ns, of(holding.next, view)});
    e.pool = {sizeof(vitamin_pool),
              static_cast<std::uint32_t>(e.entries.size()),
              static_cast<std::uint32_t>(e.waiting.size()),
              static_cast<std::uint32_t>(e.holdings.size()),
              e.entries.data(),
              e.waiting.data(),
              e.holdings.data(),
              view.barred.bits(),
              view.set_aside.bits(),
              view.now_ns,
              view.epoch};
  }

  std::shared_ptr<Exchange> exchange_;
  std::string name_;
  Limits limits_;
  Curves curves_;
  TimedThread thread_;
};

}  // namespace

hal::Result<std::unique_ptr<Guarded>> load(const std::string& path, const std::string& parameters,
                                           Sink sink, const Limits& limits) {
  auto library = open(path);
  if (!library) return tl::unexpected(library.error());
  auto exchange = std::make_shared<Exchange>();
  exchange->library = *library;
  char error[256] = "";
  try {
    exchange->self = (*library)->functions->create(parameters.c_str(), error, sizeof error);
  } catch (...) {
    return hal::fail(Errc::kInvalidArgument, "policy library " + path + ": create() throws");
  }
  error[sizeof error - 1] = 0;
  if (exchange->self == nullptr)
    return hal::fail(Errc::kInvalidArgument,
                     "policy library " + path + ": " +
                         (error[0] != 0 ? error : "create() answers null and says nothing"));
  return std::make_unique<Guarded>(std::make_unique<Loadable>(std::move(exchange), limits),
                                   std::move(sink));
}

hal::Result<LoadableDescription> describe(const std::string& path) {
  const auto library = open(path);
  if (!library) return tl::unexpected(library.error());
  const vitamin_policy_functions& functions = *(*library)->functions;
  return LoadableDescription{functions.name, functions.summary != nullptr ? functions.summary : ""};
}

}  // namespace vitamin::policies
