// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace vitamin::daemon {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 48 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-' || c == ':' || c == '+';
  });
}

hal::Result<Job> parse(const std::vector<std::string_view>& words) {
  const auto fail = [](const char* what) {
    return hal::fail(hal::Errc::kInvalidArgument, std::string("job-begin: ") + what);
  };
  if (words.size() != 5) return fail("five words are needed: STEP USER SHARE CLASS DEVICES");
  const auto user = number(words[1]), share = number(words[2]);
  if (!is_name(words[0])) return fail("the step has no name");
  if (!user) return fail("the user is no number");
  if (!share || *share < 1 || *share > 100) return fail("a share is 1 to 100 percent");
  if (!is_name(words[3])) return fail("that is no name of a class");
  Job job;
  job.user = *user;
  job.share = *share;
  if (words[3] != "-") job.workload_class = words[3];
  if (words[4] == "-") return job;
  for (const std::string_view device : split(words[4], ',')) {
    if (!is_name(device)) return fail("that is no list of devices");
    job.devices.emplace_back(device);
  }
  return job;
}

}  // namespace

hal::Status Jobs::begin(std::string_view text) {
  const auto words = split(text, ' ');
  auto job = parse(words);
  if (!job) return tl::unexpected(job.error());
  const std::string step(words[0]);
  for (const std::string& device : job->devices) {
    std::uint32_t held = 0;
    for (const auto& [name, other] : steps_) {
      const bool there =
          std::find(other.devices.begin(), other.devices.end(), device) != other.devices.end();
      if (name != step && there && other.share < 100) held += other.share;
    }
    if (job->share < 100 && held + job->share > 100)
      return hal::fail(
          hal::Errc::kUnavailable,
          fmt::format("device {} is over-committed: other jobs were promised {} percent of it, and "
                      "this one asks for {}",
                      device, held, job->share));
  }
  if (steps_.size() >= kMost && !steps_.contains(step))
    return hal::fail(hal::Errc::kUnavailable, "as many jobs are known as may be; job-end ends one");
  steps_.insert_or_assign(step, std::move(*job));
  return {};
}

std::size_t Jobs::end(std::string_view step) {
  return std::erase_if(steps_, [&](const auto& known) {
    const std::string_view name = known.first;
    return name == step ||
           (name.size() > step.size() && name.starts_with(step) && name[step.size()] == '.');
  });
}

const Job* Jobs::find(std::string_view step, uid_t user) const {
  const auto found = steps_.find(step);
  return found != steps_.end() && found->second.user == user ? &found->second : nullptr;
}

nlohmann::json Jobs::status() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [step, job] : steps_)
    list.push_back({{"step", step},
                    {"user", job.user},
                    {"share", job.share},
                    {"class", job.workload_class},
                    {"devices", job.devices}});
  return list;
}

}  // namespace vitamin::daemon
