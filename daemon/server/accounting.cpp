// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/accounting.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/json_text.h"
#include "daemon/log.h"
#include "daemon/protocol/fd.h"

namespace vitamin::daemon {

UsageOwner Accounting::counted(const UsageOwner& owner) {
  if (sums_.contains(owner)) return owner;
  const UsageOwner counted =
      sums_.size() < kOwners ? owner : UsageOwner{owner.uuid, "other", "", "", "", ""};
  sums_.try_emplace(counted);
  return counted;
}

void Accounting::ended(const UsageOwner& owner, const UsageTotals& used, nlohmann::json record,
                       const std::string& file) {
  sums_[counted(owner)] += used;
  if (!file.empty()) append(file, json_text(record) + "\n");
  records_.push_back(std::move(record));
  if (records_.size() > kRecords) records_.pop_front();
}

nlohmann::json Accounting::records() const {
  nlohmann::json all = nlohmann::json::array();
  for (const nlohmann::json& record : records_) all.push_back(record);
  return all;
}

// Opened for each record, so that the file may be moved away at any time. One write() of a line.
void Accounting::append(const std::string& file, const std::string& line) {
  const protocol::Fd opened(
      ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640));
  const auto bytes = static_cast<ssize_t>(line.size());
  const bool written = opened && ::write(opened.get(), line.data(), line.size()) == bytes;
  if (!written && !failed_)
    log::warn(
        "the record of a client that ended cannot be written to {}: {}; `vitamin accounting` "
        "shows the last {} clients",
        file, std::strerror(errno), kRecords);
  failed_ = !written;
}

}  // namespace vitamin::daemon
