// SPDX-License-Identifier: Apache-2.0
#include "interpose/quotas.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>

#include "daemon/client/memory_quotas.h"
#include "interpose/context.h"
#include "interpose/handle_map.h"
#include "interpose/process_state.h"
#include "runtime/environment.h"

namespace vitamin::interpose {

namespace environment = runtime::environment;

constinit std::atomic<QuotaState> quota_state{QuotaState::kUnknown};

namespace {

constinit HandleMap<ChargedMemory> charged_memory;

constinit std::mutex making;
// Of each device: null until it was asked for, then its quotas or kUnbounded.
constinit std::atomic<DeviceQuotas*> quotas_of_device[kMaxContexts]{};
alignas(DeviceQuotas) constinit unsigned char unbounded_place[1] = {};
DeviceQuotas* const kUnbounded = reinterpret_cast<DeviceQuotas*>(unbounded_place);

const char* value_of(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

// "123" or "50%" of `total`. Empty: it is neither.
std::optional<std::uint64_t> quota_of(const char* text, std::uint64_t total) {
  char* end = nullptr;
  errno = 0;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  if (end == text || errno != 0 || *text == '-') return std::nullopt;
  if (*end == '\0') return number;
  if (end[0] != '%' || end[1] != '\0' || number < 1 || number > 100) return std::nullopt;
  return total / 100 * number + total % 100 * number / 100;
}

// A UUID as part of a file's name.
std::string ledger_name(const std::string& uuid) {
  std::string name;
  for (const char c : uuid) name += c == '/' || c == '\0' ? '_' : c;
  return name;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

QuotaState find_quota_state() {
  const char* const daemon = value_of(environment::kDaemon);
  const bool some = value_of(environment::kMemory) != nullptr ||
                    (daemon != nullptr && client::any_memory_quota(daemon));
  const QuotaState state = some ? QuotaState::kSome : QuotaState::kNone;
  quota_state.store(state, std::memory_order_relaxed);
  return state;
}

DeviceQuotas* quotas_of(int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxContexts) return nullptr;
  DeviceQuotas* quotas = quotas_of_device[ordinal].load(std::memory_order_acquire);
  if (quotas == nullptr) [[unlikely]] {
    const std::lock_guard lock(making);
    quotas = quotas_of_device[ordinal].load(std::memory_order_acquire);
    if (quotas == nullptr) {
      const ReentrancyGuard ours;
      const auto facts = memory_facts(ordinal);
      if (!facts) return nullptr;
      DeviceQuotas* const found = quotas_of(*facts);
      quotas = found != nullptr ? found : kUnbounded;
      quotas_of_device[ordinal].store(quotas, std::memory_order_release);
    }
  }
  return quotas != kUnbounded ? quotas : nullptr;
}

DeviceQuotas* quotas_of(const MemoryFacts& facts) {
  // Never destroyed: programs free memory after static destructors ran.
  static auto* const all = new std::map<std::string, std::unique_ptr<DeviceQuotas>>;
  static constinit std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = all->try_emplace(facts.uuid);
  if (is_new) at->second = DeviceQuotas::make(facts);
  return at->second.get();
}

// --- one device ----------------------------------------------------------------------------------

std::unique_ptr<DeviceQuotas> DeviceQuotas::make(const MemoryFacts& facts) {
  auto quotas = std::make_unique<DeviceQuotas>();
  quotas->uuid_ = facts.uuid;
  quotas->add_run(facts);
  quotas->add_groups(facts);
  return quotas->accounts_.empty() ? nullptr : std::move(quotas);
}

// What `vitamin run --memory` said: the processes of the run share one ledger in its directory.
void DeviceQuotas::add_run(const MemoryFacts& facts) {
  const char* const text = value_of(environment::kMemory);
  if (text == nullptr) return;
  const auto quota = quota_of(text, facts.total);
  if (!quota)
    return warn(Problem::kVariable, "%s=%s is no number of bytes and no percentage; it is ignored",
                environment::kMemory, text);
  const char* const directory = value_of(environment::kRunDirectory);
  if (directory == nullptr)
    return add(protocol::private_ledger(), *quota, "of this process", facts);
  auto ledger = protocol::open_ledger(std::string(directory) + "/quota-" + ledger_name(facts.uuid));
  if (!ledger)
    warn(Problem::kMemoryQuota, "%s; the quota holds for each process alone",
         ledger.error().message.c_str());
  add(ledger ? std::move(ledger) : protocol::private_ledger(), *quota, "of this run", facts);
}

// What vitamind says of the groups that this process is of.
void DeviceQuotas::add_groups(const MemoryFacts& facts) {
  const char* const daemon = value_of(environment::kDaemon);
  if (daemon == nullptr) return;
  const char* const workload = value_of(environment::kClass);
  auto quotas =
      client::memory_quotas({daemon, facts.uuid, facts.total, workload != nullptr ? workload : "",
                             ::program_invocation_short_name});
  if (!quotas) {
    refuse_alone(quotas.error().message.c_str());
    return warn(Problem::kMemoryQuota, "%s; vitamind bounds no memory of this process",
                quotas.error().message.c_str());
  }
  for (client::MemoryQuota& each : *quotas)
    add(std::move(each.ledger), each.bytes, std::move(each.whose), facts, each.owner);
}

void DeviceQuotas::add(hal::Result<protocol::MappedLedger> ledger, std::uint64_t quota,
                       std::string whose, const MemoryFacts& facts, std::uint64_t owner) {
  if (!ledger) {
    warn(Problem::kMemoryQuota, "%s; nothing bounds the memory of this process",
         ledger.error().message.c_str());
    return;
  }
  if (quota > facts.total)
    warn(Problem::kMemoryQuota,
         "the quota %s (%s) is more than device %s has (%s): the device bounds it", whose.c_str(),
         bytes_text(quota).c_str(), facts.uuid.c_str(), bytes_text(facts.total).c_str());
  if (owner == 0) (*ledger)->set_quota(quota);  // vitamind sets it in its ledgers
  Account account{std::move(*ledger), 0, std::move(whose)};
  if (owner == 0) owner = protocol::own_owner(*account.ledger);
  account.slot = account.ledger->claim(owner, protocol::DeadOwners(*account.ledger));
  if (account.slot == protocol::kNoQuotaSlot)
    warn(Problem::kMemoryQuota,
         "the quota %s counts %zu processes at once, and this is one more: its allocations are "
         "refused",
         account.whose.c_str(), protocol::kQuotaSlots);
  accounts_.push_back(std::move(account));
}

bool DeviceQuotas::charge(std::uint64_t bytes) {
  const std::lock_guard lock(charging_);
  for (std::size_t i = 0; i < accounts_.size(); ++i) {
    Account& account = accounts_[i];
    if (account.slot != protocol::kNoQuotaSlot &&
        account.ledger->charge(account.slot, bytes, protocol::DeadOwnersOf{*account.ledger},
                               protocol::LedgerWait()))
      continue;
    while (i-- > 0) accounts_[i].ledger->give_back(accounts_[i].slot, bytes);
    return false;
  }
  return true;
}

void DeviceQuotas::charge_unasked(std::uint64_t bytes) {
  for (Account& account : accounts_)
    if (account.slot != protocol::kNoQuotaSlot) account.ledger->charge_unasked(account.slot, bytes);
}

void DeviceQuotas::got(std::uint64_t bytes) {
  const std::uint64_t has = has_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  for (Account& account : accounts_)
    if (account.slot != protocol::kNoQuotaSlot) account.ledger->note_peak(account.slot, has);
}

void DeviceQuotas::lost(std::uint64_t bytes) { has_.fetch_sub(bytes, std::memory_order_relaxed); }

void DeviceQuotas::give_back(std::uint64_t bytes) {
  lost(bytes);
  uncharge(bytes);
}

void DeviceQuotas::uncharge(std::uint64_t bytes) {
  for (Account& account : accounts_)
    if (account.slot != protocol::kNoQuotaSlot) account.ledger->give_back(account.slot, bytes);
}

DeviceQuotas::View DeviceQuotas::bounded(View real) {
  for (const Account& account : accounts_) {
    account.ledger->return_dead(protocol::DeadOwners(*account.ledger));
    const std::uint64_t quota = account.ledger->quota();
    const std::uint64_t used = account.ledger->add_up().used;
    real.total = std::min(real.total, quota);
    real.free = std::min(real.free, quota > used ? quota - used : 0);
  }
  return real;
}

void DeviceQuotas::explain(std::uint64_t bytes) {
  static constinit std::atomic<bool> said{false};
  if (said.exchange(true, std::memory_order_relaxed)) return;
  for (const Account& account : accounts_) {
    const std::uint64_t quota = account.ledger->quota();
    const std::uint64_t used = account.ledger->add_up().used;
    if (account.slot != protocol::kNoQuotaSlot && used + bytes <= quota) continue;
    const std::uint64_t own =
        account.slot == protocol::kNoQuotaSlot
            ? 0
            : protocol::bytes_in(
                  account.ledger->slot(account.slot).used.load(std::memory_order_relaxed));
    warn(Problem::kMemoryQuota,
         "an allocation of %s was refused: of the quota %s (%s) on device %s %s are in use, %s by "
         "this process; more lines are not written",
         bytes_text(bytes).c_str(), account.whose.c_str(), bytes_text(quota).c_str(), uuid_.c_str(),
         bytes_text(used).c_str(), bytes_text(own).c_str());
    return;
  }
}

void DeviceQuotas::explain_device(std::uint64_t bytes, View real) {
  static constinit std::atomic<bool> said{false};
  if (said.exchange(true, std::memory_order_relaxed)) return;
  const View ours = bounded({real.total, std::numeric_limits<std::uint64_t>::max()});
  warn(Problem::kMemoryQuota,
       "device %s itself has no room for %s: %s are free there, while the quota leaves %s; "
       "processes without a quota, or outside of Vitamin, have the rest",
       uuid_.c_str(), bytes_text(bytes).c_str(), bytes_text(real.free).c_str(),
       bytes_text(ours.free).c_str());
}

// --- memory that is reserved ---------------------------------------------------------------------

bool ReservedMemory::charge(std::uint64_t bytes) {
  if (!quotas_->charge(bytes)) return false;
  const std::lock_guard lock(mutex_);
  covered_ += bytes;
  in_flight_ += bytes;
  return true;
}

void ReservedMemory::landed(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  in_flight_ -= bytes;
}

bool ReservedMemory::settle(std::uint64_t reserved) {
  std::uint64_t back = 0, more = 0;
  {
    const std::lock_guard lock(mutex_);
    // A call that is being made may have been served already, or not yet.
    if (covered_ > reserved + in_flight_) {
      back = covered_ - reserved - in_flight_;
      covered_ -= back;
    } else if (covered_ < reserved) {
      more = reserved - covered_;
    }
    if (more == 0) set_has(std::min(covered_, reserved));
  }
  if (back != 0) quotas_->uncharge(back);
  if (more == 0) return true;
  if (!quotas_->charge(more)) return false;
  const std::lock_guard lock(mutex_);
  covered_ += more;
  set_has(std::min(covered_, reserved));
  return true;
}

void ReservedMemory::set_has(std::uint64_t bytes) {
  if (bytes > has_) quotas_->got(bytes - has_);
  if (bytes < has_) quotas_->lost(has_ - bytes);
  has_ = bytes;
}

void ReservedMemory::settle_at_any_price(std::uint64_t reserved) {
  const std::lock_guard lock(mutex_);
  if (covered_ < reserved) {
    quotas_->charge_unasked(reserved - covered_);
    covered_ = reserved;
  }
  set_has(reserved);
}

void ReservedMemory::release(std::uint64_t bytes) {
  std::uint64_t back = 0;
  {
    const std::lock_guard lock(mutex_);
    back = std::min(bytes, covered_);
    covered_ -= back;
    if (has_ > covered_) set_has(covered_);
  }
  if (back != 0 && quotas_ != nullptr) quotas_->uncharge(back);
}

std::uint64_t ReservedMemory::covered() const {
  const std::lock_guard lock(mutex_);
  return covered_;
}

// --- what was charged for ------------------------------------------------------------------------

void note_charged(const void* handle, const ChargedMemory& memory) {
  // An address that is known still was freed by a call that was not seen.
  const std::unique_ptr<ChargedMemory> before(
      charged_memory.insert(handle, std::make_unique<ChargedMemory>(memory).release()));
  if (before != nullptr && before->pool == nullptr) before->quotas->give_back(before->bytes);
}

std::unique_ptr<ChargedMemory> take_charged(const void* handle) {
  return std::unique_ptr<ChargedMemory>(charged_memory.erase(handle));
}

void give_back_context(NativeContext context) {
  charged_memory.erase_if(
      [&](const ChargedMemory& memory) {
        return memory.context == context && memory.pool == nullptr;
      },
      [](ChargedMemory* memory) {
        const std::unique_ptr<ChargedMemory> taken(memory);
        taken->quotas->give_back(taken->bytes);
      });
}

}  // namespace vitamin::interpose
