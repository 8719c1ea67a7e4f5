# SPDX-License-Identifier: Apache-2.0
"""Programs that replay graphs, bare and under the preloaded library, over the software driver: what
they print must be equal, and the page must say where their graphs ran.

Environment: see programs_test.py.
"""
import os
import subprocess
import tempfile
import unittest
import unittest.mock

import doors_test
import programs_test

COUNTERS = ("launched", "bound", "narrow", "moved", "made", "updated", "evicted")


def graphs_of(directory):
    """The counters of graphs, and {reason: launches on the whole device}, of all processes."""
    text = subprocess.run([str(doors_test.PROGRAMS / "pages"), directory], capture_output=True,
                          text=True, check=True).stdout
    sums, reasons = dict.fromkeys(COUNTERS, 0), {}
    for line in text.splitlines():
        if not line.startswith("  graphs:"):
            continue
        words = line.split()[1:]
        for name, word in zip(COUNTERS, words):
            sums[name] += int(word)
        for word in words[len(COUNTERS):]:
            reason, count = word.split("=")
            reasons[reason] = reasons.get(reason, 0) + int(count)
    return sums, reasons


NODES_CANNOT_BE_SET = "cuGraphKernelNodeSetParams@1+=1;cuGraphKernelNodeSetParams_v2@1+=1"
SLOWLY_MADE = "cuGraphInstantiateWithFlags@1+=3ms"
CHANGES = ("code_loaded_anew", "changed_before_every_launch", "captured_between_launches",
           "update_then_set", "updated_each", "updated_to_other_kernels", "disabled_then_updated",
           "refused_then_updated", "ends_within_a_capture", "edited_while_it_runs",
           "updated_by_another_thread", "thousands_of_graphs")

# What is made off the path is there after a pause, of the scenario: a short one on an idle machine.
PAUSES_MS = (2, 10, 50, 250)


