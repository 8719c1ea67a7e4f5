#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that is spread over several GPUs; prints a hash of its state after every step.

    ranks.py KIND --rank R --world W --store FILE --gpu I --steps N [--timed M] [--seed S]

KIND   ddp       data-parallel training: gradients are averaged by all-reduce
       fsdp      weights in shards (FSDP2): all-gather and reduce-scatter around each block
       tensor    each product cut over the ranks (tensor parallelism): all-reduce in each layer
       exchange  products between all-to-all, a ring of sends and receives, and all-reduce

The model is small_model.py's, ordinary PyTorch that knows nothing of Vitamin. `--gpu`: index among
the GPUs that this process sees; the first line names the one that it is (its UUID).
"""
import argparse
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import small_model
import workloads


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Training(small_model.Trainer):
    """Of a model that a kind of parallelism spreads."""

    def __init__(self, options, seed):
        self.kind, self.rank = options.kind, options.rank
        self.fused = options.kind != "tensor"  # only part of its weights is cut
        # Ranks that hold parts of one model see the same data.
        options.data_seed = 1000 * seed + (0 if options.kind == "tensor" else options.rank)
        super().__init__(options, seed)

    def spread(self, model):
        world, device = dist.get_world_size(), self.device
        if self.kind == "ddp":
            return torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[device.index] if device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh(device.type, (world,))
        if self.kind == "fsdp":
            from torch.distributed.fsdp import fully_shard
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                       parallelize_module)
        for block in model.blocks:
            block.heads //= world  # of this rank
            parallelize_module(block, mesh, {
                "qkv": ColwiseParallel(), "out": RowwiseParallel(),
                "up": ColwiseParallel(), "down": RowwiseParallel()})
        return model

    def state(self, loss):
        return [*map(local, self.parameters), loss]


class Exchange:
    """Products whose operands travel between the ranks in every way."""

    SIZE, STEPS = {"tiny": 64, "small": 2048, "large": 4096}, 4

    def __init__(self, options, seed):
        self.device, self.rank, self.world = options.device, options.rank, options.world
        size = self.SIZE[options.size] // self.world * self.world
        draw = torch.Generator().manual_seed(1000 * seed + self.rank)
        make = lambda: torch.randn(size, size, generator=draw).mul_(size ** -0.5).to(
            self.device, torch.bfloat16)
        self.x, self.weights = make().mul_(8), [make() for _ in range(self.STEPS)]
        self.taken = torch.empty_like(self.x)
        self.digest = workloads.Digest(self.device)

    def step(self):
        x = self.x
        for weight in self.weights:
            dist.all_to_all_single(self.taken, x.contiguous())
            x = F.silu(self.taken @ weight)
            sent = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, x, (self.rank + 1) % self.world),
                dist.P2POp(dist.irecv, self.taken, (self.rank - 1) % self.world)])
            for each in sent:
                each.wait()
            x = x + self.taken
            dist.all_reduce(x)
            x = F.rms_norm(x, x.shape[-1:])
        self.x = x
        return x.float().mean()

    timed = small_model.Trainer.timed
    hash = small_model.Trainer.hash

    def state(self, loss):
        return [self.x, loss]


def join(options):
    """Becomes a rank of the job."""
    cuda = options.device.type == "cuda"
    if cuda:
        torch.cuda.set_device(options.gpu)
        options.device = torch.device("cuda", options.gpu)
        small_model.tell({"gpu": str(torch.cuda.get_device_properties(options.gpu).uuid)})
    time.sleep(options.late)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{options.store}",
                            rank=options.rank, world_size=options.world,
                            **({"device_id": options.device} if cuda else {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["ddp", "fsdp", "tensor", "exchange"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--store", type=pathlib.Path, required=True, help="a file of the job's own")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--late", type=float, default=0, help="seconds until it joins the others")
    parser.add_argument("--go", default=None, help="begin when the file DIRECTORY/SEED exists")
    parser.add_argument("--blocks", action="store_true",
                        help="then timed steps as the files DIRECTORY/SEED.0, .1, ... say")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timed", type=int, default=0, help="then so many steps, timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=small_model.SIZES, default="large")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    workloads.flags("raise")
    join(options)
    make = Exchange if options.kind == "exchange" else Training
    small_model.train(options, options.seed, options.steps, lambda: False, make)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
