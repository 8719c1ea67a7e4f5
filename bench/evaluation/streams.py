# SPDX-License-Identifier: Apache-2.0
"""What a job asks of the GPU: its kernels, copies and waits in the order of the host.

reduce() keeps of a profiler's trace what a model needs, and nothing is interpreted yet; compile_()
makes one step of it, with each kernel's time at several widths, as `vitamin simulate --job` reads
it (scheduler/simulator/job.h). Pure: no GPU, no clock.
"""

import gzip
import json
import re

# A copy of so many bytes stands before every step: no program makes one of that size.
MARKER_BYTES = 12347

HOST = re.compile(r"Launch|Memcpy|Memset|Synchronize|WaitEvent|EventRecord")


def reduce(trace, path):
    """The events of a Chrome trace (a file) that say what ran on the GPU and what the host called,
    as JSON rows in `path`. Answers how many of each kind there are."""
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    names, rows = {}, {"device": [], "host": [], "sync": []}
    index = lambda name: names.setdefault(name, len(names))
    ns = lambda us: round(1000 * us)
    base = min((e["ts"] for e in events if e.get("ph") == "X"), default=0)
    for e in events:
        if e.get("ph") != "X":
            continue
        kind, a = e.get("cat", ""), e.get("args", {})
        at = [ns(e["ts"] - base), ns(e.get("dur", 0))]
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            rows["device"].append([
                *at, kind, index(e["name"]), a.get("stream"), a.get("correlation"),
                a.get("grid"), a.get("block"), a.get("shared memory"),
                a.get("registers per thread"), a.get("blocks per SM"), a.get("bytes")])
        elif kind in ("cuda_runtime", "cuda_driver") and HOST.search(e["name"]):
            rows["host"].append([*at, index(e["name"]), e.get("tid"), a.get("correlation")])
        elif kind == "cuda_sync":
            rows["sync"].append([
                *at, index(e["name"]), a.get("stream"), a.get("correlation"),
                a.get("wait_on_stream"), a.get("wait_on_cuda_event_record_corr_id")])
    for kept in rows.values():
        kept.sort(key=lambda row: row[:2])
    with gzip.open(path, "wt") as file:
        json.dump({"schema": 1, "names": list(names), **rows}, file, separators=(",", ":"))
    return {kind: len(kept) for kind, kept in rows.items()}


# An H200's or H100's processor (CUDA programming guide, compute capability 9.0).
THREADS, BLOCKS, REGISTERS, SHARED, SHARED_OF_BLOCK = 2048, 32, 65536, 228 << 10, 1 << 10
LEAST_KERNELS = 4  # of a token
LAUNCH_CALL_NS = 20_000  # a call that takes longer waits for room in the queue


