// SPDX-License-Identifier: Apache-2.0
//
// What vitamin verify concludes from runs, and what it reads out of a listing of GPU code.
#include <doctest/doctest.h>

#include "tools/vitamin/verify_judge.h"
#include "tools/vitamin/verify_scan.h"

namespace vitamin::tools {
namespace {

namespace audit = runtime::audit;

AuditedOperation launch(const std::string& kernel, std::uint32_t grid, std::uint32_t flags = 0) {
  audit::Record record{};
  record.kind = audit::Kind::kLaunch;
  record.structure = std::hash<std::string>{}(kernel) + grid;
  record.grid = grid;
  record.flags = flags;
  return {record, "app: " + kernel};
}

Observation run(const std::string& name, const std::string& output,
                const std::vector<AuditedOperation>& operations = {launch("k", 4)}) {
  Observation seen;
  seen.name = name;
  seen.output = output;
  seen.audited = name != "native";
  seen.launches = seen.bound = seen.moved = operations.size();
  if (seen.audited) {
    seen.processes.resize(1);
    seen.processes[0].lanes[0] = operations;
  }
  return seen;
}

std::vector<Observation> runs(Observation last) {
  std::vector<Observation> all = {run("native", "a\n"), run("exclusive", "a\n"),
                                  run("exclusive again", "a\n")};
  all.push_back(std::move(last));
  return all;
}

const Checks kOutput{};
const ScanResult kNotScanned{};

TEST_CASE("equal runs are deterministic") {
  const auto all = runs(run("random", "a\n"));
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kDeterministic);
}

TEST_CASE("runs that are missing make the verdict partial") {
  const auto all = runs(run("random", "a\n"));
  CHECK(judge(all, {}, kOutput, kNotScanned, 5).verdict == Verdict::kPartial);
}

TEST_CASE("another launch is broken and is named although the output agrees") {
  const auto all = runs(run("random", "a\n", {launch("k", 2)}));
  const Judgement found = judge(all, {}, kOutput, kNotScanned, 4);
  CHECK(found.verdict == Verdict::kBroken);
  CHECK(found.reason.find("'app: k' (4 blocks)") != std::string::npos);
  CHECK(found.reason.find("(2 blocks)") != std::string::npos);
}

TEST_CASE("an order that was not kept is broken although output and launches agree") {
  const auto all = runs(run("random", "a\n", {launch("k", 4, audit::kUncovered)}));
  const Judgement found = judge(all, {}, kOutput, kNotScanned, 4);
  CHECK(found.verdict == Verdict::kBroken);
  CHECK(found.reason.find("order") != std::string::npos);
}

TEST_CASE("other output of the same launches is broken unless the program's code explains it") {
  const auto all = runs(run("random", "b\n"));
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kInconclusive);
  ScanResult scan;
  scan.possible = true;
  const Judgement unseen = judge(all, {}, kOutput, scan, 4);
  CHECK(unseen.verdict == Verdict::kInconclusive);
  CHECK(unseen.reason.find("the code of 'k' was not found") != std::string::npos);
  CHECK(unseen.advice.find("--scan FILE") != std::string::npos);
  scan.seen = {"k", "never launched"};
  scan.kernels["k"] = {"float atomics"};
  const Judgement explained = judge(all, {}, kOutput, scan, 4);
  CHECK(explained.verdict == Verdict::kNotByItself);
  CHECK(explained.reason.find("may be 'k' of the command: float atomics") != std::string::npos);
  scan.kernels["k"] = {"reads %smid"};
  CHECK(judge(all, {}, kOutput, scan, 4).verdict == Verdict::kNotByItself);
  scan.kernels["k"] = {"reads a clock"};
  CHECK(judge(all, {}, kOutput, scan, 4).verdict == Verdict::kBroken);
  scan.kernels.clear();
  scan.kernels["never launched"] = {"float atomics"};
  CHECK(judge(all, {}, kOutput, scan, 4).verdict == Verdict::kBroken);
}

TEST_CASE("too little memory does not excuse what the audit found") {
  auto all = runs(run("random", "b\n"));
  all[3].tenant = true;
  all[3].last_words = "CUDA error: out of memory";
  all[3].code = 1;
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kInconclusive);
  all[3].processes[0].lanes[0][0].record.flags = audit::kChanged;
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kBroken);
}

TEST_CASE("a finding of the audit in a later run outweighs other bytes in an earlier one") {
  auto all = runs(run("random", "b\n"));
  all.push_back(run("narrow", "a\n", {launch("k", 4, audit::kUncovered)}));
  const Judgement found = judge(all, {}, kOutput, kNotScanned, 5);
  CHECK(found.verdict == Verdict::kBroken);
  CHECK(found.reason.find("under narrow") != std::string::npos);
}

TEST_CASE("the launches at or before a result that differs are those of all streams") {
  const auto with_result = [](std::uint64_t content) {
    Observation seen = run("random", "a\n", {launch("early", 4), launch("copies", 4)});
    auto& lanes = seen.processes[0].lanes;
    AuditedOperation result = launch("", 0);
    result.record.kind = audit::Kind::kResult;
    result.record.content = content;
    result.kernel.clear();
    lanes[1] = {launch("computes", 4), launch("late", 4)};
    lanes[0].push_back(result);
    lanes[0][0].position = 1;
    lanes[0][1].position = 2;
    lanes[1][0].position = 3;
    lanes[0][2].position = 4;
    lanes[1][1].position = 5;
    return seen;
  };
  auto all = runs(with_result(2));
  all[1] = all[2] = with_result(1);
  const Judgement found = judge(all, {}, {false, true, {}}, kNotScanned, 4);
  CHECK_MESSAGE(found.reason.find("at or before the launch of 'app: computes', 'app: copies'") !=
                    std::string::npos,
                found.reason);
  CHECK(found.reason.find("late") == std::string::npos);
}

