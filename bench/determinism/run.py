# SPDX-License-Identifier: Apache-2.0
"""The determinism suite on a GPU: matched-input trials of every subject under every treatment.

    run.py [--trials N] [--part all|ours|others] [--scale full|small] [--out DIR]

native, twice    the gate: a subject that differs from itself is excluded by name
ours             policies, windows, numbers of tenants; a random width and place for each launch
static           the program's stream in a green context of fixed size
MPS              no percentage, 50 %, 25 %: what the standard knob does
reshape          grid, block or splits follow the free processors: the widths that `ours` ran at
atoms            whole grids cut into launches of whole blocks, as LithOS does

Writes determinism.jsonl and determinism.svg to DIR. Exit code 1 when ours changed a byte of a
subject that equals itself, or when what must drift did not: a suite that cannot see drift proves
nothing.
MIG is not measured: it needs the right to reset the GPU.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import audit_log  # noqa: E402
import harness  # noqa: E402
import micro  # noqa: E402
import plot  # noqa: E402

# By construction; the gate shows it on the device at hand.
NOT_DETERMINISTIC = {"float-atomic histogram"}
CONTROLS = {"data-parallel GEMM", "element-wise"}
SUMS = [f"sum, {kind} partials" for kind in ("bf16", "fp16", "fp32")]

# Treatment: options of vitamin run, tenants.
OURS = {
    "ours: random, tenant": (["--policy", "random", "--seed", "1"], 1),
    "ours: random, alone": (["--policy", "random", "--seed", "2"], 0),
    "ours: random, 3 tenants": (["--policy", "random", "--seed", "3"], 3),
    "ours: random, window 0": (["--policy", "random", "--seed", "4", "--window", "0"], 1),
    "ours: random, window 100us": (["--policy", "random", "--seed", "5", "--window", "100us"], 1),
    "ours: random, every stream apart": (["--policy", "random:exclusive=1", "--seed", "6"], 1),
    "ours: extremes": (["--policy", "extremes"], 1),
    "ours: narrowest": (["--policy", "extremes:narrow=1"], 1),
    "ours: static": (["--policy", "static"], 1),
    "ours: fifo": (["--policy", "fifo"], 1),
}


class Tenants:
    """Other processes that keep the GPU busy, under vitamin, until they are not needed."""

    def __init__(self, count, seconds):
        self.processes = []
        for i in range(count):
            words = harness.vitamin("run", "--quiet", "--policy", "random", "--seed", str(100 + i),
                                    "--", harness.program("determinism"), "--interfere",
                                    str(seconds), "--seed", str(i + 1))
            self.processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
            process.wait()


class Suite:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.results = harness.Results(options.out, "determinism")
        self.records = []
        self.excluded = set(NOT_DETERMINISTIC)
        self.digests = self.folder / "native"
        self.widths = self.folder / "widths"

    def run(self, treatment, words=(), under=(), environment=None, trials=None):
        command = [harness.program("determinism"), "--scale", self.options.scale, "--trials",
                   str(trials or self.options.trials), *map(str, words)]
        if under:
            command = [*harness.vitamin("run", "--quiet"), *under, "--", *command]
        result = harness.run(command, self.options.timeout, environment)
        seen = next((line["processors"] for line in result.lines if "processors" in line), None)
        if not result.ok:
            self.results.add({"treatment": treatment, "error": result.why()})
            self.records.append({"treatment": treatment, "error": result.why(), "subject": ""})
            print(f"{treatment}: {result.why()}", flush=True)
        lines = [line for line in result.lines if "subject" in line]
        for line in lines:
            record = {"treatment": treatment, "processors_seen": seen, **line}
            self.results.add(record)
            self.records.append(record)
        differ = {line["subject"]: line["differing"] for line in lines if line.get("differing")}
        print(f"{treatment}: {len(lines)} subjects, {seen} SMs seen, {result.seconds:.1f} s, "
              f"differing trials: {differ or 'none'}", flush=True)
        return lines

    def against(self, treatment, words=(), **more):
        return self.run(treatment, ["--against", self.digests, *words], **more)

    def native(self):
        self.run("native", ["--digests", self.digests])
        for line in self.against("native again"):
            if line["differing"]:
                self.excluded.add(line["subject"])
        print("excluded:", ", ".join(sorted(self.excluded)))

    def ours(self):
        for treatment, (under, tenants) in OURS.items():
            with Tenants(tenants, 600):
                self.against(treatment, under=under)

    def record_widths(self):
        """The sequence of widths that ours ran at, from an audited run. Wrong operations of it."""
        folder = self.folder / "audit"
        folder.mkdir()
        self.against("ours: random, audited", under=OURS["ours: random, tenant"][0],
                     trials=min(200, self.options.trials),
                     environment={"VITAMIN_AUDIT": str(folder)})
        operations = [operation for log in audit_log.read_folder(folder) for operation in log]
        launches = [o for o in operations if o.kind == audit_log.LAUNCH]
        wrong = [o for o in operations if o.flags & (audit_log.CHANGED | audit_log.UNCOVERED)]
        self.results.add({"audit": {"operations": len(operations), "launches": len(launches),
                                    "wrong": len(wrong)}})
        print(f"audit: {len(operations)} operations, {len(wrong)} wrong", flush=True)
        self.widths.write_text("\n".join(str(o.processors) for o in launches[::7]) or "132")
        return len(wrong)

    def others(self):
        for processors in (8, 64, 120):
            self.against(f"static green context, {processors} SMs", ["--green", processors])
        for percentage in (None, 50, 25):
            with micro.Mps() as mps:
                name = f"MPS, {percentage} %" if percentage else "MPS"
                if not mps.running:
                    print(f"{name}: the daemon does not start here")
                    continue
                environment = dict(mps.environment)
                if percentage:
                    environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
                self.against(name, environment=environment)
        for treatment in ("reshape", "atoms"):
            self.run(treatment, ["--treatment", treatment, "--widths", self.widths])

    def problems(self):
        """Sentences: what must not be so."""
        for record in self.records:
            subject, treatment = record["subject"], record["treatment"]
            if "error" in record:
                if treatment.startswith(("ours", "native")):
                    yield f"{treatment}: {record['error']}"
            elif treatment.startswith("ours") and record["differing"] and \
                    subject not in self.excluded:
                yield f"{treatment}: {subject} differs in {record['differing']} trials"
            elif treatment == "reshape" and subject not in self.excluded:
                if subject in CONTROLS and record["differing"]:
                    yield f"reshaping changed {subject}, which does not depend on it"
                if subject not in CONTROLS and not record["differing"]:
                    yield f"reshaping did not change {subject}: nothing is seen here"
        drift = {r["subject"]: r["max_abs"] for r in self.records if r["treatment"] == "reshape"
                 and "max_abs" in r}
        if all(name in drift for name in SUMS):
            bf16, fp16, fp32 = (drift[name] for name in SUMS)
            if not bf16 > fp16 > fp32 > 0:
                yield f"drift of partials: bf16 {bf16}, fp16 {fp16}, fp32 {fp32}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--scale", choices=["full", "small"], default="full")
    parser.add_argument("--part", choices=["all", "ours", "others"], default="all")
    parser.add_argument("--timeout", type=float, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(options, folder)
        suite.native()
        wrong = suite.record_widths()
        if options.part in ("all", "ours"):
            suite.ours()
        if options.part in ("all", "others"):
            suite.others()
    problems = list(suite.problems())
    if wrong:
        problems.append(f"the audit found {wrong} wrong operations")
    plot.write(pathlib.Path(options.out) / "determinism.svg", suite.records)
    for problem in problems:
        print("PROBLEM:", problem)
    print(f"{len(suite.records)} results, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
