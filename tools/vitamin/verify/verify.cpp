// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "daemon/config/value.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/verify/report.h"

namespace vitamin::tools {

namespace fs = std::filesystem;

namespace {

struct Schedule {
  const char* name;
  const char* policy;
};
// In the order in which a short verification should have them.
constexpr Schedule kSchedules[] = {
    {"random for each launch", "random"}, {"narrowest eligible", "extremes:narrow=1"},
    {"alternating extremes", "extremes"}, {"fixed narrow", "static:units=0"},
    {"fixed wide", "extremes:wide=1"},
};
constexpr std::size_t kAlone = 3;  // native, exclusive, exclusive
constexpr int kDoubts = 5;         // more of the exclusive ones, before Vitamin is blamed

std::string name_with(const Schedule& schedule, std::uint64_t seed) {
  if (std::strcmp(schedule.policy, "random") != 0) return schedule.name;
  return fmt::format("{}, seed {}", schedule.name, seed);
}

// The demo's training, which takes whatever is free, beside this program.
std::string default_tenant() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const bool amd = fs::exists("/dev/kfd", error) && !fs::exists("/dev/nvidiactl", error);
  const fs::path program = self.parent_path() / (amd ? "demo-train-hip" : "demo-train");
  if (error || !fs::exists(program, error)) return "";
  return fmt::format("exec '{}' 1000000", program.native());
}

class Verifier {
 public:
  explicit Verifier(const VerifyOptions& options) : options_(options) {
    for (const std::string& check : options.checks) {
      checks_.memory = checks_.memory || check == "memory";
    }
    const auto asked = [&](const char* what) {
      return std::find(options.checks.begin(), options.checks.end(), what) != options.checks.end();
    };
    checks_.output = (options.checks.empty() && options.files.empty()) || asked("stdout");
    checks_.files = options.files;
    result_.tenant = options.tenant ? *options.tenant : default_tenant();
    no_tenant_ = !options.tenant && result_.tenant.empty();
    result_.wanted = kAlone + options.runs;
  }

  Verification run() {
    if (step("native", "", 0, false) && comparable() &&
        step("exclusive", "fifo", options_.seed, false) &&
        step("exclusive again", "fifo", options_.seed, false) && worth_going_on())
      run_schedules();
    for (int i = 0; i < kDoubts && structure_in_doubt() && interrupted() == 0; ++i)
      if (!exclusive_control()) break;
    std::vector<std::string> files = options_.scan;
    files.push_back(options_.command.front());
    if (interrupted() == 0)
      result_.scan = scan_code(files);
    else
      result_.scan.why_not = "interrupted";
    result_.judgement = judge(result_.runs, controls_, checks_, result_.scan, result_.wanted);
    if (no_tenant_ && result_.judgement.verdict == Verdict::kPartial && interrupted() == 0) {
      result_.judgement.verdict = Verdict::kInconclusive;
      result_.judgement.reason =
          "there is nothing to run beside it: demo-train, the tenant where "
          "none is named, does not lie beside vitamin.";
      result_.judgement.advice = "Name one with --tenant COMMAND, or --tenant '' for none.";
    }
    return std::move(result_);
  }

 private:
  // `policy`: empty for a native run.
  Observation observed(const std::string& name, const std::string& policy, std::uint64_t seed,
                       bool tenant) {
    RunRequest request;
    request.name = name;
    request.policy = policy;
    request.seed = seed;
    request.command = options_.command;
    request.files = options_.files;
    request.memory = options_.memory;
    if (tenant) request.tenant = result_.tenant;
    request.limit_seconds = limit();
    progress(name);
    return observe(request);
  }

  // False: no use to go on.
  bool step(const std::string& name, const std::string& policy, std::uint64_t seed, bool tenant) {
    result_.runs.push_back(observed(name, policy, seed, tenant));
    Observation& seen = result_.runs.back();
    drop_equal_logs(seen);
    if (seen.exec_error != 0) return false;
    if (seen.tenant && seen.tenant_launches_before == 0) return false;  // it is beside nothing
    return !seen.interrupted && (result_.runs.size() > 1 || seen.ended_well());
  }

  // Logs are large, and those of a run that equals the first exclusive one are not read again.
  void drop_equal_logs(Observation& seen) const {
    if (result_.runs.size() <= 2) return;
    const std::vector<AuditedProcess>& alone = result_.runs[1].processes;
    if (std::equal(alone.begin(), alone.end(), seen.processes.begin(), seen.processes.end(),
                   [](const auto& a, const auto& b) { return a.same_structure_and_results(b); }))
      seen.logs.reset();
  }

  double limit() const {
    if (options_.limit_seconds > 0 || result_.runs.empty()) return options_.limit_seconds;
    return 60 + 20 * result_.runs.front().seconds;
  }

  // Without its files or a tenant no further run can say anything.
  bool comparable() const { return !no_tenant_ && result_.runs.front().unwritten.empty(); }

  // A command that differs from itself alone needs no schedule.
  bool worth_going_on() {
    const std::vector<Observation>& runs = result_.runs;
    if (runs[1].launches == 0) return false;
    // Whose doing that is, native runs tell. What only the audit sees, they cannot.
    const bool differs =
        difference(runs[0], runs[1], checks_) || difference(runs[0], runs[2], checks_);
    if (differs && !(control("native again", false) && control("native again", false)))
      return false;
    return !differs && !difference(runs[1], runs[2], checks_);
  }

  // Alone it launched the same twice, and under a schedule something else. A program whose threads
  // race may do so now and then: more runs alone tell, before Vitamin is blamed.
  bool structure_in_doubt() const {
    const std::vector<Observation>& runs = result_.runs;
    return runs.size() > kAlone && !structure_difference(runs[1], runs[2]) &&
           std::any_of(runs.begin() + kAlone, runs.end(), [&](const Observation& run) {
             return run.ended_well() && structure_difference(runs[1], run);
           });
  }

