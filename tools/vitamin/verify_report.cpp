// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::map<std::uint32_t, std::uint64_t> widths(const Observation& run) {
  std::map<std::uint32_t, std::uint64_t> count;
  for (const AuditedProcess& process : run.processes)
    for (const auto& [lane, operations] : process.lanes)
      for (const AuditedOperation& operation : operations)
        if (operation.record.kind == runtime::audit::Kind::kLaunch)
          ++count[operation.record.processors];
  return count;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '&') result += "&amp;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

// Launches over width, as bars.
std::string width_chart(const Observation& run) {
  const auto count = widths(run);
  if (count.empty()) return "";
  std::uint64_t most = 1;
  for (const auto& [width, launches] : count) most = std::max(most, launches);
  const std::uint32_t widest = std::max(count.rbegin()->first, 1u);
  std::string svg = R"(<svg width="240" height="34" role="img">)";
  for (const auto& [width, launches] : count) {
    const auto height = std::max<std::uint64_t>(launches * 28 / most, 1);
    svg += fmt::format(R"(<rect x="{}" y="{}" width="4" height="{}"><title>{} processors: {} )"
                       R"(launches</title></rect>)",
                       std::uint64_t{width} * 234 / widest, 30 - height, height, width, launches);
  }
  return svg + R"(<line x1="0" y1="31" x2="240" y2="31"/></svg>)";
}

constexpr const char* kStyle = R"(body{font:15px/1.5 system-ui,sans-serif;max-width:60em;
margin:2em auto;padding:0 1em;color:#222}h1{font-size:1.4em}table{border-collapse:collapse;
width:100%}td,th{text-align:left;padding:.35em .8em .35em 0;border-bottom:1px solid #ddd;
vertical-align:top}code{background:#f3f3f3;padding:.1em .3em}.deterministic{color:#0a7a33}
.broken{color:#b00020}.not_by_itself,.inconclusive,.partial{color:#9a6700}rect{fill:#4a7bd0}
line{stroke:#888})";

}  // namespace

std::string replay(const VerifyOptions& options, const Observation& run) {
  return fmt::format("vitamin run --policy {} --seed {} -- {}", run.policy, run.seed,
                     joined(options.command));
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
    if (!run.policy.empty()) one["replay"] = replay(options, run);
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
    const std::string& finding =
        i < result.judgement.findings.size() ? result.judgement.findings[i] : "";
    text += fmt::format("  {:28} {:>8.2f} s  {:>9} launches  {}\n", run.name, run.seconds,
                        run.policy.empty() ? "–" : grouped(run.launches),
                        finding.empty() ? (run.interrupted ? "interrupted" : "equal") : finding);
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
  if (result.judgement.verdict == Verdict::kBroken)
    for (std::size_t i = 1; i < result.runs.size(); ++i)
      if (!result.judgement.findings[i].empty())
        return text + "To run it again: " + replay(options, result.runs[i]) + "\n";
  return text;
}

std::string to_html(const VerifyOptions& options, const Verification& result) {
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>vitamin verify</title>"
      "<style>{}</style><h1 class=\"{}\">{}</h1><p>{} {}</p><p>Command: <code>{}</code></p>",
      kStyle, verdict_key(result.judgement.verdict),
      escaped(verdict_text(result.judgement.verdict)), escaped(result.judgement.reason),
      escaped(result.judgement.advice), escaped(joined(options.command)));
  if (!result.tenant.empty())
    html += fmt::format("<p>Beside it: <code>{}</code></p>", escaped(result.tenant));
  if (result.judgement.verdict == Verdict::kPartial)
    html += fmt::format("<p class=\"partial\"><b>partial</b>: {} of {} runs</p>",
                        result.runs.size(), result.wanted);
  html += "<table><tr><th>run</th><th>time</th><th>launches</th><th>moved</th>"
          "<th>launches over processors</th><th>against the run alone</th></tr>";
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const Observation& run = result.runs[i];
    const std::string finding =
        i < result.judgement.findings.size() ? result.judgement.findings[i] : "";
    html += fmt::format(
        "<tr><td>{}</td><td>{:.2f} s</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}"
        "</td></tr>",
        escaped(run.name), run.seconds, grouped(run.launches), grouped(run.moved),
        width_chart(run), finding.empty() ? "deterministic" : "broken",
        finding.empty() ? (run.interrupted ? "interrupted" : "equal") : escaped(finding));
  }
  html += "</table><h2>Outside the contract</h2><ul>";
  const auto outside = outside_contract(result.runs, result.scan);
  for (const auto& [kernel, what] : outside)
    for (const std::string& one : what)
      html += fmt::format("<li><code>{}</code>: {}</li>", escaped(kernel), escaped(one));
  if (!result.scan.possible)
    html += fmt::format("<li>unknown: {}</li>", escaped(result.scan.why_not));
  else if (outside.empty()) html += "<li>nothing was found in the code that was looked into</li>";
  return html + "</ul></html>\n";
}

}  // namespace vitamin::tools
