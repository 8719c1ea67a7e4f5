# SPDX-License-Identifier: Apache-2.0
"""vitamin trace: recorded, drawn, decided again.

Needs in the environment: VITAMIN, VITAMIND, MEMBER, SOURCE; for whole programs also DRIVER
(directory of the software libcuda.so.1) and PROGRAMS (of the demo).
"""
import collections
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

from seed import takes_a_sample
from time_limit import time_limit

sys.path.insert(0, str(pathlib.Path(os.environ["SOURCE"], "tests/daemon")))
from harness import DaemonTest  # noqa: E402
import unittest  # noqa: E402

HEADER, RECORD = 4096, 64
KINDS = {"attach": 8, "request": 9, "step": 12, "word": 13, "grant": 14}
WITH_BYTES = KINDS["attach"], KINDS["request"]  # two records each
# Offsets of the header's words (runtime/trace/file.h).
RECORDS_AT, DROPPED_AT = 64, 72
MAX_SMS_AT = 48  # in the bytes behind an "attach"


def vitamin(*words, **more):
    return subprocess.run([os.environ["VITAMIN"], *map(str, words)], capture_output=True, text=True,
                          timeout=time_limit(200), stdin=subprocess.DEVNULL, **more)


class Events:
    """A parser of Chrome's trace format that believes nothing."""

    def __init__(self, test, text):
        self.test = test
        self.all = json.loads(text)["traceEvents"]
        self.slices = collections.defaultdict(list)  # by track
        self.counters = collections.defaultdict(list)
        self.flows = collections.defaultdict(dict)
        self.names = {}
        for event in self.all:
            phase = event["ph"]
            if phase == "X":
                test.assertGreaterEqual(event["dur"], 0)
                self.slices[event["pid"], event["tid"]].append(event)
            elif phase == "C":
                self.counters[event["pid"], event["name"]].append(event)
            elif phase in "sf":
                test.assertNotIn(phase, self.flows[event["id"]], "an arrow with two ends alike")
                self.flows[event["id"]][phase] = event
            elif phase == "M":
                self.names[event["pid"], event["tid"], event["name"]] = event["args"]["name"]
            else:
                test.assertEqual(phase, "i", event)

    def check_nesting(self):
        """On a track two slices are apart, or one lies in the other."""
        slack = 0.0015  # times are written in microseconds
        for track, slices in self.slices.items():
            self.test.assertIn((*track, "thread_name"), self.names)
            open_ends = []
            for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
                end = event["ts"] + event["dur"]
                while open_ends and open_ends[-1] <= event["ts"] + slack:
                    open_ends.pop()
                if open_ends:
                    self.test.assertLessEqual(end, open_ends[-1] + slack, event)
                open_ends.append(end)

    def check_flows(self):
        """An arrow begins in a slice, ends in a slice, and does not go back in time."""
        slack = 0.0015
        for flow in self.flows.values():
            self.test.assertEqual(set(flow), {"s", "f"})
            self.test.assertLessEqual(flow["s"]["ts"], flow["f"]["ts"] + slack)
            self.test.assertEqual(flow["f"]["bp"], "e")
            for end in flow.values():
                inside = [event for event in self.slices[end["pid"], end["tid"]]
                          if event["ts"] - slack <= end["ts"] <= event["ts"] + event["dur"] + slack]
                self.test.assertTrue(inside, end)

    def check_counters(self, most):
        self.test.assertTrue(self.counters)
        for samples in self.counters.values():
            values = [event["args"]["processors"] for event in samples]
            self.test.assertLessEqual(max(values), most)
            self.test.assertGreaterEqual(min(values), 0)
            self.test.assertEqual(values[-1], 0, "at the end nothing is held")
            self.test.assertGreater(max(values), 0)
            times = [event["ts"] for event in samples]
            self.test.assertEqual(times, sorted(times))


class TraceTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.trace = pathlib.Path(self.directory.name, "trace")

    def export(self):
        result = vitamin("trace", "export", self.trace)
        self.assertEqual(result.returncode, 0, result.stderr)
        return Events(self, result.stdout)

    def daemon_trace(self, policy="random", members=3, work=40, share=None):
        daemon = self.daemon("--trace", str(self.trace), "--policy", policy, "--quiet")
        if share is not None:
            daemon.ask(f"job-begin 12.0 {os.getuid()} {share} - -")
        running = [self.member(daemon, "work", work) for _ in range(members)]
        for member in running:
            self.result(member)
        daemon.end()
        return next(self.trace.glob("daemon.*.trace"))

    def change(self, path, at, text):
        data = bytearray(path.read_bytes())
        data[at:at + len(text)] = text
        path.write_bytes(data)

    def every(self, path, kind):
        """Where the records of a kind lie."""
        data = path.read_bytes()
        at = HEADER
        places = []
        while at < len(data):
            found = struct.unpack_from("<H", data, at + 8)[0]
            if found == KINDS[kind]:
                places.append(at)
            at += 2 * RECORD if found in WITH_BYTES else RECORD
        self.assertTrue(places, f"no record of kind {kind}")
        return places

    def first(self, path, kind):
        return self.every(path, kind)[0]


