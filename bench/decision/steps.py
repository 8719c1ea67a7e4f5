# SPDX-License-Identifier: Apache-2.0
"""What is done with a cell's processes: profile, noise, speeds, found, phases, service.

Each writes raw records only (blocks, runs, requests); decision_report.py makes tables of them.
"""

import random
import time

import arms
import harness
import paired
import session


class OutOfTime(Exception):
    pass


def allow(cell, seconds):
    harness.check_interruption()
    if session.now() - cell.begin + seconds > cell.options.budget:
        raise OutOfTime


def profile(cell, chosen):
    """How busy each job keeps the GPU alone: with u of each, two jobs get 2 / (u1 + u2) in sum if
    the GPU is never idle and no two kernels run at once. Kernels that leave SMs idle give more."""
    group = chosen[0].group
    cell.rest()
    for index, job in enumerate(cell.jobs[group]):
        allow(cell, 10)
        cell.add({"profile": index, **job.ask(session.PAUSE_TIMEOUT, do="profile")})


def noise(cell, chosen):
    """Long stretches of each arm in which all jobs run, forward and backward."""
    o = cell.options
    some = [a for a in chosen if a.only < 0 and a.name in (o.noise_arms or [a.name])]
    for repeat, order in enumerate((some, some[::-1])):
        for arm in order:
            allow(cell, o.stretch + 1)
            cell.block(arm, o.stretch, step="noise", round=repeat)
            cell.rest()
    cell.say(f"noise: {2 * len(some)} stretches of {o.stretch:g} s")


def speeds(cell, chosen):
    """Rounds of one block of every arm in random order, until every arm's objective relative to the
    first one's is known to --interval, or --rounds."""
    o, draw, blocks = cell.options, random.Random(cell.options.seed), []
    for arm in chosen:  # graphs of a partition are made when it is first used
        cell.block(arm, o.block, step="warm-up")
    for number in range(o.rounds):
        try:
            allow(cell, len(chosen) * (o.block + 0.1) + 1)
        except OutOfTime:
            cell.say(f"speeds: the budget ends them after {number} rounds")
            break
        order = list(chosen)
        draw.shuffle(order)
        for arm in order:
            blocks.append(cell.block(arm, o.block, step="speeds", round=number))
        cell.rest()
        if number + 1 >= o.least_rounds and (number + 1) % 4 == 0:
            worst = widest(cell, blocks, [a.name for a in chosen if a.only < 0])
            cell.say(f"speeds: {number + 1} rounds, widest interval "
                     + ("unknown" if worst is None else f"± {100 * worst:.2f} %"))
            if worst is not None and worst <= o.interval:
                break


def widest(cell, blocks, together):
    """The widest relative half of an interval: of the sum of each arm of `together` over that of
    the first one."""
    jobs = len(cell.specs)
    rounds = session.Rounds(cell.runs, blocks, jobs)
    table = rounds.table()
    alone = alone_speeds(table, jobs)
    if len(together) < 2 or not alone or len(alone[0]) < 2:
        return None
    base = table[together[0]]
    return max(paired.objective_ratio(table[n], base, alone, sum, resamples=400).half
               for n in together[1:])


def alone_speeds(table, jobs):
    """By job: its speeds alone, without Vitamin where there is one; None where one lacks."""
    found = []
    for i in range(jobs):
        names = [n for n in table if arms.arm(n, jobs).only == i]
        names.sort(key=lambda n: arms.arm(n, jobs).group == "ours")
        if not names:
            return None
        found.append(table[names[0]][i])
    return found


def found(cell, chosen):
    """How soon a policy finds its arrangement when a partner comes, and whether it keeps it:
    job 0 runs for a second, then the others begin. Policies: --policies."""
    o = cell.options
    policies = [arms.arm(f"ours:{name}", len(cell.specs)) for name in o.policies]
    for repeat in range(o.repeats):
        for arm in policies if "ours" in cell.jobs else ():
            allow(cell, o.found_seconds + 3)
            cell.rest()
            cell.use(arm, without=range(1, len(cell.specs)))
            time.sleep(1)
            cell.block(arm, o.found_seconds, step="found", round=repeat)
            cell.rest()
    cell.say(f"found: {o.repeats} times {o.found_seconds:g} s of {', '.join(o.policies)}")


