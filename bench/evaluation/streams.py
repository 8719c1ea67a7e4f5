# SPDX-License-Identifier: Apache-2.0
"""What a job asks of the GPU: its kernels, copies and waits in the order of the host.

reduce() keeps of a profiler's trace what a model needs, and nothing is interpreted yet; compile_()
makes one step of it, with each kernel's time at several widths, as `vitamin simulate --job` reads
it (sim/stream.h). Pure: no GPU, no clock.
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
