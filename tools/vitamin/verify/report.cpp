// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

// What is said of a run beside its numbers.
std::string outcome(const Verification& result, std::size_t i) {
  const Observation& run = result.runs[i];
  const Judgement& judgement = result.judgement;
  if (i < judgement.findings.size() && !judgement.findings[i].empty()) return judgement.findings[i];
  if (run.interrupted) return "interrupted";
  if (!run.ended_well()) return "it " + end_of(run);
  if (i == 0) return "the reference";
  return judgement.compared ? "equal" : "not compared";
}

std::map<std::uint32_t, std::uint64_t> widths(const Observation& run) {
  std::map<std::uint32_t, std::uint64_t> count;
  for (const AuditedProcess& process : run.processes)
    for (const auto& [sms, launches] : process.widths) count[sms] += launches;
  return count;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

constexpr unsigned kChartWidth = 310, kChartHeight = 40;

// The widest part that any run used: all charts share one axis.
std::uint32_t widest_of(const std::vector<Observation>& runs) {
  std::uint32_t widest = 1;
  for (const Observation& run : runs)
    if (const auto count = widths(run); !count.empty())
      widest = std::max(widest, count.rbegin()->first);
  return widest;
}

// Launches over the SMs that they ran on, as bars.
std::string width_chart(const Observation& run, std::uint32_t widest) {
  const auto count = widths(run);
  if (count.empty()) return "<span class=\"quiet\">not under Vitamin</span>";
  std::uint64_t most = 1;
  for (const auto& [width, launches] : count) most = std::max(most, launches);
  const auto at = [&](std::uint32_t width) { return 10 + std::uint64_t{width} * 280 / widest; };
  std::string svg =
      fmt::format(R"(<svg width="{}" height="{}" fill="#57606a" font-size="10" role="img")"
                  R"( aria-label="launches over SMs">)",
                  kChartWidth, kChartHeight + 16);
  for (const auto& [width, launches] : count) {
    const auto height = std::max<std::uint64_t>(launches * (kChartHeight - 4) / most, 2);
    svg += fmt::format(R"(<rect x="{}" y="{}" width="7" height="{}" fill="#4a7bd0"><title>)"
                       R"({} SMs: {} launches</title></rect>)",
                       at(width) - 3, kChartHeight - height, height, width, launches);
  }
  svg += fmt::format(R"(<line x1="4" y1="{0}" x2="{1}" y2="{0}" stroke="#8c959f"/>)", kChartHeight,
                     kChartWidth);
  for (const std::uint32_t width : {0U, widest / 2, widest})
    svg += fmt::format(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)", at(width),
                       kChartHeight + 13, width);
  return svg + "</svg>";
}

// What a reader wants to know before any table.
std::string headline(const Verification& result) {
  std::uint64_t launches = 0, moved = 0;
  std::map<std::uint32_t, std::uint64_t> all;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const Observation& run = result.runs[i];
    const std::vector<std::string>& findings = result.judgement.findings;
    const bool differs = i < findings.size() && !findings[i].empty();
    equal += !result.judgement.compared || differs || run.interrupted ? 0 : 1;
    launches += run.launches;
    moved += run.moved;
    for (const auto& [width, count] : widths(run)) all[width] += count;
  }
  const auto card = [](const std::string& number, const char* what) {
    return fmt::format("<div><b>{}</b>{}</div>", number, what);
  };
  return "<div class=\"cards\">" +
         card(fmt::format("{} of {}", equal, result.wanted), "runs are equal") +
         card(grouped(launches), "launches bound") +
         card(grouped(moved), "ran elsewhere than the one before") +
         card(std::to_string(all.size()), "different widths") + "</div>";
}

