#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's server and a PyTorch training job on one GPU: what each gets, alone and beside the other.

    serving.py                               arms in turn, the same requests in every arm of a round
    serving.py --rounds 6 --rate 2 --budget 500
    serving.py --smoke                       seconds, on the software device, without vLLM
    serving.py --analyse FILE                tables of kept results, anywhere

Two servers (an MPS client, and under `vitamin run --daemon`) and three training jobs (MPS, MPS with
the lower priority, Vitamin) live from the first block to the last; an arm uses one or two of them,
the others pause. Requests arrive at random (Poisson) whatever became of those before; then
--clients ask without a pause for --closed seconds, which says what the server can give. Before the
first block each server answers --checked requests, one at a time: texts must be equal.
Raw samples: OUT/serving.jsonl. Exit codes: 0; 1 texts differ or requests failed; 2 it cannot run;
3 the budget ended it (what was measured is kept).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision"),
                str(HERE / "compat" / "programs")]

import arms  # noqa: E402
import harness  # noqa: E402
import http_load  # noqa: E402
import modes  # noqa: E402
import progress  # noqa: E402
import serving_report  # noqa: E402
from processes import Job, JobFailed  # noqa: E402

# Llama 3.1 8B's shape; vllm_programs.write_model gives it a vocabulary of 32,000 words.
SHAPE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
VOCABULARY = 32000
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
          "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}
PROMPT = (64, 400)  # tokens
PAUSE_TIMEOUT, SETTLE = 60, 1.0  # seconds; a training job runs SETTLE before requests come


@dataclasses.dataclass(frozen=True)
class Arm:
    server: str = ""  # setting (modes.SETTINGS) of the server that is asked
    training: str = ""  # and of the training job that runs
    policy: str = ""  # of vitamind
    tpot: float = 0.030  # seconds: the bound of the server's class
    announced: bool = False  # the server announces its steps (interpose/advice/vitamin_vllm.py)


ARMS = {
    "server alone": Arm("mps"),
    "training alone": Arm("", "mps"),
    "MPS": Arm("mps", "mps"),
    "MPS with priorities": Arm("mps", "mps-priority"),
    "server alone, Vitamin": Arm("ours", "", "slo"),
    "training alone, Vitamin": Arm("", "ours", "slo"),
    "Vitamin, 30 ms": Arm("ours", "ours", "slo"),
    "Vitamin, 10 ms": Arm("ours", "ours", "slo", 0.010),
    "Vitamin, throughput": Arm("ours", "ours", "throughput"),
}
BOUND = re.compile(r"Vitamin, ([\d.]+) ms(, announced)?")


def arm(name):
    """ARMS, and "Vitamin, N ms" for the policy slo with any bound of a token. ", announced": the
    server announces its steps."""
    if name not in ARMS and (bound := BOUND.fullmatch(name)):
        return Arm("ours", "ours", "slo", float(bound[1]) / 1e3, bool(bound[2]))
    return ARMS[name]


def install_plugin(directory):
    """What `pip install vitamin-advice` leaves: a directory for PYTHONPATH."""
    site, modules = directory / "site", harness.prefix() / "lib" / "vitamin" / "python"
    information = site / "vitamin_advice-0.dist-info"
    information.mkdir(parents=True)
    for name in ("vitamin_advice.py", "vitamin_vllm.py"):
        shutil.copy(modules / name, site)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vitamin-advice\n"
                                          "Version: 0\n")
    (information / "entry_points.txt").write_text("[vllm.general_plugins]\n"
                                                  "vitamin = vitamin_vllm:register\n")
    return site


def server_command(options, model, port):
    if options.device == "soft":
        return [sys.executable, str(HERE / "evaluation" / "fake_server.py"), str(port)]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
            "--dtype", "bfloat16", "--load-format", "dummy", "--max-model-len", "1024",
            "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
            # A size of its own: two servers and three training jobs share the memory.
            "--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(2 << 30),
            "--compilation-config", json.dumps(GRAPHS)]


