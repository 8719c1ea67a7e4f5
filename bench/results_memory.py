# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about device memory: quotas, and processes that are parked."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation")]

from comparisons import middle  # noqa: E402
from results_kept import met  # noqa: E402


COST_ARMS = ("native", "no quota", "quota")
SIZES = {512: "512 bytes", 2 << 20: "2 MiB"}


def quota_rows(files):
    """What bench/memory.py measured."""
    name = "daemon/memory.jsonl"
    records = files.records(name, lambda r: "case" in r or "cost" in r)
    within = [r for r in records if r.get("arm") == "within"]
    peaks = [r["device_peak"] / 2 ** 30 for r in within]
    yield [f"{'; '.join(r['case'] for r in within)}: under `--memory 20GiB` on a device of "
           f"{records_total(records)} GiB: told of 20 GiB, at most that in use by its own account, "
           "bits as natively", "all",
           f"{sum(r['verdict'] == 'equal' for r in within)} of {len(within)}; most in use on the "
           "device by NVML, with context and code, which no quota charges: "
           f"{min(peaks):.2f} to {max(peaks):.2f} GiB",
           met(all(r["verdict"] == "equal" and r["memory"]["used"] <= r["quota"]
                   for r in within)), files.cite(name)]
    for call in ("cuMemAllocAsync", "cuMemAlloc"):
        for size, words in SIZES.items():
            yield cost_row(records, call, size, words, files.cite(name))


def cost_row(records, call, size, words, cite):
    tries = {arm: [line["allocate_ns"] for r in records if r.get("cost") == arm
                   for line in r["lines"] if line["call"] == call and line["bytes"] == size]
             for arm in COST_ARMS}
    of = {arm: middle(tries[arm]) for arm in COST_ARMS}
    each = ", ".join(f"{ns:,.0f}" for ns in tries["quota"])
    return [f"{call} of {words}, with a quota", "≤ 200 ns more than without one",
            f"{of['quota'] - of['no quota']:+,.0f} ns, {of['quota'] - of['native']:+,.0f} against "
            f"native ({each} with, {of['no quota']:,.0f} without, {of['native']:,.0f} natively)",
            met(of["quota"] - of["no quota"] <= 200), cite]


def records_total(records):
    return round(next(r["memory"]["total"] for r in records if r.get("arm") == "native") / 2 ** 30)


def park_rows(files):
    """What bench/park.py measured."""
    name = "daemon/park.jsonl"
    trips = files.every(name, lambda r: "freed" in r)
    steps = files.every(name, lambda r: "steps_equal" in r)
    for arm, words in (("native", "natively"), ("vitamin", "under `vitamin run`")):
        most = max((r for r in trips if r["arm"] == arm), key=lambda r: r["bytes_held"])
        of = [r for r in trips if r["arm"] == arm and r["bytes_held"] == most["bytes_held"]]
        way = lambda verb: " and ".join(
            f"{r[verb]['seconds']:.1f} s ({r[verb]['bytes_per_second'] / 1e9:.1f} GB/s)"
            for r in of)
        yield [f"{most['bytes_held'] / 2 ** 30:.0f} GiB of an idle PyTorch process {words} to host "
               "memory and back (`vitamin park`, `vitamin resume`)",
               "contents and 10 further training steps equal, its memory free meanwhile",
               f"equal, {min(r['freed'] for r in of) / 2 ** 30:.1f} GiB freed; there "
               f"{way('park')}, back {way('resume')}",
               met(all(r["equal"] and r["freed"] >= r["bytes_held"] for r in of)
                   and all(r["steps_equal"] for r in steps if r["arm"] == arm)), files.cite(name)]
