// SPDX-License-Identifier: Apache-2.0
//
// Slurm's plugin: `srun --vitamin[=WORDS]`, and the same for sbatch and salloc.
//
//     slurmd                job_prolog             is vitamind there? a line in slurmd's log
//       slurmstepd          task_init_privileged   root tells vitamind who may use how much
//                           task_init              the user can reach it: preload, variables
//                           exit                   the step has ended: what it used is accounted
//     slurmd                job_epilog             the job has ended, however it did
//
// A node is never drained because of Vitamin: prolog and epilog succeed, whatever happens. Whether
// a task runs unshared or not at all when it cannot be shared is vitamin.toml's failure.absent.
//
// Threads: Slurm calls one function at a time. Each task is a process of its own, forked before
// task_init_privileged; what one function leaves here for the next stays in that process.
extern "C" {
#include <slurm/spank.h>
}

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include "deploy/slurm/accounting.h"
#include "deploy/slurm/request.h"
#include "deploy/slurm/rules.h"
#include "runtime/environment.h"
#include "runtime/problem.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/preload.h"

extern "C" {
#define VITAMIN_EXPORT __attribute__((visibility("default")))
// What SPANK_PLUGIN() writes, exported. Slurm refuses a plugin of another release by these.
extern VITAMIN_EXPORT const char plugin_name[];
extern VITAMIN_EXPORT const char plugin_type[];
extern VITAMIN_EXPORT const unsigned int plugin_version;
extern VITAMIN_EXPORT const unsigned int spank_plugin_version;
const char plugin_name[] = "vitamin";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;
}

