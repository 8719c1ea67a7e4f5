# SPDX-License-Identifier: Apache-2.0
"""The determinism suite on a GPU: matched-input trials of every subject under every treatment.

    run.py [--part all|ours|others] [--trials N] [--more N] [--scale full|small] [--out DIR]
    run.py --smoke [--out DIR]     every treatment, few trials, small: where there is no GPU, too

native, twice    the gate: a subject that differs from itself is excluded by name
ours             policies, windows, numbers of tenants; a random width and place for each launch
static           the program's stream in a green context of fixed size
MPS              no percentage, 100 %, 50 %, 25 %: what the standard knob does
reshape          grid, block or splits follow the free processors: in each trial those of ours
atoms            whole grids cut into launches of whole blocks, as LithOS does

The tenants and what is measured overlap under an MPS daemon, where one starts. Each part begins
with the gate, writes determinism_PART.jsonl to DIR, and draws determinism.svg, drift.svg,
determinism.html and determinism.md itself.
For each treatment of ours it keeps how many launches were bound and moved, and on how many
processors they ran. Exit code 1 when ours changed a byte of a subject that equals itself, or when
what must drift did not: a suite that cannot see drift proves nothing.
MIG is not measured: it needs the right to reset the GPU.
"""

import argparse
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import audit_log  # noqa: E402
import harness  # noqa: E402
import plot  # noqa: E402
import tenants  # noqa: E402

# By construction; the gate shows it on the device at hand.
NOT_DETERMINISTIC = {"float-atomic histogram"}
CONTROLS = {"data-parallel GEMM", "element-wise"}
SUMS = [f"sum, {kind} partials" for kind in ("bf16", "fp16", "fp32")]

# The treatment whose widths the reshaping ones are fed: it runs all trials, under the audit.
MAIN = "ours: random, tenant"
# Treatment: options of vitamin run, tenants.
OURS = {
    MAIN: (["--policy", "random", "--seed", "1"], 1),
    "ours: random, alone": (["--policy", "random", "--seed", "2"], 0),
    "ours: random, 3 tenants": (["--policy", "random", "--seed", "3"], 3),
    "ours: random, window 0": (["--policy", "random", "--seed", "4", "--window", "0"], 1),
    "ours: random, window 100us": (["--policy", "random", "--seed", "5", "--window", "100us"], 1),
    "ours: random, every stream apart": (["--policy", "random:exclusive=1", "--seed", "6"], 1),
    "ours: extremes": (["--policy", "extremes"], 1),
    "ours: narrowest": (["--policy", "extremes:narrow=1"], 1),
    "ours: static": (["--policy", "static"], 1),
    "ours: fifo": (["--policy", "fifo"], 1),
    **{f"ours: {policy}": (["--policy", policy], 1) for policy in (
        "throughput", "throughput:model=algorithm1", "slo", "tpot-first", "exclusive", "temporal",
        "salus", "orion")},
}
TAKING_TURNS = "ours: random, tenant, taking turns (no MPS)"


