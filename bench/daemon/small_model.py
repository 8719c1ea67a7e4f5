# SPDX-License-Identifier: Apache-2.0
"""A small deterministic training job that prints a hash of its state after every step.

    small_model.py --steps N | --until-told [--seed S]       one process
    small_model.py --nursery                                 processes to be killed

A decoder in ordinary PyTorch, which knows nothing of Vitamin. `--until-told` trains
until its standard input is closed. A nursery has PyTorch loaded and forks a trainer for each line
that it reads, `SEED`; a trainer is ready when it says so, and begins when a file of that name
(`--go DIRECTORY`, DIRECTORY/SEED) appears, so that starting takes no time when it must not.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import select
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import workloads  # noqa: E402

# hidden, layers, heads, vocabulary, sequences, tokens of each
SIZES = {"tiny": (64, 2, 4, 256, 2, 16), "small": (1024, 4, 16, 8192, 4, 512),
         "large": (1536, 12, 16, 8192, 4, 1024)}


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x):
        batch, length, hidden = x.shape
        normal = F.rms_norm(x, (hidden,))
        q, k, v = self.qkv(normal).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(F.rms_norm(x, (hidden,)))))


class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        hidden, layers, heads, vocabulary, *_ = sizes
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(F.rms_norm(x, x.shape[-1:]))


class Trainer:
    fused = True  # the optimizer updates all parameters at once

    def __init__(self, options, seed):
        self.device = options.device
        cuda = self.device.type == "cuda"
        sizes = SIZES[options.size]
        torch.manual_seed(seed)
        with torch.device(self.device):
            model = Model(sizes).to(torch.bfloat16)
        self.model = self.spread(model)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=1e-4, fused=self.fused and cuda,
            foreach=None if self.fused else False)
        draw = torch.Generator().manual_seed(getattr(options, "data_seed", 1000 * seed))
        self.data = [torch.randint(0, sizes[3], (sizes[4], sizes[5] + 1), generator=draw).to(
            self.device) for _ in range(4)]
        self.attention = "flash or math" if cuda else "math"
        self.digest = workloads.Digest(self.device)
        self.count = 0

    def spread(self, model):
        """The model as it is trained (ranks.py spreads it over several GPUs)."""
        return model

    def state(self, loss):
        """What a hash is of."""
        return [*self.parameters, loss]

    def step(self):
        batch = self.data[self.count % len(self.data)]
        self.count += 1
        self.optimizer.zero_grad(set_to_none=True)
        with workloads.attention(self.attention):
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
            loss.backward()
        self.optimizer.step()
        return loss

    def timed(self, steps):
        """Ends of steps, of which at most two are queued."""
        ends, last = [], None
        for _ in range(steps):
            self.step()
            if self.device.type != "cuda":
                ends.append(time.monotonic())
                continue
            mark = torch.cuda.Event()
            mark.record()
            if last is not None:
                last.synchronize()
                ends.append(time.monotonic())
            last = mark
        return ends

    def hash(self, loss):
        each = self.digest.each(self.state(loss))
        return hashlib.sha256(each.numpy().tobytes()).hexdigest()[:32]


def tell(record):
    """One write: several processes share this output."""
    os.write(1, (json.dumps(record) + "\n").encode())


def closed():
    """Whether standard input has ended."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def train(options, seed, steps, until, make=Trainer):
    trainer = make(options, seed)
    loss = trainer.step()  # libraries are loaded and memory is taken
    tell({"seed": seed, "process": os.getpid(), "ready": time.monotonic()})
    while options.go and not (pathlib.Path(options.go) / str(seed)).exists():
        time.sleep(0.002)
    tell({"name": "before", "hash": trainer.hash(loss), "seed": seed, "at": time.monotonic()})
    i = 0
    while (steps is None or i < steps) and not until():
        loss = trainer.step()
        tell({"name": f"step {i}", "hash": trainer.hash(loss), "seed": seed,
              "at": time.monotonic()})
        i += 1
    if options.timed:
        ends = trainer.timed(options.timed)
        tell({"seed": seed, "ends": [round(t, 6) for t in ends]})
        tell({"name": f"after {options.timed} more", "hash": trainer.hash(trainer.step()),
              "seed": seed})
    if getattr(options, "blocks", False):
        blocks(trainer, pathlib.Path(options.go), seed)


def blocks(trainer, directory, seed):
    """Block I: as many steps as the file DIRECTORY/SEED.I says, timed; 0 ends it."""
    for i in itertools.count():
        asked = directory / f"{seed}.{i}"
        while not asked.exists():
            time.sleep(0.002)
        steps = int(asked.read_text())
        if steps == 0:
            return
        tell({"seed": seed, "block": i, "ends": [round(t, 6) for t in trainer.timed(steps)]})
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()


def nursery(options):
    children = []
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            devnull = os.open(os.devnull, os.O_RDONLY)
            os.dup2(devnull, 0)
            try:
                train(options, int(line), None, lambda: False)
            finally:
                os._exit(1)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--until-told", action="store_true")
    parser.add_argument("--nursery", action="store_true")
    parser.add_argument("--go", default=None, help="begin when the file DIRECTORY/SEED exists")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timed", type=int, default=0, help="then so many steps, timed")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    workloads.flags("raise")
    if options.nursery:
        return nursery(options)
    train(options, options.seed, options.steps, closed if options.until_told else lambda: False)


if __name__ == "__main__":
    main()