class OfDaemon(TraceTest):
    def test_a_replay_decides_the_same_byte_for_byte_and_again(self):
        for policy in ("random", "throughput", "tpot-first"):
            shutil.rmtree(self.trace, ignore_errors=True)
            self.daemon_trace(policy)
            lines = []
            for i in range(2):
                decisions = pathlib.Path(self.directory.name, f"decisions{i}")
                result = vitamin("trace", "replay", "--decisions", decisions, self.trace)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("every one the same", result.stdout)
                lines.append(decisions.read_bytes())
            self.assertEqual(*lines)
            self.assertIn(b"grant entry", lines[0], policy)

    def test_a_replay_knows_the_share_of_a_job(self):
        path = self.daemon_trace("throughput", share=10)
        result = vitamin("trace", "replay", self.trace)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("every one the same", result.stdout)
        for at in self.every(path, "attach"):  # a bound that one of them has binds the group
            self.change(path, at + RECORD + MAX_SMS_AT, bytes(4))
        self.assertEqual(vitamin("trace", "replay", self.trace).returncode, 1)

    def test_a_decision_that_was_changed_is_found(self):
        path = self.daemon_trace()
        self.change(path, self.first(path, "grant") + 10, b"\x7f")
        result = vitamin("trace", "replay", self.trace)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stderr, r"^vitamin: .*answered otherwise.*\[VIT-205\]\n$")

    def test_a_question_that_was_changed_leads_elsewhere(self):
        path = self.daemon_trace("fifo", 2)
        # Its first request: what it says it needs.
        at = self.first(path, "request")
        self.change(path, at + RECORD, b"\x02")  # "idle" instead of "ready"
        self.assertEqual(vitamin("trace", "replay", self.trace).returncode, 1)

    def test_a_trace_with_holes_is_not_replayed_but_drawn(self):
        path = self.daemon_trace()
        self.change(path, DROPPED_AT, struct.pack("<Q", 5))
        result = vitamin("trace", "replay", self.trace)
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"5 records were dropped.*\[VIT-204\]\n$")
        self.assertEqual(vitamin("trace", "export", self.trace).returncode, 0)

    def test_leases_are_drawn_nested_with_a_counter(self):
        self.daemon_trace("random:max_sms=32")
        events = self.export()
        events.check_nesting()
        events.check_counters(132)
        self.assertTrue(any("ready" in event["name"] for event in events.all if event["ph"] == "i"))
        self.assertTrue(any("SMs" in event["name"] for slices in events.slices.values()
                            for event in slices))

    def test_recording_changes_no_decision_counter(self):
        self.daemon_trace()
        self.assertGreater(next(self.trace.glob("*")).stat().st_size, HEADER + 100 * RECORD)


class BadInput(TraceTest):
    def check_refused(self, words, code, *parts):
        result = vitamin("trace", *words)
        self.assertEqual(result.returncode, 125, result.stdout)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in (f"[{code}]", *parts):
            self.assertIn(part, result.stderr)

    def test_no_directory_no_trace_and_what_is_no_trace_are_one_line_each(self):
        for verb in ("export", "replay"):
            self.check_refused([verb, self.trace], "VIT-109", "cannot be read")
        self.trace.mkdir()
        for verb in ("export", "replay"):
            self.check_refused([verb, self.trace], "VIT-109", "there is no trace")
        file = self.trace / "program.1.0.trace"
        for content, said in ((b"", "there is no trace: 1 of 1 files"),
                              (b"x" * 100, "it ends in its header"),
                              (b"x" * 8192, "is no trace")):
            file.write_bytes(content)
            self.check_refused(["export", self.trace], "VIT-109", said)

    def test_a_file_without_a_header_spoils_no_other(self):
        self.daemon_trace(work=5)
        for number, content in enumerate((b"", bytes(100), bytes(8192))):
            (self.trace / f"program.1.{number}.trace").write_bytes(content)
        for verb in ("export", "replay"):
            done = vitamin("trace", verb, self.trace)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"3 of \d+ files .* have no header.*\[VIT-204\]")

    def test_a_trace_that_is_cut_or_of_another_version_is_refused(self):
        path = self.daemon_trace()
        whole = path.read_bytes()
        path.write_bytes(whole[:-RECORD * 3])
        self.check_refused(["replay", self.trace], "VIT-109", "shorter than it says")
        path.write_bytes(whole)
        self.change(path, 8, struct.pack("<I", 99))
        self.check_refused(["replay", self.trace], "VIT-109", "version 99")

    def test_every_damaged_byte_of_a_header_is_survived(self):
        path = self.daemon_trace(work=5)
        whole = path.read_bytes()
        for at in range(0, 512, 7):
            path.write_bytes(whole)
            self.change(path, at, b"\xff")
            self.assertIn(vitamin("trace", "replay", self.trace).returncode, (0, 1, 125), at)

    def test_a_directory_that_cannot_be_written_stops_before_the_program(self):
        marker = pathlib.Path(self.directory.name, "ran")
        self.check_refused(["record", "--output", "/proc/no", "--", "touch", marker], "VIT-108")
        self.trace.mkdir()
        (self.trace / "something").touch()
        self.check_refused(["record", "--output", self.trace, "--", "touch", marker], "VIT-108",
                           "not empty")
        self.assertFalse(marker.exists())

    def test_wrong_usage_is_one_line(self):
        self.check_refused(["record"], "VIT-101", "no command")
        self.check_refused(["record", "--polcy", "x", "--", "true"], "VIT-101", "--polcy")
        self.check_refused(["record", "--policy", "radnom", "--", "true"], "VIT-102", "radnom")
        self.check_refused(["export"], "VIT-101", "DIRECTORY")

    def test_vitamind_goes_on_without_its_trace(self):
        daemon = self.daemon("--trace", "/no/such/directory", "--quiet")
        self.result(self.member(daemon, "work", 5))
        daemon.end()
        log = pathlib.Path(self.directory.name, "log").read_text()
        self.assertRegex(log, r"the trace cannot be written to /no/such/directory .*\[VIT-405\]")


