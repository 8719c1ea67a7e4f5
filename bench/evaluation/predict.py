#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the simulator predict what was measured of pairs? Needs no GPU.

    predict.py [--streams DIR] [--results DIR] [--vitamin FILE] [--out DIR]

What goes in of each session of E3, E4 and `pairs`: what each job asks of the GPU, recorded alone on
another day (record.py), and its exclusive rate in that session, by which the pace of its host is
stretched, because that drifts by tens of percent. What comes out: the rates and latencies of the
pairs, in every mode that the simulator knows, beside those that were measured:
OUT/predictions.jsonl and a table. Modes that it does not know (MPS with percentages or priorities)
are left out.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import harness  # noqa: E402
import report  # noqa: E402
import streams  # noqa: E402

# Processes without MPS get the device in turns. FITTED to one pair (E3, run 1: W1); not known: how
# long a turn is.
TURN_MS, SWITCH_US = 2.0, 220
WHOLE = ["--policy", "fifo", "--quantum", 1e6]  # all on the whole device, no decisions
SECONDS = 12  # that pairs of training jobs are simulated for
MODES = {"mps": WHOLE, "ours:fifo": ["--policy", "fifo"],
         "ours-fifo": ["--policy", "fifo"],
         "static": ["--policy", "static:parts=2"], "ours-static": ["--policy", "static:parts=2"],
         "temporal": [*WHOLE, "--turn", TURN_MS, "--switch", SWITCH_US],
         "ours": ["--policy", "throughput"],
         "ours-tpot-first": ["--policy", "tpot-first", "--latency"],
         "orion": ["--policy", "orion"], "salus": ["--policy", "salus"],
         "temporal-leases": ["--policy", "temporal"]}


def words_of(mode):
    if mode in MODES:
        return MODES[mode]
    head, _, rest = mode.partition(":")
    if head != "ours" or not rest:
        return None
    return ["--policy", rest, *(["--latency"] if rest.startswith("tpot-first") else [])]


class Simulator:
    def __init__(self, program, directory):
        self.program, self.directory, self.wall_s = program, pathlib.Path(directory), 0.0

    def run(self, jobs, words):
        """`jobs`: (text of a job, requests or None) each; the one result."""
        arguments = []
        for number, (text, requests) in enumerate(jobs):
            path = self.directory / f"{number}.job"
            path.write_text(text)
            if requests is not None:
                arrivals = self.directory / f"{number}.csv"
                arrivals.write_text("t_s,prompt_tokens,output_tokens,host_pace\n" + "".join(
                    f"{at:.6f},1,{tokens},{pace:.4f}\n" for at, tokens, pace in requests))
                path = f"{path}@{arrivals}"
            arguments += ["--job", str(path)]
        done = subprocess.run([self.program, "simulate", "--json", *arguments, *map(str, words)],
                              capture_output=True, text=True)
        if done.returncode:
            raise harness.Refusal(done.stderr.strip())
        result, = json.loads(done.stdout)["results"]
        self.wall_s += result["wall_s"]
        return result


def calibrated(seconds_of, wanted):
    """The stretch of the host's pace at which the job takes as long as it did, and what is left:
    where the device alone takes longer, no pace of the host makes up for it."""
    low, high = 0.25, 6.0
    for _ in range(24):
        stretch = (low * high) ** 0.5
        low, high = (stretch, high) if seconds_of(stretch) < wanted else (low, stretch)
    stretch = (low * high) ** 0.5
    return stretch, seconds_of(stretch) / wanted - 1


class Predictions:
    def __init__(self, simulator, compiled):
        self.simulator, self.compiled, self.texts, self.rows = simulator, compiled, {}, []

    def training(self, name, per_s):
        """The text of a training job that has this rate alone."""
        key = name, round(per_s, 3)
        if key not in self.texts:
            seconds = lambda stretch: 1 / self.simulator.run(
                [(self.compiled[name].text(stretch), None)],
                ["--until", 6, "--policy", "fifo"])["training"][0]["steps_per_s"]
            stretch, left = calibrated(seconds, 1 / per_s)
            self.texts[key] = self.compiled[name].text(stretch), stretch, left
        return self.texts[key]

    def serving(self, name, request_s, tokens):
        key = name, round(request_s, 6), tokens
        if key not in self.texts:
            requests = [(i * (4 * request_s + 0.1), tokens, 1) for i in range(5)]
            seconds = lambda stretch: self.simulator.run(
                [(self.compiled[name].text(stretch), requests)],
                ["--warm-up", 0, "--policy", "fifo"])["latency_ms"]["p50"] / 1e3
            stretch, left = calibrated(seconds, request_s)
            self.texts[key] = self.compiled[name].text(stretch), stretch, left
        return self.texts[key]

    def paces(self, text, tokens, seconds):
        """How much slower the host was in each of these requests that ran alone: their times, seen
        through what the simulator makes of a host of so many paces."""
        steps = [0.6, 0.8, 1, 1.2, 1.5, 2, 3, 5]
        took = [self.simulator.run([(text, [(0.0, tokens, pace)])],
                                   ["--warm-up", 0, "--policy", "fifo"])["latency_ms"]["p50"] / 1e3
                for pace in steps]

        def pace_of(wanted):
            for i in range(len(steps) - 1):
                if wanted <= took[i + 1] or i == len(steps) - 2:
                    share = (wanted - took[i]) / max(1e-9, took[i + 1] - took[i])
                    return min(8.0, max(0.3, steps[i] + share * (steps[i + 1] - steps[i])))

        return [pace_of(s) for s in seconds]

    def add(self, where, what, measured, predicted, **more):
        if measured:
            self.rows.append({**where, "what": what, "measured": measured, "predicted": predicted,
                              "error": predicted / measured - 1, **more})