def phases(cell, chosen, definition):
    """Active jobs change every --phase seconds; the whole phase counts, its beginning too."""
    o, draw = cell.options, random.Random(cell.options.seed)
    for number in range(o.phase_rounds):
        order = [a for a in chosen if a.only < 0]
        draw.shuffle(order)
        for arm in order:
            allow(cell, o.phase * len(definition.phases) + 2)
            for active in definition.phases:
                idle = set(range(len(cell.specs))) - set(active)
                switch = session.now()
                cell.use(arm, without=idle)
                begin = session.now()
                time.sleep(o.phase)
                cell.add({"phase": list(active), "arm": arm.name, "round": number,
                          "switch": round(switch, 6), "begin": round(begin, 6),
                          "end": round(session.now(), 6)})
            cell.rest()
    cell.say(f"phases: {o.phase_rounds} rounds of {len(definition.phases)} phases")


def bursts_of(draw, mean_service, load, count):
    """[gap, requests] of bursts: gaps as an open loop at this load has them; one to six requests
    behind each, so that queued requests are seen too."""
    found = []
    while sum(n for _, n in found) < count:
        size = min(6, 1 + int(draw.expovariate(1)))
        idle = draw.expovariate(1) * mean_service * size * (1 - load) / load
        found.append([round(idle, 6), size])
    return found


def service(cell, chosen):
    """Job 0 serves: requests in bursts under every arm by round, then live open loops; job 1 is
    its partner."""
    o, draw = cell.options, random.Random(cell.options.seed)
    alone = next(a for a in chosen if a.only == 0)
    cell.use(alone, without=(0,))
    job = lambda arm: cell.jobs[arm.group][0]
    first = job(alone).ask(session.PAUSE_TIMEOUT, do="measure", count=o.requests)
    mean = paired.mean(first["seconds"][2:])
    cell.add({"service_s": mean, "seconds": first["seconds"]})
    for number in range(o.rounds):
        order = [a for a in chosen if a.only in (-1, 0)]
        try:
            allow(cell, len(order) * o.requests * mean * 4)
        except OutOfTime:
            cell.say(f"service: the budget ends it after {number} rounds")
            break
        draw.shuffle(order)
        for arm in order:
            cell.use(arm, without=(0,))
            begin = session.now()
            answer = job(arm).ask(session.PAUSE_TIMEOUT, do="bursts",
                                  bursts=bursts_of(draw, mean, 0.5, o.requests))
            cell.add({"bursts": arm.name, "round": number, "begin": round(begin, 6),
                      "end": round(session.now(), 6), **answer})
        for arm in (a for a in chosen if a.only == 1):
            cell.block(arm, 4 * o.block, step="partner")
        cell.rest()
    for load in o.open_loads:
        live(cell, [a for a in chosen if a.only in (-1, 0)], mean, load)


def live(cell, chosen, mean, load):
    """An open loop of each arm: the same arrivals in all."""
    o = cell.options
    draw, at, arrivals = random.Random(o.seed + 1), 0.0, []
    while (at := at + draw.expovariate(load / mean)) < o.open_seconds:
        arrivals.append(round(at, 6))
    for arm in chosen:
        allow(cell, 1.5 * o.open_seconds)
        cell.use(arm, without=(0,))
        begin = session.now() + 0.2
        answer = cell.jobs[arm.group][0].ask(
            20 * o.open_seconds + session.PAUSE_TIMEOUT, do="open", at=begin, arrivals=arrivals)
        cell.add({"open": arm.name, "load": load, "service_s": mean, "begin": round(begin, 6),
                  "end": round(session.now(), 6), **answer})
        cell.rest()
    cell.say(f"live at load {load:g}: {len(arrivals)} requests in every arm")