@unittest.skipUnless("DRIVER" in os.environ, "built without the headers of CUDA")
class OfPrograms(TraceTest):
    def setUp(self):
        super().setUp()
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": os.environ["DRIVER"],
            "VITAMIN_SOFT_LEDGER": os.path.join(self.directory.name, "ledger"),
            # Of one GPU the machine has one vitamind, and all tests have the same GPU.
            "VITAMIN_CONFIG_DAEMON_LOCK_DIRECTORY": self.directory.name}

    def program(self, name, steps):
        return [os.path.join(os.environ["PROGRAMS"], name), str(steps)]

    def record(self, name, steps, *options):
        result = vitamin("trace", "record", "--output", self.trace, *options, "--",
                         *self.program(name, steps), env=self.environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def hash_and_launches(self, text):
        return re.search(r"hash (\w+), (\d+) launches", text).groups()

    def test_every_launch_is_drawn_in_order_with_its_arrows(self):
        result = self.record("demo-serve", 20, "--policy", "random", "--seed", "3")
        digest, launches = self.hash_and_launches(result.stdout)
        alone = subprocess.run(self.program("demo-serve", 20), env=self.environment, text=True,
                               capture_output=True, timeout=time_limit(100))
        self.assertEqual(self.hash_and_launches(alone.stdout)[0], digest)
        events = self.export()
        drawn = [event for slices in events.slices.values() for event in slices
                 if event["cat"] == "launch"]
        self.assertEqual(len(drawn), int(launches))
        self.assertGreater(len({event["args"]["entry"] for event in drawn}), 1)
        self.assertIn("blend", {event["name"] for event in drawn})
        events.check_nesting()
        events.check_flows()
        events.check_counters(max(event["args"]["processors"] for event in drawn) * 2)
        self.assertTrue(events.flows, "a program of several streams has arrows")
        for slices in events.slices.values():
            serials = [event["args"]["serial"] for event in slices]
            self.assertEqual(serials, sorted(serials))
            for event in slices:
                self.assertGreaterEqual(event["ts"] + 0.0015, event["args"]["submitted_us"])

    def test_a_program_and_its_vitamind_are_recorded_together(self):
        recorded = self.record("demo-train", 40, "--daemon", "--policy", "random:max_sms=32")
        self.assertEqual(len(list(self.trace.glob("*.trace"))), 2, recorded.stderr)
        result = vitamin("trace", "replay", self.trace)
        self.assertEqual(result.returncode, 0, result.stderr)
        events = self.export()
        events.check_nesting()
        events.check_flows()
        names = {name.split(" of ")[0] for _, name in events.counters}
        self.assertEqual(names, {"SMs bound", "SMs leased"})

    def test_recording_holds_no_program_up(self):
        """Pairs of runs, without and with. That a launch costs at most two percent more is told by
        recorder_test (nanoseconds a record) and on a GPU (bench/results); two processors that also
        play the device cannot tell it. They can tell a recorder that waits: such a one would lose
        nearly every pair by far."""
        def seconds(traced, number):
            environment = dict(self.environment)
            directory = pathlib.Path(self.directory.name, f"cost{number}")
            directory.mkdir()
            if traced:
                environment["VITAMIN_TRACE"] = str(directory)
            steps = 30 if takes_a_sample() else 120
            result = vitamin("run", "--quiet", "--", *self.program("demo-train", steps),
                             env=environment)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(bool(list(directory.iterdir())), traced)
            shutil.rmtree(directory)
            return float(re.search(r"([0-9.]+) seconds", result.stdout)[1])
        ratios = []
        while len(ratios) < 60:
            plain = seconds(False, 2 * len(ratios))
            ratios.append(seconds(True, 2 * len(ratios) + 1) / plain)
            if sum(ratio <= 1.1 for ratio in ratios) >= 4:
                break
        print("with / without: " + ", ".join(f"{ratio:.3f}" for ratio in ratios))
        # Of 60 fair coins at most 3 show heads once in 3e13 times; a program held up shows none.
        self.assertGreaterEqual(sum(ratio <= 1.1 for ratio in ratios), 4)


if __name__ == "__main__":
    unittest.main()
