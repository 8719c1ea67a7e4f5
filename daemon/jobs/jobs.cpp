// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/jobs/tokens.h"
#include "hal/read_file.h"

namespace vitamin::daemon {
namespace {

bool is_job_name(std::string_view text) { return is_name(text, 48, "._-:+"); }

hal::Result<Job> parse_job(const std::vector<std::string_view>& words) {
  const auto fail = [](const char* what) {
    return hal::fail(hal::Errc::kInvalidArgument, std::string("job-begin: ") + what);
  };
  if (words.size() != 5 && words.size() != 6)
    return fail("five or six words are needed: STEP USER SHARE CLASS DEVICES [MEMORY]");
  const auto user = number_of<std::uint32_t>(words[1]), share = number_of<std::uint32_t>(words[2]);
  if (!is_job_name(words[0])) return fail("the step has no name");
  if (!user) return fail("the user is no number");
  if (!share || *share < 1 || *share > 100) return fail("a share is 1 to 100 percent");
  if (!is_job_name(words[3])) return fail("that is no name of a class");
  Job job;
  job.user = *user;
  job.share = *share;
  if (words[3] != "-") job.workload_class = words[3];
  if (words.size() == 6) {
    job.memory = config::memory_bound(words[5]);
    if (!job.memory) return fail("that is no size of memory");
  }
  if (words[4] == "-") return job;
  for (const std::string_view device : split(words[4], ',')) {
    if (!is_job_name(device)) return fail("that is no list of devices");
    job.devices.emplace_back(device);
  }
  return job;
}

}  // namespace

bool Jobs::is_of(std::string_view step, std::string_view job) {
  return step == job ||
         (step.size() > job.size() && step.starts_with(job) && step[job.size()] == '.');
}

hal::Status Jobs::begin(std::string_view text) {
  const auto words = split(text, ' ');
  auto job = parse_job(words);
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
    return hal::fail(hal::Errc::kUnavailable,
                     "vitamind has as many jobs as it may have; job-end ends one");
  const auto known = steps_.find(step);
  job->number = known != steps_.end() ? known->second.number : ++begun_;
  if (known != steps_.end()) job->used_sm_ns = known->second.used_sm_ns;
  steps_.insert_or_assign(step, std::move(*job));
  return {};
}

void Jobs::used(std::string_view step, std::uint64_t sm_ns) {
  if (const auto known = steps_.find(step); known != steps_.end())
    known->second.used_sm_ns += sm_ns;
}

Jobs::Ended Jobs::end(std::string_view step) {
  Ended ended;
  ended.steps = std::erase_if(steps_, [&](const auto& known) {
    if (!is_of(known.first, step)) return false;
    ended.sm_ns += known.second.used_sm_ns;
    return true;
  });
  return ended;
}

const Job* Jobs::find(std::string_view step, uid_t user) const {
  const auto found = steps_.find(step);
  return found != steps_.end() && found->second.user == user ? &found->second : nullptr;
}

// The step with the largest share. `job` empty: of any job.
Jobs::Found Jobs::widest(uid_t user, std::string_view job) const {
  Found found;
  for (const auto& [step, known] : steps_)
    if (known.user == user && (job.empty() || is_of(step, job)) &&
        (found.job == nullptr || known.share > found.job->share))
      found = {step, &known, false};
  return found;
}

Jobs::Found Jobs::of(uid_t user, std::string_view group, std::string_view claimed) const {
  for (const std::string_view step : {group, group.empty() ? claimed : ""})
    if (const auto known = steps_.find(step); known != steps_.end() && known->second.user == user)
      return {known->first, &known->second, true};
  // The largest step of the same job: the client's step was begun without a share, or a shell was
  // opened in the job.
  const Found same = group.empty() ? Found() : widest(user, group.substr(0, group.find('.')));
  return same.job != nullptr ? same : widest(user, "");
}

bool Jobs::bounds_memory() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const auto& known) { return known.second.memory.has_value(); });
}

std::string cgroup_of(pid_t process) {
  return hal::read_file("/proc/" + std::to_string(process) + "/cgroup").value_or("");
}

std::string slurm_step(std::string_view cgroup) {
  for (const std::string_view line : split(cgroup, '\n')) {
    // "5:freezer:/slurm/uid_1000/job_12/step_0/task_0" or, of the unified hierarchy,
    // "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0".
    const std::size_t path = line.find(":/");
    if (path == line.npos) continue;
    auto parts = split(line.substr(path + 2), '/');
    std::size_t at = parts[0] == "system.slice" ? 1 : 0;
    if (at >= parts.size() || parts[at].find("slurm") == line.npos) continue;
    for (++at; at < parts.size(); ++at) {
      constexpr std::string_view kJob = "job_", kStep = "step_";
      if (!parts[at].starts_with(kJob)) continue;
      std::string step(parts[at].substr(kJob.size()));
      if (at + 1 < parts.size() && parts[at + 1].starts_with(kStep))
        step.append(".").append(parts[at + 1].substr(kStep.size()));
      return step;
    }
  }
  return {};
}

nlohmann::json Jobs::status() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [step, job] : steps_)
    list.push_back({{"step", step},
                    {"user", job.user},
                    {"share", job.share},
                    {"class", job.workload_class},
                    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the same line asks
                    {"memory", job.memory ? config::memory_text(*job.memory) : ""},
                    {"devices", job.devices}});
  return list;
}

}  // namespace vitamin::daemon