  // False: its launches differ from those of the first run alone, or it was interrupted.
  bool exclusive_control() {
    controls_.push_back(observed("exclusive again", "fifo", options_.seed, false));
    const Observation& seen = controls_.back();
    return !seen.interrupted && !structure_difference(result_.runs[1], seen);
  }

  // One more native run; false when it differs from the first one, or was interrupted.
  bool control(const std::string& name, bool tenant) {
    controls_.push_back(observed(name, "", options_.seed, tenant));
    return !controls_.back().interrupted &&
           !difference(result_.runs.front(), controls_.back(), checks_);
  }

  void run_schedules() {
    for (unsigned i = 0; i < options_.runs; ++i) {
      const bool known = i < std::size(kSchedules);
      const Schedule& schedule = kSchedules[known ? i : 0];
      const std::uint64_t seed =
          options_.seed + (known ? 0 : i - static_cast<unsigned>(std::size(kSchedules)) + 1);
      if (!step(name_with(schedule, seed), schedule.policy, seed, true)) return;
      // Whatever differs now may differ beside a tenant without us, too.
      if (controls_.empty() && difference(result_.runs[0], result_.runs.back(), checks_))
        for (int again = 0; again < 2; ++again)
          if (!control("native beside the tenant", true)) break;
      if (interrupted() != 0) return;
    }
  }

  void progress(const std::string& name) {
    if (options_.json || ::isatty(STDERR_FILENO) == 0) return;
    say(fmt::format("run {} of {}: {}", std::min(result_.runs.size() + 1, result_.wanted),
                    result_.wanted, name));
  }

  const VerifyOptions& options_;
  Checks checks_;
  Verification result_;
  std::vector<Observation> controls_;
  bool no_tenant_ = false;  // none was asked for, and there is none by default
};

int exit_code(const Verification& result) {
  if (interrupted() != 0) return kExitInterrupted;
  switch (result.judgement.verdict) {
    case Verdict::kDeterministic:
      return 0;
    case Verdict::kNotByItself:
      return kExitNotByItself;
    case Verdict::kBroken:
      return kExitBroken;
    case Verdict::kInconclusive:
      return kExitInconclusive;
    case Verdict::kPartial:
      return kExitInterrupted;
  }
  return kExitFailed;
}

// The verdict on a command that could not even be executed.
void note_not_started(const std::string& command, int error, Verification& result) {
  result.exit_code = error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable;
  result.judgement.verdict = Verdict::kInconclusive;
  result.judgement.reason = fmt::format("cannot run '{}': {}.", command, std::strerror(error));
  say(result.exit_code == kExitNotFound ? Problem::kCommandNotFound
                                        : Problem::kCommandNotExecutable,
      result.judgement.reason);
}

// Looks whether the file can be written; one that was not there is not there afterwards.
std::string unwritable(const std::string& file) {
  std::error_code error;
  const bool there = fs::exists(file, error);
  if (!std::ofstream(file, std::ios::app).good())
    return fmt::format("cannot write the report '{}': {}.", file, std::strerror(errno));
  if (!there) fs::remove(file, error);
  return "";
}

void print_json(const VerifyOptions& options, const Verification& result) {
  // What the command printed need not be UTF-8, and is quoted.
  fmt::print("{}\n", to_json(options, result)
                         .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

std::string problem(const VerifyOptions& options) {
  if (options.command.empty() || options.command.front().empty())
    return "no command to verify: vitamin verify [OPTIONS] -- COMMAND.";
  if (options.runs == 0) return "--runs must be at least 1.";
  if (!options.memory.empty() && !config::memory_bound(options.memory))
    return fmt::format("--memory: '{}' {}.", options.memory, config::kNoMemoryBound);
  bool files = false;
  for (const std::string& check : options.checks) {
    files = files || check == "files";
    if (check != "stdout" && check != "files" && check != "memory")
      return fmt::format("--check takes stdout, files or memory, not '{}'.{}", check,
                         did_you_mean(check, {"stdout", "files", "memory"}));
  }
  if (files && options.files.empty())
    return "--check files needs the names of the files: --file FILE.";
  for (const std::string& file : options.files)
    if (fs::is_directory(file))
      return fmt::format("--file: '{}' is a directory; name a file in it.", file);
  for (const std::string& file : options.scan)
    if (!fs::exists(file)) return fmt::format("--scan: there is no file '{}'.", file);
  if (!options.report_file.empty()) return unwritable(options.report_file);
  return "";
}

int verify(const VerifyOptions& options) {
  if (const auto usable = check_preload(preload_libraries()); !usable) {
    say(Problem::kPreload, usable.error().message);
    return kExitFailed;
  }
  watch_interrupts();
  Verification result = Verifier(options).run();
  if (!result.runs.empty() && result.runs.front().exec_error != 0) {
    note_not_started(options.command.front(), result.runs.front().exec_error, result);
    if (options.json) print_json(options, result);
    return result.exit_code;
  }
  result.exit_code = exit_code(result);
  if (options.json)
    print_json(options, result);
  else
    fmt::print("{}", to_text(options, result));
  if (!options.report_file.empty()) {
    std::ofstream out(options.report_file, std::ios::trunc);
    out << to_html(options, result);
    if (!out.flush()) {
      say(Problem::kCannotWrite, fmt::format("cannot write the report '{}'.", options.report_file));
      return kExitFailed;
    }
  }
  return result.exit_code;
}

}  // namespace vitamin::tools
