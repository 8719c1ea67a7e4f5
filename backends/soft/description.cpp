// SPDX-License-Identifier: Apache-2.0
//
// The devices that the engine can stand for, and the names of its status codes.
#include <numeric>

#include "backends/soft/engine.h"
#include "backends/soft/hash.h"

namespace vitamin::soft {

std::uint64_t SmSet::hash() const { return hash_bytes(words_.data(), sizeof words_); }

const char* status_name(int status) {
  switch (status) {
    case kOk:
      return "ok";
    case kNotReady:
      return "not ready";
    case kInvalidArgument:
      return "invalid argument";
    case kOutOfMemory:
      return "out of memory";
    case kInvalidLaunch:
      return "invalid launch";
    case kCooperativeTooLarge:
      return "cooperative launch too large";
    case kClusterTooLarge:
      return "cluster too large";
    case kIllegalAddress:
      return "illegal address";
    case kLaunchFailure:
      return "launch failure";
    case kStuck:
      return "stuck";
    case kInjected:
      return "injected";
    case kUnsupported:
      return "unsupported";
    default:
      return "unknown status";
  }
}

namespace {

// Eight groups of SMs: six of 18, one of 16 and one of 8, of which a co-scheduled split takes whole
// eights: fifteen. The twelve that are left are pairs, one in each of the first six groups, so no
// cluster of more than two fits them, and fifteen clusters of eight the whole device (measured).
constexpr std::uint32_t kH200Sms = 132;
constexpr std::uint32_t kH200UnitSms = 8;
constexpr std::uint32_t kH200Units = 15;

std::vector<std::uint32_t> h200_gpcs() {
  std::vector<std::uint32_t> gpc(kH200Sms);
  for (std::uint32_t sm = 0; sm < kH200Units * kH200UnitSms; ++sm) gpc[sm] = sm / 16;
  for (std::uint32_t sm = kH200Units * kH200UnitSms; sm < kH200Sms; ++sm)
    gpc[sm] = (sm - kH200Units * kH200UnitSms) / 2;
  return gpc;
}

DeviceDescription h200_with(std::uint32_t sms_per_unit) {
  DeviceDescription description;
  description.name = "Vitamin software device (132 SMs)";
  description.gpc_of_sm = h200_gpcs();
  description.kernel_gap_ns = 1600;
  for (std::uint32_t left = kH200Sms; left != 0;) {
    const std::uint32_t take = left < sms_per_unit ? left : sms_per_unit;
    description.unit_sms.push_back(take);
    left -= take;
  }
  return description;
}

}  // namespace

DeviceDescription DeviceDescription::h200() {
  DeviceDescription description = h200_with(kH200UnitSms);
  description.unit_sms.assign(kH200Units, kH200UnitSms);
  description.unit_sms.push_back(kH200Sms - kH200Units * kH200UnitSms);
  return description;
}

DeviceDescription DeviceDescription::h200_ignoring_coscheduling(std::uint32_t sms_per_unit) {
  DeviceDescription description = h200_with(sms_per_unit);
  description.max_cluster_in_unit = 2;
  return description;
}

DeviceDescription DeviceDescription::uniform(std::uint32_t units, std::uint32_t sms_per_unit) {
  DeviceDescription description;
  description.unit_sms.assign(units, sms_per_unit);
  for (std::uint32_t sm = 0; sm < units * sms_per_unit; ++sm)
    description.gpc_of_sm.push_back(sm / (2 * sms_per_unit));
  return description;
}

std::uint32_t DeviceDescription::sms() const {
  return std::accumulate(unit_sms.begin(), unit_sms.end(), std::uint32_t{0});
}

SmSet DeviceDescription::unit(std::uint32_t index) const {
  const auto first = std::accumulate(unit_sms.begin(), unit_sms.begin() + index, std::uint32_t{0});
  return SmSet::range(first, unit_sms[index]);
}

SmSet DeviceDescription::units_of(std::uint64_t unit_bits) const {
  SmSet set;
  for (std::uint32_t index = 0; index < units(); ++index)
    if ((unit_bits >> index & 1) != 0) set = set | unit(index);
  return set;
}

ClusterRule DeviceDescription::whole_rule() const {
  ClusterRule rule;
  rule.max_blocks = max_cluster_whole;
  for (std::uint32_t id = 0; id < gpc_of_sm.size(); ++id) {
    if (gpc_of_sm[id] >= rule.groups.size()) rule.groups.resize(gpc_of_sm[id] + 1);
    rule.groups[gpc_of_sm[id]].add(id);
  }
  return rule;
}

ClusterRule DeviceDescription::unit_rule() const {
  ClusterRule rule;
  rule.max_blocks = max_cluster_in_unit;
  // A unit whose SMs lie in several groups holds clusters in each of its parts.
  const std::vector<SmSet> neighbourhoods = whole_rule().groups;
  for (std::uint32_t index = 0; index < units(); ++index)
    for (const SmSet& neighbourhood : neighbourhoods)
      if (unit(index).overlaps(neighbourhood)) rule.groups.push_back(unit(index) & neighbourhood);
  return rule;
}

}  // namespace vitamin::soft