def read(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def resident(block, shared, registers):
    """Blocks of a kernel that one processor holds."""
    x, y, z = block
    threads = -(-x * y * z // 32) * 32
    most = min(BLOCKS, THREADS // threads)
    if registers:
        most = min(most, REGISTERS // (-(-registers // 8) * 8 * threads))
    return max(1, min(most, SHARED // ((shared or 0) + SHARED_OF_BLOCK)))


class Step:
    """The calls of one step, in the order of the host."""

    def __init__(self):
        self.calls = []     # (kind, what, host ns, ns, after): what: kernel key, or stream
        self.end_ns = 0
        self.launch, self.back, self.gaps = [], [], []  # ns seen, of each sort

    def signature(self):
        return [call[:2] for call in self.calls]


def kernel_key(raw, event):
    _, _, kind, name, _, _, grid, block, shared, registers, _, size = event
    if kind != "kernel":
        return raw["names"][name], 0, 1, size
    x, y, z = grid
    return raw["names"][name], x * y * z, resident(block, shared, registers), shared


def steps(raw):
    """Every step between two markers, but the first."""
    device = {e[5]: e for e in raw["device"]}
    waits = {e[4]: e for e in raw["sync"]}  # by the correlation of the call
    compute = {e[4] for e in raw["device"] if e[2] == "kernel"}
    marker = {e[5] for e in raw["device"] if e[2] == "gpu_memcpy" and e[11] == MARKER_BYTES}
    host, seen = [], set()
    for call in raw["host"]:  # a call that calls another counts once
        if call[4] not in seen:
            host.append(call)
            seen.add(call[4])
    bounds = [i for i, call in enumerate(host) if call[4] in marker]
    return [_step(raw, host[a + 1:b], host[a], host[b], device, waits, compute)
            for a, b in zip(bounds[1:], bounds[2:])]


def _step(raw, calls, before, behind, device, waits, compute):
    names, step = raw["names"], Step()
    cursor = before[0] + before[1]
    newest, recorded, pending = {}, {}, {}  # by stream; by correlation; by stream that waits
    ended = None  # the kernel before, on the device
    for position, (at, lasts, name, _, correlation) in enumerate(calls):
        what, event = names[name], device.get(correlation)
        if event is not None:
            kind, stream = event[2], event[4]
            after = pending.pop(stream, -1)
            if stream in compute:
                call, of = "k", kernel_key(raw, event)
                if ended is not None and event[0] - at > 50_000:
                    step.gaps.append(event[0] - ended)
                elif ended is not None and event[0] - ended > 10_000 and kind == "kernel":
                    step.launch.append(event[0] - at)
                ended = event[0] + event[1]
            else:
                call, of = "c", stream
            newest[stream] = len(step.calls)
            step.calls.append((call, of, max(0, at - cursor), event[1], after))
            cursor = at + max(0, lasts - LAUNCH_CALL_NS)
        elif "EventRecord" in what:
            recorded[correlation] = dict(newest)
        elif "WaitEvent" in what:
            wait = waits.get(correlation)
            if wait and wait[5] in recorded.get(wait[6], {}) and wait[3] != wait[5]:
                pending[wait[3]] = recorded[wait[6]][wait[5]]
        elif "Synchronize" in what:
            if "Device" in what and position == len(calls) - 1:  # the recorder's own
                cursor += lasts
                continue
            wait = waits.get(correlation)
            if wait and wait[6] in recorded and wait[5] in recorded[wait[6]]:
                target = recorded[wait[6]][wait[5]]
            else:
                streams = [wait[3]] if wait and wait[3] in newest else list(newest)
                target = max((newest[s] for s in streams), default=None)
            if target is None:
                continue
            step.calls.append(("w", None, max(0, at - cursor), 0, target))
            cursor = at + lasts
            if lasts > LAUNCH_CALL_NS and ended is not None and cursor > ended:
                step.back.append(cursor - ended)
    step.end_ns = max(0, behind[0] - cursor)
    return step


def middle(values, otherwise=0):
    values = sorted(values)
    return values[len(values) // 2] if values else otherwise


def typical(found):
    """One step of many: each call by its medians where all steps make the same calls, else the
    step whose host took the median time."""
    most = max(found, key=lambda s: sum(s.signature() == t.signature() for t in found))
    alike = [s for s in found if s.signature() == most.signature()]
    step = Step()
    step.calls = [(*calls[0][:2], middle([c[2] for c in calls]), middle([c[3] for c in calls]),
                   calls[0][4]) for calls in zip(*(s.calls for s in alike))]
    step.end_ns = middle([s.end_ns for s in alike])
    for name in ("launch", "back", "gaps"):
        setattr(step, name, [ns for s in found for ns in getattr(s, name)])
    return step, len(alike)


def means_only(path):
    """Of what reduce() kept in `path`, only the mean time of each kernel: what is wanted of any
    setting but the job as it is."""
    raw = read(path)
    rows = [[*key, round(ns)] for key, ns in times(raw).items()]
    with gzip.open(path, "wt") as file:
        json.dump({"schema": 1, "means": rows}, file, separators=(",", ":"))


def times(raw):
    """By kernel: the mean of its durations."""
    if "means" in raw:
        return {tuple(row[:4]): row[4] for row in raw["means"]}
    sums = {}
    for event in raw["device"]:
        entry = sums.setdefault(kernel_key(raw, event), [0, 0])
        entry[0] += event[1]
        entry[1] += 1
    return {key: total / count for key, (total, count) in sums.items()}


def memory_share(blocks, curve, processors):
    """Of the bandwidth, on the whole device: ASSUMED from how a kernel with blocks for nearly
    all scales from about half of the processors to all. Who gains nothing waits for memory.
    (Checked for three jobs: the bytes of a step that follow are within a sixth of those that the
    bubble loses beside them.)"""
    half = min(curve, key=lambda m: abs(m - processors / 2), default=None)
    if blocks < 0.7 * processors or half is None or abs(half - processors / 2) > processors / 8:
        return 0.0
    gains = (curve[half] / curve[processors] - 1) / (processors / half - 1)  # 1: as many
    return min(1.0, max(0.1, 1.3 - gains))


class Compiled:
    """A job for the simulator. `parts`: (name, Step); `curves`: by kernel, {processors: ns};
    `beside`: by kernel, times as long as on half of the device beside the bubble on the other."""

    def __init__(self, name, processors, parts, curves, beside):
        self.name, self.processors, self.parts, self.curves = name, processors, parts, curves
        self.beside = beside
        self.usual_beside = middle(beside.values(), 2.0)
        spread = lambda kind: [ns for _, s in parts for ns in getattr(s, kind)]
        self.launch_ns = middle(spread("launch"), 4000)
        self.return_ns = middle(spread("back"), 5000)
        self.gap_ns = middle(spread("gaps"), 1300)

    def text(self, host=1.0):
        """`host`: by how much the host's pace is stretched."""
        kernels = {}
        for _, step in self.parts:
            for call in step.calls:
                if call[0] == "k":
                    kernels.setdefault(call[1], len(kernels))
        lines = ["vitamin-job 1", f"name {self.name}", f"processors {self.processors}",
                 f"launch {self.launch_ns:.0f}", f"return {self.return_ns:.0f}",
                 f"gap {self.gap_ns:.0f}"]
        for (name, blocks, fit, _), number in kernels.items():
            curve = self.curves.get((name, blocks, fit, _), {})
            share = memory_share(blocks, curve, self.processors) if blocks else 0
            known = " ".join(f"{m}:{ns:.0f}" for m, ns in sorted(curve.items()) if ns > 0)
            beside = self.beside.get((name, blocks, fit, _), self.usual_beside)
            lines.append(f"kernel {number} {blocks} {fit} {share:.3f} {beside:.2f} {known} "
                         f"{name[:80]}")
        for name, step in self.parts:
            lines.append(f"part {name}")
            for call, of, host_ns, ns, after in step.calls:
                host_ns *= host
                if call == "k":
                    lines.append(f"k {kernels[of]} {host_ns:.0f} {ns} {after}")
                elif call == "c":
                    lines.append(f"c {of} {host_ns:.0f} {ns} {after}")
                else:
                    lines.append(f"w {host_ns:.0f} {after}")
            lines.append(f"end {step.end_ns * host:.0f}")
        return "\n".join(lines) + "\n"


def split(step):
    """A request's calls as parts: the prefill, and one decode: each ends with the host's wait for
    its token. Of several decodes: the last."""
    parts, begin = [], 0
    for index, call in enumerate(step.calls):
        if call[0] == "w":
            part = Step()
            part.calls = [(*c[:4], c[4] - begin if c[4] >= begin else -1)
                          for c in step.calls[begin:index + 1]]
            # Small inputs are waited for, too.
            if sum(c[0] == "k" and c[1][1] > 0 for c in part.calls) >= LEAST_KERNELS:
                parts.append(part)
                begin = index + 1
    if len(parts) < 2:
        raise ValueError("a request has a prefill and decodes, each of which the host waits for")
    first, last = parts[0], parts[-1]
    first.end_ns = last.end_ns = 0
    for name in ("launch", "back", "gaps"):
        setattr(first, name, getattr(step, name))
    return [("prefill", first), ("decode", last)]


def compile_(name, raws, processors=132, bubble=None, half=64):
    """`raws`: by processors, what reduce() kept; that of the whole device among them. `bubble`: on
    `half` of the processors beside the bubble."""
    step, alike = typical(steps(raws[processors]))
    curves = {}
    for width, raw in raws.items():
        for key, ns in times(raw).items():
            curves.setdefault(key, {})[width] = ns
    squeezed = times(bubble) if bubble else {}
    beside = {key: min(10.0, max(1.0, ns / curves[key][half])) for key, ns in squeezed.items()
              if curves.get(key, {}).get(half)}
    parts = split(step) if name.startswith("I-") else [("step", step)]
    return Compiled(name, processors, parts, curves, beside), alike