def cells(records):
    """By (session, subject): by mode: the records of its repeats."""
    found = {}
    for r in records:
        if r.get("ok") and "cell" in r and not r.get("void"):
            found.setdefault((r["session"], r["subject"]), {}).setdefault(r["cell"], []).append(r)
    return found


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def spread(values):
    """By what share the largest is above the least."""
    return max(values) / min(values) - 1


def training_pairs(predictions, results, name):
    records = [r for r in report.read(results, name) if r.get("experiment") == "E3"]
    for (session, subject), modes in cells(records).items():
        alone = modes.get("exclusive")
        if not alone:
            continue
        names = [j["name"] for j in alone[0]["jobs"]]
        if any(n not in predictions.compiled for n in names):
            continue
        rates = [harness.median([r["jobs"][i]["per_s"] for r in alone]) for i in (0, 1)]
        drift = max(spread([r["jobs"][i]["per_s"] for r in alone]) for i in (0, 1))
        made = [predictions.training(n, r) for n, r in zip(names, rates)]
        for mode, records in modes.items():
            words = words_of(mode)
            if words is None:
                continue
            got = predictions.simulator.run([(m[0], None) for m in made],
                                            ["--until", SECONDS, *words])
            where = {"experiment": "E3", "session": session, "subject": subject, "mode": mode}
            for i, name in enumerate(names):
                measured = [r["jobs"][i]["per_s"] for r in records]
                predictions.add(
                    where, f"{name} steps/s", harness.median(measured),
                    got["training"][i]["steps_per_s"], alone=rates[i], exclusive_differs=drift,
                    stretch=made[i][1], calibration_left=made[i][2], repeats=len(records),
                    repeats_differ=spread(measured))


def mixed_pairs(predictions, results, name):
    headers = list(report.headers(results, name))
    records = [r for r in report.read(results, name) if r.get("experiment") == "E4"]
    for (session, subject), modes in cells(records).items():
        alone = modes.get("exclusive")
        names = alone and (alone[0]["train"]["name"], alone[0]["infer"]["name"])
        if not alone or any(n not in predictions.compiled for n in names):
            continue
        command = headers[alone[0]["run"] - 1]["command"].split()
        after = lambda word, usual: float(command[command.index(word) + 1]) \
            if word in command else usual
        tokens, warm_up = int(after("--tokens", 32)), after("--warm-up", 2)
        rate = harness.median([r["train"]["per_s"] for r in alone])
        drift = spread([r["train"]["per_s"] for r in alone])
        train = predictions.training(names[0], rate)
        took = {r["repeat"]: [q[3] - q[1] for q in r["infer"]["requests"] if q[3]] for r in alone}
        infer = predictions.serving(names[1], harness.median(sum(took.values(), [])), tokens)
        paces = {n: predictions.paces(infer[0], tokens, seconds) for n, seconds in took.items()}
        for mode, found in modes.items():
            words = [] if mode == "exclusive" else words_of(mode)
            if words is None:
                continue
            where = {"experiment": "E4", "session": session, "subject": subject, "mode": mode}
            more = {"exclusive_differs": drift, "repeats": len(found)}
            got = []
            for r in found:
                # As slow as the same request was alone (the arrivals of a repeat are the same).
                slow = paces.get(r["repeat"]) or paces[min(paces)]
                requests = [(q[0], tokens, slow[i % len(slow)])
                            for i, q in enumerate(r["infer"]["requests"])]
                pair = [(infer[0], requests)]
                if mode != "exclusive":
                    pair.insert(0, (train[0], None))
                got.append(predictions.simulator.run(
                    pair, ["--warm-up", warm_up, *(words or ["--policy", "fifo"])]))
            if mode != "exclusive":
                measured = [r["train"]["per_s"] for r in found]
                predictions.add(where, f"{names[0]} steps/s", mean(measured),
                                mean(g["training"][0]["steps_per_s"] for g in got),
                                alone=rate, stretch=train[1], calibration_left=train[2],
                                repeats_differ=spread(measured), **more)
            for which in ("p50", "p95", "p99"):
                measured = [1e3 * r["infer"][which] for r in found]
                predictions.add(where, f"{names[1]} {which} ms", mean(measured),
                                mean(g["latency_ms"][which] for g in got),
                                stretch=infer[1], calibration_left=infer[2],
                                repeats_differ=spread(measured), **more)