constexpr const char* kStyle = R"(body{font:15px/1.5 system-ui,sans-serif;max-width:66em;
margin:2em auto;padding:0 1em;color:#1f2328}h1{font-size:1.5em;margin:.2em 0}h2{font-size:1.1em}
header{border-left:.5em solid;padding:.4em 1em;background:#f6f8fa}
header p{color:#1f2328;margin:.3em 0}
.cards{display:flex;gap:1em;margin:1.2em 0}.cards div{flex:1;background:#f6f8fa;padding:.6em 1em;
color:#57606a}.cards b{display:block;font-size:1.4em;color:#1f2328}table{border-collapse:collapse;
width:100%}td,th{text-align:left;padding:.35em .8em .35em 0;border-bottom:1px solid #d8dee4;
vertical-align:middle}.number{text-align:right;white-space:nowrap}
code{background:#eaeef2;padding:.1em .3em}
.deterministic{color:#0a7a33}.broken{color:#b00020}
.not_by_itself,.inconclusive,.partial{color:#9a6700}
.quiet{color:#57606a})";

}  // namespace

std::string replay(const VerifyOptions& options, const Verification& result,
                   const Observation& run) {
  const std::string memory = options.memory.empty() ? "" : " --memory " + options.memory;
  const std::string line = fmt::format("vitamin run --policy {} --seed {}{} -- {}", run.policy,
                                       run.seed, memory, joined(options.command));
  if (!run.tenant) return line;
  return fmt::format("vitamin run --quiet --policy {} --seed {} -- sh -c {} & {}; kill $!",
                     kTenantPolicy, tenant_seed(run.seed), shell_word(result.tenant), line);
}

nlohmann::ordered_json to_json(const VerifyOptions& options, const Verification& result) {
  nlohmann::ordered_json json;
  json["schema"] = kVerifySchema;
  json["verdict"] = verdict_key(result.judgement.verdict);
  json["reason"] = result.judgement.reason;
  json["advice"] = result.judgement.advice;
  json["exit_code"] = result.exit_code;
  json["partial"] = result.judgement.verdict == Verdict::kPartial;
  json["command"] = options.command;
  json["seed"] = options.seed;
  json["tenant"] = result.tenant;
  json["structure_compared"] = result.judgement.structure_compared;
  json["runs"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const Observation& run = result.runs[i];
    nlohmann::ordered_json one;
    one["name"] = run.name;
    one["policy"] = run.policy;
    one["seed"] = run.seed;
    one["tenant"] = run.tenant;
    one["seconds"] = run.seconds;
    one["exit_code"] = run.code;
    one["signal"] = run.signal;
    one["launches"] = run.launches;
    one["bound"] = run.bound;
    one["moved"] = run.moved;
    one["coverage"] = run.coverage;
    one["files"] = run.files;
    one["finding"] = i < result.judgement.findings.size() ? result.judgement.findings[i] : "";
    one["tenant_message"] = run.message;
    one["tenant_launches"] = run.tenant_launches;
    if (!run.policy.empty()) one["replay"] = replay(options, result, run);
    one["widths"] = nlohmann::ordered_json::object();
    for (const auto& [width, launches] : widths(run))
      one["widths"][std::to_string(width)] = launches;
    json["runs"].push_back(std::move(one));
  }
  json["code_scanned"] = result.scan.possible;
  json["code_not_scanned"] = result.scan.why_not;
  json["outside_contract"] = nlohmann::ordered_json::object();
  for (const auto& [kernel, what] : outside_contract(result.runs, result.scan))
    json["outside_contract"][kernel] = what;
  return json;
}

std::string to_text(const VerifyOptions& options, const Verification& result) {
  std::string text;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const Observation& run = result.runs[i];
    text += fmt::format("  {:28} {:>8.2f} s  {:>9} launches  {}\n", run.name, run.seconds,
                        run.policy.empty() ? "–" : grouped(run.launches), outcome(result, i));
    if (!run.message.empty()) text += fmt::format("    {}\n", run.message);
  }
  if (result.judgement.verdict == Verdict::kPartial)
    text += fmt::format("  partial: {} of {} runs\n", result.runs.size(), result.wanted);
  if (result.scan.possible) {
    for (const auto& [kernel, what] : outside_contract(result.runs, result.scan))
      for (const std::string& one : what)
        text += fmt::format("  outside the contract: {} {}\n", kernel, one);
  } else if (!result.scan.why_not.empty()) {
    text += fmt::format("  reads of %smid, of clocks and float atomics: unknown ({})\n",
                        result.scan.why_not);
  }
  text += fmt::format("{}: {}\n", verdict_text(result.judgement.verdict), result.judgement.reason);
  if (!result.judgement.advice.empty()) text += result.judgement.advice + "\n";
  if (const std::size_t i = result.judgement.judged_by; i != 0)
    text += "To run it again: " + replay(options, result, result.runs[i]) + "\n";
  return text;
}

std::string to_html(const VerifyOptions& options, const Verification& result) {
  const char* key = verdict_key(result.judgement.verdict);
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>vitamin verify</title>"
      "<style>{}</style><header class=\"{}\"><h1>{}</h1><p>{}</p><p>{}</p><p><code>{}</code></p>",
      kStyle, key, escaped(verdict_text(result.judgement.verdict)),
      escaped(result.judgement.reason), escaped(result.judgement.advice),
      escaped(joined(options.command)));
  if (!result.tenant.empty())
    html += fmt::format("<p class=\"quiet\">beside <code>{}</code></p>", escaped(result.tenant));
  if (result.judgement.verdict == Verdict::kPartial)
    html += fmt::format("<p><b>partial</b>: {} of {} runs</p>", result.runs.size(), result.wanted);
  html += "</header>" + headline(result);
  html +=
      "<table><tr><th>run</th><th class=\"number\">time</th><th class=\"number\">launches</th>"
      "<th class=\"number\">moved</th><th>launches over SMs</th>"
      "<th>against the run alone</th></tr>";
  const std::uint32_t widest = widest_of(result.runs);
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const Observation& run = result.runs[i];
    const std::string finding =
        i < result.judgement.findings.size() ? result.judgement.findings[i] : "";
    const bool native = run.policy.empty();
    html += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{:.2f} s</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}</td><td>{}</td><td class=\"{}\">{}</td></tr>",
        escaped(run.name), run.seconds, native ? "–" : grouped(run.launches),
        native ? "–" : grouped(run.moved), width_chart(run, widest),
        !finding.empty()                                ? "broken"
        : result.judgement.compared && !run.interrupted ? "deterministic"
                                                        : "partial",
        escaped(outcome(result, i)));
  }
  html += "</table><h2>Outside the contract</h2><ul>";
  const auto outside = outside_contract(result.runs, result.scan);
  for (const auto& [kernel, what] : outside)
    for (const std::string& one : what)
      html += fmt::format("<li><code>{}</code>: {}</li>", escaped(kernel), escaped(one));
  if (!result.scan.possible)
    html += fmt::format("<li>unknown: {}</li>", escaped(result.scan.why_not));
  else if (outside.empty())
    html += "<li>nothing was found in the code that was looked into</li>";
  return html + "</ul></html>\n";
}

}  // namespace vitamin::tools
