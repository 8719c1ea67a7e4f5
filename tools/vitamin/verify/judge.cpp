// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <functional>
#include <sstream>

namespace vitamin::tools {

namespace audit = runtime::audit;

namespace {

constexpr std::size_t kExclusive = 3;  // native, exclusive, exclusive

std::string shown(std::string line) {
  constexpr std::size_t kMost = 60;
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 32) c = ' ';
  return line.size() > kMost ? line.substr(0, kMost) + "…" : line;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string output_difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = lines_of(a), right = lines_of(b);
  const std::size_t common = std::min(left.size(), right.size());
  for (std::size_t i = 0; i < common; ++i)
    if (left[i] != right[i])
      return fmt::format("line {} of its output: '{}' and '{}'", i + 1, shown(left[i]),
                         shown(right[i]));
  return fmt::format("the length of its output: {} and {} lines", left.size(), right.size());
}

// Equal but for decimal digits: a clock, a duration, a process number.
bool differs_in_numbers_only(const std::string& a, const std::string& b) {
  const auto without = [](const std::string& text) {
    std::string rest;
    for (const char c : text)
      if (std::isdigit(static_cast<unsigned char>(c)) == 0 && c != '.' && c != ' ') rest += c;
    return rest;
  };
  return a != b && without(a) == without(b);
}

std::string where(std::size_t process, std::uint32_t stream, std::size_t position,
                  const AuditedOperation& operation) {
  const std::string what =
      operation.record.kind == audit::AuditKind::kLaunch
          ? fmt::format("launch of '{}' ({} blocks)", operation.kernel, operation.record.grid)
      : operation.record.kind == audit::AuditKind::kGraph
          ? fmt::format("launch of a {}", operation.kernel)
      : operation.record.kind == audit::AuditKind::kWait   ? "wait for an event"
      : operation.record.kind == audit::AuditKind::kRecord ? "record of an event"
      : operation.record.kind == audit::AuditKind::kResult
          ? fmt::format("copy of {} bytes to the host", operation.record.structure)
          : "copy or other call";
  return fmt::format("operation {} of stream {} of process {}, a {}", position + 1, stream,
                     process + 1, what);
}

// The first operation of a stream that is not the other's. Either may be missing.
struct FirstDifference {
  std::uint64_t index = 0;
  std::optional<AuditedOperation> mine, theirs;
};

std::optional<FirstDifference> first_difference(const AuditedProcess& a, const AuditedProcess& b,
                                                std::uint32_t stream, Sort sort) {
  AuditReader left(a.file), right(b.file);
  for (std::uint64_t i = 0;; ++i) {
    const AuditedOperation* mine = left.next(stream, sort);
    const AuditedOperation* theirs = right.next(stream, sort);
    if (mine == nullptr && theirs == nullptr) return std::nullopt;
    if (mine != nullptr && theirs != nullptr && same_operation(mine->record, theirs->record))
      continue;
    FirstDifference found{i, std::nullopt, std::nullopt};
    if (mine != nullptr) found.mine = *mine;
    if (theirs != nullptr) found.theirs = *theirs;
    return found;
  }
}

// In an order that every run has: a stream that one of the runs does not use is empty there.
std::vector<std::uint32_t> streams_that_differ(const AuditedProcess& a, const AuditedProcess& b,
                                               Sort sort) {
  std::map<std::uint32_t, std::pair<Sequence, Sequence>> all;
  for (const auto& [stream, summary] : a.streams) all[stream].first = summary.of(sort);
  for (const auto& [stream, summary] : b.streams) all[stream].second = summary.of(sort);
  std::vector<std::uint32_t> streams;
  for (const auto& [stream, both] : all)
    if (both.first != both.second) streams.push_back(stream);
  return streams;
}

std::optional<std::string> lanes_difference(const Observation& a, const Observation& b, Sort sort) {
  if (a.processes.size() != b.processes.size())
    return fmt::format("{} processes used a device, and {}", a.processes.size(),
                       b.processes.size());
  for (std::size_t p = 0; p < a.processes.size(); ++p) {
    for (const std::uint32_t stream : streams_that_differ(a.processes[p], b.processes[p], sort)) {
      const auto found = first_difference(a.processes[p], b.processes[p], stream, sort);
      if (found && found->mine && found->theirs)
        return fmt::format("{}; the other run has a {}",
                           where(p, stream, found->index, *found->mine),
                           found->theirs->record.kind == audit::AuditKind::kLaunch
                               ? fmt::format("launch of '{}' ({} blocks)", found->theirs->kernel,
                                             found->theirs->record.grid)
                               : "different one");
      const auto count = [&](const AuditedProcess& process) {
        const auto summary = process.streams.find(stream);
        return summary == process.streams.end() ? 0 : summary->second.of(sort).count;
      };
      return fmt::format("stream {} of process {} has {} operations, and {}", stream, p + 1,
                         count(a.processes[p]), count(b.processes[p]));
    }
  }
  return std::nullopt;
}

// The last launches, of all streams, in the log at or before the first result that differs.
std::string culprit(const Observation& run, const Observation& other) {
  constexpr std::size_t kMost = 3;
  for (std::size_t p = 0; p < std::min(run.processes.size(), other.processes.size()); ++p) {
    std::uint64_t first = UINT64_MAX;
    for (const std::uint32_t stream :
         streams_that_differ(run.processes[p], other.processes[p], Sort::kResults))
      if (const auto found =
              first_difference(run.processes[p], other.processes[p], stream, Sort::kResults);
          found && found->mine)
        first = std::min(first, found->mine->position);
    if (first == UINT64_MAX) continue;
    std::map<std::string, std::uint64_t> newest;  // of each kernel
    AuditReader reader(run.processes[p].file);
    while (const AuditedOperation* operation = reader.next()) {
      if (operation->position > first) break;
      if (operation->record.kind == audit::AuditKind::kLaunch)
        newest[operation->kernel] = operation->position;
    }
    std::map<std::uint64_t, std::string, std::greater<>> before;  // the latest first
    for (const auto& [kernel, position] : newest) before[position] = kernel;
    std::vector<std::string> names;
    for (const auto& [position, kernel] : before)
      if (names.size() < kMost) names.push_back(kernel);
    if (names.empty()) return "";
    return fmt::format(", at or before the launch of '{}'", fmt::join(names, "', '"));
  }
  return "";
}

bool mentions(const std::string& text, std::initializer_list<const char*> words) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return lower.find(word) != std::string::npos; });
}

