# SPDX-License-Identifier: Apache-2.0
"""The evaluation: workloads x modes in one command of at most ten minutes.

    evaluate.py E0 [--workloads D0.6,I-L8,...]         does each build, how long is its step
    evaluate.py E3 [--pairs W1,W2]                     colocated training; W7 and W8: --gpus 2
    evaluate.py E4 [--pairs M1] [--rho 0.5]            training beside open-loop inference
    evaluate.py pairs [--pairs W1,M1]                  both kinds, every mode, one configuration
    evaluate.py E5 [--traces A,B] [--load auto]        prefill and decode processes on traces
    evaluate.py E6 | E7 | E8                           GEMM; the pool; chains, and decode alone
    evaluate.py E9 [--steps 50]                        bitwise training beside others, SIGKILL
    evaluate.py --smoke                                all of it in seconds, on the software device

E1 and E2 are bench/determinism/run.py and decode.py. Common: --modes exclusive,temporal,mps,mps50,
static,ours (evaluation/modes.py has all), --budget SECONDS, --resume, --out DIR. Results are JSON
lines with every raw sample, DIR/EXPERIMENT.jsonl; tables and figures: evaluation/report.py.
"""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation")]

import experiment  # noqa: E402
import experiments  # noqa: E402
import harness  # noqa: E402
import load  # noqa: E402
import modes  # noqa: E402
import overheads  # noqa: E402
import report  # noqa: E402

DEFAULT_MODES = {
    "E0": "exclusive",
    "E3": "exclusive,temporal,mps,mps50,static,ours,orion,salus",
    "E4": "exclusive,temporal,mps,mps-priority,mps50,static,ours,ours-tpot-first,orion,salus",
    "E5": "mps,mps-priority,ours,ours-tpot-first,ours-slo",
    "pairs": "exclusive,mps,ours,ours-tpot-first,static,mps50,mps-priority,temporal",
    "E8": "exclusive,in-process,mps-alone,ours-alone",
    "E9": "exclusive,temporal,mps,mps50,static,ours,ours-tpot-first,ours-random,mps-kill,ours-kill",
}
ALL = ("E0", "E3", "E4", "pairs", "E5", "E6", "E7", "E8", "E9")
PAIRS = {"E3": ["W1", "W2"], "E4": ["M1"], "pairs": ["W1", "W2", "RN+D0.6", "M1", "M3"]}
# Units of training and of inference, of 16: 16, 32, 64 and 100 SMs of 132 for inference.
FRONTIER = ("static:2-15/0-1", "static:4-15/0-3", "static:8-15/0-7", "static:0-3/4-15")
KINDS = {"E3": "training ", "E4": "mixed ", "pairs": ""}
BUSY_MIB = 2048  # more than this on an idle GPU is another user's


