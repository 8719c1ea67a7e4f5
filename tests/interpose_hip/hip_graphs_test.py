# SPDX-License-Identifier: Apache-2.0
"""Graphs of HIP programs under `vitamin run`: one without branches runs on the part that was
granted, any other stays on the whole device, and the report says why.

Needs in the environment: VITAMIN, SOURCE, CXX, RUNTIME and what software_amd.py says.
"""
import os
import pathlib
import sys
import unittest

from hip_programs import Programs, launches

sys.path.insert(0, str(pathlib.Path(os.environ["SOURCE"]) / "bench/determinism"))
import audit_log  # noqa: E402


class Graphs(Programs):
    POLICIES = (("static",), ("random", "--seed", "1"), ("random", "--seed", "2"))

    def check(self, check, *policy, **settings):
        """The output is the native one. Returns the report's counts of graphs, and the trace."""
        native = self.native("graphs", check)
        self.assertEqual((native.returncode, "WRONG" in native.stdout), (0, False),
                         native.stdout + native.stderr)
        ran = []

        def run(*command, **more):
            options = ("--policy", *(policy or ("static",)))
            ran.append(self.shared(*command, options=options, **more))
        trace = self.trace(run, "graphs", check, **settings)
        ((result, report),) = ran
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        return report["totals"]["graphs"], trace

    def widths(self, trace, kernel):
        return {line["cus"] for line in launches(trace) if kernel in line["kernel"]}

    def check_bound(self, check, count, kernels_each):
        """All kernels of the launches that are said to be on a part ran on one, and those of the
        others on the whole device. Returns the widths that were seen, and how many launches
        moved. `kernels_each`: how many of these a launch has."""
        widths, moved = set(), 0
        for policy in self.POLICIES:
            graphs, trace = self.check_until_bound(check, *policy)
            whole = graphs["whole_device"]
            self.assertLessEqual(set(whole), {"policy", "no_queue"}, (policy, whole))
            self.assertEqual(graphs["bound"] + sum(whole.values()), count, graphs)
            self.assertEqual((graphs["made"], graphs["held_bytes"]), (0, 0), graphs)
            for names, each in kernels_each.items():
                ran = [line["cus"] for line in launches(trace)
                       if any(name in line["kernel"] for name in names)]
                self.assertEqual(len(ran), each * count, names)
                self.assertEqual(ran.count("104"), each * sum(whole.values()), names)
                widths |= set(ran)
            moved += graphs["moved"]
        return widths, moved

    def check_until_bound(self, check, *policy):
        """As check(), with some launch on a part."""
        return self.until(lambda found: found[0]["bound"] > 0, lambda: self.check(check, *policy))

    def check_stays(self, check, count, reason, kernel, width="104", **settings):
        graphs, trace = self.check(check, **settings)
        self.assertEqual((graphs["bound"], graphs["whole_device"]), (0, {reason: count}), graphs)
        self.assertIn(width, self.widths(trace, kernel))

    def test_chains_run_on_parts_in_the_order_of_their_streams(self):
        widths, moved = set(), []

        def run():
            seen, more = self.check_bound("chains", 40, {("chain_step",): 3})
            widths.update(seen)
            moved.append(more)
            return widths, moved
        self.until(lambda _: len(widths) > 2 and sum(moved) > 0, run)

    def test_graphs_inside_a_chain_and_its_fills_run_on_its_part(self):
        self.check_bound("nested", 10, {("chain_step",): 4, ("fillBuffer",): 1})

    def test_chains_that_are_changed_between_launches_do_what_they_do_natively(self):
        self.check_bound("changes", 30, {("chain_step", "other_step"): 1, ("fillBuffer",): 1})

    def test_two_launches_of_one_chain_run_at_the_same_time_as_natively(self):
        graphs, _ = self.check_until_bound("beside_itself")
        self.assertEqual(sum(graphs["whole_device"].values()) + graphs["bound"], 2, graphs)

    def test_a_graph_with_branches_stays_on_the_whole_device_and_says_so(self):
        self.check_stays("branches", 10, "branches", "branch_step")

    def test_a_graph_with_copies_stays_on_the_whole_device_and_says_so(self):
        self.check_stays("copies", 10, "nodes", "branch_step")

    def test_a_chain_on_a_mask_of_the_programs_own_keeps_it(self):
        self.check_stays("own_mask", 10, "confined", "branch_step", width="24")

    def test_chains_stay_where_graphs_may_have_no_memory(self):
        self.check_stays("nested", 10, "unsupported", "chain_step", VITAMIN_GRAPH_MEMORY="0")

    def test_chains_stay_on_a_runtime_whose_graphs_were_not_verified(self):
        source = self.directory / "newer.c"
        # Nodes have other numbers since 5.3.
        source.write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
int hipRuntimeGetVersion(int* v) { *v = 50330000; return 0; }
int hipGraphNodeGetType(void* node, int* type) {
  int (*real)(void*, int*) = (int (*)(void*, int*))dlsym(RTLD_NEXT, "hipGraphNodeGetType");
  int status = real(node, type);
  --*type;
  return status;
}
""")
        self.check_stays("nested", 10, "unsupported", "chain_step",
                         LD_LIBRARY_PATH=str(self.runtime_with(source)))

    def test_the_audit_finds_chains_unchanged_on_every_part(self):
        widths = set()
        self.until(lambda _: len(widths) > 2, lambda: widths.update(self.audited_widths()))

    def audited_widths(self):
        widths = set()
        for check, count in (("chains", 40), ("changes", 30)):
            for policy in self.POLICIES:
                audit = self.new_file("audit")
                audit.mkdir()
                self.check(check, *policy, VITAMIN_AUDIT=str(audit))
                (log,) = audit_log.read_directory(audit)
                graphs = [operation for operation in log if operation.kind == audit_log.GRAPH]
                wrong = audit_log.CHANGED | audit_log.UNCOVERED
                self.assertEqual([o for o in log if o.flags & wrong], [])
                self.assertEqual(len(graphs), count)
                widths |= {operation.processors for operation in graphs}
        return widths


if __name__ == "__main__":
    unittest.main()