class Suite:
    def __init__(self, options, part, directory):
        self.options, self.directory = options, pathlib.Path(directory)
        self.results = harness.Results(options.out, f"determinism_{part}")
        self.records = []
        self.excluded = set(NOT_DETERMINISTIC)
        self.digests = self.directory / "native"
        self.widths = {}
        self.wrong = 0
        self.done = 0

    def run(self, treatment, words=(), under=None, environment=None, trials=None, beside=0,
            beside_under=("--policy", "random")):
        trials = trials or self.options.trials
        command = [harness.program("determinism"), "--scale", self.options.scale, "--trials",
                   str(trials), "--errors", str(min(trials, self.options.errors)),
                   *map(str, words)]
        report = self.directory / "report.json"
        report.unlink(missing_ok=True)
        if under is not None:
            command = [*harness.vitamin("run", "--quiet", "--strict", "--report", str(report)),
                       *under, "--", *command]
        with tenants.Tenants(beside, environment, beside_under, self.options.scale) as others:
            result = harness.run(command, self.options.timeout, environment)
        self.done += 1
        seen = next((line["processors"] for line in result.lines if "processors" in line), None)
        problem = result.why() or others.problem
        if problem:
            self.note({"treatment": treatment, "subject": "", "error_text": problem})
        if under is not None:
            covered = harness.coverage(harness.read_report(report)) or {}
            self.results.add({"treatment": treatment, "mps": self.mps(environment),
                              "launches_by_width": covered.get("widths"),
                              **{key: covered.get(key) for key in (
                                  "launches", "bound", "moved_share", "whole_device")}})
        lines = [line for line in result.lines if "subject" in line]
        for line in lines:
            self.note({"treatment": treatment, "processors_seen": seen, "tenants": beside,
                       "overlapping": beside > 0 and self.mps(environment),
                       "seconds": round(result.seconds, 1), **line})
        differ = {line["subject"]: line["differing"] for line in lines if line.get("differing")}
        print(f"{self.done:3} {treatment}: {len(lines)} subjects, {seen} SMs seen, "
              f"{result.seconds:.1f} s, differing trials: {differ or 'none'} {problem}", flush=True)
        return lines

    @staticmethod
    def mps(environment):
        return "CUDA_MPS_PIPE_DIRECTORY" in (environment or {})

    def note(self, record):
        self.results.add(record)
        self.records.append(record)

    def against(self, treatment, words=(), **more):
        return self.run(treatment, ["--against", self.digests, *words], **more)

    def native(self):
        self.run("native", ["--digests", self.digests])
        for line in self.against("native again"):
            if line["differing"]:
                self.excluded.add(line["subject"])
        print("    excluded:", ", ".join(sorted(self.excluded)), flush=True)

    def main(self, environment):
        """The treatment whose every launch is audited, and whose widths are kept."""
        directory = self.directory / "audit"
        directory.mkdir()
        under, beside = OURS[MAIN]
        self.against(MAIN, under=under, beside=beside,
                     environment=dict(environment, VITAMIN_AUDIT=str(directory)))
        # The tenants are audited as well; their logs hold nothing but their own kernel.
        logs = audit_log.read_directory(directory)
        operations = [operation for log in logs for operation in log]
        self.wrong = sum(o.flags & (audit_log.CHANGED | audit_log.UNCOVERED) != 0
                         for o in operations)
        self.widths = {kernel: widths[:self.options.trials]
                       for kernel, widths in audit_log.widths(logs).items()
                       if kernel != "interfere"}
        self.results.add({"audit": {"operations": len(operations), "wrong": self.wrong}})
        self.results.add({"widths": self.widths})
        print(f"    audit: {len(operations)} operations, {self.wrong} wrong, "
              f"{len({w for ws in self.widths.values() for w in ws})} widths", flush=True)

    def ours(self):
        with tenants.daemon() as environment:
            self.main(environment)
            for treatment, (under, beside) in OURS.items():
                if treatment != MAIN:
                    self.against(treatment, under=under, beside=beside, environment=environment,
                                 trials=self.options.more)
        if environment:
            under, beside = OURS[MAIN]
            self.against(TAKING_TURNS, under=under, beside=beside, trials=self.options.more)

    def others(self):
        kept = tenants.read_results(self.options.out, "determinism_ours")
        self.widths = next((r["widths"] for r in kept if "widths" in r), {})
        with tenants.daemon() as environment:
            if not self.widths:
                self.main(environment)
            for processors in (16, 64, 120):
                self.against(f"static green context, {processors} SMs", ["--green", processors],
                             environment=environment, beside=1, beside_under=None)
            for percentage in (None, 100, 50, 25):
                name = f"MPS, {percentage} %" if percentage else "MPS, no percentage"
                if not environment:
                    print(f"    {name}: no daemon starts here", flush=True)
                    continue
                changed = dict(environment)
                if percentage:
                    changed["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
                self.against(name, environment=changed, beside=1, beside_under=None)
        path = self.directory / "widths"
        path.write_text(audit_log.widths_text(self.widths))
        for treatment in ("reshape", "atoms"):
            self.run(treatment, ["--treatment", treatment, "--widths", path])

    def problems(self):
        """Sentences: what must not be so."""
        if self.wrong:
            yield f"the audit found {self.wrong} wrong operations"
        for record in self.records:
            subject, treatment = record["subject"], record["treatment"]
            if "error_text" in record:
                yield f"{treatment}: {record['error_text']}"
            elif treatment.startswith("ours") and record["differing"] and \
                    subject not in self.excluded:
                yield f"{treatment}: {subject} differs in {record['differing']} trials"
            elif treatment == "reshape" and subject not in self.excluded:
                if subject in CONTROLS and record["differing"]:
                    yield f"reshaping changed {subject}, which does not depend on it"
                if subject not in CONTROLS and not record["differing"]:
                    yield f"reshaping did not change {subject}: nothing is seen here"
        reshaped = {r["subject"]: r for r in self.records if r["treatment"] == "reshape"
                    and "max_abs" in r}
        for what, key in (("drift", "max_abs"), ("error", "error")):
            if all(name in reshaped for name in SUMS):
                bf16, fp16, fp32 = (reshaped[name][key] for name in SUMS)
                if not bf16 > fp16 > fp32 > 0:
                    yield f"{what} of partials: bf16 {bf16}, fp16 {fp16}, fp32 {fp32}"
        for name, record in reshaped.items():
            if name not in self.excluded and not 0 <= record["own_error"] < 0.1:
                yield f"{name}: its own error is {record['own_error']}: it computes something else"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--more", type=int, default=250, help="trials of our further treatments")
    parser.add_argument("--errors", type=int, default=100,
                        help="trials in which the error against double precision is measured")
    parser.add_argument("--scale", choices=["full", "small"], default="full")
    parser.add_argument("--smoke", action="store_true",
                        help="small, 24 trials, 4 of further treatments: does everything start?")
    parser.add_argument("--part", choices=["all", "ours", "others"], default="all")
    parser.add_argument("--timeout", type=float, default=100, help="of one treatment, seconds")
    options = parser.parse_args()
    if options.smoke:
        options.scale, options.trials, options.more, options.errors = "small", 24, 4, 8
    options.more = min(options.more, options.trials)
    results, problems = 0, []
    for part in ("ours", "others") if options.part == "all" else (options.part,):
        print(f"part {part}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            suite = Suite(options, part, directory)
            suite.native()
            suite.ours() if part == "ours" else suite.others()
        problems += suite.problems()
        results += len(suite.records)
    plot.write(options.out)
    for problem in problems:
        print("PROBLEM:", problem)
    print(f"{results} results, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
