# SPDX-License-Identifier: Apache-2.0
"""The training workloads: ordinary PyTorch, random weights from fixed seeds, synthetic data.

make(NAME, device, tiny) gives an object whose step() is one training step, without waiting for it.
With `world` ranks it is data parallel, F8 fully sharded with its weights in host memory.
`tiny` is the same code with few numbers, for a machine without a GPU.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

import kernels

# hidden, inner, layers, heads, heads of k and v, tied; sequences and tokens of a step
QWEN = {
    "D0.6": (1024, 3072, 28, 16, 8, True, 4, 1024),
    "D1.7": (2048, 6144, 28, 16, 8, True, 4, 1024),
    "D0.6-big": (1024, 3072, 28, 16, 8, True, 16, 1024),
    "D1.7-big": (2048, 6144, 28, 16, 8, True, 16, 1024),
    "L4": (2560, 9728, 36, 32, 8, True, 2, 1024),
    "L8": (4096, 12288, 36, 32, 8, False, 2, 1024),
    "Q8": (4096, 12288, 36, 32, 8, False, 2, 1024),
    "F8": (4096, 12288, 36, 32, 8, False, 2, 1024),
}
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
RANK = 16


class Offload:
    """Frozen weights of 4 bits in pinned host memory, brought to the device one product ahead.

    `order` is that of the forward pass; the backward pass goes through it from the end.
    """

    AHEAD = 4

    def __init__(self, device):
        self.device, self.order, self.coming = device, [], {}
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None

    def add(self, linear):
        linear.index = len(self.order)
        self.order.append(linear)

    def _bring(self, index):
        if index in self.coming or not 0 <= index < len(self.order):
            return
        linear = self.order[index]
        if self.stream is None:
            self.coming[index] = (linear.packed, linear.scales, None)
            return
        with torch.cuda.stream(self.stream):
            packed = linear.packed.to(self.device, non_blocking=True)
            scales = linear.scales.to(self.device, non_blocking=True)
            self.coming[index] = (packed, scales, self.stream.record_event())

    def fetch(self, linear, direction):
        for step in range(self.AHEAD + 1):
            self._bring(linear.index + direction * step)
        packed, scales, arrived = self.coming.pop(linear.index)
        if arrived is not None:
            current = torch.cuda.current_stream()
            current.wait_event(arrived)
            packed.record_stream(current), scales.record_stream(current)
        return kernels.unpack(packed, scales, linear.shape)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, linear):
        context.linear = linear
        return F.linear(x, linear.offload.fetch(linear, 1))

    @staticmethod
    def backward(context, gradient):
        linear = context.linear
        return gradient @ linear.offload.fetch(linear, -1), None


class OffloadedLinear(nn.Module):
    """QLoRA: a frozen product whose weights live in host memory, and adapters of low rank."""

    def __init__(self, rows, columns, offload, adapted):
        super().__init__()
        self.offload, self.shape = offload, (rows, columns)
        count, pin = rows * columns, offload.device.type == "cuda"
        drawn = torch.randint(0, 256, (count // 2,), dtype=torch.uint8, device=offload.device)
        self.packed = torch.empty(count // 2, dtype=torch.uint8, pin_memory=pin).copy_(drawn)
        self.scales = torch.full((count // kernels.GROUP,), 0.2 / math.sqrt(columns),
                                 dtype=torch.bfloat16)
        if pin:
            self.scales = self.scales.pin_memory()
        offload.add(self)
        self.down = self.up = None
        if adapted:
            make = {"device": offload.device, "dtype": torch.bfloat16}
            self.down = nn.Parameter(torch.randn(RANK, columns, **make) / math.sqrt(columns))
            self.up = nn.Parameter(torch.zeros(rows, RANK, **make))

    def forward(self, x):
        y = _Product.apply(x, self)
        return y if self.up is None else y + F.linear(F.linear(x, self.down), self.up)


def states_first(optimizer):
    """Makes the optimizer's states before the first step, in memory that nothing else has used:
    made among activations they keep those from being given back between windows."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def data_parallel(model, device):
    """The model with its gradients averaged over the ranks."""
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True)


