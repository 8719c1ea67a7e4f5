// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/jobs/jobs.h"
#include "daemon/jobs/tokens.h"

namespace vitamin::daemon {
namespace {

// Jobs are numbered from 1, containers from 2^31.
constexpr std::uint32_t kFirstNumber = 0x4000'0000;

bool is_claim_name(std::string_view text) { return is_name(text, 63, "._-"); }

hal::Result<ClaimedShare> parse_claim(const std::vector<std::string_view>& words) {
  const auto fail = [](const char* what) {
    return hal::fail(hal::Errc::kInvalidArgument, std::string("claim-begin: ") + what);
  };
  if (words.size() != 6) return fail("six words are needed: CLAIM POD SHARE CLASS MEMORY DEVICES");
  const auto share = number_of<std::uint32_t>(words[2]);
  const auto memory = words[4] == "-" ? 0 : number_of<std::uint64_t>(words[4]);
  if (!is_claim_name(words[0])) return fail("the claim has no name");
  if (!is_claim_name(words[1])) return fail("that is no UID of a pod");
  if (!share || *share < 1 || *share > 100) return fail("a share is 1 to 100 percent");
  if (!is_claim_name(words[3])) return fail("that is no name of a class");
  if (!memory) return fail("the memory is no number of bytes");
  ClaimedShare claim;
  if (words[1] != "-") claim.pods.emplace(words[1]);
  claim.share = *share;
  if (words[3] != "-") claim.workload_class = words[3];
  claim.memory = *memory;
  for (const std::string_view device : split(words[5], ',')) {
    if (!is_claim_name(device)) return fail("that is no list of devices");
    claim.devices.emplace_back(device);
  }
  return claim;
}

}  // namespace

hal::Status Claims::begin(std::string_view text) {
  const auto words = split(text, ' ');
  auto claim = parse_claim(words);
  if (!claim) return tl::unexpected(claim.error());
  const std::string name(words[0]);
  for (const std::string& device : claim->devices) {
    std::uint32_t held = 0;
    for (const auto& [other_name, other] : claims_)
      if (other_name != name &&
          std::find(other.devices.begin(), other.devices.end(), device) != other.devices.end())
        held += other.share;
    if (held + claim->share > 100)
      return hal::fail(hal::Errc::kUnavailable,
                       fmt::format("device {} is over-committed: other claims have {} percent of "
                                   "it, and this one asks for {}",
                                   device, held, claim->share));
  }
  const auto known = claims_.find(name);
  if (known == claims_.end() && claims_.size() >= kMost)
    return hal::fail(hal::Errc::kUnavailable, "vitamind has as many claims as it may have");
  claim->number = known != claims_.end() ? known->second.number : kFirstNumber + begun_++;
  if (known != claims_.end()) claim->pods.merge(known->second.pods);
  claims_.insert_or_assign(name, std::move(*claim));
  return {};
}

std::size_t Claims::end(std::string_view name) {
  return std::erase_if(claims_, [&](const auto& known) { return Jobs::is_of(known.first, name); });
}

Claims::Found Claims::of(std::string_view pod, std::string_view named) const {
  const auto may_use = [&](const ClaimedShare& claim) {
    return pod.empty() || claim.pods.empty() || claim.pods.contains(pod);
  };
  if (const auto known = claims_.find(named); known != claims_.end() && may_use(known->second))
    return {known->first, &known->second};
  Found widest;
  if (pod.empty()) return widest;
  for (const auto& [name, claim] : claims_)
    if (claim.pods.contains(pod) && (widest.claim == nullptr || claim.share > widest.claim->share))
      widest = {name, &claim};
  return widest;
}

bool Claims::bounds_memory() const {
  return std::any_of(claims_.begin(), claims_.end(),
                     [](const auto& known) { return known.second.memory != 0; });
}

nlohmann::json Claims::status() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, claim] : claims_)
    list.push_back({{"claim", name},
                    {"pods", claim.pods},
                    {"share", claim.share},
                    {"class", claim.workload_class},
                    {"memory", claim.memory},
                    {"devices", claim.devices}});
  return list;
}

}  // namespace vitamin::daemon
