# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about device memory: quotas, and processes that are parked."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation")]

from comparisons import interval, middle  # noqa: E402
from results_kept import met, percent, within  # noqa: E402


MEMORY = "daemon/memory.jsonl"
GIB = 1 << 30
COST_ARMS = ("native", "no quota", "quota")
SIZES = {512: "512 bytes", 2 << 20: "2 MiB"}


def quota_rows(files):
    """What bench/memory.py measured."""
    yield framework_row(files, lambda r: not r["case"].startswith("vLLM"))
    yield framework_row(files, lambda r: r["case"].startswith("vLLM"))
    yield from limit_rows(files.records(MEMORY, lambda r: "limit" in r), files.cite(MEMORY))
    costs = files.records(MEMORY, lambda r: "cost" in r)
    for call in ("cuMemAllocAsync", "cuMemAlloc"):
        for size, words in SIZES.items():
            yield cost_row(costs, call, size, words, files.cite(MEMORY))


def framework_row(files, wanted):
    records = files.records(MEMORY, lambda r: "case" in r and wanted(r))
    runs = [r for r in records if r.get("arm") == "within"]
    peaks = [r["device_peak"] / GIB for r in runs]
    quota, = {r["quota"] for r in runs}
    return [f"{'; '.join(r['case'] for r in runs)}: under `--memory {quota / GIB:.0f}GiB` on a "
            f"device of {records_total(records)} GiB: told of {quota / GIB:.0f} GiB, at most that "
            "in use by its own account, bits as natively", "all",
            f"{sum(r['verdict'] == 'equal' for r in runs)} of {len(runs)}; most in use on the "
            "device by NVML, with context and code, which no quota charges: "
            + " to ".join(dict.fromkeys(f"{p:.2f}" for p in (min(peaks), max(peaks)))) + " GiB",
            met(all(r["verdict"] == "equal" and r["memory"]["used"] <= r["quota"]
                    for r in runs)), files.cite(MEMORY)]


# Arms of bench/memory_limits.py, as the page calls them; whether they have a target.
LIMITS = {"MPS's": ("MPS's own limit (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`)", False),
          "ours, together": ("`vitamin run --memory`", True),
          "ours, each": ("a class with `memory_of = \"process\"`", True)}


def limit_rows(records, cite):
    """Two processes that take what they get, the second one beside the first."""
    of = {r["limit"]: r for r in records}
    for name, (words, ours) in LIMITS.items():
        first, second = of[name]["lines"][:2]
        codes = sorted({line["refused"] for line in of[name]["lines"]})
        gib = lambda value: f"{value / GIB:.2f}"
        piece = of[name]["quota"] // 16  # that each has from the beginning
        yield [f"a limit of {of[name]['quota'] / GIB:.0f} GiB by {words}, two processes",
               "neither is told of more or gets more; refused by the code for out of memory"
               if ours else "comparison",
               f"told of {gib(first['told_total'])} GiB; the first one has "
               f"{gib(piece + first['taken'])} GiB, the second beside it "
               f"{gib(piece + second['taken'])} more; code {', '.join(map(str, codes))}",
               met(not of[name]["why"]) if ours else "–", cite]


def cost_row(records, call, size, words, cite):
    tries = {arm: [line["allocate_ns"] for r in records if r.get("cost") == arm
                   for line in r["lines"] if line["call"] == call and line["bytes"] == size]
             for arm in COST_ARMS}
    of = {arm: middle(tries[arm]) for arm in COST_ARMS}
    rounds = [with_it - without for with_it, without in zip(tries["quota"], tries["no quota"])]
    low, high = interval(rounds) or (min(rounds), max(rounds))
    return [f"{call} of {words}, with a quota", "≤ 200 ns more than without one",
            f"{middle(rounds):+,.0f} ns ({low:+,.0f} to {high:+,.0f}), medians of {len(rounds)} "
            f"rounds: {of['quota']:,.0f} with, {of['no quota']:,.0f} without, "
            f"{of['native']:,.0f} natively", met(within(low, high, 200)), cite]


def user_share_rows(files):
    """What bench/daemon/user_share.py measured."""
    name = "daemon/user_share.jsonl"
    of = files.records(name, lambda r: "together" in r)
    yield [f"{of[0]['processes']} processes of a user with `share = {of[0]['share']}`, "
           "`share_of = \"user\"`", f"≤ {of[0]['share']} % of the SMs",
           "; ".join(f"`{r['policy']}`: at most {r['sms']} of {r['sms_of_device']} SMs in "
                     f"{r['looks']} looks; together {percent(r['together'])} of the speed of as "
                     "many natively" for r in of),
           met(all(100 * r["sms"] <= r["share"] * r["sms_of_device"] and not r["failed"]
                   for r in of)), files.cite(name)]


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