bool is_in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether one of `words` stands in the text by itself: "tty" in "/dev/tty", not in "pretty".
bool mentions_word(const std::string& text, std::initializer_list<const char*> words) {
  std::string word;
  for (const char c : text + " ") {
    if (is_in_word(c)) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (std::find(words.begin(), words.end(), word) != words.end()) return true;
    word.clear();
  }
  return false;
}

Judgement failed_alone(const Observation& native) {
  Judgement result;
  result.verdict = Verdict::kInconclusive;
  result.reason = fmt::format(
      "the command {} when it runs alone, without Vitamin{}", end_of(native),
      native.last_words.empty() ? "."
                                : fmt::format("; its last words: {}", shown(native.last_words)));
  if (native.stopped != 0 ||
      mentions_word(native.last_words + " " + native.output,
                    {"tty", "terminal", "termios", "ioctl", "eof", "eoferror"}))
    result.advice =
        "It seems to need a terminal: verify runs it with nothing on standard input "
        "and its output in a file.";
  return result;
}

Judgement not_by_itself(const Observation& a, const Observation& b, const std::string& what) {
  Judgement result;
  result.verdict = Verdict::kNotByItself;
  const auto structure = structure_difference(a, b);
  result.reason = fmt::format("{} differ in {}",
                              b.tenant ? "without Vitamin, a run alone and one beside the tenant"
                                       : "alone on the device, two runs",
                              what);
  if (structure)
    result.reason += fmt::format("; first in {}", *structure);
  else
    result.reason += culprit(a, b);
  result.reason += '.';
  if (differs_in_numbers_only(a.output, b.output))
    result.advice =
        "The outputs differ in numbers only. If these are times: leave them out, or "
        "compare what matters with --file FILE or --check memory.";
  return result;
}

