// SPDX-License-Identifier: Apache-2.0
//
// The coverage report as one screen of text.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/vitamin/run/report.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

constexpr unsigned kBarColumns = 40;
constexpr std::size_t kLibraryRows = 12;

class Table {
 public:
  Table(const Report& report, const RunFacts& facts, bool utf8)
      : report_(report), facts_(facts), launches_(report.totals.launches), utf8_(utf8) {}

  std::string text() {
    head();
    if (report_.launches() > 0) {
      launches();
      widths();
      libraries();
    }
    if (report_.launched()) other();
    warnings();
    return out_;
  }

 private:
  template <class... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    out_ += fmt::format(format, std::forward<Arguments>(arguments)...);
    while (!out_.empty() && out_.back() == ' ') out_.pop_back();
    out_ += '\n';
  }

  void rule() {
    constexpr int kColumns = 78;
    std::string text;
    for (int i = 0; i < kColumns; ++i) text += utf8_ ? "─" : "-";
    line("{}", text);
  }

  void head() {
    rule();
    std::string how = fmt::format("policy {}", facts_.policy);
    if (facts_.seed) how += fmt::format(", seed {}", *facts_.seed);
    if (!facts_.window.empty()) how += fmt::format(", window {}", facts_.window);
    // Of a program that launches its kernels as graphs only these are the launches.
    const bool graphs = report_.launches() == 0 && report_.graph_launches() > 0;
    const std::uint64_t bound = graphs ? report_.totals.graphs.bound.get() : report_.bound();
    const std::uint64_t all = graphs ? report_.graph_launches() : report_.launches();
    line("vitamin run   {} of {} {}launches bound ({}), {}, {}", grouped(bound), grouped(all),
         graphs ? "graph " : "", percent(bound, all), how, duration(facts_.wall_ns));
    rule();
    for (const ProcessReport& process : report_.processes)
      for (const DeviceReport& device : process.devices)
        line("  {} ({})  {}: {} SMs in {} units; pool of {} partitions made in {}", process.program,
             process.pid, device.name, device.processors, device.units, device.entries,
             duration(device.creation_ns));
  }

  void launches() {
    const auto& l = launches_;
    line("");
    line("  launches      bound    bridged     passed   deferred     failed");
    line("  {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}", grouped(report_.launches()),
         grouped(l.bound.get()), grouped(l.bridged.get()),
         grouped(l.passed.get() + report_.passed_unmanaged), grouped(l.deferred.get()),
         grouped(l.failed.get()));
    line("");
    line("  moved to other SMs       {:>10}  {:>7}  of {} that had a predecessor in their stream",
         grouped(l.moved.get()), percent(l.moved.get(), l.successors.get()),
         grouped(l.successors.get()));
    line("  on part of the device    {:>10}  {:>7}  of {} that fit on a part",
         grouped(l.narrow.get()), percent(l.narrow.get(), l.narrow_eligible.get()),
         grouped(l.narrow_eligible.get()));
    reasons("on the whole device", report_.totals.whole, stats::kWholeReasonText);
    auto unbound = report_.totals.unbound;
    for (const ProcessReport& process : report_.processes) {
      const auto why = process.stage == stats::Stage::kDegraded
                           ? stats::UnboundReason::kNoPool
                           : stats::UnboundReason::kForeignContext;
      unbound[static_cast<std::size_t>(why)] += process.passed_unmanaged;
    }
    reasons("not bound", unbound, stats::kUnboundReasonText);
  }

  template <std::size_t N>
  void reasons(const char* title, const std::array<std::uint64_t, N>& counts,
               const char* const (&names)[N]) {
    std::uint64_t sum = 0;
    std::string why;
    for (std::size_t i = 0; i < N; ++i) {
      if (counts[i] == 0) continue;
      sum += counts[i];
      why += fmt::format("{}{} {}", why.empty() ? "" : ", ", names[i], grouped(counts[i]));
    }
    if (sum > 0)
      line("  {:<24} {:>10}  {:>7}  {}", title, grouped(sum), percent(sum, report_.launches()),
           why);
  }

  void widths() {
    const auto& widths = report_.totals.widths;
    if (widths.empty()) return;
    std::uint64_t most = 0;
    std::set<std::uint64_t> whole;
    for (const auto& [processors, count] : widths) most = std::max(most, count);
    for (const ProcessReport& process : report_.processes)
      for (const DeviceReport& device : process.devices) whole.insert(device.processors);
    line("");
    line("         SMs   launches");
    for (const auto& [processors, count] : widths)
      line("  {:>10} {:>10}  {}{}", processors, grouped(count),
           bar(count, most, kBarColumns, utf8_),
           whole.count(processors) > 0 ? "  the whole device" : "");
  }

  void libraries() {
    using Row = std::pair<std::string, LibraryTotals>;
    std::vector<Row> rows(report_.totals.libraries.begin(), report_.totals.libraries.end());
    if (rows.empty()) return;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.second.seen > b.second.seen; });
    line("");
    line("  {:<36} {:>10} {:>10} {:>8} {:>8}", "library", "launches", "bound", "bridged", "passed");
    for (std::size_t i = 0; i < std::min(rows.size(), kLibraryRows); ++i)
      line("  {:<36.36} {:>10} {:>10} {:>8} {:>8}", rows[i].first, grouped(rows[i].second.seen),
           grouped(rows[i].second.bound), grouped(rows[i].second.bridged),
           grouped(rows[i].second.passed));
    if (rows.size() > kLibraryRows)
      line("  … and {} more (--json lists all)", rows.size() - kLibraryRows);
  }

  // Of all launches on the whole device, from those that were timed.
  static std::string time_on_whole_device(const stats::OtherWork& work, std::uint64_t all) {
    const std::uint64_t timed = work.graphs_timed.get();
    if (timed == 0) return "time unknown";
    const double mean = static_cast<double>(work.graph_whole_ns.get()) / static_cast<double>(timed);
    return (timed < all ? "about " : "") +
           duration(static_cast<std::uint64_t>(mean * static_cast<double>(all)));
  }

  void other() {
    const stats::OtherWork& o = report_.totals.other;
    line("");
    line("  copies and fills {}; bridged calls {}; edges between queues {}; host functions {}",
         grouped(o.copies_queued.get() + o.fills_queued.get()), grouped(o.calls_bridged.get()),
         grouped(o.edges.get()), grouped(o.host_functions.get()));
    graphs();
    for (const Learnt& learnt : facts_.learnt)
      if (learnt.problem.empty() && learnt.samples > 0)
        line("  times of {} launches ({} different) added to {}", grouped(learnt.samples),
             grouped(learnt.kernels), learnt.file.native());
  }

  void graphs() {
    const Totals& totals = report_.totals;
    const std::uint64_t all = totals.other.graph_launches.get(), bound = totals.graphs.bound.get();
    if (all == 0) return;
    if (bound > 0) {
      std::string widths;
      for (const auto& [processors, count] : totals.graph_widths)
        widths += fmt::format("{}{} ({})", widths.empty() ? "" : ", ", processors, grouped(count));
      line("  graphs: {} of {} launches bound, {} moved; on SMs: {}", grouped(bound), grouped(all),
           grouped(totals.graphs.moved.get()), widths);
    }
    if (bound == all) return;
    std::string reasons;
    for (std::size_t i = 0; i < totals.graph_whole.size(); ++i)
      if (totals.graph_whole[i] > 0)
        reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", stats::kGraphReasonText[i],
                               grouped(totals.graph_whole[i]));
    line("  graphs: {} launches on the whole device, without a grant, {} ({})",
         grouped(all - bound), time_on_whole_device(totals.other, all - bound), reasons);
  }

  void warnings() {
    for (const ProcessReport& process : report_.processes) {
      if (process.stage == stats::Stage::kDegraded)
        line("  {} ({}): not managed: {}", process.program, process.pid, process.message);
      for (const std::string& warning : process.warnings)
        line("  {} ({}): {}", process.program, process.pid, warning);
      if (process.warnings_seen > process.warnings.size())
        line("  {} ({}): {} more warnings", process.program, process.pid,
             process.warnings_seen - process.warnings.size());
    }
    if (report_.unreadable > 0)
      line("  {} statistics pages could not be read (written by another version of vitamin?)",
           report_.unreadable);
    rule();
  }

  const Report& report_;
  const RunFacts& facts_;
  const stats::Launches& launches_;
  const bool utf8_;
  std::string out_;
};

}  // namespace

std::string to_table(const Report& report, const RunFacts& facts, bool utf8) {
  return Table(report, facts, utf8).text();
}

}  // namespace vitamin::tools
