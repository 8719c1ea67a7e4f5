# SPDX-License-Identifier: Apache-2.0
"""What Vitamin does on an AMD GPU: one archive to send to the project.

    silicon_kit.py [--prefix BUILD] [--software] [--only STEP,...] [--out FILE]

scripts/amd-silicon builds what this needs and starts it.
"""
import argparse
import contextlib
import dataclasses
import datetime
import io
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import xml.etree.ElementTree

OURS = ("VITAMIN", "HSA_", "HIP_", "ROC_", "ROCR_", "GPU_", "AMD_")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
TOPOLOGY = pathlib.Path("/sys/class/kfd/kfd/topology")
POLICIES = ("random", "static")
# Programs of tests/amdgpu whose output does not depend on where their launches run.
PROGRAMS = ("kernels vector_add reduction gemm softmax layernorm fills_and_copies", "streams",
            "null_stream queries", "null_stream synchronisations", "null_stream events",
            "corners built_graph", "corners captured_graph", "obstacles own_mask")
HIP_TESTS = "Unit_hip(Stream|Event)"
TORCH = """
import hashlib, torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(512, 256, device="cuda")
for step in range(20):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
state = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print(torch.version.hip, torch.cuda.get_device_name(), hashlib.sha256(state).hexdigest())
"""


class KitError(Exception):
    """Why the kit cannot start, and what to do."""


class Skipped(Exception):
    """Why a step says nothing here."""


class Failed(Exception):
    """What a step found wrong."""