TEST_CASE("what differs natively beside a tenant is not Vitamin's doing") {
  const auto all = runs(run("random", "b\n"));
  Observation control = run("native", "b\n");
  control.tenant = true;
  CHECK(judge(all, {control}, kOutput, kNotScanned, 4).verdict == Verdict::kNotByItself);
}

TEST_CASE("a run that hangs is broken") {
  Observation hung = run("random", "a\n");
  hung.timed_out = true;
  CHECK(judge(runs(hung), {}, kOutput, kNotScanned, 4).verdict == Verdict::kBroken);
}

void check_inconclusive(const std::vector<Observation>& all, const Checks& checks,
                        const std::string& words) {
  const Judgement found = judge(all, {}, checks, kNotScanned, all.size());
  CHECK(found.verdict == Verdict::kInconclusive);
  CHECK_MESSAGE(found.reason.find(words) != std::string::npos, found.reason);
}

TEST_CASE("runs that bound or moved nothing show nothing") {
  auto all = runs(run("random", "a\n", {launch("k", 4), launch("k", 4)}));
  for (std::size_t i = 1; i < 3; ++i)
    all[i] = run("exclusive", "a\n", {launch("k", 4), launch("k", 4)});
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kDeterministic);
  all[3].moved = 0;
  check_inconclusive(all, kOutput, "moved");
  all[3].bound = 0;
  check_inconclusive(all, kOutput, "no launch was bound");
  // One launch alone cannot move, and one schedule that moves is enough.
  auto single = runs(run("random", "a\n"));
  single[3].moved = 0;
  CHECK(judge(single, {}, kOutput, kNotScanned, 4).verdict == Verdict::kDeterministic);
  all[3].bound = 2;
  all.push_back(all[3]);
  all[4].moved = 1;
  CHECK(judge(all, {}, kOutput, kNotScanned, 5).verdict == Verdict::kDeterministic);
}

TEST_CASE("an audit that was not made, or is incomplete, is not a comparison of structure") {
  auto all = runs(run("random", "a\n"));
  all[3].processes[0].complete = false;
  check_inconclusive(all, kOutput, "audit of random is incomplete");
  all[3].processes.clear();
  check_inconclusive(all, kOutput, "has 0 of its 1 launches");
}

TEST_CASE("a file that the command does not write, no bytes and a dead tenant show nothing") {
  auto all = runs(run("random", "a\n"));
  all[3].message = "the tenant ended with exit code 1";
  check_inconclusive(all, kOutput, "the tenant ended with exit code 1");
  all[3].message.clear();
  for (Observation& one : all) {
    one.files["never"] = "missing";
    one.unwritten = {"never"};
  }
  check_inconclusive(all, {false, false, {"never"}}, "did not write the file 'never'");
  for (Observation& one : all) one.unwritten.clear();
  check_inconclusive(all, {false, true, {}}, "no bytes");
  for (Observation& one : all) one.output.clear();
  check_inconclusive(all, kOutput, "no bytes");
}

TEST_CASE("a program whose launches differ from run to run is compared by its results alone") {
  auto all = runs(run("random", "a\n", {launch("k", 9)}));
  all[2] = run("exclusive again", "a\n", {launch("k", 8)});
  const Judgement found = judge(all, {}, kOutput, kNotScanned, 4);
  CHECK(found.verdict == Verdict::kDeterministic);
  CHECK_FALSE(found.structure_compared);
  CHECK(found.reason.find("structure not compared") != std::string::npos);
}

TEST_CASE("only words name a terminal, and only decimal digits are times") {
  const auto advice = [](const std::string& words) {
    Observation failed = run("native", "");
    failed.code = 1;
    failed.last_words = words;
    return judge({failed}, {}, kOutput, kNotScanned, 4).advice;
  };
  CHECK(advice("pretty printing failed").empty());
  CHECK(advice("cannot open /dev/tty: no such device").find("terminal") != std::string::npos);
  CHECK(advice("EOFError").find("terminal") != std::string::npos);
  const auto differing = [](const std::string& a, const std::string& b) {
    auto all = runs(run("random", a));
    for (Observation& one : all) one.output = a;
    all[2].output = b;
    return judge(all, {}, kOutput, kNotScanned, 4).advice;
  };
  CHECK(differing("face\n", "beef\n").empty());
  CHECK(differing("took 1.5 s\n", "took 12 s\n").find("numbers only") != std::string::npos);
}

TEST_CASE("a listing says which kernel reads a clock or its processor or adds floats") {
  ScanResult result;
  read_listing(
      "\t\tFunction : quiet\n  /*0000*/ FADD R0, R1, R2 ;\n"
      "\t\tFunction : adds\n  /*0010*/ REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R5 ;\n"
      "\t\tFunction : counts\n  /*0010*/ REDG.E.ADD.STRONG.GPU [R2], R5 ;\n"
      ".visible .entry looks(\n  mov.u32 %r1, %smid;\n  mov.u64 %rd1, %globaltimer;\n",
      result);
  CHECK(result.kernels.size() == 2);
  CHECK(result.seen == std::set<std::string>{"adds", "counts", "looks", "quiet"});
  CHECK(result.kernels["adds"].contains("float atomics"));
  CHECK(result.kernels["looks"].contains("reads %smid"));
  CHECK(result.kernels["looks"].contains("reads a clock"));
}

}  // namespace
}  // namespace vitamin::tools
