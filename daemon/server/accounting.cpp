// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/accounting.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "daemon/json_text.h"
#include "daemon/log.h"
#include "daemon/protocol/fd.h"
#include "hal/file_memory.h"

namespace vitamin::daemon {

namespace {

UsageOwner other_of(const UsageOwner& owner) { return {owner.uuid, "other", "", "", "", ""}; }

}  // namespace

bool take_back(int file, std::uint64_t before, std::uint64_t bytes) {
  struct stat now {};
  return ::fstat(file, &now) == 0 && static_cast<std::uint64_t>(now.st_size) == before + bytes &&
         hal::set_file_size(file, before);
}

// Whether one more owner may have separate sums. If necessary, adds the sums of the least recently
// seen owner to "other", if that was long ago.
bool Accounting::make_room(std::uint64_t now_ns) {
  if (sums_.size() < kOwners) return true;
  auto oldest = sums_.end();
  for (auto it = sums_.begin(); it != sums_.end(); ++it)
    if (it->first != other_of(it->first) &&
        (oldest == sums_.end() || it->second.heard_ns < oldest->second.heard_ns))
      oldest = it;
  if (oldest == sums_.end() || now_ns - oldest->second.heard_ns < kKeptNs) return false;
  const UsageOwner other = other_of(oldest->first);
  const UsageTotals totals = oldest->second.totals;
  sums_.erase(oldest);
  sums_[other].totals += totals;
  return true;
}

UsageOwner Accounting::counted(const UsageOwner& owner, std::uint64_t now_ns) {
  const UsageOwner counted = sums_.contains(owner) || make_room(now_ns) ? owner : other_of(owner);
  sums_[counted].heard_ns = now_ns;
  return counted;
}

void Accounting::ended(const UsageOwner& owner, const UsageTotals& used, nlohmann::json record,
                       std::uint64_t now_ns, const std::string& file) {
  sums_[counted(owner, now_ns)].totals += used;
  const std::int64_t ended = std::time(nullptr);
  record["ended"] = ended;
  record["began"] = ended - static_cast<std::int64_t>(record.value("seconds", 0.0));
  if (!file.empty()) append(file, json_text(record) + "\n");
  records_.push_back(std::move(record));
  if (records_.size() > kRecords) records_.pop_front();
}

nlohmann::json Accounting::records() const {
  return nlohmann::json::array_t(records_.begin(), records_.end());
}

// Opens the file for each record, so that it may be moved away at any time. Writes all of a line or
// nothing: a part of one, as of a full disk, would spoil the next record, too.
void Accounting::append(const std::string& file, const std::string& line) {
  const hal::FileSignalGuard guard;
  const protocol::Fd opened(
      ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640));
  struct stat before {};
  const bool regular = opened && ::fstat(opened.get(), &before) == 0 && S_ISREG(before.st_mode);
  const auto size = static_cast<std::size_t>(before.st_size);
  const ssize_t bytes = opened ? ::write(opened.get(), line.data(), line.size()) : -1;
  const int error = bytes < 0 ? errno : ENOSPC;
  const bool written = bytes == static_cast<ssize_t>(line.size());
  const bool whole = written || bytes <= 0 ||
                     (regular && take_back(opened.get(), size, static_cast<std::uint64_t>(bytes)));
  if (!written && !failed_)
    log::warn(
        "the record of a client that ended cannot be written to {}: {}{}; `vitamin accounting` "
        "shows the last {} clients",
        file, std::strerror(error), whole ? "" : ", and a part of it stays there", kRecords);
  failed_ = !written;
  if (written && regular && size + line.size() >= kFileBytes)
    ::rename(file.c_str(), (file + ".1").c_str());
}

}  // namespace vitamin::daemon