def rows(text):
    """The JSON objects among the lines."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@dataclasses.dataclass
class Kit:
    prefix: pathlib.Path
    software: bool
    hip_tests: pathlib.Path | None
    directory: pathlib.Path  # of logs
    log: io.TextIOBase = None  # of the running step

    def limit(self, seconds):
        """What is plenty on a GPU. The software one is slow, and tested on busy machines."""
        return seconds * (20 if self.software else 1)

    def environment(self, **more):
        locks = {"VITAMIN_LOCK_DIRECTORY": str(self.directory / "locks")}
        if self.software:
            driver = str(self.prefix / "lib/soft/libvitamin_soft_kfd.so")
            locks["LD_PRELOAD"] = ":".join(filter(None, [driver, os.environ.get("LD_PRELOAD")]))
        return os.environ | locks | more

    @contextlib.contextmanager
    def running(self, *command, limit, **arguments):
        """The command as a process group of its own. All of it ends with the block, and after
        `limit` seconds at the latest."""
        self.log.write(f"$ {' '.join(map(str, command))}\n")
        self.log.flush()
        process = timer = None
        came = []  # an interrupt while there is no process to end yet
        for number in INTERRUPTS:
            signal.signal(number, lambda *_: came.append(True))
        try:
            process = subprocess.Popen(list(map(str, command)), text=True, errors="replace",
                                       start_new_session=True,
                                       **{"stdin": subprocess.DEVNULL,
                                          "env": self.environment()} | arguments)
            for number in INTERRUPTS:
                signal.signal(number, signal.default_int_handler)
            if came:
                raise KeyboardInterrupt
            timer = threading.Timer(limit, end, [process])
            timer.start()
            yield process
        finally:
            if timer:
                timer.cancel()
            if process:
                end(process)
                process.wait()

    def run(self, *command, limit=120, expect=(0,), **variables):
        """What the command printed. Both of its streams go to the log."""
        name = pathlib.Path(command[0]).name
        with self.running(*command, limit=self.limit(limit), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=self.environment(**variables)) as process:
            out, error = process.communicate()
        self.log.write(out + error + f"exit code {process.returncode}\n\n")
        if process.returncode == -signal.SIGKILL:
            raise Failed(f"{name} did not end within {self.limit(limit)} s")
        if expect and process.returncode not in expect:
            line = next(iter((error.strip() or out.strip()).splitlines()[-1:]), "no output")
            raise Failed(f"{name} ended with exit code {process.returncode}: {line[:200]}")
        return out

    def silicon(self, check, **arguments):
        return rows(self.run(self.prefix / "tests/amdgpu/silicon", check, **arguments))

    def vitamin(self, *words, **arguments):
        return self.run(self.prefix / "bin/vitamin", *words, **arguments)

    def bare_and_wrapped(self, *command, **arguments):
        """The output, which is the same under each policy; or Failed."""
        bare = self.run(*command, **arguments)
        for policy in POLICIES:
            ours = self.vitamin("run", "--policy", policy, "--", *command, **arguments)
            if ours != bare:
                raise Failed(f"{' '.join(map(str, command[:3]))} prints something else under "
                             f"--policy {policy}")
        return bare


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# ----------------------------------------------------------------------------------- the steps
# Each returns what it measured, as JSON, and a sentence; or raises Failed or Skipped.

def machine(kit):
    found = {"kernel": platform.release(), "machine": platform.machine(),
             "software": kit.software,
             "variables": {k: v for k, v in os.environ.items() if k.startswith(OURS)}}
    for command in (("rocminfo",), ("rocm-smi", "--showproductname"), ("hipcc", "--version"),
                    ("lscpu",)):
        if shutil.which(command[0]):
            with contextlib.suppress(Failed):
                kit.run(*command, limit=60, expect=())
    for file in sorted(TOPOLOGY.glob("nodes/*/properties")):
        with contextlib.suppress(OSError):
            kit.log.write(f"{file}\n{file.read_text()}\n")
    (found["device"],) = kit.silicon("device")
    device = found["device"]
    return found, (f"{device['name'] or device['part']}, {device['multiprocessors']} "
                   f"multiprocessors, {device['mask_bits']} mask bits, HIP {device['runtime']}")


def doctor(kit):
    checks = json.loads(kit.vitamin("doctor", "--json", expect=()))
    bad = [check["text"] for check in checks["checks"] if check["verdict"] == "problem"]
    if bad:
        raise Failed(" ".join(bad))
    return checks, f"{len(checks['checks'])} checks, no problem"


def doctest(kit, program, **arguments):
    """Runs a doctest program; how many cases passed."""
    out = kit.run(kit.prefix / "tests" / program, expect=(), **arguments)
    counts = re.search(r"test cases: +(\d+) \| +(\d+) passed \| +(\d+) failed", out)
    if not counts:
        raise Failed(f"{program} ended early")
    if counts[3] != "0":
        names = re.findall(r"^TEST CASE:\s+(.+)$", out, re.M)
        raise Failed(f"{counts[3]} of {counts[1]} cases of {program} failed: "
                     f"{'; '.join(dict.fromkeys(names))[:300]}")
    return int(counts[2])


def conformance(kit):
    kernels = kit.prefix / "tests/hip/hal_conformance"
    passed = {form: doctest(kit, "hal_hip_conformance_test", limit=300,
                            VITAMIN_TEST_KERNELS=f"{kernels}.{form}") for form in ("co", "so")}
    return passed, f"{passed['co']} cases with modules, {passed['so']} with host stubs"


def bits(kit):
    all_cus, *one_each = kit.silicon("bits", limit=300)
    missing = [[tuple(cu) for cu in row["missing"]] for row in one_each]
    found = {"cus": all_cus["cus"], "bits": one_each}
    wrong = [row["bit"] for row, cus in zip(one_each, missing)
             if not cus or len({cu[:3] for cu in cus}) != 1]
    named = [cus[0] for cus in missing if cus]
    if wrong or len(set(named)) != len(named):
        raise Failed(f"a mask without one bit lacks no CU or several: bits {wrong[:20]}"
                     if wrong else "two bits of a mask are one CU")
    # The plan of backends/hip/mask_plan.h: neighbouring bits are in different XCCs, and within an
    # XCC in different engines.
    xccs = len({cu[0] for cu in named})
    engines = len({cu[:2] for cu in named}) // xccs
    spread = [len({cu[:2] for cu in named[at:at + xccs * engines]}) == xccs * engines
              for at in range(0, len(named) - xccs * engines + 1, xccs * engines)]
    found |= {"xccs": xccs, "engines": engines, "rows": len(spread), "as_planned": sum(spread)}
    return found, (f"{len(named)} bits, {xccs} XCC(s) of {engines} engines; {sum(spread)} of "
                   f"{len(spread)} rows of bits cover every engine, as planned")


def queues(kit):
    found = kit.silicon("queues", limit=120)
    made = [row for row in found if "queues" in row]
    refused = next((row for row in found if "refused" in row), None)
    if not made:
        raise Failed(f"no masked queue could be created: {refused}")
    last = (f"the next one is {refused['error']}" if refused else "none was refused")
    return found, (f"{len(made)} masked queues, {last}; a launch and its wait "
                   f"{made[0]['launch_us']} µs with one, {made[-1]['launch_us']} µs with all")


def masks(kit):
    (found,) = kit.silicon("masks")
    return found, (f"a masked stream costs {found['masked_stream_us']} µs, a plain one "
                   f"{found['plain_stream_us']} µs; a launch beside that "
                   f"{found['launch_beside_changes_us']} µs instead of {found['launch_us']} µs")


def isolation(kit):
    (found,) = kit.silicon("isolation", limit=120)
    return found, (f"half of the CUs moves {found['half_gb_s']} GB/s, beside the other half "
                   f"{found['half_beside_half_gb_s']} GB/s; all move {found['whole_gb_s']} GB/s")


@contextlib.contextmanager
def vitamind(kit, policy):
    """A daemon of our own. Options of `vitamin run`."""
    with tempfile.TemporaryDirectory(prefix="vitamind-") as name:
        socket = pathlib.Path(name) / "socket"
        with kit.running(kit.prefix / "bin/vitamind", "--socket", socket, "--policy", policy,
                         "--lock-directory", name, limit=kit.limit(300), stdout=kit.log,
                         stderr=kit.log) as daemon:
            answers = [kit.prefix / "bin/vitamin", "status", "--socket", socket]
            while subprocess.run(answers, capture_output=True, check=False).returncode != 0:
                if daemon.poll() is not None:
                    raise Failed("vitamind ended early")
                time.sleep(0.1)
            yield ["--daemon", "--socket", socket]


def lease_run(kit):
    """Two processes with leases of half the GPU each, at one time. (CUs of each, launches that did
    not wait for the lease)"""
    found, elsewhere, programs, limit = [], 0, [], kit.limit(120)
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(vitamind(kit, "static:parts=2"))
        for number in range(2):
            report = kit.directory / f"lease{number}.json"
            programs.append(stack.enter_context(kit.running(
                kit.prefix / "bin/vitamin", "run", "--report", report, *options, "--",
                kit.prefix / "tests/amdgpu/silicon", "places", limit=limit,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=kit.log)))
            if programs[-1].stdout.readline() != "ready\n":
                raise Failed(f"a program with a lease ended early, or not within {limit} s")
        for program in programs:
            program.stdin.write("go\n")
            program.stdin.flush()
        for number, program in enumerate(programs):
            out, _ = program.communicate()
            kit.log.write(out)
            if program.returncode != 0:
                raise Failed("a program with a lease failed")
            found.append({tuple(cu) for cu in rows(out)[0]["cus"]})
            totals = json.loads((kit.directory / f"lease{number}.json").read_text())["totals"]
            elsewhere += sum(totals["whole_device"].values())
    return found, elsewhere


def leases(kit):
    for _ in range(3):
        (one, other), elsewhere = lease_run(kit)
        if not elsewhere:
            break
    else:
        raise Skipped(f"{elsewhere} launches could not wait for their lease: the machine is busy")
    if one & other:
        raise Failed(f"two processes with leases met on {len(one & other)} CUs")
    return ({"cus": [sorted(one), sorted(other)]},
            f"two processes at once on {len(one)} and {len(other)} CUs, none in common")


def programs(kit):
    directory = kit.prefix / "tests/amdgpu"
    variables = {"MODULE_FILE": str(directory / "module.co")}
    results = {}
    for line in PROGRAMS:
        program, *checks = line.split()
        try:
            kit.bare_and_wrapped(directory / program, *checks, **variables)
            results[line] = "same"
        except Failed as failure:
            results[line] = str(failure)
    wrong = [text for text in results.values() if text != "same"]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(results)} programs: {'; '.join(wrong)[:300]}")
    return results, f"{len(results)} programs print the same bare and under {', '.join(POLICIES)}"


def determinism(kit):
    kernels = {"VITAMIN_TEST_KERNELS": str(kit.prefix / "tests/hip/determinism.co")}
    passed = {part: doctest(kit, f"hip_determinism_{part}_test", limit=400, **kernels)
              for part in ("suite", "audit")}
    return passed, f"{sum(passed.values())} cases passed"


def verify(kit):
    # Without the time that the program prints.
    train = f"'{kit.prefix}/bin/demo-train-hip'"
    out = kit.vitamin("verify", "--tenant", f"exec {train} 1000000", "--", "sh", "-c",
                      f"{train} 20 | cut -d , -f 1", limit=300, expect=(0, 3))
    judged = next((line for line in out.splitlines() if not line.startswith(" ")), out)
    if judged.startswith("inconclusive"):
        raise Skipped(judged)
    return {"printed": out}, judged


def hip_tests(kit):
    directory = kit.hip_tests
    if directory is None:
        raise Skipped("not asked for: --hip-tests DIRECTORY")
    if not (directory / "CTestTestfile.cmake").exists():
        raise Failed(f"{directory} has no CTestTestfile.cmake: name the build of hip-tests")
    outcomes = []
    for wrap in ((), (kit.prefix / "bin/vitamin", "run", "--policy", "random", "--")):
        results = kit.directory / f"hip-tests-{'wrapped' if wrap else 'bare'}.xml"
        kit.run(*wrap, "ctest", "--test-dir", directory, "-R", HIP_TESTS, "--timeout", "60",
                "--output-junit", results, limit=900, expect=())
        cases = xml.etree.ElementTree.parse(results).getroot().iter("testcase")
        outcomes.append({case.get("name"): case.get("status") for case in cases})
    bare, wrapped = outcomes
    differ = sorted(name for name in bare if wrapped.get(name) != bare[name])
    found = {"bare": bare, "wrapped": wrapped, "differ": differ}
    if not bare:
        raise Failed(f"{directory} has no test that matches {HIP_TESTS}")
    if differ:
        raise Failed(f"{len(differ)} of {len(bare)} tests differ under random: "
                     f"{', '.join(differ)[:300]}")
    return found, f"{len(bare)} tests end the same bare and under random"


def pytorch(kit):
    python = shutil.which("python3") or sys.executable
    probe = "import torch, sys; sys.exit(not torch.version.hip)"
    try:
        kit.run(python, "-c", probe, limit=120)
    except Failed:
        raise Skipped(f"{python} has no PyTorch for ROCm") from None
    out = kit.bare_and_wrapped(python, "-c", TORCH, limit=200)
    return {"printed": out.strip()}, f"training has the same bits: {out.strip()[-16:]}"


STEPS = {step.__name__.replace("_", "-"): (step, words) for step, words in (
    (machine, "what the machine and its runtime say"),
    (doctor, "vitamin doctor"),
    (bits, "which CU each bit of a mask is"),
    (queues, "cost of hardware queues, and how many there may be"),
    (masks, "cost of a change of masks, for itself and for others"),
    (isolation, "memory bandwidth of halves, alone and together"),
    (conformance, "the contract of a backend"),
    (leases, "two processes under leases at one time"),
    (programs, "programs of hipcc, bare and under vitamin run"),
    (determinism, "the determinism suite and its audit"),
    (verify, "vitamin verify of a training program"),
    (hip_tests, "stream and event tests of ROCm's hip-tests, bare and wrapped"),
    (pytorch, "PyTorch for ROCm, if python3 has it"))}


# ------------------------------------------------------------------------------------- the kit

def check_device(kit):
    if kit.software:
        return
    if not os.path.exists("/dev/kfd"):
        raise KitError("there is no AMD GPU here (/dev/kfd is missing): load the amdgpu driver, or "
                       "try the kit on the software AMD GPU with --software.")
    if not os.access("/dev/kfd", os.R_OK | os.W_OK):
        raise KitError("/dev/kfd cannot be opened by this user: join the groups render and video, "
                       "then log in again.")


def check_prefix(kit):
    needed = ["bin/vitamin", "bin/vitamind", "bin/demo-train-hip", "tests/amdgpu/silicon",
              "tests/hal_hip_conformance_test", "tests/hip_determinism_suite_test"]
    needed += ["lib/soft/libvitamin_soft_kfd.so"] if kit.software else []
    for file in needed:
        if not (kit.prefix / file).exists():
            raise KitError(f"{kit.prefix} lacks {file}: build it with scripts/amd-silicon.")


def run_step(kit, name, progress):
    step, words = STEPS[name]
    print(f"{progress} {name}: {words} …", flush=True)
    started = time.monotonic()
    result = {"step": name, "verdict": "ok", "data": None}
    with open(kit.directory / f"{name}.log", "w", encoding="utf-8") as kit.log:
        try:
            result["data"], result["text"] = step(kit)
        except Skipped as reason:
            result |= {"verdict": "skipped", "text": str(reason)}
        except Failed as failure:
            result |= {"verdict": "FAILED", "text": str(failure)}
        except (KeyError, ValueError, IndexError, OSError,
                xml.etree.ElementTree.ParseError) as error:
            result |= {"verdict": "FAILED",
                       "text": f"the answer was not understood ({type(error).__name__}: {error})"}
    result["seconds"] = round(time.monotonic() - started, 1)
    print(f"    {result['verdict']:<8} {result['seconds']:>6.1f} s  {result['text']}", flush=True)
    return result


def without_home(text):
    home = str(pathlib.Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def write_archive(kit, results, out):
    """report.json, report.txt and the log of each step."""
    now = datetime.datetime.now(datetime.timezone.utc)
    report = {"schema": 1, "made": now.isoformat("T", "seconds"), "software": kit.software,
              "steps": results}
    lines = [f"{r['verdict']:<8} {r['step']:<12} {r['seconds']:>6.1f} s  {r['text']}"
             for r in results]
    if kit.software:
        lines.insert(0, "On the SOFTWARE AMD GPU: nothing here was measured on AMD silicon.")
    (kit.directory / "report.json").write_text(json.dumps(report, indent=1))
    (kit.directory / "report.txt").write_text("\n".join(lines) + "\n")
    with tarfile.open(out, "w:gz") as archive:
        for file in sorted(kit.directory.iterdir()):
            if not file.is_file():
                continue
            text = without_home(file.read_text(errors="replace")).encode()
            entry = tarfile.TarInfo(f"amd-silicon/{file.name}")
            entry.size, entry.mtime = len(text), int(time.time())
            archive.addfile(entry, io.BytesIO(text))


def parse():
    listing = "\n".join(f"  {name:<12} {words}" for name, (_, words) in STEPS.items())
    parser = argparse.ArgumentParser(
        prog="amd-silicon", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs Vitamin's checks and measurements on the AMD GPU of this machine, in some"
                    "\nfifteen minutes, and writes one archive to attach to an issue. It needs the"
                    "\nGPU for itself, changes no setting of the machine and sends nothing.",
        epilog=f"steps, in this order:\n{listing}\n\nThe archive has report.txt, report.json and a "
               "log of each step.\nExit code 0: no step failed, 1: a step failed (the archive is "
               "what we need\nthen), 2: the kit could not start.")
    parser.add_argument("--prefix", type=pathlib.Path, metavar="BUILD",
                        default=pathlib.Path(__file__).resolve().parents[2] / "build/release",
                        help="build directory (default: build/release)")
    parser.add_argument("--software", action="store_true",
                        help="on the software AMD GPU: tries the kit, measures nothing")
    parser.add_argument("--only", metavar="STEP,...", help="these steps only")
    parser.add_argument("--hip-tests", type=pathlib.Path, metavar="DIRECTORY",
                        help="a build of ROCm's hip-tests, the directory with CTestTestfile.cmake")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                        help="the archive (default: amd-silicon-DATE.tar.gz here)")
    arguments = parser.parse_args()
    arguments.steps = list(STEPS) if arguments.only is None else arguments.only.split(",")
    for name in arguments.steps:
        if name not in STEPS:
            parser.error(f"there is no step '{name}'; there are {', '.join(STEPS)}")
    arguments.out = arguments.out or pathlib.Path(
        f"amd-silicon-{datetime.datetime.now():%Y%m%d-%H%M%S}.tar.gz")
    return arguments


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="amd-silicon-") as name:
        kit = Kit(arguments.prefix.resolve(), arguments.software,
                  arguments.hip_tests and arguments.hip_tests.resolve(), pathlib.Path(name))
        (kit.directory / "locks").mkdir()
        try:
            check_device(kit)
            check_prefix(kit)
            arguments.out.touch()
        except (KitError, OSError) as error:
            print(f"amd-silicon: {error}", file=sys.stderr)
            return 2
        for number in INTERRUPTS:
            signal.signal(number, signal.default_int_handler)
        results = []
        try:
            for number, step in enumerate(arguments.steps, 1):
                results.append(run_step(kit, step, f"[{number}/{len(arguments.steps)}]"))
        except KeyboardInterrupt:
            print("interrupted: the archive has the steps that ended", file=sys.stderr)
        write_archive(kit, results, arguments.out)
    failed = [r["step"] for r in results if r["verdict"] == "FAILED"]
    print(f"\n{arguments.out} ({arguments.out.stat().st_size >> 10} KiB): "
          + ("a trial on the software AMD GPU; it says nothing of silicon."
             if arguments.software else "please attach it to an issue, whatever it says."))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or len(results) < len(arguments.steps) else 0


if __name__ == "__main__":
    sys.exit(main())
