# SPDX-License-Identifier: Apache-2.0
"""Tables from the raw samples of bench/decide.py: decision_report.py [DIR]

Prints, as Markdown, the rows of issue "Decide", "Must be shown", and below them what each cell's
blocks say: noise, settling, speeds, what a policy found, phases, replayed latency.
"""

import argparse
import gzip
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "evaluation"), str(HERE)]

import arms  # noqa: E402
import harness  # noqa: E402
import noise  # noqa: E402
import paired  # noqa: E402
import replay  # noqa: E402
import requirements  # noqa: E402
import session  # noqa: E402


class Samples:
    """One cell's raw records. Several commands in one file are several sessions: jobs of one are
    not those of another, so each is looked at by itself, and the last one that has what is asked
    for counts."""

    def __init__(self, records):
        self.records = records
        self.name = next((r["cell"] for r in records if "cell" in r), "")
        self.header = next((r["header"] for r in records if "header" in r), {})
        self.definition = next((r["definition"] for r in records if "definition" in r), {})
        self.jobs = next((r["jobs"] for r in records if "jobs" in r), [])
        self.runs = {}
        for r in records:
            if "run" in r:
                self.runs.setdefault(tuple(r["run"]), []).append(r)

    def blocks(self, step):
        return [r for r in self.records if r.get("step") == step]

    @property
    def timelines(self):
        if not hasattr(self, "_timelines"):
            alone = [r for r in self.records if "block" in r]
            self._timelines = session.timelines(self.runs, alone)
        return self._timelines

    def title(self):
        return " beside ".join(f"{kind} {name}" for kind, name, _ in self.jobs)


def read(path):
    """The sessions of one file."""
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)
    with opened as file:
        records = [json.loads(line) for line in file if line.strip()]
    begins = [i for i, r in enumerate(records) if "header" in r] + [len(records)]
    return [Samples(records[a:b]) for a, b in zip(begins, begins[1:])]


