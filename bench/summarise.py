# SPDX-License-Identifier: Apache-2.0
"""The table of results: what was to be shown, what was measured, whether it was met.

    summarise.py [DIR]        reads DIR/*.jsonl (results/slice, results/daemon), writes Markdown to
                              standard output
"""

import json
import pathlib
import sys

import harness


class File:
    def __init__(self, path):
        self.header, self.records = {}, []
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "header" in record:
                self.header = record["header"]
            else:
                self.records.append(record)

    def values(self, key, arm, **match):
        """One value a round, as micro.py's Measurement.values."""
        found = []
        for record in self.records:
            if record.get("arm") != arm:
                continue
            for line in record["lines"]:
                if key in line and all(line.get(k) == v for k, v in match.items()):
                    found.append(line[key])
                    break
        return found

    def median(self, key, arm, **match):
        return harness.median(self.values(key, arm, **match))


def met(condition):
    return "–" if condition is None else ("met" if condition else "**not met**")


def at_most(value, limit):
    return None if value is None else value <= limit


def show(value, unit="", digits=3):
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def less(a, b):
    return None if a is None or b is None else a - b


def quotient(a, b):
    return None if a is None or not b else a / b


def bits_rows(file, wide=False):
    subjects = {}
    for record in file.records:
        subjects.setdefault(record["subject"], []).append(record)
    for subject, records in subjects.items():
        equal = all(r["equal"] and r["ok"] for r in records)
        covered = [r["coverage"] for r in records if r["mode"] == "random" and r["coverage"]]
        random = covered[0] if covered else {}
        bound, narrow = random.get("bound_share"), random.get("narrow_share")
        moved = random.get("moved_share")
        whole = ", ".join(f"{n} {why}" for why, n in random.get("whole_device", {}).items()) or "0"
        measured = (f"{'equal' if equal else 'DIFFERENT'} in {len(records)} runs; "
                    f"{random.get('launches', 0)} launches, {harness.percent(bound)} bound, "
                    f"{harness.percent(narrow)} of those eligible on a narrower entry, "
                    f"{harness.percent(moved)} moved; on the whole device: {whole}")
        good = equal and bound == 1
        asked = "bytes equal, 100 % bound"
        if wide:
            asked += ", ≥ 99 % of those eligible narrow, ≥ 95 % moved"
            good = good and (narrow or 0) >= 0.99 and (moved or 0) >= 0.95
        yield subject, asked, measured, met(good)


def workload_rows(file):
    return bits_rows(file, wide=True)


def cause_rows(file):
    for record in file.records:
        if record.get("name") != "cause":
            continue
        if "error" in record:
            measured = f"cannot run: {record['error']}"
        elif record["equal"]:
            measured = "equal to itself"
        else:
            measured = (f"differs from itself at step {record['first_step']} in "
                        f"{record['gradients']} of {record['of']} gradients")
        yield f"Qwen3 training, {record['form']}", "", measured, "–"


def timing_rows(file):
    for record in file.records:
        if "median_ratio" not in record:
            continue
        noise = record["native_against_native"]
        spread = f"{min(noise):.3f} to {max(noise):.3f}" if noise else "–"
        measured = (f"{show(record['median_ratio'], digits=4)} × native (median of "
                    f"{len(record['ratios'])} pairs; native against native {spread})")
        yield (f"{record['name']} under {record['policy']}, alone", "≤ 1.02 × native", measured,
               met(at_most(record["median_ratio"], 1.02)))


def launch_rows(file):
    for stream in ("non-blocking", "legacy"):
        for arm in ("fifo", "static"):
            above = less(file.median("batch_median_ns", arm, stream=stream),
                         file.median("batch_median_ns", "native", stream=stream))
            yield (f"launch call, {stream} stream, {arm}", "≤ 300 ns above native",
                   show(above, " ns", 0), met(at_most(above, 300)))


def path_rows(file):
    for arm in ("fifo", "static", "random"):
        calls = file.median("system_calls_max", arm, kernel="three parameters")
        heap = file.median("allocations_max", arm, kernel="three parameters")
        more = less(file.median("instructions", arm, kernel="three parameters"),
                    file.median("instructions", "native", kernel="three parameters"))
        yield (f"launch path, {arm}", "0 allocations, 0 system calls",
               f"{show(heap, '', 0)} allocations, {show(calls, '', 0)} system calls, "
               f"{show(more, '', 0)} instructions above native",
               met(None if calls is None else calls == 0 and heap == 0))


def chain_rows(file):
    native = file.median("per_kernel_us", "native")
    limits = {"one entry (fifo)": 0.1, "one entry (static, 64 SMs)": 0.1, "a move every 4": 0.6}
    for arm in ("native again", *limits, "a move every time", "strict rule, one entry",
                "strict rule, a move every 4"):
        above = less(file.median("per_kernel_us", arm), native)
        limit = limits.get(arm)
        yield (f"chain of 1,000 kernels, {arm}", f"≤ {limit} µs a kernel" if limit else "",
               show(above, " µs a kernel above native"),
               met(at_most(above, limit) if limit else None))


