# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch as people write them: training, compilation, graphs, ranks, libraries.

Data are drawn from fixed seeds. Where a compiler chooses kernels by time (`max-autotune`), values
are small integers, so that every order of summation gives the same bits.
"""

import contextlib
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

import steps


def sync(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def tell_tensors(name, tensors):
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8).cpu() for t in tensors]
    steps.tell_hash(name, torch.cat(flat).numpy())


def deterministic():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A transformer of 8 layers, small enough that the host decides its speed."""

    def __init__(self, layers=8, width=256, heads=4, vocabulary=1024):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def training(options, wrap=lambda model: model, steps_a_batch=10):
    """Trains the model; hashes of the loss and of the weights."""
    deterministic()
    device = torch.device(options.device)
    model = wrap(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    data = torch.randint(0, 1024, (8, 4, 65), generator=draw).to(device)

    if options.device == "cpu":
        steps_a_batch = 1

    def step(i):
        for j in range(steps_a_batch):
            batch = data[(i * steps_a_batch + j) % len(data)]
            optimizer.zero_grad(set_to_none=True)
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        sync(device)
        return loss

    loss = steps.Batches(options).run(step)
    tell_tensors("loss", [loss])
    tell_tensors("weights", [getattr(p, "full_tensor", lambda p=p: p)()
                             for p in model.parameters()])


def eager_training(options):
    training(options)


def compiled_training(options):
    training(options, torch.compile)


def max_autotune(options):
    """Integer values: exact in bfloat16 products with sums in float32, whatever kernel is taken."""
    deterministic()
    device = torch.device(options.device)
    draw = torch.Generator().manual_seed(2)
    integers = lambda *shape: torch.randint(-2, 3, shape, generator=draw).to(
        device, torch.bfloat16)
    weights = [integers(512, 512) for _ in range(3)]

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def network(x):
        for w in weights:
            x = (x @ w).clamp(-2, 2)
        return x

    x = integers(256, 512)

    def step(_):
        for _ in range(20):
            y = network(x)
        sync(device)
        return y

    tell_tensors("output", [steps.Batches(options).run(step)])


def cudagraph_trees(options):
    """torch.compile(mode="reduce-overhead"): graphs that PyTorch records and replays."""
    deterministic()
    device = torch.device(options.device)
    model = Model().to(device).eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    draw = torch.Generator().manual_seed(3)
    inputs = [torch.randint(0, 1024, (2, n), generator=draw).to(device) for n in (16, 32)]

    @torch.no_grad()
    def step(_):
        for _ in range(10):
            answers = []
            for tokens in inputs:
                torch.compiler.cudagraph_mark_step_begin()
                answers.append(compiled(tokens).clone())
        sync(device)
        return answers

    tell_tensors("logits", steps.Batches(options).run(step))


def graphs_by_hand(options):
    """torch.cuda.CUDAGraph: one replayed often, and ones that are launched once."""
    deterministic()
    if options.device != "cuda":
        steps.cannot("CUDA graphs need a GPU")
    model = Model().cuda().eval()
    tokens = torch.randint(0, 1024, (2, 32), generator=torch.Generator().manual_seed(4)).cuda()
    with torch.no_grad():
        model(tokens)
        torch.cuda.synchronize()
        often = torch.cuda.CUDAGraph()
        with torch.cuda.graph(often):
            answer = model(tokens)

    @torch.no_grad()
    def step(i):
        for j in range(10):
            tokens.copy_(tokens.roll(1, 1))
            often.replay()
        once = torch.cuda.CUDAGraph()
        with torch.cuda.graph(once):
            doubled = answer * 2 + i
        once.replay()
        torch.cuda.synchronize()
        return [answer.clone(), doubled.clone()]

    tell_tensors("logits", steps.Batches(options).run(step))


@contextlib.contextmanager
def one_rank(options):
    """A process group of one rank, by NCCL on a GPU."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    backend = "nccl" if options.device == "cuda" else "gloo"
    if not torch.distributed.is_backend_available(backend):
        steps.cannot(f"this PyTorch has no {backend}")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def ddp(options):
    with one_rank(options):
        training(options, nn.parallel.DistributedDataParallel)


def fsdp2(options):
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        steps.cannot(f"PyTorch {torch.__version__} has no fully_shard")

    def shard(model):
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if options.device == "cpu":
        steps.cannot("fully_shard needs the streams of a GPU")
    with one_rank(options):
        training(options, shard)


def nccl_all_reduce(options):
    deterministic()
    device = torch.device(options.device)
    with one_rank(options):
        draw = torch.Generator().manual_seed(5)
        tensors = [torch.randn(1 << n, generator=draw).to(device) for n in (10, 16, 22)]

        def step(_):
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)
                torch.distributed.broadcast(tensor, 0)
            gathered = [torch.empty_like(tensors[0])]
            torch.distributed.all_gather(gathered, tensors[0])
            sync(device)
            return [*tensors, *gathered]
        tell_tensors("reduced", steps.Batches(options).run(step))


def libraries(options):
    """cuFFT, cuSOLVER and cuSPARSE as PyTorch calls them."""
    deterministic()
    device = torch.device(options.device)
    draw = torch.Generator().manual_seed(6)
    signal = torch.randn(64, 4096, generator=draw).to(device)
    square = torch.randn(200, 200, generator=draw, dtype=torch.float64).to(device)
    positive = square @ square.T + 200 * torch.eye(200, dtype=torch.float64, device=device)
    # Integers: sums of any order are exact.
    sparse = (torch.randint(-3, 4, (1000, 1000), generator=draw)
              * (torch.rand(1000, 1000, generator=draw) < 0.02)).float().to(device).to_sparse_csr()
    dense = torch.randint(-3, 4, (1000, 64), generator=draw).float().to(device)

    def step(_):
        spectrum = torch.view_as_real(torch.fft.rfft(signal))
        q, r = torch.linalg.qr(square)
        results = [spectrum, q, r, torch.linalg.cholesky(positive),
                   torch.linalg.solve(positive, square), torch.linalg.eigvalsh(positive),
                   sparse @ dense]
        sync(device)
        return results
    names = ("fft", "qr: q", "qr: r", "cholesky", "solve", "eigenvalues", "sparse product")
    for name, tensor in zip(names, steps.Batches(options).run(step)):
        tell_tensors(name, [tensor])


PROGRAMS = {"eager-training": eager_training, "compiled-training": compiled_training,
            "max-autotune": max_autotune, "cudagraph-trees": cudagraph_trees,
            "graphs-by-hand": graphs_by_hand, "ddp": ddp, "fsdp2": fsdp2,
            "nccl-all-reduce": nccl_all_reduce, "libraries": libraries}


if __name__ == "__main__":
    chosen = steps.options(PROGRAMS, __doc__.splitlines()[0])
    if chosen.device == "cuda" and not torch.cuda.is_available():
        steps.cannot("PyTorch sees no GPU")
    PROGRAMS[chosen.program](chosen)
