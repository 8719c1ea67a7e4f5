# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about faults that isolation domains contain."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation")]

from comparisons import middle  # noqa: E402
from results_kept import met  # noqa: E402

NAME = "daemon/fault_matrix.jsonl"
FAULTS = ("an illegal address, a trap, a hang that its user ends, a process that stays after the "
          "fault")


def fault_rows(files):
    """What bench/daemon/fault_matrix.py measured."""
    records = files.records(NAME, lambda r: r.get("part") in ("fault", "cost"))
    faults = [r for r in records if r["part"] == "fault"]
    for isolation, whom in (("shared", "every client, as under one MPS"),
                            ("class", "clients of the same class only"),
                            ("exclusive", "the faulting process only")):
        of = [r for r in faults if r["isolation"] == isolation]
        lives = {who: sum(r[who]["survived"] for r in of) for who in ("same", "other")}
        bits = all(r[who]["equal"] for r in of for who in ("same", "other"))
        wanted = {"shared": (0, 0), "class": (0, len(of)), "exclusive": (len(of), len(of))}
        again = [r["accepts_again_s"] for r in of if r["accepts_again_s"] is not None]
        waits = len(of) - len(again)
        yield [f"`isolation = \"{isolation}\"`: {FAULTS}", f"it ends the work of {whom}",
               f"of {len(of)} faults {lives['same']} clients of the same class and "
               f"{lives['other']} of another one lived, every step's result "
               f"{'equal' if bits else 'NOT equal'}; new clients of the class computed after "
               f"{min(again):.1f} to {max(again):.1f} s" +
               (f", in {waits} case only after the end of the process that stayed"
                if waits else ""),
               met(bits and (lives["same"], lives["other"]) == wanted[isolation]),
               files.cite(NAME)]
    costs = [r for r in records if r["part"] == "cost"]
    said = []
    for load, words in (("full", "fill the GPU"), ("half", "fill half of the SMs")):
        sums = {where: middle([sum(r["speeds"]) for r in costs
                               if (r["arrangement"], r["load"]) == (where, load)])
                for where in ("one domain", "two domains", "exclusive")}
        said.append(f"two clients that each {words}: " + ", ".join(
            f"{where} {value:.2f}" for where, value in sums.items()))
    yield ["what isolation costs: the sum of two clients' speeds, of their speeds alone",
           "reported", "; ".join(said), "–", files.cite(NAME)]
