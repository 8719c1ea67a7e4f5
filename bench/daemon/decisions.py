# SPDX-License-Identifier: Apache-2.0
"""Reads the decisions of a vitamind from its trace (`vitamind --trace`, runtime/trace/file.h).

Times are nanoseconds of CLOCK_MONOTONIC, as passed to the arbiter, so time.monotonic_ns() of any
process of the machine can be compared with them.
"""
import collections
import pathlib
import struct

HEADER, RECORD = 4096, 64
RECORDS, DROPPED, PROCESSORS, UNITS, PER_UNIT, ENTRIES_MAX = 64, 72, 96, 100, 104, 360
ATTACH, REQUEST, DYING, FORGET, STEP, WORD, GRANT = 8, 9, 10, 11, 12, 13, 14
RETURNED = 3  # daemon/protocol/record.h
CLOSED = 2    # daemon/protocol/segment.h, Gate

Event = collections.namedtuple("Event", "ns kind client lane entry word")


def entries(units, per_unit, leaf=1):
    """The units of each entry of the pool, as runtime/pool/layout.cpp numbers them; 0 is the whole
    device."""
    nodes = []

    def add(first, count):
        nodes.append(((1 << count) - 1) << first)
        if count <= leaf:
            return
        left = max(leaf, (1 << (count - 1).bit_length()) // 2)
        add(first, left)
        add(first + left, count - left)

    everything = (1 << units) - 1
    if units > 1:
        add(0, units)
    sets = list(dict.fromkeys(s for s in [*nodes, *(everything & ~n for n in nodes)] if s))
    width = lambda s: sum(p for i, p in enumerate(per_unit) if s >> i & 1)
    return [everything, *sorted(sets, key=width)]


class Decisions:
    """One device's trace: `events` in order, `units` of each entry."""

    def __init__(self, directory):
        path, = pathlib.Path(directory).glob("daemon.*.trace")
        raw = path.read_bytes()
        word = lambda at, form: struct.unpack_from(form, raw, at)[0]
        self.dropped = word(DROPPED, "<Q")
        count = word(UNITS, "<I")
        per_unit = struct.unpack_from(f"<{count}I", raw, PER_UNIT)
        self.units = entries(count, per_unit, word(ENTRIES_MAX + 4, "<I"))
        self.processors = [sum(p for i, p in enumerate(per_unit) if s >> i & 1)
                           for s in self.units]
        self.events = []
        now, at, told = 0, HEADER, 0
        while at + RECORD <= len(raw):
            time, kind, entry, lane, client, _, _, a, b = struct.unpack_from("<QHHIIIQQQ", raw, at)
            at += RECORD
            now = time or now
            told = kind if kind in (ATTACH, REQUEST, DYING, FORGET, STEP) else told
            if kind == REQUEST:
                head, lane, held, entry = struct.unpack_from("<B3xIQI", raw, at)
                at += RECORD
                if head == RETURNED:
                    self.events.append(Event(now, "returned", client, lane, entry, held))
            elif kind == WORD:
                # In a step the scheduler revokes the grant; otherwise its holder has returned it.
                name = ("closed" if told == STEP else "left") if a & 0xff == CLOSED else "word"
                self.events.append(Event(now, name, client, lane, 0, a))
            elif kind == GRANT:
                self.events.append(Event(now, "grant", client, lane, entry, b))
            elif kind in (ATTACH, DYING, FORGET):
                name = {ATTACH: "attach", DYING: "dying", FORGET: "forget"}[kind]
                self.events.append(Event(now, name, client, 0, 0, 0))
            elif kind == 1:  # a name's text lies behind it
                at += -(-struct.unpack_from("<Q", raw, at - RECORD + 24)[0] // RECORD) * RECORD

    def closures(self):
        """For each closed gate of a lane's grant: time, client, units, time of return, and time and
        client of the first grant to another client that has any of those units. Only for policies
        without shared grants, which wait for no other grant."""
        held, open_, found = {}, [], []
        for e in self.events:
            if e.kind == "grant":
                held[e.client, e.lane] = e
                for c in [c for c in open_ if c["units"] & self.units[e.entry]]:
                    open_.remove(c)
                    if c["client"] != e.client:  # else the same client got the units again
                        found.append({**c, "granted": e.ns, "to": e.client})
            elif e.kind == "closed" and (e.client, e.lane) in held:
                grant = held[e.client, e.lane]
                open_.append({"closed": e.ns, "client": e.client, "lane": e.lane,
                              "units": self.units[grant.entry], "returned": None,
                              "since": grant.ns})
            elif e.kind == "returned":
                for c in open_:
                    if (c["client"], c["lane"]) == (e.client, e.lane) and c["returned"] is None:
                        c["returned"] = e.ns
        return found

    def reuse(self):
        """For each client that ended: when its gates closed, when it was removed, which units it
        held then, and when other clients had been granted all of those (None: never)."""
        held, gone = collections.defaultdict(dict), {}
        for e in self.events:
            if e.kind == "grant":
                held[e.client][e.lane, e.entry] = e.word
                for g in gone.values():
                    if g["forget"] and g["left"] and e.client != g["client"] and e.entry:
                        g["left"] &= ~self.units[e.entry]
                        g["again"] = g["again"] or e.ns
                        if not g["left"]:
                            g["all_again"] = e.ns
            elif e.kind == "returned":
                held[e.client].pop((e.lane, e.entry), None)
            elif e.kind == "dying" or (e.kind == "forget" and e.client not in gone):
                units = 0
                for _, entry in held[e.client]:
                    units |= self.units[entry] if entry else 0
                gone[e.client] = {"client": e.client, "dying": e.ns,
                                  "forget": e.ns if e.kind == "forget" else None,
                                  "units": units, "left": units, "again": None,
                                  "all_again": None}
            elif e.kind == "forget":
                gone[e.client]["forget"] = e.ns
        return list(gone.values())