def gemm_rows(file):
    native = file.median("wall_p95_us", "native")
    for arm in dict.fromkeys(r["arm"] for r in file.records):
        ratio = quotient(file.median("wall_p95_us", arm), native)
        asked = arm.startswith("vitamin, 1")
        yield (f"GEMM, {arm}", "p95 ≤ 1.003 × native" if asked else "",
               f"{show(ratio, ' × native', 4)} "
               f"(p95 {show(file.median('wall_p95_us', arm), ' µs', 1)})",
               met(at_most(ratio, 1.003) if asked else None))


def blocked_rows(file):
    for record in file.records:
        line = (record["lines"] or [{}])[0]
        ours = not record["arm"].split(": ")[1].startswith("native")
        if "innocent_blocked" not in line:
            yield record["arm"], "no hang", record["why"] or "no result", met(False)
            continue
        fine = line["innocent_blocked"] == 0 and line["every_kernel_ran"]
        yield (record["arm"], "no innocent stream blocked, no hang" if ours else "",
               f"{line['innocent_blocked']} of {line['innocent']} blocked, slowest "
               f"{line['innocent_max_ms']:.1f} ms of {line['hold_ms']} ms",
               met(fine if ours else None))


def pool_rows(file):
    used = less(file.median("used_mib", "fifo"), file.median("used_mib", "native"))
    resident = less(file.median("resident_mib", "fifo"), file.median("resident_mib", "native"))
    yield ("the pool of vitamin", "≤ 400 MiB of GPU memory, ≤ 120 MiB resident",
           f"{show(used, ' MiB', 0)}, {show(resident, ' MiB', 0)}",
           met(None if used is None else used <= 400 and resident <= 120))
    for count in (59, 127, 208):
        arm = f"{count} contexts, one stream each"
        mib = file.median("pool_mib", arm)
        yield (arm, "",
               f"{show(file.median('pool_ms', arm), ' ms', 0)}, {show(mib, ' MiB', 0)} "
               f"({show(quotient(mib, count), ' MiB', 2)} each), "
               f"{show(file.median('pool_resident_mib', arm), ' MiB resident', 0)}", "–")


def differential_rows(file):
    rules = [r for r in file.records if "stable" in r]
    good = sum(r["stable"] and r["answered"] for r in rules)
    yield ("differential rules", "answered alike twice", f"{good} of {len(rules)}",
           met(good == len(rules)))


def span(values, unit, digits=0):
    """p50, p99 and the most, of a record of three."""
    return " / ".join(show(v, "", digits) for v in values.values()) + unit


def jobs_rows(file):
    for record in file.records:
        if record.get("mode") in (None, "alone") or "job" not in record:
            continue
        cover = record["coverage"] or {}
        yield (f"{record['job']} under {record['mode']}, beside {record['beside']}",
               "bytes equal to alone, 100 % bound",
               f"{record['equal']} of {record['hashes']} hashes, "
               f"{harness.percent(cover.get('bound_share'))} bound, "
               f"{harness.percent(cover.get('moved_share'))} moved {record['why'][:60]}",
               met(record["equal"] == record["hashes"] and cover.get("bound_share") == 1))
    for record in file.records:
        if "overlaps" in record:
            rate = record["daemon"]["moves"] / record["seconds"] / len(record["jobs"])
            asked = "disjoint, >= 100 moves a second and job" \
                if record["mode"].startswith("random") else "disjoint"
            good = not record["overlaps"] and (rate >= 100 or "moves" not in asked)
            yield (f"leases of {len(record['jobs'])} jobs, {record['mode']}", asked,
                   f"{len(record['overlaps'])} overlaps in {record['looks']} looks, "
                   f"{rate:.0f} moves a second and job", met(good))


def loops_rows(file):
    for record in file.records:
        if "medians" not in record:
            continue
        static = "; without a daemon, on static partitions: " + ", ".join(
            map(harness.percent, record["static_medians"])) if "static_medians" in record else ""
        yield (f"{record['loops']} loops of {record['kernel_us']} us kernels, each on its part",
               "rate >= 97 % of alone on the part",
               ", ".join(map(harness.percent, record["medians"])) +
               f" (medians of {len(record['ratios'][0])})" + static,
               met(min(record["medians"]) >= 0.97))


def partition_rows(file):
    for record in file.records:
        if "median" in record:
            ratios = record["ratios"]
            yield (f"{record['job']} beside {record['beside']}, leases against a static partition",
                   "rate >= 97 %", f"{harness.percent(record['median'])} "
                   f"({harness.percent(min(ratios))} to {harness.percent(max(ratios))})",
                   met(record["median"] >= 0.97))


