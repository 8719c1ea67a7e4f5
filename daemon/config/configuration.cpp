// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/configuration.h"

#include "daemon/config/pattern.h"
#include "daemon/config/schema.h"

namespace vitamin::config {

std::string PolicySettings::specification() const {
  std::string text = name;
  for (const auto& [parameter, value] : parameters) {
    text += text.find(':') == text.npos ? ":" : ",";
    text += parameter + "=" + value;
  }
  return text;
}

const WorkloadClass* Configuration::find_class(std::string_view wanted) const {
  for (const WorkloadClass& candidate : classes)
    if (candidate.name == wanted) return &candidate;
  return nullptr;
}

Configuration Configuration::for_device(std::string_view uuid, std::string_view device_name) const {
  Configuration result = *this;
  for (const DeviceRule& rule : devices) {
    if (!matches(rule.pattern, uuid) && !matches(rule.pattern, device_name)) continue;
    // Parameters belong to the policy that was named with them.
    if (rule.settings.contains("policy.name")) result.policy.parameters.clear();
    for (const auto& [path, value] : rule.settings) find_setting(path)->write(result, value);
  }
  return result;
}

}  // namespace vitamin::config