// Why the audit of a run cannot be relied on, or nothing.
std::optional<std::string> audit_gap(const Observation& run) {
  std::uint64_t launches = 0;
  for (const AuditedProcess& process : run.processes) {
    if (!process.complete) return fmt::format("the audit of {} is incomplete", run.name);
    if (process.unordered > 0)
      return fmt::format("the device failed during {}, whose order is not known from there on",
                         run.name);
    launches += process.launches;
  }
  // What is bridged or passed is not audited: the run's coverage says that.
  if (launches < std::max<std::uint64_t>(run.bound, run.launches > 0 ? 1 : 0))
    return fmt::format("the audit of {} has {} of its {} launches", run.name, launches,
                       std::max(run.bound, run.launches));
  return std::nullopt;
}

// Whether any stream of any process is so.
bool any_stream(const Observation& run, bool (*is)(const StreamSummary&)) {
  return std::any_of(run.processes.begin(), run.processes.end(), [&](const auto& process) {
    return std::any_of(process.streams.begin(), process.streams.end(),
                       [&](const auto& stream) { return is(stream.second); });
  });
}
std::uint64_t unreadable_launches(const Observation& run) {
  std::uint64_t count = 0;
  for (const AuditedProcess& process : run.processes) count += process.unreadable;
  return count;
}
bool has_predecessors(const Observation& run) {
  return any_stream(run, [](const StreamSummary& stream) { return stream.launches > 1; });
}
bool has_results(const Observation& run) {
  return any_stream(run, [](const StreamSummary& stream) { return stream.results.count > 0; });
}

Judgement inconclusive(Judgement result, std::string reason, std::string advice) {
  result.verdict = Verdict::kInconclusive;
  result.reason = std::move(reason);
  result.advice = std::move(advice);
  return result;
}

constexpr const char* kOtherTenant =
    "Choose another tenant: --tenant COMMAND, or --tenant '' for none.";

// How a tenant failed, or nothing. First the reason, then the advice.
std::optional<std::pair<std::string, std::string>> tenant_failed(
    const std::vector<Observation>& runs) {
  for (const Observation& run : runs)
    if (!run.message.empty())
      return {{fmt::format("beside {}, {}.", run.name, shown(run.message)), kOtherTenant}};
  return std::nullopt;
}

// Where nothing differs: why that says nothing. First the reason, then the advice.
std::optional<std::pair<std::string, std::string>> nothing_shown(
    const std::vector<Observation>& runs, const Checks& checks) {
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (const auto gap = audit_gap(runs[i]))
      return {{*gap + ": what was launched could not be compared.",
               "Its directory is a new one in $TMPDIR (or /tmp): is there room for it?"}};
  if (!(checks.output && !runs[0].output.empty()) && checks.files.empty() &&
      !(checks.memory && has_results(runs[1])))
    return {{"there were no bytes to compare: the command gave none of what is checked.",
             "Compare more: --check stdout,memory, or --file FILE."}};
  bool moved = false, could_move = false, beside = false, contended = false;
  for (std::size_t i = kExclusive; i < runs.size(); ++i) {
    beside = beside || runs[i].tenant;
    contended = contended || runs[i].tenant_launches > 0;
    if (runs[i].launches > 0 && runs[i].bound == 0)
      return {{fmt::format("under {} no launch was bound{}", runs[i].name,
                           runs[i].coverage.empty() ? "." : ": " + runs[i].coverage),
               ""}};
    moved = moved || runs[i].moved > 0;
    could_move = could_move || has_predecessors(runs[i]);
  }
  if (beside && !contended)
    return {{"the tenant launched nothing while the command ran: nothing was beside it.",
             kOtherTenant}};
  if (could_move && !moved)
    return {{"no schedule moved a launch: each ran where the one before it did.",
             "Can the device be divided? See vitamin doctor; or try more of --runs."}};
  return std::nullopt;
}

