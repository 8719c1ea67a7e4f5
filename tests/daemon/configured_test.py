#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamind follows vitamin.toml, and reloads it on SIGHUP completely or not at all."""
import errno
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from harness import DaemonTest, answers, signal_is_expected
from time_limit import time_limit


class Configured(DaemonTest):
    def configure(self, text):
        file = pathlib.Path(self.directory.name, "vitamin.toml")
        file.write_text(text)
        return str(file)

    def configured(self, text, *options):
        return self.daemon("--config", self.configure(text), *options)

    def held(self, daemon):
        return daemon.status()["devices"][0]["held"]

    def hold(self, daemon, workload_class=""):
        member = self.member(daemon, "hold", environment={"MEMBER_CLASS": workload_class})
        self.assertIn("entry", member.stdout.readline())
        return member

    def shown(self, daemon):
        """What `vitamin status` prints."""
        return subprocess.run([os.environ["VITAMIN"], "status", "--socket", str(daemon.socket)],
                              text=True, capture_output=True, timeout=time_limit(20),
                              check=True).stdout

    def reload(self, daemon, text):
        self.configure(text)
        daemon.process.send_signal(signal.SIGHUP)

    def test_the_file_sets_the_policy_its_parameters_and_the_pool(self):
        daemon = self.configured('[policy]\nname = "static"\nparameters = { units = "0-3" }\n'
                                 '[devices."GPU-mem*".pool]\nleaf_units = 2\n')
        self.hold(daemon)
        device = daemon.status()["devices"][0]
        self.assertEqual(device["policy"], "static:units=0-3")
        self.assertEqual([hold["units"] for hold in device["held"]], [0xf])
        self.assertIn("16 units, 28 partitions", daemon.log())  # single units would make 60

    def test_the_command_line_overrides_the_file(self):
        daemon = self.configured('policy.name = "random"\n', "--policy", "static:units=0-1",
                                 "--set", "daemon.clients=1")
        self.hold(daemon)
        self.assertEqual(daemon.status()["devices"][0]["policy"], "static:units=0-1")
        output, _ = self.member(daemon, "work", 1).communicate(timeout=time_limit(10))
        self.assertIn("as many clients as it may have", output)

    def test_an_invalid_file_is_refused_at_the_start_with_every_problem(self):
        daemon = self.configured('policy.nam = "x"\npool.leaf_units = 0\n')
        self.assertEqual(daemon.process.wait(time_limit(10)), 1)
        for line in ("vitamin.toml:1:8: unknown key 'policy.nam'; did you mean 'name'? [VIT-111]",
                     "vitamin.toml:2:19: 'pool.leaf_units' must be"):
            self.assertIn(line, daemon.log())

    def test_a_file_that_is_no_toml_is_refused_with_one_line_that_names_the_mistake(self):
        for number, (text, said) in enumerate((
                ("[policy]\nname = fifo\n", "vitamin.toml:2:9: no valid TOML: this is no value; a "
                 'text is written in quotes, as in name = "fifo"'),
                ('[policy]\nname = "fifo\n', "vitamin.toml:2:13: no valid TOML: the quote that "
                 "ends this text is missing"),
                ("[policy\n", "vitamin.toml:1:8: no valid TOML: table header: expected ']'")), 1):
            daemon = self.configured(text)
            self.assertEqual(daemon.process.wait(time_limit(10)), 1)
            self.assertIn(said, daemon.log())
            self.assertEqual(daemon.log().count("\n"), number)  # all of its log

    def test_a_class_bounds_its_clients_and_no_others(self):
        daemon = self.configured('policy.name = "throughput"\n[[class]]\nname = "small"\n'
                                 'share = 25\n[[class]]\nname = "named"\ncommand = "other"\n')
        # The second class is never chosen: the first one has no condition.
        self.assertEqual(daemon.process.wait(time_limit(10)), 1)
        self.assertIn("never reached", daemon.log())
        daemon = self.configured('policy.name = "throughput"\n[[class]]\nname = "small"\n'
                                 'command = "no-such-program"\nshare = 25\n')
        member = self.hold(daemon, "small")
        self.assertEqual([c["class"] for c in daemon.status()["clients"]], ["small"])
        self.assertLessEqual(self.held(daemon)[0]["processors"], 33)
        member.kill()
        self.until(lambda: not daemon.status()["clients"])
        self.hold(daemon)
        self.assertGreater(self.held(daemon)[0]["processors"], 33)

    def test_a_client_that_came_before_its_claim_was_told_gets_all_of_it(self):
        """As after a restart of vitamind: clients come back at once, claims are told again."""
        daemon = self.configured('policy.name = "slo"\n[[class]]\nname = "service"\n'
                                 'command = "no-such-program"\nkind = "latency"\n'
                                 'latency = "20ms"\nweight = 3\n')
        member = self.member(daemon, "hold", environment={"MEMBER_JOB": "uid.0"})
        self.assertIn("entry", member.stdout.readline())

        def terms():
            client, = daemon.status()["clients"]
            return (client["job"], client["class"], client["weight"],
                    [one["share"] for one in client["shares"]], client["bounds"]["latency_ns"])
        self.assertEqual(terms(), ("", "", 1, [], 0))
        device = daemon.status()["devices"][0]["uuid"]
        self.assertNotIn("error", daemon.ask(f"claim-begin uid.0 - 25 service - {device}"))
        self.assertEqual(terms(), ("uid.0", "service", 3, [25], 20_000_000))

    def test_a_latency_class_is_served_first_when_it_has_work(self):
        daemon = self.configured('[policy]\nname = "tpot-first"\n'
                                 '[[class]]\nname = "latency"\ncommand = "no-such-program"\n'
                                 'kind = "latency"\n'
                                 '[[class]]\nname = "batch"\ncommand = "nothing"\n'
                                 'kind = "batch"\n', "--answer-within", "3600")
        batch = self.member(daemon, "work", 0, environment={"MEMBER_CLASS": "batch"})
        self.until(lambda: daemon.status()["devices"] and self.held(daemon))
        service = self.member(daemon, "serve", 1, environment={"MEMBER_CLASS": "latency"})
        self.until(lambda: len(daemon.status()["clients"]) == 2)
        first, second = (client["client"] for client in daemon.status()["clients"])

        def submit():
            return {hold["client"] for hold in self.held(daemon) if hold["open"]}

        def say():
            service.stdin.write("x")
            service.stdin.flush()
        requests = 10
        for _ in range(requests):
            say()  # a request begins: the batch stops
            self.until(lambda: submit() == {second})
            self.assertIn("began", service.stdout.readline())
            say()  # it ends: the batch goes on
            self.until(lambda: submit() == {first})
        served = self.result(service)
        status = daemon.status()["devices"][0]
        done, _ = batch.communicate("", timeout=time_limit(20))
        done = json.loads(done)
        self.assertEqual(served["requests"], requests)
        self.assertGreaterEqual(served["operations"], requests)
        self.assertEqual((served["at_home"], done["at_home"]), (0, 0))
        # It requests once after each pause, not for each operation. On a busy machine a pause
        # within a request may look like its end, and its gate is closed.
        self.assertGreaterEqual(status["gates_closed"], 2 * requests)
        self.assertLessEqual(served["granted"], status["gates_closed"] + 1)
        self.assertGreaterEqual(done["submitted"], requests)
        # How many grants are revoked or returned late depends on the machine's speed.
        self.assertEqual(status["overlaps"], 0)

    def test_settings_without_effect_are_logged_and_the_rest_is_used(self):
        daemon = self.configured('policy.name = "fifo"\n[[class]]\nname = "wide"\n'
                                 'kind = "latency"\ntpot = "30ms"\nreservation = 512\n')
        self.assertIn("the policy 'fifo' keeps no latency bounds: 'tpot' of the class 'wide'",
                      daemon.log())
        self.hold(daemon)
        self.assertIn("the class 'wide' reserves 512 SMs for each client", daemon.log())

    def test_a_bound_that_is_missed_alone_is_refused_and_for_the_next_client_at_once(self):
        daemon = self.configured('[policy]\nname = "slo"\n'
                                 '[[class]]\nname = "hasty"\ncommand = "no-such"\n'
                                 'kind = "latency"\nlatency = "20us"\npercentile = 90\n')
        batch = self.member(daemon, "work", 0)
        self.until(lambda: daemon.status()["devices"] and self.held(daemon))

        def bound_of(client):
            for bound in daemon.status()["devices"][0]["bounds"]:
                if bound["client"] == client:
                    return bound
            return {"refused": False, "finished": 0}

        def serve_until(service, client, what):
            """Serves requests until what() is true; a plan may miss a very short request."""
            until = time.monotonic() + time_limit(60)
            while not what():
                self.assertLess(time.monotonic(), until, bound_of(client))
                for word in "xx":  # a request begins, and ends
                    service.stdin.write(word)
                    service.stdin.flush()
                    time.sleep(0.01)

        def said(client):
            return [line for line in daemon.log().splitlines()
                    if f"client {client} (member, class 'hasty'): latency = 20us is refused: alone "
                       "it takes" in line and "at the 90th percentile" in line
                    and "Set latency to" in line and line.endswith("[VIT-406]")]
        service = self.member(daemon, "serve", environment={"MEMBER_CLASS": "hasty"})
        serve_until(service, 2, lambda: bound_of(2)["refused"])
        self.assertEqual(bound_of(2)["of"], "latency")
        self.assertGreater(bound_of(2)["alone_ns"], 20_000)
        serve_until(service, 2, lambda: said(2))
        self.result(service)
        # The time that the program takes alone is known by now.
        again = self.member(daemon, "serve", environment={"MEMBER_CLASS": "hasty"})
        serve_until(again, 3, lambda: bound_of(3)["finished"] > 0)
        self.assertTrue(bound_of(3)["refused"])
        serve_until(again, 3, lambda: said(3))
        self.result(again)
        self.assertEqual(len(said(2)), 1)  # once
        self.result(batch)

    def test_bounds_and_weight_of_a_class_are_in_the_status(self):
        daemon = self.configured('[policy]\nname = "slo"\n'
                                 '[[class]]\nname = "serving"\ncommand = "no-such"\n'
                                 'kind = "latency"\nttft = "300ms"\ntpot = "30ms"\nweight = 4\n',
                                 "--set", "class.serving.tpot=40ms")
        self.hold(daemon, "serving")
        client, = daemon.status()["clients"]
        self.assertEqual(client["weight"], 4)
        self.assertEqual(client["bounds"],
                         {"ttft_ns": 300_000_000, "tpot_ns": 40_000_000, "latency_ns": 40_000_000,
                          "step_ns": 0, "as_alone": False, "percentile": 99})

    def test_a_claimed_class_of_another_user_is_ignored(self):
        daemon = self.configured('policy.name = "throughput"\n[[class]]\nname = "root"\n'
                                 'user = "no-such-user"\nshare = 5\n')
        self.hold(daemon, "root")
        self.assertEqual(daemon.status()["clients"][0]["class"], "")
        self.assertIn("which is not for that user", daemon.log())
        self.hold(daemon, "no-such")
        self.assertIn("which is not configured", daemon.log())

    def test_a_reservation_holds_while_its_client_has_nothing_to_run(self):
        # A starving stream would get reserved units.
        daemon = self.configured('policy.name = "random"\npolicy.starving_after = "1h"\n'
                                 '[[class]]\nname = "kept"\n'
                                 'command = "kept"\nkind = "latency"\nreservation = 66\n')
        self.member(daemon, "serve", environment={"MEMBER_CLASS": "kept"})
        self.until(lambda: daemon.status()["clients"])
        launches = 400
        others = [self.member(daemon, "work", 0) for _ in range(2)]
        looks = 0

        def worked_for_long():
            """Until then none ends: of a number of launches both may be done before a look."""
            nonlocal looks
            status = daemon.status()
            self.check_disjoint(status)
            units = 0
            for hold in status["devices"][0]["held"]:
                if hold["client"] != 1:
                    units |= hold["units"]
                    self.assertFalse(hold["whole"])
            # The others never get more than half of the device.
            self.assertLessEqual(bin(units).count("1"), 8)
            looks += units != 0
            work = [client["usage"]["operations"] for client in status["clients"]
                    if client["client"] != 1]
            return looks >= 20 and len(work) == 2 and min(work) >= launches
        self.until(worked_for_long, 60)
        for other in others:
            self.assertGreaterEqual(self.result(other)["submitted"], launches)

    def others_hold(self, daemon):
        """How many units the clients but the first one hold."""
        units = 0
        for hold in self.held(daemon):
            if hold["client"] != 1:
                units |= 0xffff if hold["whole"] else hold["units"]
        return bin(units).count("1")

    def test_a_reservation_does_not_hold_while_its_client_is_parked(self):
        daemon = self.configured('policy.name = "random"\n[[class]]\nname = "kept"\n'
                                 'command = "kept"\nkind = "latency"\nreservation = 66\n')
        keeper = self.member(daemon, "serve", environment={"MEMBER_CLASS": "kept"})
        self.until(lambda: daemon.status()["clients"])
        self.member(daemon, "work", 0)
        self.until(lambda: len(daemon.status()["clients"]) == 2)
        self.assertEqual(daemon.ask(f"park-begin {keeper.pid}"), {"schema": 1, "clients": 1})
        self.until(lambda: self.others_hold(daemon) > 8, 60)
        keeper_status, = (c for c in daemon.status()["clients"] if c["process"] == keeper.pid)
        self.assertIs(keeper_status["parked"], True)
        self.assertEqual(keeper_status["processors_reserved"], 66)  # its class's, for later
        self.reload(daemon, 'policy.name = "random"\n[[class]]\nname = "kept"\n'
                            'command = "kept"\nkind = "latency"\nreservation = 66\nweight = 2\n')
        self.until(lambda: daemon.log().count("was read again") == 1)
        self.until(lambda: self.others_hold(daemon) > 8, 60)  # nor after a reload
        self.assertEqual(daemon.ask(f"park-end {keeper.pid}"), {"schema": 1, "clients": 1})
        self.until(lambda: self.others_hold(daemon) <= 8, 60)
        for _ in range(50):
            self.assertLessEqual(self.others_hold(daemon), 8)

    def test_only_its_user_says_that_a_client_is_parked(self):
        if os.getuid() != 0:
            self.skipTest("needs another user")
        daemon = self.configured("", "--system")
        keeper = self.hold(daemon)
        os.chmod(self.directory.name, 0o755)
        os.chmod(daemon.socket, 0o666)
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                said = daemon.ask(f"park-begin {keeper.pid}")
                os.write(tells, json.dumps(said).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(tells)
        with open(told, encoding="ascii") as answer:
            self.assertIn("only that process's user", json.load(answer)["error"])
        self.assertIs(daemon.status()["clients"][0]["parked"], False)
        for wrong in ("park-begin", "park-begin x", "park-begin -1", "park-begin 1 2", "park-now 1",
                      f"park-begin {1 << 40}"):
            self.assertIn("error", daemon.ask(wrong))
        self.assertEqual(daemon.ask("park-begin 1"), {"schema": 1, "clients": 0})

    def test_a_valid_file_applies_at_once_and_an_invalid_one_not_at_all(self):
        daemon = self.configured('policy.name = "static"\npolicy.parameters = { units = "0-3" }\n')
        self.hold(daemon)
        self.assertTrue(daemon.status()["configuration"]["valid"])
        self.reload(daemon, 'policy.name = "random"\npolicy.quantun = "3ms"\n')
        self.until(lambda: not daemon.status()["configuration"]["valid"])
        self.assertIn("vitamin.toml:2:8: unknown key 'policy.quantun'; did you mean 'quantum'?",
                      daemon.status()["configuration"]["problem"])
        self.assertEqual(daemon.status()["devices"][0]["policy"], "static:units=0-3")
        self.assertIn("the former one stays in force", daemon.log())
        self.assertRegex(self.shown(daemon), r"configuration +\S+/vitamin\.toml, read .* ago\n"
                         r" +the reload .* ago failed.*\n +\S+vitamin\.toml:2:8: unknown key ")
        self.reload(daemon, 'policy.name = "static"\npolicy.parameters = { units = "8-9" }\n')
        self.until(lambda: daemon.status()["configuration"]["valid"])
        self.assertEqual(daemon.status()["devices"][0]["policy"], "static:units=8-9")
        self.assertNotIn("failed", self.shown(daemon))
        read = daemon.status()["configuration"]
        self.assertEqual(read["files"], [str(pathlib.Path(self.directory.name, "vitamin.toml"))])
        self.assertLess(read["since_read_ns"], daemon.status()["daemon"]["up_ns"])
        self.assertNotIn("since_problem_ns", read)
        self.assertEqual(self.result(self.member(daemon, "work", 100))["submitted"], 100)

    def test_a_reload_gives_clients_the_weight_and_bounds_of_their_class(self):
        def configuration(more):
            return ('policy.name = "slo"\n[[class]]\nname = "decodes"\ncommand = "none"\n'
                    + more)

        def bounds(daemon):
            shown = subprocess.run([os.environ["VITAMIN"], "explain", "--json", "--socket",
                                   str(daemon.socket)], text=True, capture_output=True,
                                  timeout=time_limit(20), check=True)
            client, = json.loads(shown.stdout)["devices"][0]["clients"]
            told = [(b["of"], b["bound_ms"], b["percentile"]) for b in client["bounds"]]
            return client["limits"]["weight"], told

        daemon = self.configured(configuration('kind = "latency"\ntpot = "30ms"\n'))
        self.hold(daemon, "decodes")
        self.assertEqual(bounds(daemon), (1, [("tpot", 30, 99)]))
        for more, expected in (
                ('kind = "latency"\ntpot = "8ms"\npercentile = 75\nweight = 2\n',
                 (2, [("tpot", 8, 75)])),
                ('kind = "latency"\nttft = "500ms"\n', (1, [("ttft", 500, 99)])),
                ("", (1, []))):
            self.reload(daemon, configuration(more))
            self.until(lambda: bounds(daemon) == expected)
        # Without its class a client keeps what it had.
        self.reload(daemon, configuration('kind = "latency"\ntpot = "9ms"\n'))
        self.until(lambda: bounds(daemon) == (1, [("tpot", 9, 99)]))
        self.reload(daemon, 'policy.name = "slo"\n')
        self.until(lambda: daemon.log().count("was read again") == 5)
        self.assertEqual(bounds(daemon), (1, [("tpot", 9, 99)]))

    def test_a_client_stays_in_its_class_when_a_reload_has_others_match_its_program(self):
        def configuration(first, second):
            return ('policy.name = "slo"\n[[class]]\nname = "first"\nkind = "latency"\n'
                    f'{first}share = 75\n[[class]]\nname = "second"\n{second}share = 25\n')

        def terms(daemon):
            client, = daemon.status()["clients"]
            return (client["class"], client["bounds"]["tpot_ns"],
                    [one["share"] for one in client["shares"]])

        daemon = self.configured(configuration('command = "*member*"\ntpot = "30ms"\n',
                                               'command = "none"\n'))
        self.hold(daemon)
        self.assertEqual(terms(daemon), ("first", 30_000_000, [75]))
        self.reload(daemon, configuration('command = "none"\ntpot = "8ms"\n',
                                          'command = "*member*"\n'))
        self.until(lambda: daemon.log().count("was read again") == 1)
        self.assertEqual(terms(daemon), ("first", 8_000_000, [75]))

    def test_a_reload_during_the_start_is_done_after_it(self):
        pipe = pathlib.Path(self.directory.name, "vitamin.toml")
        os.mkfifo(pipe)
        daemon = self.daemon("--config", str(pipe), start=False)

        def write(text):
            opened = []

            def open_for_a_reader():
                try:
                    opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENXIO)
                return opened
            self.until(open_for_a_reader)
            os.write(opened[0], text.encode())
            os.close(opened[0])
        daemon.start(wait=False)
        # It must not read its configuration before it is written.
        self.until(lambda: signal_is_expected(daemon.process.pid, signal.SIGHUP))
        daemon.process.send_signal(signal.SIGHUP)
        write('policy.name = "random"\n')
        self.until(daemon.socket.exists)
        write('policy.name = "static"\n')
        self.until(lambda: answers(daemon.socket))
        self.hold(daemon)
        self.assertRegex(daemon.status()["devices"][0]["policy"], "^static")

    def test_failure_lost_chooses_where_clients_without_a_daemon_run(self):
        daemon = self.configured('policy.name = "random"\nfailure.lost = "whole"\n')
        member = self.member(daemon, "latency")
        member.stdout.readline()
        self.assertIn("fallback partition 0, shared", daemon.log())
        daemon.kill()
        member.communicate("", timeout=time_limit(10))
        self.assertEqual(member.returncode, 0)


if __name__ == "__main__":
    unittest.main()