def kill_rows(file):
    for record in file.records:
        again = record["all_leased_again_ms"]
        yield (f"{record['kills']} SIGKILLs in mid-step, {record['policy']}",
               "the survivor's bytes and coverage unchanged; SMs in use within 100 ms",
               f"{record['equal']} of {record['of']} hashes equal, coverage "
               f"{'the same' if record['coverage_same'] else 'differs'}; gates closed after at "
               f"most {show(max(record['gates_closed_ms'], default=None), ' ms', 1)}; all of the "
               f"dead job's SMs leased again {show(max(again, default=None), ' ms', 1)} after it "
               f"was gone at most ({len(again)} times it held some)",
               met(record["equal"] == record["of"] > 0 and record["coverage_same"]
                   and bool(again) and max(again) <= 100))


def reclaim_rows(file):
    for record in file.records:
        asked = "beyond what was outstanding: <= 50 us"
        yield (f"gate closed to lease granted, window {record['window']}, kernels of "
               f"{record['kernel_us']} us", asked,
               f"{record['closures']} gates: outstanding {span(record['outstanding_us'], ' us')}, "
               f"beyond it {span(record['beyond_us'], ' us')} (p50 / p99 / most), "
               f"{record['within_50_us']} within 50 us, {record['overlaps']} overlaps",
               met(record["within_50_us"] == record["closures"] and not record["overlaps"]))


def hazard_rows(file):
    native = {r["hazard"]: r for r in file.records if r.get("mode") == "native"}
    for record in file.records:
        if "attempt" not in record:
            continue
        again = (", with caution" if record.get("cautious") else
                 ", started again" if record["attempt"] else "")
        ended = (native[record["hazard"]]["said"] or {}).get("status")
        yield (record["hazard"].replace("_", " ") + again, "ends as natively",
               f"natively status {ended}; {record['done']}; "
               f"{'right' if record['same'] else 'NOT RIGHT'}",
               met(record["same"] and not record["hung"]))


def two_gpus_rows(file):
    for record in file.records:
        if "job" not in record:
            if record.get("sum"):
                yield (f"both jobs, {record['mode']}", "", f"{record['sum']:.3f} of alone in sum",
                       "–")
            continue
        bound = [c["bound_share"] for c in record["coverage"] if c]
        asked = "bytes equal to alone, no hang" if record["mode"] != "alone" else ""
        yield (f"data-parallel job {record['job']}, {record['mode']}", asked,
               f"{record['equal']} of {record['of']} hashes{', HUNG' if record['hung'] else ''}"
               + (", bound " + ", ".join(map(harness.percent, bound)) if bound else "")
               + (f", {record['per_s']:.2f} steps/s" if record["per_s"] else ""),
               met(record["equal"] == record["of"] > 0 and not record["hung"]
                   if record["mode"] != "alone" else None))


SECTIONS = {
    "differential": ("Questions asked of the driver", differential_rows),
    "bits_workloads": ("PyTorch: bits and coverage", workload_rows),
    "cause": ("Why Qwen3 training differs from itself", cause_rows),
    "bits_programs": ("C++ and Triton programs: bits and coverage", bits_rows),
    "timing": ("Alone on the GPU", timing_rows),
    "micro_launch": ("Launch call", launch_rows),
    "micro_path": ("Launch path", path_rows),
    "micro_chain": ("Chain of dependent kernels", chain_rows),
    "micro_gemm": ("GEMM bf16 (512, 8192, 28672)", gemm_rows),
    "micro_blocked": ("Blocked streams", blocked_rows),
    "micro_pool": ("The pool", pool_rows),
    "processes_jobs": ("PyTorch jobs at once", jobs_rows),
    "processes_loops": ("Loops that compute", loops_rows),
    "processes_partition": ("Leases against a static partition", partition_rows),
    "processes_kill": ("SIGKILL", kill_rows),
    "processes_reclaim": ("Reclaiming a lease", reclaim_rows),
    "hazards": ("Hazards", hazard_rows),
    "two_gpus": ("Two data-parallel jobs on two GPUs", two_gpus_rows),
}


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                             harness.ROOT / "bench" / "results")
    for name, (title, rows) in SECTIONS.items():
        path = directory / f"{name}.jsonl"
        if not path.exists():
            continue
        file = File(path)
        h = file.header
        print(f"## {title}\n")
        if h:
            print(f"`{h['command']}`, commit {h['commit'][:12]}, {h['gpu']}, driver {h['driver']}, "
                  f"{h['date']}\n")
        print("| case | must show | measured | |\n|---|---|---|---|")
        for row in rows(file):
            print("| " + " | ".join(row) + " |")
        print()


if __name__ == "__main__":
    main()
