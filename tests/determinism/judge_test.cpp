// SPDX-License-Identifier: Apache-2.0
//
// What vitamin verify concludes from runs, and what it reads out of a listing of GPU code.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <fstream>

#include "runtime/audit/log.h"
#include "tools/vitamin/verify/judge.h"
#include "tools/vitamin/verify/scan.h"

namespace vitamin::tools {
namespace {

namespace audit = runtime::audit;

using Operations = std::vector<AuditedOperation>;  // in the order of the log

AuditedOperation launch(const std::string& kernel, std::uint32_t grid, std::uint32_t flags = 0) {
  audit::AuditRecord record{};
  record.kind = audit::AuditKind::kLaunch;
  record.structure = std::hash<std::string>{}(kernel) + grid;
  record.grid = grid;
  record.flags = flags;
  return {record, "app: " + kernel};
}

// A process whose audit wrote these down, in a log as the runtime writes it.
void add_process(Observation& seen, const Operations& operations) {
  seen.logs = std::make_shared<RunDirectory>(RunDirectory::Where::kDisk);
  {
    const auto log = audit::Log::create(seen.logs->path().c_str(), 0);
    REQUIRE(log != nullptr);
    std::map<std::string, std::uint32_t> names;
    for (const auto& [written, kernel, position] : operations) {
      audit::AuditRecord record = written;
      const auto [name, fresh] = names.emplace(kernel, static_cast<std::uint32_t>(names.size()));
      if (fresh) log->name(name->second, kernel);
      record.index = name->second;
      log->add(record);
    }
  }
  seen.processes = read_audit(seen.logs->path());
  REQUIRE(seen.processes.size() == 1);
}

Observation run(const std::string& name, const std::string& output,
                const Operations& operations = {launch("k", 4)}) {
  Observation seen;
  seen.name = name;
  seen.output = output;
  seen.audited = name != "native";
  seen.launches = seen.bound = seen.moved = operations.size();
  if (seen.audited) add_process(seen, operations);
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

TEST_CASE("a program that launches something else alone, if seldom, is not broken by Vitamin") {
  const auto all = runs(run("random", "a\n", {launch("k", 2)}));
  const std::vector<Observation> same = {run("exclusive again", "a\n")};
  CHECK(judge(all, same, kOutput, kNotScanned, 4).verdict == Verdict::kBroken);
  const std::vector<Observation> other = {run("exclusive again", "a\n"),
                                          run("exclusive again", "a\n", {launch("k", 3)})};
  const Judgement found = judge(all, other, kOutput, kNotScanned, 4);
  CHECK(found.verdict == Verdict::kDeterministic);
  CHECK_FALSE(found.structure_compared);
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
  add_process(all[3], {launch("k", 4, audit::kChanged)});
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
    AuditedOperation result = launch("", 0), computes = launch("computes", 4);
    AuditedOperation late = launch("late", 4);
    result.record.kind = audit::AuditKind::kResult;
    result.record.content = content;
    computes.record.stream = late.record.stream = 1;
    return run("random", "a\n", {launch("early", 4), launch("copies", 4), computes, result, late});
  };
  auto all = runs(with_result(2));
  all[1] = all[2] = with_result(1);
  const Judgement found = judge(all, {}, {false, true, {}}, kNotScanned, 4);
  CHECK_MESSAGE(found.reason.find(
                    "at or before the launch of 'app: computes', 'app: copies', 'app: early'") !=
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
  // Natively it hangs beside that tenant, too.
  Observation control = run("native", "a\n");
  control.tenant = control.timed_out = true;
  CHECK(judge(runs(hung), {control}, kOutput, kNotScanned, 4).verdict == Verdict::kNotByItself);
}

TEST_CASE("what the audit found is ours although the program differs from itself") {
  auto all = runs(run("random", "c\n"));
  all[2] = run("exclusive again", "b\n", {launch("k", 4, audit::kUncovered)});
  Observation again = run("native", "d\n");
  for (const auto& controls : {std::vector<Observation>{}, {again}}) {
    const Judgement found = judge(all, controls, kOutput, kNotScanned, 4);
    CHECK(found.verdict == Verdict::kBroken);
    CHECK(found.reason.find("exclusive again") != std::string::npos);
  }
}

TEST_CASE("exclusive runs that differ where native ones agree are no fault of the program's") {
  auto all = runs(run("random", "a\n"));
  all[2] = run("exclusive again", "b\n");
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kNotByItself);
  const std::vector<Observation> agree(2, run("native", "a\n"));
  CHECK(judge(all, agree, kOutput, kNotScanned, 4).verdict == Verdict::kInconclusive);
  ScanResult scan;
  scan.possible = true;
  scan.seen = {"k"};
  CHECK(judge(all, agree, kOutput, scan, 4).verdict == Verdict::kBroken);
  const std::vector<Observation> differ(1, run("native", "b\n"));
  CHECK(judge(all, differ, kOutput, scan, 4).verdict == Verdict::kNotByItself);
  // Only the audit saw the bytes of copies: native runs cannot tell.
  AuditedOperation copy = launch("", 0);
  copy.record.kind = audit::AuditKind::kResult;
  all[1] = run("exclusive", "a\n", {launch("k", 4), copy});
  copy.record.content = 1;
  all[2] = run("exclusive again", "a\n", {launch("k", 4), copy});
  CHECK(judge(all, agree, {false, true, {}}, scan, 4).verdict == Verdict::kNotByItself);
}

TEST_CASE("a tenant that launched nothing while the command ran shows nothing") {
  auto all = runs(run("random", "a\n"));
  all[3].tenant = true;
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kInconclusive);
  all[3].tenant_launches = 1;
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kDeterministic);
}