class Qwen:
    def __init__(self, name, device, tiny, world):
        from transformers import Qwen3Config, Qwen3ForCausalLM
        hidden, inner, layers, heads, kv, tied, batch, length = QWEN[name]
        if tiny:
            hidden, inner, layers, heads, kv, batch, length = 64, 128, 2, 4, 2, 2, 16
        dimension = 16 if tiny else 128
        vocabulary = 512 if tiny else 151936
        offloaded = name in ("Q8", "F8")
        config = Qwen3Config(
            hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv, head_dim=dimension,
            vocab_size=vocabulary, tie_word_embeddings=tied, use_cache=False,
            attn_implementation="sdpa")
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta" if offloaded else device):
                model = Qwen3ForCausalLM(config)
        finally:
            torch.set_default_dtype(torch.float32)
        if name == "Q8":
            model = self._offload(model, device)
        elif name == "F8":
            # Of one type: FSDP gathers a layer's weights together.
            model = self._sharded(self._adapted(model, autocast_adapter_dtype=False), device)
        elif name.startswith("L"):
            model = self._adapted(model)
        if world > 1 and name != "F8":
            model = data_parallel(model, device)
        self.model = model.train()
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=1e-5, fused=device.type == "cuda" and name != "F8")
        draw = torch.Generator().manual_seed(1)
        self.data = [torch.randint(0, vocabulary, (batch, length), generator=draw).to(device)
                     for _ in range(4)]
        self.count = 0
        states_first(self.optimizer)

    @staticmethod
    def _adapted(model, **more):
        from peft import LoraConfig, get_peft_model
        return get_peft_model(model, LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules=list(LORA_TARGETS)), **more)

    @staticmethod
    def _sharded(model, device):
        """FSDP: every layer's weights in shards in pinned host memory, gathered when they are
        needed. The weights are one block of random numbers again and again."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        more = {"offload_policy": CPUOffloadPolicy()} if device.type == "cuda" else {}
        inner = model.get_base_model()
        for layer in inner.model.layers:
            fully_shard(layer, mesh=mesh, **more)
        fully_shard(model, mesh=mesh, **more)
        model.to_empty(device="cpu")
        block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(4)).mul_(0.02)
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            flat = local.detach().view(-1)
            if "lora_B" in name:
                flat.zero_()
            elif parameter.dim() == 1:
                flat.fill_(1)
            else:
                for begin in range(0, flat.numel(), block.numel()):
                    part = flat[begin:begin + block.numel()]
                    part.copy_(block[:part.numel()])
        with torch.device(device):  # its table is no weight
            inner.model.rotary_emb = type(inner.model.rotary_emb)(config=inner.config)
        return model

    @staticmethod
    def _offload(model, device):
        """Every product of the layers in host memory; what remains on the device."""
        offload = Offload(device)
        for layer in model.model.layers:
            for part, names in ((layer.self_attn, LORA_TARGETS),
                                (layer.mlp, ("gate_proj", "up_proj", "down_proj"))):
                for name in names:
                    old = getattr(part, name)
                    setattr(part, name, OffloadedLinear(old.out_features, old.in_features, offload,
                                                        part is layer.self_attn))
        for module in model.modules():
            if isinstance(module, OffloadedLinear):
                continue
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.is_meta:
                    value = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
                    value.fill_(1) if parameter.dim() == 1 else value.normal_(0, 0.02)
                    setattr(module, name, nn.Parameter(value, requires_grad=False))
        rotary = model.model.rotary_emb  # its table was computed on no device
        with torch.device(device):
            model.model.rotary_emb = type(rotary)(config=model.config)
        return model

    def step(self):
        batch = self.data[self.count % len(self.data)]
        self.count += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        return loss


class Resnet:
    def __init__(self, name, device, tiny, world):
        import torchvision
        torch.manual_seed(0)
        with torch.device(device):
            model = torchvision.models.resnet18() if tiny else torchvision.models.resnet152()
        model = model.to(memory_format=torch.channels_last).train()
        self.model = data_parallel(model, device) if world > 1 else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        images, side = (2, 64) if tiny else (256 if name == "RN-big" else 64, 224)
        draw = torch.Generator().manual_seed(2)
        self.images = torch.randn(images, 3, side, side, generator=draw).to(device).to(
            memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (images,), generator=draw).to(device)
        states_first(self.optimizer)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.images.device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss


class Bert:
    def __init__(self, name, device, tiny, world):
        from transformers import BertConfig, BertForMaskedLM
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=64 if tiny else 1024, num_hidden_layers=2 if tiny else 24,
            num_attention_heads=4 if tiny else 16, intermediate_size=128 if tiny else 4096,
            vocab_size=512 if tiny else 30522, attn_implementation="sdpa")
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                self.model = BertForMaskedLM(config).train()
        finally:
            torch.set_default_dtype(torch.float32)
        if world > 1:
            self.model = data_parallel(self.model, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5,
                                           fused=device.type == "cuda")
        draw = torch.Generator().manual_seed(3)
        sequences = 64 if name == "BE-big" else 16
        self.data = torch.randint(0, config.vocab_size, (2, 16) if tiny else (sequences, 384),
                                  generator=draw).to(device)
        states_first(self.optimizer)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=self.data, labels=self.data).loss
        loss.backward()
        self.optimizer.step()
        return loss


def make(name, device, tiny, world=1):
    kind = {"RN": Resnet, "RN-big": Resnet, "BE": Bert, "BE-big": Bert}.get(name, Qwen)
    return kind(name, device, tiny, world)


NAMES = (*QWEN, "RN", "RN-big", "BE", "BE-big")
