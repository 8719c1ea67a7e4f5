# SPDX-License-Identifier: Apache-2.0
"""What the launch of a graph of 50 small kernels costs the host, and that of a kernel beside it.

    graph_launches.py         natively, or behind `vitamin run --policy P --`

Medians of 60 rounds of 10 graph launches and 100 kernel launches, each behind a synchronisation, so
that no queue is full. `host` is a fixed loop of the interpreter: compare runs of one host speed.
"""
import statistics
import time

import torch

ROUNDS, GRAPHS, KERNELS = 60, 10, 100


def host_speed():
    began = time.perf_counter()
    total = 0
    for number in range(20_000):
        total += number
    return time.perf_counter() - began


def timed(call, count):
    began = time.perf_counter()
    for _ in range(count):
        call()
    took = (time.perf_counter() - began) / count
    torch.cuda.synchronize()
    return took


def main():
    values = torch.randn(256, 256, device="cuda")

    def kernel():
        values.add_(1e-9)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            kernel()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            kernel()
    for _ in range(30):
        timed(graph.replay, 1)
    graphs, kernels, host = [], [], []
    for _ in range(ROUNDS):
        host.append(host_speed())
        graphs.append(timed(graph.replay, GRAPHS))
        kernels.append(timed(kernel, KERNELS))
    print(f"graph {1e6 * statistics.median(graphs):.2f} us, "
          f"launch {1e6 * statistics.median(kernels):.2f} us, "
          f"host {1e3 * statistics.median(host):.2f} ms")


if __name__ == "__main__":
    main()
