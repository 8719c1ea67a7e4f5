// SPDX-License-Identifier: Apache-2.0
//
// Ledgers of device memory (quota_ledger.h) in files that processes share, and which processes the
// owners of their slots are.
//
// An owner is a process id and the time at which that process started, as the kernel tells them. It
// is judged only where those ids hold: in the pid namespace of the process that used the ledger
// first. An owner of another namespace is never taken for dead by the members of its group; for
// vitamind's ledgers vitamind itself knows the end of each owner (daemon/arbiter/memory_quotas.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/protocol/fd.h"
#include "daemon/protocol/quota_ledger.h"
#include "hal/result.h"

namespace vitamin::protocol {

struct UnmapLedger {
  void operator()(NativeQuotaLedger* ledger) const;
};
using MappedLedger = std::unique_ptr<NativeQuotaLedger, UnmapLedger>;

// The file at `path`, made if there is none. Only its user may open it.
hal::Result<MappedLedger> open_ledger(const std::string& path);
// One of the daemon's, for descriptors of it. No process can change its size.
hal::Result<Fd> new_ledger();
// The file behind a descriptor that the daemon sent. Refuses one of another size.
hal::Result<MappedLedger> map_ledger(const Fd& file);
// Of this process alone.
hal::Result<MappedLedger> private_ledger();

// Of a process that runs now; 0: there is none, or it cannot be seen.
std::uint64_t owner_of(pid_t process);
// Of one that started then (hal::ProcessStat); 0 for 0.
std::uint64_t owner_of(pid_t process, std::uint64_t start);
// For the nth process that cannot be seen: no process is judged by it.
std::uint64_t unseen_owner(std::uint64_t n);
// Of this process, as a member of the ledger's group: with a mark where others cannot judge it.
std::uint64_t own_owner(NativeQuotaLedger& ledger);
pid_t process_of(std::uint64_t owner);
// Whether that process is gone for sure. False for an owner that cannot be judged.
bool owner_is_dead(std::uint64_t owner);
// To be asked by this process: judges nothing where ids of the ledger do not hold here.
class DeadOwners {
 public:
  explicit DeadOwners(NativeQuotaLedger& ledger);
  bool operator()(std::uint64_t owner) const { return judges_ && owner_is_dead(owner); }

 private:
  bool judges_;
};

// The same, which looks where ids hold only when it is asked: for calls that mostly do not ask.
struct DeadOwnersOf {
  NativeQuotaLedger& ledger;
  bool operator()(std::uint64_t owner) const { return DeadOwners(ledger)(owner); }
};

// How a charge waits for other processes that are in the middle of one: those that are stopped
// there are not waited for any longer after two seconds.
class LedgerWait {
 public:
  RetryDecision operator()(unsigned tries);

 private:
  std::uint64_t until_ns_ = 0;
};

}  // namespace vitamin::protocol