namespace vitamin::slurm {
namespace {

constexpr const char* kMpsDirectory = "CUDA_MPS_PIPE_DIRECTORY";

bool asked = false;  // --vitamin was given
JobRequest request;
hal::Result<Arguments> arguments = Arguments();

// Of this task, from task_init_privileged for task_init.
struct Task {
  std::string problem;  // a sentence: it cannot be shared
  std::string step;
  std::string socket;
  std::uint32_t share = 100;
  bool closed = false;
};
Task task;

int on_option(int /*value*/, const char* text, int remote) {
  auto read = read_option(text == nullptr ? "" : text);
  if (!read) {
    if (remote == 0) slurm_error("%s", read.error().message.c_str());
    return -1;
  }
  asked = true;
  request = std::move(*read);
  return 0;
}

// A variable of the job; empty: not set.
std::string variable(spank_t spank, const char* name) {
  // As long as the kernel lets one be; Slurm asks for an int.
  std::string text(std::size_t{128} * 1024, '\0');
  if (spank_getenv(spank, name, text.data(), static_cast<int>(text.size())) != ESPANK_SUCCESS)
    return {};
  return text.c_str();
}

std::uint32_t number(spank_t spank, const char* name) {
  return static_cast<std::uint32_t>(std::strtoul(variable(spank, name).c_str(), nullptr, 10));
}

std::uint32_t item(spank_t spank, spank_item_t which) {
  std::uint32_t value = 0;
  return spank_get_item(spank, which, &value) == ESPANK_SUCCESS ? value : 0;
}

std::string node_name(spank_t spank) {
  if (spank != nullptr)
    if (const std::string name = variable(spank, "SLURMD_NODENAME"); !name.empty()) return name;
  if (const char* name = std::getenv("SLURMD_NODENAME"); name != nullptr) return name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// In root's name. The task's share and place are known afterwards, problem or not.
void prepare(spank_t spank) {
  const std::string node = node_name(spank);
  task = {};
  task.step = step_name(item(spank, S_JOB_ID), item(spank, S_JOB_STEPID));
  if (!arguments) {
    task.problem = arguments.error().message;
    return;
  }
  task.socket = for_node(arguments->socket, node);
  const auto rules = rules_for(arguments->file, node);
  if (!rules) {
    task.problem = rules.error().message;
    return;
  }
  task.closed = rules->closed;
  std::string devices = variable(spank, "SLURM_STEP_GPUS");
  if (devices.empty()) devices = variable(spank, "SLURM_JOB_GPUS");
  const std::uint32_t of_shards =
      share_of_shards(number(spank, "SLURM_SHARDS_ON_NODE"), devices, arguments->shards_per_gpu);
  task.share = request.share != 0 ? request.share : of_shards != 0 ? of_shards : 100;
  if (const auto known = rules->check_class(request.workload_class); !known) {
    task.problem = known.error().message;
    return;
  }
  const std::string& name = request.workload_class;
  const auto begun = tools::ask_daemon(
      task.socket, "job-begin " + task.step + " " + std::to_string(item(spank, S_JOB_UID)) + " " +
                       std::to_string(task.share) + " " + (name.empty() ? "-" : name) + " " +
                       (devices.empty() ? "-" : devices) +
                       (request.memory.empty() ? "" : " " + request.memory));
  if (!begun) task.problem = begun.error().message;
}

// In the user's name: what the program will find when it looks for the daemon.
void reach() {
  if (const auto answer = tools::ask_daemon(task.socket, "ping"); !answer)
    task.problem = answer.error().message;
}

// The libraries of that directory, before what the user preloads.
std::string preload(spank_t spank) {
  tools::Libraries found;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(arguments->libraries, unreadable))
    if (entry.path().extension() == ".so") found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  if (found.empty()) task.problem = "no library to preload in " + arguments->libraries;
  return tools::preload_variable(found, variable(spank, "LD_PRELOAD").c_str());
}

bool set(spank_t spank, const char* name, const std::string& value) {
  if (spank_setenv(spank, name, value.c_str(), 1) == ESPANK_SUCCESS) return true;
  task.problem = std::string("Slurm does not set ") + name;
  return false;
}

std::string program_of_task(spank_t spank) {
  int count = 0;
  char** words = nullptr;
  if (spank_get_item(spank, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS || count < 1) return {};
  return words[0];
}

// The MPS that programs share, where there is one and the job has set no directory.
bool join_shared_mps(spank_t spank) {
  if (!variable(spank, kMpsDirectory).empty()) return true;
  const auto status = tools::ask_daemon(task.socket, "status");
  const std::string directory = status ? tools::shared_mps_directory(*status) : "";
  return directory.empty() || set(spank, kMpsDirectory, directory);
}

// The MPS of the task's isolation domain. A directory that the job has set stays, with a line where
// it leaves a domain of its own.
bool join_mps(spank_t spank) {
  const auto domain = tools::domain_of_program(task.socket, task.step, program_of_task(spank),
                                               request.workload_class);
  if (!domain) return join_shared_mps(spank);
  if (!domain->problem.empty())
    slurm_spank_log("vitamin: MPS of the isolation domain '%s': %s", domain->name.c_str(),
                    domain->problem.c_str());
  if (variable(spank, kMpsDirectory).empty()) return set(spank, kMpsDirectory, domain->directory);
  slurm_spank_log("vitamin: %s [%s]", tools::not_in_domain_text(*domain).c_str(),
                  runtime::code_of(runtime::Problem::kNotIsolated));
  return true;
}

bool share(spank_t spank) {
  namespace names = runtime::environment;
  reach();
  if (!task.problem.empty()) return false;
  const std::string libraries = preload(spank);
  return task.problem.empty() && set(spank, names::kDaemon, task.socket) &&
         set(spank, names::kJob, task.step) &&
         set(spank, names::kShare, std::to_string(task.share)) &&
         (request.workload_class.empty() || set(spank, names::kClass, request.workload_class)) &&
         (!task.closed || set(spank, names::kAbsent, std::to_string(tools::kExitNoDaemon))) &&
         set(spank, "LD_PRELOAD", libraries) && join_mps(spank);
}

// Nothing may leave through Slurm.
template <class F>
int guarded(F work, int otherwise) {
  try {
    return work();
  } catch (const std::exception& error) {
    slurm_error("vitamin: %s", error.what());
  } catch (...) {
    slurm_error("vitamin: failed without a word");
  }
  return otherwise;
}

// What it used; 0 without a daemon, where nothing is held.
double tell_end(const std::string& socket, const std::string& step) {
  const auto ended = tools::ask_daemon(socket, "job-end " + step);
  return ended ? ended->value("sm_seconds", 0.0) : 0;
}

void end_step(spank_t spank) {
  if (!arguments) return;
  const std::string node = node_name(spank), socket = for_node(arguments->socket, node);
  const std::uint32_t job = item(spank, S_JOB_ID);
  const double used = tell_end(socket, step_name(job, item(spank, S_JOB_STEPID)));
  if (used < 0.001) return;  // as it is written: most steps use no GPU, and Slurm is not asked
  const std::string directory = std::filesystem::path(socket).parent_path();
  if (const auto added = record_use(job, node, used, directory); !added)
    slurm_error("vitamin: %.3f SM-seconds of job %u are not in its AdminComment: %s", used, job,
                added.error().message.c_str());
}

}  // namespace
}  // namespace vitamin::slurm

using namespace vitamin::slurm;  // NOLINT: the functions below are Slurm's names

extern "C" VITAMIN_EXPORT int slurm_spank_init(spank_t spank, int count, char* words[]) {
  return guarded(
      [&] {
        arguments = read_arguments(count, words);
        if (!arguments) slurm_error("%s", arguments.error().message.c_str());
        if (spank_context() == S_CTX_SLURMD) return 0;
        static char name[] = "vitamin", value[] = "WORDS",
                    usage[] =
                        "share the GPUs launch by launch: share=PERCENT of each (default: what "
                        "gres/shard gave, else all), memory=SIZE of each, class=NAME of "
                        "vitamin.toml; commas between them";
        static spank_option option{name, value, usage, 2 /* argument optional */, 0, &on_option};
        return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
      },
      0);
}

extern "C" VITAMIN_EXPORT int slurm_spank_job_prolog(spank_t spank, int count, char* words[]) {
  return guarded(
      [&] {
        arguments = read_arguments(count, words);
        if (!arguments) return 0;
        const std::string socket = for_node(arguments->socket, node_name(spank));
        if (const auto answer = vitamin::tools::ask_daemon(socket, "ping"); !answer)
          slurm_info("vitamin: %s", answer.error().message.c_str());
        return 0;
      },
      0);
}

extern "C" VITAMIN_EXPORT int slurm_spank_task_init_privileged(spank_t spank, int /*count*/,
                                                               char* /*words*/[]) {
  if (!asked) return 0;
  return guarded(
      [&] {
        prepare(spank);
        return 0;
      },
      0);
}

extern "C" VITAMIN_EXPORT int slurm_spank_task_init(spank_t spank, int /*count*/,
                                                    char* /*words*/[]) {
  if (!asked) return 0;
  return guarded(
      [&] {
        if (task.problem.empty() && share(spank)) return 0;
        slurm_spank_log("vitamin: %s; the task %s", task.problem.c_str(),
                        task.closed ? "is not started, as failure.absent says" : "runs unshared");
        return task.closed ? -1 : 0;
      },
      task.closed ? -1 : 0);
}

extern "C" VITAMIN_EXPORT int slurm_spank_exit(spank_t spank, int /*count*/, char* /*words*/[]) {
  if (!asked || spank_context() != S_CTX_REMOTE) return 0;
  return guarded(
      [&] {
        end_step(spank);
        return 0;
      },
      0);
}

extern "C" VITAMIN_EXPORT int slurm_spank_job_epilog(spank_t spank, int count, char* words[]) {
  return guarded(
      [&] {
        arguments = read_arguments(count, words);
        if (arguments)
          tell_end(for_node(arguments->socket, node_name(spank)),
                   std::to_string(item(spank, S_JOB_ID)));
        return 0;
      },
      0);
}
