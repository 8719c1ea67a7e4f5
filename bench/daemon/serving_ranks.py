#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM with tensor parallelism beside a data-parallel training job on the same GPUs.

    serving_ranks.py [--tensor 2,4] [--policy throughput] [--rounds N] [--out DIR]

Both programs live twice, under MPS and under vitamind, and take turns: the engine alone, then
beside the training job. Compared are the tokens of every batch (with the first batch of the engine
alone, natively), the time to first tokens and of each further one, and the training's steps/s,
paired by round. CUDA graphs hold the engine's collectives. NVLink multicast is left off. Needs
vLLM, and as many GPUs as the widest engine.
"""
import argparse
import statistics
import sys
import threading
import time

import common
import harness
import many_gpus
from decision import paired

HEADINGS = ["tensor", "mode", "tokens equal", "TTFT ms", "TPOT ms", "training steps/s", "batches"]


class Side:
    """The engine and the training job, under MPS (no policy) or under a vitamind."""

    def __init__(self, name, tensor, policy, options, environment):
        self.name, self.options = name, options
        self.daemon = many_gpus.Bounded(policy, environment) if policy else None
        here = {**environment, **many_gpus.NCCL,
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(tensor)))}
        if self.daemon is not None:
            here["VITAMIN_CONFIG"] = self.daemon.configuration.name
        words = ("--class", "bounded") if self.daemon is not None and self.daemon.bounds else ()
        self.engine = common.Resident(
            [sys.executable, str(many_gpus.HERE / "vllm_batches.py"), "--tensor", str(tensor)],
            here, daemon=self.daemon, words=words)
        self.spec = many_gpus.Spec("ddp", range(tensor), 1)
        self.training = many_gpus.Group([self.spec], options, environment, self.daemon, None)
        self.number = 0

    def ready(self, limit):
        self.engine.next(limit - time.monotonic())
        self.training.begin(limit)
        self.training.await_hashes(self.options.steps + 1, limit)

    def batches(self, count, going=lambda: True):
        found = []
        while len(found) < count and going():
            found.append(self.engine.ask("batch"))
        return found

    def beside(self, steps, limit):
        """Batches while the training job makes so many steps; its steps/s."""
        rate = {}

        def train():
            rate.update(self.training.block(self.number, {self.spec: steps}, limit) or {})
        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(0.3)
        found = self.batches(1000, thread.is_alive)
        thread.join()
        self.number += 1
        return found[:-1], rate.get(self.spec)  # the last one ran alone for a while

    def end(self):
        self.training.block(self.number, {}, 0)
        ended = self.training.end(time.monotonic() + 20)[self.spec]
        self.engine.end()
        record = {"mode": self.name, "hashes": ended["hashes"], "ok": ended["ok"],
                  "engine": common.brief(self.engine.coverage)}
        if self.daemon is not None:
            record |= {"daemon": self.daemon.counters(), "log": self.daemon.end()[-1500:]}
        return record


def measure(tensor, options, results, environment):
    begin = time.monotonic()
    limit = begin + options.timeout
    sides = [Side("MPS", tensor, None, options, environment),
             Side(options.policy, tensor, options.policy, options, environment)]
    for side in sides:
        side.ready(limit)
    print(f"tensor {tensor}: ready after {time.monotonic() - begin:.0f} s", flush=True)
    rounds, steps = [], options.train
    while len(rounds) < options.rounds and time.monotonic() < limit:
        found = {}
        for side in sides:
            found[side.name, "alone"] = side.batches(3), None
            found[side.name, "beside"] = side.beside(steps, limit)
        rounds.append(found)
        results.add({"tensor": tensor, "round": len(rounds), "batches": [
            {"mode": mode, "with": how, "found": batches, "training_per_s": rate}
            for (mode, how), (batches, rate) in found.items()]})
    reference = rounds[0]["MPS", "alone"][0][0]["tokens"]
    rows, equal = [], True
    medians = {}
    for key in rounds[0]:
        batches = [b for r in rounds for b in r[key][0]]
        same = sum(b["tokens"] == reference for b in batches)
        equal = equal and same == len(batches) > 0
        rates = [r[key][1] for r in rounds]
        medians[key] = {"first": [statistics.median(x for b in r[key][0] for x in b["first_s"])
                                  for r in rounds if r[key][0]],
                        "each": [statistics.median(x for b in r[key][0] for x in b["each_s"])
                                 for r in rounds if r[key][0]],
                        "training": [x for x in rates if x]}
        show = lambda values, scale: f"{scale * statistics.median(values):.2f}" if values else "-"
        rows.append([tensor, " ".join(key), f"{same} of {len(batches)}",
                     show(medians[key]["first"], 1e3), show(medians[key]["each"], 1e3),
                     show(medians[key]["training"], 1), len(batches)])
    over = {}
    for how in ("alone", "beside"):
        for what in ("first", "each", "training"):
            ours, theirs = (medians[side.name, how][what] for side in reversed(sides))
            if len(ours) == len(theirs) > 1:
                over[f"{how} {what}"] = paired.ratio(ours, theirs).json()
    ends = [side.end() for side in sides]
    results.add({"tensor": tensor, "policy": options.policy, "equal": equal, "over_MPS": over,
                 "training_equal": ends[0]["hashes"] == ends[1]["hashes"], "ends": ends,
                 "seconds": time.monotonic() - begin, "table": rows})
    print(harness.table(rows, HEADINGS))
    same = ends[0]["hashes"] == ends[1]["hashes"]
    for name, values in over.items():
        print(f"{name}, over MPS: " + " ".join(f"{x:.3f}" for x in values))
    print(f"training's hashes equal: {same}", flush=True)
    return equal and same


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor", default="2,4")
    parser.add_argument("--policy", default="throughput")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", type=int, default=60, help="steps of training in a round")
    parser.add_argument("--timeout", type=float, default=200, help="of one width")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    options.steps, options.size, options.device = 3, "large", "cuda"
    import torch
    options.gpus = torch.cuda.device_count()
    results = harness.Results(options.out, f"serving_ranks_{options.gpus}")
    good = True
    with common.Surroundings("cuda") as surroundings:
        for tensor in map(int, options.tensor.split(",")):
            if tensor > options.gpus:
                results.add({"not_run": f"tensor {tensor}: {options.gpus} GPUs here"})
                continue
            good = measure(tensor, options, results, surroundings.environment) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