Checks without_memory(Checks checks) {
  checks.memory = false;
  return checks;
}

std::string finding_of(const Observation& run, const std::vector<Observation>& runs,
                       const Checks& checks, bool structure) {
  if (run.interrupted) return "interrupted";
  if (const auto finding = audit_finding(run)) return *finding;
  if (const auto what = difference(runs[0], run, checks)) {
    std::string text = *what;
    if (structure)
      if (const auto launch = structure_difference(runs[1], run)) text += "; first in " + *launch;
    return text;
  }
  const Checks memory{.output = false, .memory = checks.memory, .files = {}};
  if (const auto what = difference(runs[1], run, memory)) return *what;
  if (structure)
    if (const auto what = structure_difference(runs[1], run)) return "what was launched: " + *what;
  return "";
}

}  // namespace

std::string end_of(const Observation& run) {
  if (run.timed_out) return "did not end in time";
  if (run.stopped != 0)
    return fmt::format("was stopped by signal {} ({})", run.stopped, strsignal(run.stopped));
  if (run.signal != 0)
    return fmt::format("was ended by signal {} ({})", run.signal, strsignal(run.signal));
  return fmt::format("ended with exit code {}", run.code);
}

const char* verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kDeterministic:
      return "deterministic under Vitamin";
    case Verdict::kNotByItself:
      return "not deterministic by itself";
    case Verdict::kBroken:
      return "broken by Vitamin";
    case Verdict::kInconclusive:
      return "inconclusive";
    case Verdict::kPartial:
      return "partial: interrupted";
  }
  return "";
}

const char* verdict_key(Verdict verdict) {
  switch (verdict) {
    case Verdict::kDeterministic:
      return "deterministic";
    case Verdict::kNotByItself:
      return "not_by_itself";
    case Verdict::kBroken:
      return "broken";
    case Verdict::kInconclusive:
      return "inconclusive";
    case Verdict::kPartial:
      return "partial";
  }
  return "";
}

std::optional<std::string> difference(const Observation& a, const Observation& b,
                                      const Checks& checks) {
  if (a.code != b.code || a.signal != b.signal || a.stopped != b.stopped ||
      a.timed_out != b.timed_out)
    return fmt::format("how it ended: it {}, and {}", end_of(a), end_of(b));
  if (checks.output && a.output != b.output) return output_difference(a.output, b.output);
  for (const std::string& file : checks.files)
    if (a.files.at(file) != b.files.at(file))
      return fmt::format("the file '{}': {}, and {}", file, a.files.at(file), b.files.at(file));
  if (checks.memory && a.audited && b.audited)
    if (const auto what = lanes_difference(a, b, Sort::kResults))
      return fmt::format("bytes copied to the host: {}{}", *what, culprit(a, b));
  return std::nullopt;
}

std::optional<std::string> structure_difference(const Observation& a, const Observation& b) {
  if (!a.audited || !b.audited) return std::nullopt;
  return lanes_difference(a, b, Sort::kStructure);
}

std::optional<std::string> audit_finding(const Observation& run) {
  for (std::size_t p = 0; p < run.processes.size(); ++p) {
    const auto& finding = run.processes[p].finding;
    if (!finding) continue;
    const auto& [operation, index] = *finding;
    const std::string which = where(p, operation.record.stream, index, operation);
    return (operation.record.flags & audit::kChanged) != 0
               ? "the device was asked for another launch than the program's: " + which
               : "an order that the program asked for was not kept: " + which;
  }
  return std::nullopt;
}

std::set<std::string> launched_kernels(const std::vector<Observation>& runs) {
  std::set<std::string> launched;
  for (const Observation& run : runs)
    for (const AuditedProcess& process : run.processes)
      for (const std::string& kernel : process.kernels)
        launched.insert(kernel.substr(kernel.find(": ") + 2));
  return launched;
}