class Graphs(unittest.TestCase):
    def run_one(self, scenario, policy="random", form="legacy", window="max", memory=None,
                audit=None, pause=PAUSES_MS[0], code=0):
        program = "graph_changes" if scenario in CHANGES else "graph_scenarios"
        bare = programs_test.start(program, scenario, preload=False, form=form)
        self.assertEqual(bare.returncode, code, bare)
        changed = {"VITAMIN_GRAPH_MEMORY": memory, "VITAMIN_AUDIT": audit, "PAUSE_MS": str(pause)}
        os.environ.update({k: v for k, v in changed.items() if v is not None})
        try:
            with tempfile.TemporaryDirectory() as directory:
                done = programs_test.start(program, scenario, policy=policy, form=form,
                                           window=window, run_directory=directory)
                sums, reasons = graphs_of(directory)
        finally:
            for name in changed:
                os.environ.pop(name, None)
        where = (scenario, policy, form, window, memory)
        self.assertEqual((done.returncode, done.stdout), (code, bare.stdout),
                         (where, done.stderr))
        self.assertEqual(done.stderr, "", where)
        self.assertEqual(sums["launched"], sums["bound"] + sum(reasons.values()), where)
        return sums, reasons

    def moves(self, scenario, enough=lambda sums, reasons: sums["bound"] > 0, **how):
        """Right however long the scenario pauses; after a pause long enough, `enough` holds."""
        for pause in PAUSES_MS:
            sums, reasons = self.run_one(scenario, pause=pause, **how)
            if enough(sums, reasons):
                return sums, reasons
        self.fail((scenario, how, sums, reasons))

    def test_captured_graphs_follow_the_context_that_launches_their_kernels(self):
        for scenario in ("replays_of_functions", "replays_of_kernels"):
            for form in programs_test.FORMS:
                self.moves(scenario, form=form, enough=lambda sums, reasons: sums["moved"] > 100
                           and sum(reasons.values()) < sums["launched"] // 2)

    def test_thousands_of_replays_run_on_the_parts_that_the_policy_says(self):
        sums, reasons = self.moves(
            "thousands_of_replays", policy="static:units=2-3",
            enough=lambda sums, reasons: sums["bound"] > 0.95 * sums["launched"])
        self.assertEqual(sums["made"], 2)  # two graphs, one part
        sums, reasons = self.run_one("thousands_of_replays", policy="fifo")
        self.assertEqual((sums["bound"], sums["made"]), (0, 0))
        self.assertGreater(reasons["policy"], 0.9 * sums["launched"])

    def test_launches_that_wait_for_their_turn_follow_as_well(self):
        for window in ("0", "8000"):
            self.moves("replays_of_kernels", window=window)

    def test_an_executable_never_runs_beside_itself(self):
        for form in programs_test.FORMS:
            self.moves("one_graph_in_many_streams", form=form)

    def test_updates_reach_the_executables_for_parts(self):
        _, reasons = self.moves("updates", policy="static:units=2-3",
                                enough=lambda sums, reasons: sums["updated"] > 0)
        self.assertGreater(reasons["unfollowed"], 0)  # after the one that the driver refused
        self.run_one("updates")

    def test_nodes_keep_their_names_when_an_executable_is_updated(self):
        for policy in ("static:units=2-3", "random"):
            sums, reasons = self.run_one("update_then_set", policy=policy)
            # Two kernels side by side that are alike: which is meant is not known after an update.
            self.assertEqual(reasons["unfollowed"], 2 * 3 * 10, (policy, sums, reasons))
        self.moves("update_then_set", policy="static:units=2-3",
                   enough=lambda sums, reasons: sums["bound"] > 0.5 * sums["launched"])

    def test_graphs_that_are_updated_before_every_launch_follow(self):
        for policy in ("static:units=2-3", "random"):
            sums, reasons = self.run_one("updated_each", policy=policy)
            elsewhere = sums["launched"] - sums["bound"] - reasons.get("policy", 0)
            self.assertLess(elsewhere, 0.05 * sums["launched"], (policy, sums, reasons))
            self.assertGreater(sums["updated"], 150, (policy, sums))
            # Of other kernels an executable would have to be made again each time.
            _, reasons = self.run_one("updated_to_other_kernels", policy=policy)
            self.assertGreater(reasons["fresh"], 150, (policy, reasons))
        sums, _ = self.run_one("updated_each", policy="fifo")
        self.assertEqual((sums["bound"], sums["made"]), (0, 0))

    def test_disabled_nodes_stay_disabled_when_an_executable_is_updated(self):
        for policy in ("static:units=2-3", "random"):
            self.run_one("disabled_then_updated", policy=policy)

    def test_an_update_that_is_accepted_ends_what_one_that_was_refused_began(self):
        for policy in ("static:units=2-3", "random"):
            sums, reasons = self.run_one("refused_then_updated", policy=policy)
            self.assertNotIn("unfollowed", reasons)
        self.moves("refused_then_updated", policy="static:units=2-3",
                   enough=lambda sums, reasons: sums["bound"] > 0.95 * sums["launched"])

    def test_changes_of_single_nodes_reach_the_executables_for_parts(self):
        self.moves("node_updates", policy="static:units=2-3",
                   enough=lambda sums, reasons: sums["updated"] > 0)
        self.run_one("node_updates")

    def test_graphs_that_change_before_every_launch_follow(self):
        for policy in ("static:units=2-3", "random"):
            sums, reasons = self.run_one("changed_before_every_launch", policy=policy)
            # Where a policy grants the whole device they are there.
            elsewhere = sums["launched"] - sums["bound"] - reasons.get("policy", 0)
            self.assertLess(elsewhere, 0.05 * sums["launched"], (policy, sums, reasons))
            self.assertNotIn("unfollowed", reasons)
            self.assertGreater(sums["updated"], 300, (policy, sums))

    def test_graphs_that_no_part_is_used_for_are_not_changed_twice(self):
        # Nodes of an executable are set by other calls: these would be ours.
        with unittest.mock.patch.dict(os.environ, VITAMIN_SOFT_FAULTS=NODES_CANNOT_BE_SET):
            sums, reasons = self.run_one("changed_before_every_launch", policy="fifo")
            self.assertEqual(reasons, {"policy": sums["launched"]})
            _, reasons = self.run_one("changed_before_every_launch", policy="static:units=2-3")
            self.assertGreater(sum(reasons.values()), 300, reasons)

    def test_captures_do_not_send_launches_ahead_of_them_to_the_whole_device(self):
        for policy in ("static:units=2-3", "random"):
            sums, reasons = self.run_one("captured_between_launches", policy=policy)
            elsewhere = sums["launched"] - sums["bound"] - reasons.get("policy", 0)
            self.assertLess(elsewhere, 0.05 * sums["launched"], (policy, sums, reasons))

    def test_changes_concern_later_launches_only(self):
        for policy in ("static:units=2-3", "random"):
            self.run_one("changes_behind_a_gate", policy=policy)

    def test_an_executable_is_destroyed_while_it_runs(self):
        self.moves("destroyed_in_flight", policy="static:units=2-3")

    def test_no_executable_is_made_of_code_that_is_gone(self):
        # What is made takes longer than the launches behind which the code goes.
        with unittest.mock.patch.dict(os.environ, VITAMIN_SOFT_FAULTS=SLOWLY_MADE):
            self.moves("code_that_goes")

    def test_executables_go_on_with_code_that_was_loaded_anew(self):
        for policy in ("random", "static:units=2-3", "fifo"):
            sums, reasons = self.run_one("code_loaded_anew", policy=policy)
            self.assertNotIn("unfollowed", reasons)
            self.assertNotIn("refused", reasons)
            self.assertEqual(sums["bound"] > 60, policy != "fifo", (policy, sums, reasons))

    def test_graphs_inside_graphs_follow(self):
        self.moves("built_by_hand")

    def test_host_functions_and_events_stay_and_are_counted(self):
        sums, reasons = self.run_one("nodes_that_stay")
        self.assertEqual((sums["bound"], reasons), (0, {"nodes": 40}))

    def test_cooperative_grids_and_clusters_go_where_they_fit(self):
        self.run_one("wide_nodes")
        # What does not fit into the policy's part goes to the narrowest one that it fits.
        sums, reasons = self.run_one("wide_nodes", policy="static:units=0-0")
        self.assertEqual((sums["bound"], reasons), (sums["launched"], {}))
        self.assertGreater(sums["made"], 1)

    def test_threads_replay_on_their_own_default_streams(self):
        self.moves("graphs_of_threads")

    def test_no_wait_for_the_context_meets_a_capture_of_ours(self):
        self.moves("waits_for_the_context", policy="static:units=2-3")

    def test_a_device_is_reset_under_graphs(self):
        self.moves("reset_device", policy="static:units=2-3")

    def test_a_process_leaves_while_executables_are_made(self):
        for _ in range(5):
            self.run_one("leaves_at_once", policy="static:units=2-3")

    def test_forked_children_leave_a_parents_graphs_alone_and_have_their_own(self):
        for policy in ("random", "static:units=2-3"):
            sums, _ = self.moves("forks_around_replays", policy=policy)
            self.assertEqual(sums["launched"], 800)  # of the parent, and of the first child

    def test_memory_for_one_executable_is_kept_to(self):
        # 9 nodes: 16 KiB and 2 KiB each, by the least that an executable is believed to take.
        sums, _ = self.moves("replays_of_kernels", memory="40000",
                             enough=lambda sums, reasons: sums["evicted"] > 0)
        # One fits at a time, and each of the two graphs takes its last along when it is destroyed.
        self.assertIn(sums["made"] - sums["evicted"], (0, 1, 2), sums)
        sums, reasons = self.run_one("replays_of_kernels", memory="1000")
        self.assertEqual(sums["bound"], 0)
        self.assertGreater(reasons["memory"], 0)
        sums, reasons = self.run_one("replays_of_kernels", memory="0")
        self.assertEqual((sums["bound"], set(reasons)), (0, {"unsupported"}))

    def test_a_program_that_ends_within_a_capture_ends_as_natively(self):
        for policy in ("static:units=2-3", "random"):
            sums, _ = self.run_one("ends_within_a_capture", policy=policy, code=7)
            self.assertLessEqual(sums["launched"], 40)  # exit() makes none of what is deferred

    def test_a_graph_is_edited_while_it_runs(self):
        for policy in ("static:units=2-3", "random"):
            for window in ("max", "0"):
                _, reasons = self.run_one("edited_while_it_runs", policy=policy, window=window)
                self.assertNotIn("unfollowed", reasons)

    def test_an_executable_is_updated_by_another_thread(self):
        for policy in ("static:units=2-3", "random"):
            _, reasons = self.run_one("updated_by_another_thread", policy=policy)
            self.assertNotIn("unfollowed", reasons)

    def test_thousands_of_graphs_keep_to_the_memory_that_they_may_have(self):
        sums, reasons = self.run_one("thousands_of_graphs", policy="static:units=2-3")
        self.assertEqual((sums["launched"], sums["made"]), (2400, 1200), (sums, reasons))
        self.assertGreater(sums["bound"], 0.95 * sums["launched"], reasons)
        # 3 nodes: 16 KiB and 2 KiB each, at the least.
        sums, _ = self.run_one("thousands_of_graphs", memory="2200000")
        self.assertGreater(sums["evicted"], 1000, sums)

    def test_the_audit_finds_the_same_graphs_everywhere(self):
        with tempfile.TemporaryDirectory() as directory:
            for scenario in ("replays_of_functions", "node_updates", "updates", "built_by_hand",
                             "changed_before_every_launch", "update_then_set", "updated_each",
                             "refused_then_updated"):
                self.moves(scenario, policy="static:units=2-3", audit=directory)
            changed = launches = 0
            for name in os.listdir(directory):
                with open(os.path.join(directory, name), "rb") as log:
                    count, records = records_of(log.read())
                self.assertEqual(count, len(records))
                launches += sum(kind == KIND_GRAPH for kind, _ in records)
                changed += sum(flags & 3 for kind, flags in records)
            self.assertGreater(launches, 500)
            self.assertEqual(changed, 0)


KIND_NAME, KIND_GRAPH = 5, 6


def records_of(data):
    """How many records a log says it has, and (kind, flags) of all; a name's text is no record."""
    count = int.from_bytes(data[24:32], "little")
    records, at = [], 0
    total = count
    while at < count:
        record = data[64 + 48 * at:64 + 48 * (at + 1)]
        word = [int.from_bytes(record[i:i + 4], "little") for i in range(0, 16, 4)]
        at += 1
        if word[0] == KIND_NAME:
            text = -(-word[2] // 48)
            at += text
            total -= text
        records.append((word[0], word[3]))
    return total, records


if __name__ == "__main__":
    unittest.main()