TEST_CASE("an order that was not looked at, and arguments that were not read, are said") {
  auto all = runs(run("random", "a\n", {launch("k", 4, audit::kUnordered)}));
  CHECK(judge(all, {}, kOutput, kNotScanned, 4).verdict == Verdict::kInconclusive);
  all = runs(run("random", "a\n"));
  all[1] = run("exclusive", "a\n", {launch("k", 4, audit::kUnreadable)});
  const Judgement found = judge(all, {}, kOutput, kNotScanned, 4);
  CHECK(found.verdict == Verdict::kDeterministic);
  CHECK(found.reason.find("arguments of 1 launches could not be read") != std::string::npos);
}

// The largest that this process ever was, in bytes.
std::size_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

TEST_CASE("logs of millions of operations are compared in little memory") {
  constexpr std::uint64_t kOperations = 2'000'000;
  const auto long_run = [](const char* name, std::uint64_t other_at) {
    Observation seen;
    seen.name = name;
    seen.audited = true;
    seen.logs = std::make_shared<RunDirectory>(RunDirectory::Where::kDisk);
    const auto log = audit::Log::create(seen.logs->path().c_str(), 0);
    log->name(0, "app: k");
    for (std::uint64_t i = 0; i < kOperations; ++i) {
      AuditedOperation one = launch("k", i == other_at ? 5 : 4);
      one.record.stream = static_cast<std::uint32_t>(i % 3);
      one.record.edges = i;
      log->add(one.record);
    }
    return seen;
  };
  std::vector<Observation> all = {run("native", "a\n"), long_run("exclusive", kOperations),
                                  long_run("random", kOperations - 4)};
  const std::size_t before = peak_memory();
  for (std::size_t i = 1; i < all.size(); ++i) all[i].processes = read_audit(all[i].logs->path());
  const auto found = structure_difference(all[1], all[2]);
  // The writer mapped a log at a time; holding its operations would take three times that.
  CHECK(peak_memory() - before < std::size_t{16} << 20);
  REQUIRE(found);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): REQUIRE has asked
  CHECK_MESSAGE(found->find("launch of 'app: k' (5 blocks)") != std::string::npos, *found);
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

TEST_CASE("a listing of AMD code says the same") {
  ScanResult result;
  read_listing(
      "0000000000001000 <quiet>:\n\tv_add_f32_e32 v0, v1, v2\n"
      "0000000000001100 <counts>:\n\tglobal_atomic_cmpswap v1, v0, v[2:3], s[0:1] glc\n"
      "0000000000001200 <adds>:\n\tglobal_atomic_add_f32 v0, v1, s[0:1]\n"
      "0000000000001300 <swaps>:\n\tv_add_f32_e32 v0, v1, v2\n"
      "\tglobal_atomic_cmpswap v1, v0, v[2:3], s[0:1] glc\n"
      "0000000000001400 <looks>:\n\ts_getreg_b32 s0, hwreg(HW_REG_HW_ID)\n\ts_memtime s[0:1]\n",
      result);
  CHECK(result.seen == std::set<std::string>{"adds", "counts", "looks", "quiet", "swaps"});
  CHECK(result.kernels.size() == 3);
  CHECK(result.kernels["adds"].contains("float atomics"));
  CHECK(result.kernels["swaps"].contains("float atomics"));
  CHECK(result.kernels["looks"].contains("reads %smid"));
  CHECK(result.kernels["looks"].contains("reads a clock"));
}

}  // namespace
}  // namespace vitamin::tools