std::map<std::string, std::set<std::string>> outside_contract(const std::vector<Observation>& runs,
                                                              const ScanResult& scan) {
  const std::set<std::string> launched = launched_kernels(runs);
  std::map<std::string, std::set<std::string>> found;
  for (const auto& [kernel, what] : scan.kernels)
    if (launched.contains(kernel)) found[kernel] = what;
  return found;
}

namespace {

// Whether the code's order of arrival or place may be what differs; clocks do not do that to equal
// runs, or they would differ alone.
std::optional<std::string> explanation(const std::vector<Observation>& runs,
                                       const ScanResult& scan) {
  for (const auto& [kernel, what] : outside_contract(runs, scan))
    for (const char* sign : {"float atomics", "reads %smid", "reads %nsmid"})
      if (what.contains(sign)) return fmt::format("'{}' of the command: {}", kernel, sign);
  return std::nullopt;
}

// Why the code of the launched kernels is not known, or nothing.
std::optional<std::string> scan_gap(const std::vector<Observation>& runs, const ScanResult& scan) {
  if (!scan.possible) return scan.why_not;
  for (const std::string& kernel : launched_kernels(runs))
    if (!scan.seen.contains(kernel)) return fmt::format("the code of '{}' was not found", kernel);
  return std::nullopt;
}

// Other bytes, and an audit that found nothing: whose doing is it?
Judgement other_bytes(const std::vector<Observation>& runs, std::size_t which,
                      const ScanResult& scan, Judgement result) {
  const std::string& finding = result.findings[which];
  const std::string what = fmt::format("alone it equals itself; under {} it differs in {}{}",
                                       runs[which].name, finding, culprit(runs[which], runs[1]));
  const std::string same = result.structure_compared
                               ? "The same was launched in the same order. "
                               : "Whether the same was launched could not be compared. ";
  if (const auto cause = explanation(runs, scan)) {
    result.verdict = Verdict::kNotByItself;
    result.reason = fmt::format("{}; the cause may be {}.", what, *cause);
    result.advice = same +
                    "What a kernel adds in the order of arrival, or makes of its "
                    "processor's number, may differ from run to run without Vitamin, too.";
    return result;
  }
  if (const auto gap = scan_gap(runs, scan))
    return inconclusive(std::move(result),
                        fmt::format("{}; whether its code adds floats in the order of arrival or "
                                    "reads %smid is unknown ({}).",
                                    what, *gap),
                        same +
                            "Install cuobjdump, or name the libraries with the code with "
                            "--scan FILE, and verify again: where no such code is found, it is "
                            "a bug of Vitamin.");
  result.verdict = Verdict::kBroken;
  result.reason = what + ".";
  result.advice = same + "No float atomics and no read of %smid were found in the code.";
  return result;
}

// The run to judge by, or 0: one where the audit itself found a mistake says more than one that
// launched something else, and that more than other bytes alone.
std::size_t worst(const std::vector<Observation>& runs, const Judgement& result) {
  std::size_t which = 0;
  int most = 0;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (result.findings[i].empty() || runs[i].interrupted) continue;
    const bool compared = result.structure_compared && !audit_gap(runs[i]) && runs[i].ended_well();
    const int weight = audit_finding(runs[i])                               ? 3
                       : compared && structure_difference(runs[1], runs[i]) ? 2
                                                                            : 1;
    if (weight <= most) continue;
    most = weight;
    which = i;
  }
  return which;
}

}  // namespace