def gpu_query(what):
    """Of the GPUs that this command may use: others may be another's (bench/spread.py)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        answer = subprocess.run(["nvidia-smi", what[0], "--format=csv,noheader,nounits", *what[1:],
                                 *(["-i", visible] if visible else [])],
                                capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise harness.Refusal(f"no NVIDIA GPU here ({error}): --smoke needs none") from None
    if answer.returncode:
        raise harness.Refusal("nvidia-smi finds no GPU: " + (answer.stdout + answer.stderr).strip())
    return [line.split(", ") for line in answer.stdout.strip().splitlines()]


def free_memory(options):
    """GiB; refuses a GPU that another process uses."""
    if options.device != "cuda":
        return min(options.memory, 1e6)
    gpus = gpu_query(["--query-gpu=memory.used,memory.free,clocks.sm"])
    if len(gpus) < options.gpus:
        raise harness.Refusal(f"--gpus {options.gpus}: there are {len(gpus)}")
    used = max(int(g[0]) for g in gpus[:options.gpus])
    free = min(int(g[1]) for g in gpus[:options.gpus])
    others = gpu_query(["--query-compute-apps=pid,used_memory"])
    if not options.busy_ok and (others or used > BUSY_MIB):
        raise harness.Refusal(
            f"the GPU is busy: {len(others)} processes, {used} MiB in use; its times would say "
            "nothing (--busy-ok runs all the same)")
    return min(free / 1024, options.memory)


def clocks():
    """What the GPUs do at this moment; nothing where there is none."""
    fields = ("clocks.sm", "clocks_throttle_reasons.active", "temperature.gpu", "power.draw")
    try:
        return [dict(zip(fields, gpu)) for gpu in gpu_query(["--query-gpu=" + ",".join(fields)])]
    except harness.Refusal:
        return []


def check_packages(names):
    for name in names:
        for package in experiment.packages(name):
            if importlib.util.find_spec(package) is None:
                raise harness.Refusal(f"the Python package '{package}' is missing ({name} needs "
                                      f"it): pip install {package}")


def check_tree():
    if not (harness.prefix() / "bin" / "vitamin").exists():
        raise harness.Refusal(f"there is no Vitamin in {harness.prefix()}: run bench/install_tree, "
                              "or name a tree in VITAMIN_PREFIX")


def training_specs(pair, names, options):
    ranks = 2 if pair in experiments.DISTRIBUTED else 1
    if ranks > options.gpus:
        raise harness.Refusal(f"{pair} is two ranks on two GPUs: --gpus 2")
    return [experiment.spec("train", "demo" if options.device == "soft" else n, ranks=ranks)
            for n in names]


def mixed_specs(names, options):
    train, infer = ("demo", "demo") if options.device == "soft" else names
    more = ["--output", options.tokens] if options.tokens else []
    return [experiment.spec("train", train),
            experiment.spec("infer", infer, "latency", more)]


def serving_specs(options):
    name = "demo" if options.device == "soft" else "I-L8"
    more = ["--prompt", options.prompt, "--output", options.output,
            "--between-mib", options.between_mib]
    ttft_ms, tpot_ms = (1e3 * s for s in load.scaled(options.slo_scale))
    cache = 0 if name == "demo" else options.slots * (options.prompt + options.output) / 8192
    return [experiment.spec("prefill", name, "prompts", [*more, "--ttft-ms", ttft_ms],
                            gib=(15.7 * (name != "demo"), 1)),
            experiment.spec("decode", name, "tokens",
                             [*more, "--slots", options.slots, "--tpot-ms", tpot_ms,
                              *(["--graphs"] if options.graphs else [])],
                             gib=(15.7 * (name != "demo") + cache, 1))]


def hazards(session, options):
    """bench/daemon/hazards.py, which has results of its own."""
    soft = options.device == "soft"  # where what hangs the first time takes the whole time limit
    words = [sys.executable, str(HERE / "daemon" / "hazards.py"), "--out", options.out,
             *(["cooperative", "clusters_16", "host_gated", "--repeats", "3", "--timeout", "60",
                "--device", "soft"] if soft else ["--timeout", "9"])]
    session.cells += 1
    session.allow(20)
    result = harness.run(words, max(20, options.budget - session.elapsed()),
                         session.surroundings.base())
    session.add("E9", "hazards", "all", 0, {"ok": result.ok, "why": result.why(),
                                            "table": result.output.strip().split("\n\n")[-1]})
    print(result.output.strip(), flush=True)


def run_one(name, session, options):
    if name == "E0":
        names = ["demo"] if options.device == "soft" else options.workloads
        experiments.Calibration(session).run(
            [experiment.spec("infer" if n.startswith("I-") else "train", n) for n in names])
    elif name in ("E3", "E4", "pairs"):
        known = {"E3": experiments.TRAINING_PAIRS, "E4": experiments.MIXED_PAIRS,
                 "pairs": experiments.TRAINING_PAIRS | experiments.MIXED_PAIRS}[name]
        for pair in options.pairs:
            if pair not in known:
                raise harness.Refusal(f"there is no {KINDS[name]}pair '{pair}': "
                                      + ", ".join(known))
        for pair in options.pairs:
            if pair in experiments.MIXED_PAIRS:
                tokens = f" {options.tokens} tokens" if options.tokens else ""
                experiments.Mixed(session).run(
                    f"{pair} {options.arrivals} {options.rho:g}{tokens}",
                    mixed_specs(known[pair], options))
            else:
                experiments.Training(session).run(
                    pair, training_specs(pair, known[pair], options))
    elif name == "E5":
        serving = experiments.Serving(session)
        try:
            for trace in options.traces:
                serving.use(trace)
                at = "calibrated" if options.load is None else f"{options.load:g}"
                limits = "" if options.slo_scale == 1 else f" limits x {options.slo_scale:g}"
                steps = " graphs" if options.graphs else ""
                serving.run(f"{trace} {at}{steps}{limits}", serving_specs(options))
        finally:
            serving.close()
    elif name == "E6":
        overheads.Dispatch(session).run()
    elif name == "E7":
        overheads.Memory(session).run()
    elif name == "E9":
        demo = options.device == "soft"
        if "bits" in options.parts:
            experiments.BitwiseTraining(session).run("training", [
                experiment.spec("bits", n, gib=(0, 0) if demo else None)
                for n in (("demo", "demo") if demo else ("qwen-train", "resnet-train"))])
        if "libraries" in options.parts:
            experiments.LibraryAwareness(session).run("libraries", [
                experiment.spec("libraries", "demo" if demo else "all")])
        if "hazards" in options.parts:
            hazards(session, options)
    if name == "E8":
        for length in overheads.Chain.LENGTHS if not options.no_chains else ():
            overheads.Chain(session, length).run()
        n = "demo" if options.device == "soft" else options.workloads[0]
        experiments.DecodeAlone(session).run(n, [experiment.spec("infer", n)])


def needed(name, options):
    """Workloads whose packages a command needs, and the specs are known only later."""
    if options.device == "soft":
        return []
    table = {"E0": options.workloads, "E5": ["I-L8"], "E8": options.workloads[:1],
             "E9": ["qwen-train", "resnet-train"]}
    pairs = experiments.TRAINING_PAIRS | experiments.MIXED_PAIRS if name in KINDS else {}
    return [*table.get(name, []), *(n for p in options.pairs for n in pairs.get(p, ()))]


def run(name, options):
    """One experiment; the exit code."""
    try:
        with harness.interruptible():
            return run_to_end(name, options)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command with --resume runs what is left",
              file=sys.stderr)
        return 130


def run_to_end(name, options):
    old = report.read(options.out, name) if options.resume else []
    with tempfile.TemporaryDirectory(prefix="vitamin-eval-",
                                     ignore_cleanup_errors=True) as directory:
        try:
            check_tree()
            check_packages(needed(name, options))
            free = free_memory(options)
            for mode in options.modes:
                modes.mode(mode)
            if options.slo_scale not in load.SCALES:
                raise harness.Refusal(f"--slo-scale {options.slo_scale:g}: one of "
                                      + ", ".join(f"{scale:g}" for scale in load.SCALES))
            results = harness.Results(options.out, name, more=options.resume)
            with modes.awake(2 * options.pin * options.gpus if options.awake else 0), \
                    modes.Surroundings(directory, options.device,
                                       load.scaled(options.slo_scale)) as surroundings:
                session = experiment.Session(options, results, old, directory, surroundings, free)
                if options.device == "cuda":
                    session.clocks = clocks
                try:
                    run_one(name, session, options)
                except experiment.OutOfTime:
                    print(f"{name}: the budget of {options.budget:.0f} s is spent with "
                          f"{session.cells - session.ended} cells to go; the same command with "
                          "--resume runs what is left", flush=True)
                    return 3
        except harness.Refusal as error:
            print(f"evaluate: {error}", file=sys.stderr)
            return 2
    failed = [r for r in report.read(options.out, name) if r.get("ok") is False]
    print(f"{name}: {session.ended} cells in {session.elapsed():.0f} s, "
          f"{len(failed)} could not be run", flush=True)
    reasons = {}
    for r in failed:
        reasons.setdefault(r["why"], []).append(f"{r['subject']} {r['cell']} {r['repeat']}")
    for why, some in reasons.items():
        print(f"could not be run: {', '.join(some)}: {why}", flush=True)
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.splitlines()[1:]))
    words = lambda text: [w for w in text.split(",") if w]
    parser.add_argument("experiment", nargs="?", choices=ALL)
    parser.add_argument("--smoke", action="store_true", help="on the software device")
    parser.add_argument("--modes", type=words)
    parser.add_argument("--pairs", type=words, default=None)
    parser.add_argument("--traces", type=words, default=["azure2024_conv_synth"])
    parser.add_argument("--workloads", type=words,
                        default=words("I-L8,D0.6,RN,D1.7,BE,L4,L8,Q8,I-J6"))
    parser.add_argument("--out", default=None)
    parser.add_argument("--budget", type=float, default=540, help="seconds of the whole command")
    parser.add_argument("--resume", action="store_true", help="run what the results do not have")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--drain", type=float, default=10, help="seconds to finish requests in")
    parser.add_argument("--rho", type=float, default=0.5, help="E4: offered load")
    parser.add_argument("--tokens", type=int, default=0,
                        help="E4: that a request answers (default 32): fewer, more requests a "
                        "second, a p99 that means something in a short window")
    parser.add_argument("--arrivals", default="poisson", help="E4: poisson, or a trace")
    parser.add_argument("--load", type=lambda t: None if t == "auto" else float(t), default=0.7,
                        help="E5: share of the capacity; auto: where throughput violates TPOT for "
                        "10 to 40 %% of requests, found by a few windows")
    parser.add_argument("--calibrate-s", type=float, default=8, help="E5: such a window")
    parser.add_argument("--slo-scale", type=float, default=1.0,
                        help="E5: times the limits of MLPerf's interactive serving, 0.5 s to the "
                        "first token and 30 ms a token; the daemon's target goes with them. A "
                        "smaller one tells policies apart below overload")
    parser.add_argument("--frontier", action="store_true",
                        help="E4: static partitions of 16 to 100 SMs for inference besides")
    parser.add_argument("--slots", type=int, default=32, help="E5: sequences decoded at once")
    parser.add_argument("--graphs", action="store_true",
                        help="E5: each decode step is one launch of a CUDA graph, as engines have "
                             "it; else its launches wait for the host")
    parser.add_argument("--prompt", type=int, default=2048, help="E5: tokens, longer ones are cut")
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--between-mib", type=int, default=4096,
                        help="E5: GPU memory through which keys and values are handed over")
    parser.add_argument("--steps", type=int, default=50, help="E9")
    parser.add_argument("--parts", type=words, default=["bits", "libraries", "hazards"],
                        help="E9")
    parser.add_argument("--rounds", type=int, default=40,
                        help="E6, E8: of 10 turns of 20 samples, of 10 chains")
    parser.add_argument("--no-chains", action="store_true", help="E8: decoding alone only")
    parser.add_argument("--beside", type=int, default=6, help="E0: processes at once")
    parser.add_argument("--pin", type=int, default=5, help="cores of each job of a pair; 0: all")
    parser.add_argument("--nice", type=int, default=-10, help="of the jobs, where it is allowed")
    parser.add_argument("--awake", action="store_true",
                        help="keep the processors of the jobs from sleeping (programs/keep_awake)")
    parser.add_argument("--settle", type=float, default=3, help="E3, E4: before the first cell")
    parser.add_argument("--gpus", type=int, default=1, help="E3: 2 for W7 and W8")
    parser.add_argument("--memory", type=float, default=1e9, help="GiB, at most")
    parser.add_argument("--busy-ok", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu", "soft"], default="cuda",
                        help="cpu: PyTorch with tiny shapes; soft: the demo programs")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--start-timeout", type=float, default=180)
    parser.add_argument("--start-s", type=float, default=30, help="that processes need to start")
    options = parser.parse_args()
    if not options.smoke and not options.experiment:
        parser.error("name an experiment: " + ", ".join(ALL))
    options.given = {name for name in ("modes", "pairs") if getattr(options, name) is not None}
    options.out = options.out or os.environ.get("OUT") or str(
        harness.ROOT / "bench" / "results" / "evaluation")
    if options.device == "cpu":
        options.tiny = True
    if options.smoke:
        options.device = "soft"
        options.repeats, options.window, options.warm_up, options.drain = 1, 1.0, 0.2, 60.0
        options.prompt, options.output, options.slots, options.between_mib = 600, 4, 4, 1
        options.load = options.load and 0.3
        options.rho, options.settle, options.rounds = 0.3, 0, 2
        options.steps, options.calibrate_s = 6, 0.5
    return options


def main():
    options = parse()
    codes, begin = [], time.monotonic()
    for name in [options.experiment] if options.experiment else ALL:
        if "modes" not in options.given:
            options.modes = DEFAULT_MODES.get(name, "exclusive").split(",")
        if options.frontier and name == "E4":
            options.modes = list(dict.fromkeys([*options.modes, *FRONTIER]))
        if name == "E9":
            options.repeats = 1  # a killed job is not started again
        if "pairs" not in options.given:
            options.pairs = PAIRS.get(name, [])
            if options.smoke:
                options.pairs = {"pairs": ["W1", "M1"]}.get(name, options.pairs[:1])
        codes.append(run(name, options))
        if codes[-1] in (2, 130):
            break
    if 2 in codes:
        sys.exit(2)
    report.write(options.out)
    print(f"{time.monotonic() - begin:.0f} s in all; tables and figures in {options.out}")
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
