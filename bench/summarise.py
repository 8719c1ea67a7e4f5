# SPDX-License-Identifier: Apache-2.0
"""The table of results: what was to be shown, what was measured, whether it was met.

    summarise.py [DIR]        reads DIR/*.jsonl (bench/results), writes Markdown to standard output
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
}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else harness.ROOT / "bench" / "results")
    for name, (title, rows) in SECTIONS.items():
        path = folder / f"{name}.jsonl"
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