Judgement judge(const std::vector<Observation>& runs, const std::vector<Observation>& controls,
                const Checks& checks, const ScanResult& scan, std::size_t wanted) {
  Judgement result;
  result.findings.resize(runs.size());
  if (runs.empty() || runs.front().interrupted) return result;
  if (!runs[0].ended_well()) return failed_alone(runs[0]);
  if (!runs[0].unwritten.empty()) {
    const std::string& file = *runs[0].unwritten.begin();
    return inconclusive(
        std::move(result),
        fmt::format("the command did not write the file '{}' ({}).", file, runs[0].files.at(file)),
        "--file takes the name of a file that the command writes when it runs "
        "alone, as seen from the current directory.");
  }
  for (std::size_t i = 1; i < std::min(runs.size(), kExclusive); ++i) {
    if (runs[i].interrupted) return result;
    if (runs[i].launches == 0) {
      result.verdict = Verdict::kInconclusive;
      result.reason =
          !runs[i].coverage.empty()
              ? runs[i].coverage
              : "the command launched graphs only, which are not compared by themselves.";
      return result;
    }
  }
  // What the audit found is ours, whatever the program does by itself.
  const auto ours = std::find_if(runs.begin(), runs.end(),
                                 [](const Observation& run) { return audit_finding(run); });
  if (ours == runs.end()) {
    for (const Observation& control : controls) {
      if (control.tenant) continue;
      if (control.interrupted) return result;
      if (const auto what = difference(runs[0], control, checks); what && !control.audited)
        return not_by_itself(runs[0], control, *what);
    }
    // That native runs agree which only look at what they printed says nothing of copies.
    const bool natively_equal = std::any_of(controls.begin(), controls.end(),
                                            [](const auto& c) { return !c.tenant && !c.audited; });
    if (runs.size() >= kExclusive)
      if (const auto what = difference(runs[1], runs[2], checks))
        if (!natively_equal || !difference(runs[1], runs[2], without_memory(checks)))
          return not_by_itself(runs[1], runs[2], *what);
  }
  if (runs.size() >= kExclusive)
    result.structure_compared =
        !audit_gap(runs[1]) && !audit_gap(runs[2]) && !structure_difference(runs[1], runs[2]) &&
        std::none_of(controls.begin(), controls.end(), [&](const Observation& control) {
          return control.audited && structure_difference(runs[1], control);
        });
  for (std::size_t i = 1; i < runs.size(); ++i)
    result.findings[i] =
        finding_of(runs[i], runs, checks, result.structure_compared && !audit_gap(runs[i]));
  result.compared = true;
  result.judged_by = worst(runs, result);
  if (const std::size_t i = result.judged_by; i != 0) {
    const bool audited = result.structure_compared && !audit_gap(runs[i]);
    if (!audit_finding(runs[i])) {
      if (runs[i].tenant && mentions(runs[i].last_words, {"out of memory", "out_of_memory"}))
        return inconclusive(std::move(result),
                            "there is too little device memory for the command and its tenant.",
                            "Choose a smaller tenant: --tenant COMMAND, or --tenant '' for none.");
      // A run that did not come to its end has launched less, which says nothing.
      if (!audited || !runs[i].ended_well() || !structure_difference(runs[1], runs[i])) {
        for (const Observation& control : controls)
          if (const auto what = difference(runs[0], control, checks); what && !control.audited)
            return not_by_itself(runs[0], control, *what);
        if (runs[i].ended_well()) return other_bytes(runs, i, scan, std::move(result));
      }
    }
    result.verdict = Verdict::kBroken;
    result.reason = fmt::format("alone it equals itself; under {} it differs in {}.", runs[i].name,
                                result.findings[i]);
    return result;
  }
  if (runs.back().interrupted) return result;
  if (auto why = tenant_failed(runs))
    return inconclusive(std::move(result), std::move(why->first), std::move(why->second));
  if (runs.size() < wanted) return result;
  if (auto why = nothing_shown(runs, checks))
    return inconclusive(std::move(result), std::move(why->first), std::move(why->second));
  result.verdict = Verdict::kDeterministic;
  std::string note;
  if (!result.structure_compared)
    note = " (its launches differ from run to run: structure not compared)";
  else if (const std::uint64_t unreadable = unreadable_launches(runs[1]); unreadable > 0)
    note = fmt::format(" (the arguments of {} launches could not be read)", unreadable);
  result.reason = fmt::format("{} schedules, {} launches each, no difference{}.",
                              runs.size() - kExclusive, runs[1].launches, note);
  return result;
}

}  // namespace vitamin::tools
