// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/isolation.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "hal/fnv1a.h"

namespace vitamin::config {
namespace {

// As part of a file's name: itself where it is a plain one, else a hash of it.
std::string file_name_of(std::string_view name) {
  constexpr std::size_t kLongest = 24;
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  if (plain && name.size() <= kLongest) return std::string(name);
  const std::uint64_t hash = hal::fnv1a(name);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "class.%016" PRIx64, hash);  // a plain name has no '.'
  return text.data();
}

}  // namespace

Isolation isolation_of(const Configuration& configuration, const WorkloadClass* workload) {
  const ClassIsolation own =
      workload != nullptr ? workload->isolation : ClassIsolation::kUnspecified;
  switch (own) {
    case ClassIsolation::kShared:
      return Isolation::kShared;
    case ClassIsolation::kClass:
      return Isolation::kClass;
    case ClassIsolation::kExclusive:
      return Isolation::kExclusive;
    case ClassIsolation::kUnspecified:
      break;
  }
  // Programs without a class share a domain where classes have theirs.
  if (configuration.isolation == Isolation::kClass && workload == nullptr)
    return Isolation::kShared;
  return configuration.isolation;
}

bool isolates(const Configuration& configuration) {
  return configuration.isolation != Isolation::kShared ||
         std::any_of(configuration.classes.begin(), configuration.classes.end(),
                     [&](const WorkloadClass& each) {
                       return isolation_of(configuration, &each) != Isolation::kShared;
                     });
}

std::string directory_of_class(const std::string& shared, std::string_view workload_class) {
  return shared + "." + file_name_of(workload_class);
}

std::string directory_without_mps(const std::string& shared) { return shared + "-none"; }

}  // namespace vitamin::config
