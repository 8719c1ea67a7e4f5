# SPDX-License-Identifier: Apache-2.0
"""Memory that one process allocated and another one opened by its handle, over the software driver:
the first is charged to its quota.

Environment: see programs_test.py.
"""
import tempfile
import unittest

import memory_test
from memory_test import INVALID, MIB, NO_MEMORY, OK, QUOTA
from time_limit import time_limit


class SharedWithPeers(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def program(self, quota=QUOTA, run=True, **options):
        program = memory_test.Program(quota, self.directory if run else None,
                                      VITAMIN_SOFT_LEDGER=self.directory + "/device", **options)
        self.addCleanup(program.__exit__)
        return program

    def share(self, owner, peer, name="a"):
        """What the peer's open answers; the owner has `name` already."""
        status, *handle = owner.ask(f"ipc export {name}")
        self.assertEqual(status, OK)
        return peer.ask(f"ipc open {name} {' '.join(map(str, handle))}")

    def test_one_who_opens_it_is_charged_nothing_and_sees_the_same_bytes(self):
        owner, peer = self.program(), self.program()
        self.assertEqual(owner.ask(f"ipc take a {40 * MIB}"), OK)
        self.assertEqual(owner.ask("ipc write a 7"), OK)
        for _ in range(2):  # the second time it is counted, not mapped again
            self.assertEqual(self.share(owner, peer), OK)
            self.assertEqual(peer.ask("info"), [OK, 24 * MIB, QUOTA])
        self.assertEqual(peer.ask("ipc read a"), 7)
        self.assertEqual(peer.ask("ipc write a 9"), OK)
        self.assertEqual(owner.ask("ipc read a"), 9)
        self.assertEqual(memory_test.Ledger(self.directory).used(), 40 * MIB)
        self.assertEqual(peer.ask(f"take cuMemAlloc {40 * MIB} b"), NO_MEMORY)
        for _ in range(2):
            self.assertEqual(peer.ask("ipc close a"), OK)
        self.assertEqual(peer.ask("ipc close a"), INVALID)
        self.assertEqual(memory_test.Ledger(self.directory).used(), 40 * MIB)
        self.assertEqual(owner.ask("ipc read a"), 9)
        self.assertEqual(owner.ask("ipc free a"), OK)
        self.assertEqual(peer.free(), QUOTA)

    def test_a_peer_with_a_quota_of_its_own_has_all_of_it_beside_what_it_opened(self):
        owner, peer = self.program(quota=None, run=False), self.program()
        self.assertEqual(owner.ask(f"ipc take a {2 * QUOTA}"), OK)
        self.assertEqual(self.share(owner, peer), OK)
        self.assertEqual(peer.free(), QUOTA)
        self.assertEqual(peer.ask(f"take cuMemAlloc {QUOTA} b"), OK)
        self.assertEqual(peer.ask("ipc close a"), OK)
        self.assertEqual(peer.free(), 0)

    def test_a_free_of_what_another_process_owns_gives_nothing_back(self):
        owner, peer = self.program(), self.program()
        self.assertEqual(owner.ask(f"ipc take a {40 * MIB}"), OK)
        self.assertEqual(self.share(owner, peer), OK)
        self.assertEqual(peer.ask("ipc free a"), INVALID)
        self.assertEqual(peer.free(), 24 * MIB)
        self.assertEqual(peer.ask("ipc read a"), owner.ask("ipc read a"))

    def test_what_the_end_of_its_owner_gives_back_the_peer_keeps_mapped(self):
        owner, peer = self.program(), self.program()
        self.assertEqual(owner.ask(f"ipc take a {40 * MIB}"), OK)
        self.assertEqual(owner.ask("ipc write a 7"), OK)
        self.assertEqual(self.share(owner, peer), OK)
        owner.send("kill")
        owner.process.wait(timeout=time_limit(60))
        self.assertEqual(peer.free(), QUOTA)
        self.assertEqual(peer.ask("ipc read a"), 7)
        self.assertEqual(peer.ask("ipc close a"), OK)
        self.assertEqual(peer.ask(f"take cuMemAlloc {QUOTA} b"), OK)

    def test_a_peer_that_is_killed_costs_the_owner_nothing(self):
        owner, peer = self.program(), self.program()
        self.assertEqual(owner.ask(f"ipc take a {40 * MIB}"), OK)
        self.assertEqual(self.share(owner, peer), OK)
        peer.send("kill")
        peer.process.wait(timeout=time_limit(60))
        self.assertEqual(owner.free(), 24 * MIB)
        self.assertEqual(owner.ask("ipc free a"), OK)
        self.assertEqual(owner.free(), QUOTA)


if __name__ == "__main__":
    unittest.main()