class Service:
    """A server process. It never answers lines; it is ready when /health says so."""

    def __init__(self, setting, site, options, surroundings, model):
        port = harness.free_port()
        words, environment = arms.place(surroundings, setting, 0, "steps" if site else "tokens",
                                        True)
        environment |= {"VLLM_CACHE_ROOT": str(model / "cache"),
                        "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        name = f"server ({setting}{', announced' if site else ''})"
        if site:
            before = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = ":".join(filter(None, (str(site), before)))
        self.job = Job(name, [], words, environment,
                       program=server_command(options, model, port))
        self.client = http_load.Server(port, "model")

    def wait_ready(self, limit):
        while not self.client.healthy():
            if self.job.process.poll() is not None:
                raise JobFailed(f"{self.job.name} has ended: {self.job.tail()}")
            if time.monotonic() > limit:
                raise JobFailed(f"{self.job.name} is not ready in time: {self.job.tail()}")
            time.sleep(0.2)

    def end(self):
        self.job.process.send_signal(signal.SIGTERM)
        try:
            self.job.process.wait(15)
        except Exception:
            pass
        self.job.kill()


class Training:
    """bench/decision/worker.py, paused and resumed; what it did while it ran."""

    def __init__(self, setting, options, surroundings):
        words, environment = arms.place(surroundings, setting, 1, "batch", False)
        name, more = options.train, ["--trim"]
        if options.device == "soft":
            name, more = "demo", []
        self.job = Job(f"training ({setting})", ["train", name, *more], words, environment,
                       program=[sys.executable, str(HERE / "decision" / "worker.py")])
        self.running = False

    def resume(self):
        self.job.ask(PAUSE_TIMEOUT, do="run")
        self.running = True

    def pause(self):
        """Its marks."""
        self.running = False
        return self.job.ask(PAUSE_TIMEOUT, do="pause")["marks"]


class Bench:
    def __init__(self, options, surroundings, results, directory):
        self.options, self.surroundings, self.results = options, surroundings, results
        self.limit = time.monotonic() + options.budget
        self.begin = time.monotonic()
        self.arms = {name: arm(name) for name in options.arms}
        self.model = directory / "model"
        self.servers, self.trainings = {}, {}

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:5.1f} s] {text}", flush=True)

    def start(self):
        self.model.mkdir()
        if self.options.device == "cuda":
            import vllm_programs  # sets what vLLM's environment holds without a network
            vllm_programs.write_model(self.model, SHAPE)
        servers = dict.fromkeys((a.server, a.announced) for a in self.arms.values() if a.server)
        site = install_plugin(self.model) if any(announced for _, announced in servers) else None
        for setting, announced in servers:
            self.servers[setting, announced] = Service(
                setting, site if announced else None, self.options, self.surroundings, self.model)
        for server in self.servers.values():
            server.wait_ready(self.limit)
        self.say("servers ready")
        for setting in dict.fromkeys(a.training for a in self.arms.values() if a.training):
            self.trainings[setting] = Training(setting, self.options, self.surroundings)
        for training in self.trainings.values():
            training.job.wait_ready(max(1.0, self.limit - time.monotonic()))
        self.say("training jobs ready")
        self.results.add({"serving": {
            k: getattr(self.options, k)
            for k in ("arms", "train", "rate", "block", "clients", "closed", "tokens", "ttft",
                      "percentile")}})

    def check(self):
        """Whether every server gives the same texts when nothing shares its batches."""
        o = self.options
        draw = random.Random(11)
        requests = [http_load.Request(0.0, http_load.draw_prompt(draw, VOCABULARY, PROMPT),
                                      o.tokens) for _ in range(o.checked)]
        texts = {}
        for server in self.servers.values():
            answers = server.client.one_at_a_time(requests)
            failed = [a.error for a in answers if a.error]
            if failed:
                raise JobFailed(f"{server.job.name}: {failed[0]}; {server.job.tail()}")
            texts[server.job.name] = [a.text for a in answers]
        self.results.add({"checked": texts})
        return len({tuple(t) for t in texts.values()}) <= 1

    def block(self, name, number):
        arm, o = self.arms[name], self.options
        if arm.policy:
            self.surroundings.daemon.slo = (o.ttft, arm.tpot)
            self.surroundings.daemon.percentile = o.percentile
            self.surroundings.daemon.switch(arm.policy)
        training = self.trainings.get(arm.training)
        if training:
            training.resume()
        time.sleep(SETTLE if o.device == "cuda" else 0.1)
        server = self.servers[arm.server, arm.announced].client if arm.server else None
        begin, answers, closed = time.monotonic(), [], None
        requests = http_load.draw_requests(o.rate, o.block, o.seed + number, VOCABULARY, PROMPT,
                                           o.tokens)
        if server:
            answers = server.open_loop(requests)
        time.sleep(max(0.0, begin + o.block - time.monotonic()))
        end = time.monotonic()
        explained = self.surroundings.daemon.explain() if arm.policy else {}
        if server:
            closed = server.closed_loop(requests, o.clients, o.closed)
        last = time.monotonic()
        record = {"round": number, "arm": name, "answers": [a.record() for a in answers]}
        if arm.policy:
            record["explain"] = explained
        if training:
            # A step that has begun ends: the marks cover the block.
            time.sleep(0.5 if o.device == "cuda" else 0.1)
            line = progress.Timeline([training.pause()])
            within = lambda a, b: line.speed(a, min(b, line.times[-1]))
            record["steps_per_s"] = within(begin, end)
            if server:
                record["steps_per_s_closed"] = within(end, last)
        if closed:
            record["closed"] = [a.record() for a in closed]
            record["tokens_per_s"] = round(sum(
                a.tokens / len(a.times) * sum(t <= end + o.closed for t in a.times)
                for a in closed if not a.error) / o.closed, 3)
        self.results.add(record)
        return record

    def run(self):
        draw, records = random.Random(self.options.seed), []
        for number in range(self.options.rounds):
            order = list(self.arms)
            draw.shuffle(order)
            harness.check_interruption()
            round_s = (self.options.block + self.options.closed + 4) * len(order)
            if time.monotonic() + round_s > self.limit:
                self.say(f"the budget of {self.options.budget:.0f} s is spent")
                return records, 3
            records += [self.block(name, number) for name in order]
            self.say(f"round {number + 1} of {self.options.rounds}")
        return records, 0

    def end(self):
        for server in self.servers.values():
            server.end()
        for training in self.trainings.values():
            training.job.end()