def show(rows):
    kept = ["subject", "mode", "what"]
    body = [[r["session"] % 100000, *(r[k] for k in kept), f"{r['measured']:.2f}",
             f"{r['predicted']:.2f}", f"{100 * r['error']:+.1f} %",
             f"{100 * r['repeats_differ']:.0f} %" if r["repeats"] > 1 else "-",
             f"{100 * r['exclusive_differs']:.0f} %"] for r in rows]
    print(harness.table(body, ["session", *kept, "measured", "predicted", "error",
                               "its repeats differ by", "exclusive by"]))
    summary = []
    sorts = [("throughput", lambda r: "steps/s" in r["what"]),
             ("p99", lambda r: " p99 " in r["what"]), ("p50", lambda r: " p50 " in r["what"])]
    for mode in [None, *dict.fromkeys(r["mode"] for r in rows)]:
        for what, of in sorts:
            errors = sorted(abs(r["error"]) for r in rows
                            if of(r) and (r["mode"] != "exclusive" if mode is None
                                          else r["mode"] == mode))
            if errors:
                differ = [r["repeats_differ"] for r in rows if of(r) and r["repeats"] > 1 and
                          (r["mode"] != "exclusive" if mode is None else r["mode"] == mode)]
                summary.append({"mode": mode or "all pairs", "what": what, "n": len(errors),
                                "repeats_differ": harness.median(differ),
                                "median": harness.median(errors), "worst": errors[-1],
                                "within_15": sum(e <= 0.15 for e in errors)})
    print()
    print(harness.table([[s["mode"], s["what"], s["n"], f"{100 * s['median']:.1f} %",
                          f"{100 * s['worst']:.1f} %", f"{s['within_15']} of {s['n']}",
                          "-" if s["repeats_differ"] is None else
                          f"{100 * s['repeats_differ']:.0f} %"] for s in summary],
                        ["mode", "figure", "n", "median error", "worst", "within 15 %",
                         "repeats differ by (median)"]))
    return summary


def recorded(directory):
    """Every job that was recorded on the whole device, compiled; by its name."""
    jobs = {}
    for native in sorted(directory.glob("*-native.json.gz")):
        name = native.name.removesuffix("-native.json.gz")
        raws = {132: streams.read(native)}
        for path in directory.glob(f"{name}-units*.json.gz"):
            raw = streams.read(path)
            if streams.times(raw):
                raws[8 * int(path.name.split("-units")[1].split(".")[0])] = raw
        bubble = directory / f"{name}-bubble.json.gz"
        bubble = streams.read(bubble) if bubble.exists() else None
        jobs[name], alike = streams.compile_(name, raws, bubble=bubble)
        parts = ", ".join(f"{part}: {len(step.calls)} calls" for part, step in jobs[name].parts)
        print(f"{name}: {parts}; {alike} steps alike; widths {sorted(raws)}; "
              f"launch {jobs[name].launch_ns:.0f}, return {jobs[name].return_ns:.0f}, "
              f"gap {jobs[name].gap_ns:.0f} ns")
    return jobs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    results = harness.ROOT / "bench" / "results"
    parser.add_argument("--streams", type=pathlib.Path, default=results / "policies" / "streams")
    parser.add_argument("--results", default=str(results / "evaluation"))
    parser.add_argument("--vitamin", default=str(harness.prefix() / "bin" / "vitamin"))
    parser.add_argument("--out", default=str(results / "policies"))
    options = parser.parse_args()
    try:
        jobs = recorded(options.streams)
        if not jobs:
            raise harness.Refusal(f"nothing is recorded in {options.streams}: record.py")
        with tempfile.TemporaryDirectory(prefix="vitamin-predict-") as directory:
            simulator = Simulator(options.vitamin, directory)
            predictions = Predictions(simulator, jobs)
            for name in ("E3", "E4", "pairs"):
                training_pairs(predictions, options.results, name)
                mixed_pairs(predictions, options.results, name)
    except (harness.Refusal, ValueError) as error:
        print(f"predict: {error}", file=sys.stderr)
        sys.exit(2)
    out = harness.Results(options.out, "predictions")
    for row in predictions.rows:
        out.add(row)
    for row in show(predictions.rows):
        out.add({"summary": row})


if __name__ == "__main__":
    main()
