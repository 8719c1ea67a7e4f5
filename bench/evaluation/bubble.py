# SPDX-License-Identifier: Apache-2.0
"""A program that does nothing but move memory, and says how much: what others are squeezed by.

Lines of JSON: {"at": seconds of the monotonic clock, "gb": since the line before}.
"""

import json
import sys
import time

import torch


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    small = device.type != "cuda"
    a = torch.zeros((1 << 20) if small else (1 << 27), dtype=torch.float32, device=device)
    b = torch.empty_like(a)
    torch.set_num_threads(1)
    print(json.dumps({"at": time.monotonic(), "gb": 0}), flush=True)
    while True:
        for _ in range(8):
            torch.add(a, 1, out=b)
        if not small:
            torch.cuda.synchronize()
        print(json.dumps({"at": time.monotonic(), "gb": 8 * 2 * 4 * a.numel() / 1e9}), flush=True)


if __name__ == "__main__":
    main()