def number(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(headings, rows):
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join([line(headings), line(["---"] * len(headings)), *map(line, rows)])


def label(name, jobs):
    return arms.arm(name, len(jobs)).label


# ---------------------------------------------------------------------------- noise and settling


def noise_table(samples):
    """Per arm and width: variation of each job's rate, deviation of the mean log rate, its
    autocorrelation, and how many pairs of independent blocks tell a lead of 5 and of 1 %."""
    by_arm = {}
    for block in samples.blocks("noise"):
        arm = arms.arm(block["block"], len(samples.jobs))
        lines = [samples.timelines[arm.group, i] for i in range(len(samples.jobs))]
        begin = block["begin"] + min(1.0, 0.2 * (block["end"] - block["begin"]))
        by_arm.setdefault(block["block"], []).append(noise.stretch(lines, begin, block["end"]))
    rows = []
    for name, stretches in by_arm.items():
        for at in noise.pool(stretches):
            pair = at["log_sd"] and 2 ** 0.5 * at["log_sd"]
            rows.append([
                label(name, samples.jobs), f"{1e3 * at['width_s']:.0f}", at["blocks"],
                " / ".join(number(r, 1) for r in at["rate"]),
                " / ".join(number(v, 3) for v in at["variation"]), number(at["log_sd"], 3),
                ", ".join(number(a) for a in at["log_autocorrelation"]),
                *(paired.rounds_needed(pair, lead) if pair else "–" for lead in (0.05, 0.02))])
    return markdown(["arm", "block ms", "blocks", "steps/s", "variation of the rate",
                     "sd of the mean log rate", "its autocorrelation, lags "
                     + ", ".join(map(str, noise.LAGS)), "pairs for 5 % at 2.5 errors", "for 2 %"],
                    rows) if rows else ""


def settling_table(samples):
    by_arm, count = {}, len(samples.jobs)
    policies, previous = [], None
    for block in samples.blocks("speeds"):
        arm = arms.arm(block["block"], count)
        # Only a change of policy in running processes: nothing was paused or resumed.
        if arm.group == "ours" and arm.only < 0 and previous == ("ours", -1):
            by_arm.setdefault(block["block"], []).append((block["switch"], block["end"]))
            policies.append(block["policy_s"])
        previous = (arm.group, arm.only)
    rows = []
    for name, blocks in by_arm.items():
        lines = [samples.timelines["ours", i] for i in range(count)]
        for job, line in enumerate(lines):
            seen = noise.settling([line], blocks)
            curve = seen["curves"][0]
            bins = lambda a, b: paired.mean(curve[a:b])
            rows.append([label(name, samples.jobs), samples.jobs[job][0], seen["blocks"],
                         number(seen["settled_s"][0] and 1e3 * seen["settled_s"][0], 0),
                         number(seen["lost_s"][0] and 1e3 * seen["lost_s"][0], 1),
                         *(number(bins(a, b)) for a, b in ((0, 1), (1, 2), (2, 3), (3, 5), (5, 8),
                                                           (8, 12)))])
    if not rows:
        return ""
    text = markdown(["to arm", "job", "switches", "settled after ms", "progress lost, ms",
                     "0–10 ms", "10–20", "20–30", "30–50", "50–80", "80–120"], rows)
    ordered = sorted(policies)
    return (text + "\n\nReading the configuration again takes "
            f"{1e3 * paired.quantile(ordered, 0.5):.1f} ms (median), "
            f"{1e3 * ordered[-1]:.1f} at most, of {len(ordered)} switches. Columns: rate relative "
            "to that of the block's second half.")


# ------------------------------------------------------------------------------------- speeds


def speeds_table(samples):
    """Each arm: speeds relative to alone, sum, geometric mean, and both over those of MPS."""
    found = requirements.speeds_of(samples)
    if not found:
        return ""
    table, alone = found
    jobs, rows = len(samples.jobs), []
    base = table.get("mps")
    for name, speeds in table.items():
        arm = arms.arm(name, jobs)
        if arm.only >= 0:
            own = paired.ratio(speeds[arm.only], alone[arm.only])
            rows.append([name, *(own.text() if i == arm.only else "–" for i in range(jobs)),
                         *["–"] * 4])
            continue
        relative = [paired.ratio(s, a) for s, a in zip(speeds, alone)]
        ratios = [paired.objective_ratio(speeds, base, alone, f).text() if base else "–"
                  for f in (sum, paired.geometric_mean)]
        rows.append([arm.label, *(r.text() for r in relative),
                     *(paired.objective(speeds, alone, f).text()
                       for f in (sum, paired.geometric_mean)), *ratios])
    heads = [f"{kind} {name}" for kind, name, _ in samples.jobs]
    text = markdown(["arm", *heads, "sum", "geometric mean", "sum / MPS", "mean / MPS"], rows)
    per_second = ", ".join(f"{h} {paired.mean(a):.2f}/s" for h, a in zip(heads, alone))
    return f"{text}\n\nRelative to alone ({per_second}); {len(alone[0])} rounds of " \
           f"{samples.definition.get('block_s', 0) * 1e3:.0f} ms blocks, first fifth dropped."


# ---------------------------------------------------------------- found, service and live loops


def found_table(samples):
    rows = [[f["arm"], number(f["found_s"], 1), number(f["after"], 3), f["best"],
             number(f["seconds"], 0)] for f in requirements.found_of(samples)]
    return markdown(["policy", "found after s", "objective from then on / best fixed",
                     "best fixed", "of s"], rows) if rows else ""


def service_table(samples):
    rows = []
    for name, load, ours, alone, train in requirements.service_rows(samples):
        if ours is None:
            rows.append([label(name, samples.jobs), load, "cannot bear it", *["–"] * 4])
            continue
        ms = lambda key: f"{1e3 * ours[key].value:.1f} ± " \
                         f"{500 * (ours[key].high - ours[key].low):.1f}"
        rows.append([label(name, samples.jobs), load, ms("mean"), ms("p50"), ms("p99"),
                     number(alone and ours["p99"].value / alone["p99"].value), number(train)])
    text = markdown(["arm", "load", "mean ms", "p50 ms", "p99 ms", "p99 / alone", "training"],
                    rows) if rows else ""
    live = live_table(samples)
    return "\n\n".join(filter(None, [text, live]))


def live_table(samples):
    found, _ = requirements.served(samples)
    rows = []
    for r in samples.records:
        if "open" not in r or r["open"] not in found:
            continue
        for key in ("mean", "p90"):
            seen = replay.check(found[r["open"]], r["requests"], key)
            rows.append([label(r["open"], samples.jobs), r["load"], key, len(r["requests"]),
                         number(1e3 * seen["live"], 1),
                         f"{1e3 * seen['low']:.1f}–{1e3 * seen['high']:.1f}",
                         "inside" if seen["inside"] else "OUTSIDE"])
    return markdown(["live loop of arm", "load", "of latency", "requests", "live ms",
                     "replayed ms", ""], rows) if rows else ""


def traces_table(records):
    rows = []
    for (subject, arm), goals in requirements.traces(records).items():
        for goal, d in goals.items():
            rows.append([subject, arm, goal.upper(), d["requests"], harness.percent(d["ours"]),
                         harness.percent(d["theirs"]),
                         harness.percent(d["alone"]) if "alone" in d else "–",
                         f"{d['only_ours']} / {d['only_theirs']}",
                         " / ".join(str(n) for n in d["windows"]),
                         " to ".join(f"{100 * x:+.1f}" for x in d["difference"][1:]),
                         f"{d['p']:.2g}"])
    return markdown(["trace, load", "arm", "goal", "requests", "violations", "of `throughput`",
                     "the same, decodes alone", "only this / only that",
                     "windows with fewer / more",
                     "difference, points (95 %)", "p"], rows) if rows else ""


def steps_table(samples):
    """Of each arm with all jobs, and alone: how long steps took, over all its blocks."""
    rounds = session.Rounds(samples.runs, samples.blocks("speeds"), len(samples.jobs))
    found = {}
    for block in rounds.blocks:
        arm = arms.arm(block["block"], len(samples.jobs))
        for i in range(len(samples.jobs)):
            line = rounds.timelines.get((arm.group, i))
            if arm.only in (-1, i) and line:
                found.setdefault((block["block"], i), []).extend(
                    line.durations(*rounds.window(block)))
    rows = []
    for (name, i), seconds in sorted(found.items()):
        ordered = sorted(seconds)
        if len(ordered) >= 20:
            rows.append([label(name, samples.jobs), samples.jobs[i][0], len(ordered),
                         *(number(1e3 * paired.quantile(ordered, q), 1) for q in (0.5, 0.99))])
    return markdown(["arm", "job", "steps", "p50 ms", "p99 ms"], rows) if rows else ""


def sections(samples):
    found = [("Block noise", noise_table(samples)), ("Switching", settling_table(samples)),
             ("Speeds", speeds_table(samples)), ("Steps", steps_table(samples)),
             ("What a policy found", found_table(samples)),
             ("Latency", service_table(samples))]
    return [f"### {title}\n\n{text}" for title, text in found if text]


def report(directory, traces=None):
    """`traces`: a file of bench/evaluate.py E5."""
    directory = pathlib.Path(directory)
    parts, sessions = [], []
    for path in sorted([*directory.glob("*.jsonl"), *directory.glob("*.jsonl.gz")]):
        sessions += [s for s in read(path) if s.jobs]
    for samples in sessions:
        head = samples.header
        parts.append(f"## {samples.name}: {samples.title()}\n\n`{head.get('command')}`, "
                     f"{head.get('gpu')}, driver {head.get('driver')}, commit "
                     f"{head.get('commit', '')[:12]}, {head.get('date')}")
        parts += sections(samples)
    records = [r for s in read(traces) for r in s.records] if traces else []
    if records:
        if table := traces_table(records):
            parts.append("## prefill and decode as two processes, on traces\n\n" + table)
    rows = markdown(["measurement", "target", "measured"], requirements.rows(sessions, records))
    return "\n\n".join(["## Must be shown\n\n" + rows, *parts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?",
                        default=str(harness.ROOT / "bench" / "results" / "decide"))
    parser.add_argument("--traces", help="E5.jsonl of bench/evaluate.py, or .gz")
    options = parser.parse_args()
    print(report(options.directory, options.traces))


if __name__ == "__main__":
    main()