def measure(options):
    with tempfile.TemporaryDirectory(prefix="vitamin-serving-") as name:
        directory = pathlib.Path(name)
        with modes.Surroundings(directory / "run", options.device) as surroundings:
            (directory / "run").mkdir(exist_ok=True)
            results = harness.Results(options.out, "serving", more=options.more)
            bench = Bench(options, surroundings, results, directory)
            try:
                bench.start()
                equal = bench.check()
                bench.say(f"texts of {options.checked} requests, one at a time: "
                          + ("equal" if equal else "DIFFERENT"))
                records, code = bench.run()
            finally:
                bench.end()
        print(serving_report.report(serving_report.read(results.path)))
        failed = sum("error" in a for r in records for a in r["answers"] + r.get("closed", []))
        if failed:
            print(f"serving: {failed} requests failed", file=sys.stderr)
        return max(code, 1 if failed or not equal else 0)


def parse():
    words = lambda text: [w.strip() for w in text.split(";") if w.strip()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.splitlines()[1:]))
    parser.add_argument("--smoke", action="store_true",
                        help="on the software device, with a server without a model")
    parser.add_argument("--analyse", metavar="FILE")
    parser.add_argument("--arms", type=words, default=list(ARMS),
                        help='separated by ";", of: ' + "; ".join(ARMS)
                        + '; and "Vitamin, N ms" for any bound of a token, with or without '
                        '", announced": the server announces its steps')
    parser.add_argument("--train", default="D0.6", help="of bench/evaluation/training.py")
    parser.add_argument("--ttft", type=float, default=0.5,
                        help="seconds: the bound of a step with prompts, where steps are announced")
    parser.add_argument("--percentile", type=int, default=75,
                        help="percent of the announced steps that are to meet their bound")
    parser.add_argument("--rate", type=float, default=3, help="requests a second")
    parser.add_argument("--block", type=float, default=12, help="seconds of arrivals in a block")
    parser.add_argument("--clients", type=int, default=16, help="that ask without a pause")
    parser.add_argument("--closed", type=float, default=5, help="seconds for which they do")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--checked", type=int, default=6, help="requests whose texts are compared")
    parser.add_argument("--seed", type=int, default=1, help="of orders, arrivals and prompts")
    parser.add_argument("--budget", type=float, default=540, help="seconds of everything")
    parser.add_argument("--more", action="store_true", help="add to the results that there are")
    parser.add_argument("--out", default=harness.default_output() + "/compat")
    parser.set_defaults(device="cuda")
    if "--smoke" in sys.argv:  # what is given besides counts
        parser.set_defaults(device="soft", rounds=2, block=1.0, closed=0.5, clients=4, rate=6.0,
                            tokens=8, checked=2)
    options = parser.parse_args()
    for name in options.arms:
        if name not in ARMS and not BOUND.fullmatch(name):
            parser.error(f"there is no arm '{name}': " + "; ".join(ARMS))
    return options


def main():
    options = parse()
    try:
        with harness.interruptible():
            return run(options)
    except KeyboardInterrupt:
        return 130


def run(options):
    try:
        if options.analyse:
            print(serving_report.report(serving_report.read(options.analyse)))
            return 0
        if not (harness.prefix() / "bin" / "vitamin").exists():
            raise harness.Refusal(f"there is no Vitamin in {harness.prefix()}: run "
                                  "bench/install_tree, or name a tree in VITAMIN_PREFIX")
        return measure(options)
    except (harness.Refusal, JobFailed, OSError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
