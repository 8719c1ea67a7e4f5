# SPDX-License-Identifier: Apache-2.0
"""What calls cost a PyTorch program that waits for its host: the worker of bench/call_costs.py.

    call_costs.py [--green SMS]

Answers each line of its input with the microseconds of each kind of call, a median of blocks. The
work is so small that the host decides. With --green a green context of so many SMs is current, made
by the program itself: the native counterpart of a launch that Vitamin binds to a part.
"""

import argparse
import pathlib
import statistics
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation")]

import harness  # noqa: E402

BLOCKS, GRAPH_KERNELS = 40, 50


class Calls:
    """The kinds of call, by name: (what is timed, calls in it)."""

    def __init__(self, torch):
        self.torch = torch
        device = torch.device("cuda")
        self.x = torch.randn(256, 256, device=device)
        self.w = torch.randn(256, 256, device=device)
        self.device_words = torch.zeros(64, dtype=torch.int64, device=device)
        self.host_words = torch.empty(64, dtype=torch.int64)
        self.pinned_words = torch.empty(64, dtype=torch.int64, pin_memory=True)
        self.event, self.side = torch.cuda.Event(), torch.cuda.Stream()
        self.graph = self.capture()

    def capture(self):
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            self.kernels(3)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self.kernels(GRAPH_KERNELS)
        return graph

    def kernels(self, count):
        for _ in range(count):
            self.x.add_(1e-9)

    def wait(self):
        self.torch.cuda.current_stream().synchronize()

    def up(self):
        self.device_words.copy_(self.pinned_words, non_blocking=True)

    def down(self):
        self.pinned_words.copy_(self.device_words, non_blocking=True)

    def mixed(self):
        """A copy behind every kernel."""
        for _ in range(20):
            self.kernels(1)
            self.up()
        self.wait()

    def across(self):
        self.event.record()
        self.side.wait_event(self.event)
        with self.torch.cuda.stream(self.side):
            self.down()

    def step(self, work):
        for _ in range(5):
            self.up()
        work()
        return self.device_words.tolist()

    def graphs(self, count):
        for _ in range(count):
            self.graph.replay()

    def table(self):
        k, launch_100 = self.kernels, lambda: self.kernels(100)
        return {
            "launch, 100 in a row": (launch_100, 100),
            "launch and wait for the stream": (lambda: (k(1), self.wait()), 1),
            "launch, record, wait for the event":
                (lambda: (k(1), self.event.record(), self.event.synchronize()), 1),
            "matrix product (cuBLAS)": (lambda: self.torch.mm(self.x, self.w), 1),
            "copy to the device, pinned": (self.up, 1),
            "copy to the device, pageable": (lambda: self.device_words.copy_(self.host_words), 1),
            "copy from the device and wait": (lambda: (self.down(), self.wait()), 1),
            "`item()`": (lambda: self.device_words[0].item(), 1),
            "memory set": (self.device_words.zero_, 1),
            "record an event": (self.event.record, 1),
            "query an event": (self.event.query, 1),
            "copy on a second stream behind an event": (self.across, 1),
            "20 kernels, a copy behind each, and wait": (self.mixed, 1),
            "graph of 50 kernels, 10 in a row": (lambda: self.graphs(10), 10),
            "graph of 50 kernels and wait": (lambda: (self.graphs(1), self.wait()), 1),
            "step: 5 copies, 100 kernels, `tolist()`": (lambda: self.step(launch_100), 1),
            "step: 5 copies, a graph of 50 kernels, `tolist()`":
                (lambda: self.step(self.graph.replay), 1),
        }

    def measure(self):
        found = {}
        for name, (call, inner) in self.table().items():
            for _ in range(5):
                call()
            self.torch.cuda.synchronize()
            times = []
            for _ in range(BLOCKS):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
                if inner > 1 or len(times) % 10 == 0:
                    self.torch.cuda.synchronize()  # no queue is ever full
            self.torch.cuda.synchronize()
            found[name] = round(1e6 * statistics.median(times) / inner, 3)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--green", type=int, default=0, metavar="SMS")
    options = parser.parse_args()
    answer = harness.answers_by_lines()
    try:
        import torch
        green = None
        if options.green:
            import hashed_training
            torch.zeros(1, device="cuda")
            green = hashed_training.GreenContext(options.green)
        calls = Calls(torch)
        calls.measure()  # first use of everything
        answer({"ready": True, "part": green and green.processors})
        for _ in sys.stdin:
            answer({"us": calls.measure()})
    except Exception as error:  # the harness prints it
        answer({"error": f"{type(error).__name__}: {str(error).strip()[:300]}"})
        raise


if __name__ == "__main__":
    main()
