# SPDX-License-Identifier: Apache-2.0
"""The workloads of decision cells, in PyTorch: the decision tier is bound by the GPU, the reality
tier is what bench/evaluation trains.

make(KIND, NAME, device, tiny) gives an object with

    groups     marks of a step; step(mark) calls mark() behind each group of layers and at the end
    waits      whether the host has the step's result at its end; else `queued` are submitted
    request()  one request of a service, waited for
    rest()     called when the job pauses

| KIND | a step | bound by |
|---|---|---|
| decode | a token for each of 16 sequences at position 2,000, launch by launch | host and memory |
| decode-graph | the same, replayed as a CUDA graph | memory |
| prefill | one prompt of 2,000 tokens | arithmetic |
| rollout | a token for each of 64 sequences that grow from 500 to 1,000 tokens | host and memory |
| score | 64 sequences of 256 tokens through BERT-large, without a gradient | arithmetic |
| infer | a request: a prompt of 512 tokens and 3 decode steps, batch 1 | host and memory |
| train | a step of bench/evaluation/training.py | as its NAME |
"""

import torch

import decoder
import training

# rows, first and last position of a decode step, layers of a group
DECODE = {"decode": (16, 2000, 2016, 8), "decode-graph": (16, 2000, 2016, 8),
          "rollout": (64, 500, 1000, 8)}
PROMPT = 2000
REQUEST = (512, 4)  # tokens of the prompt and of the answer
SCORE = (64, 256)  # sequences, tokens


class Work:
    groups, waits, queued, warm_up = 1, True, 1, 3

    def __init__(self, device):
        self.device = device

    def rest(self):
        pass

    def memory(self):
        """MiB that the process holds on the GPU, beside its context."""
        if self.device.type != "cuda":
            return {}
        torch.cuda.empty_cache()
        return {"kept_mib": torch.cuda.memory_reserved() >> 20}


class Decoding(Work):
    def __init__(self, kind, name, device, tiny):
        super().__init__(device)
        rows, self.position, self.until, every = DECODE[kind]
        if tiny:
            rows, self.position, self.until, every = 2, 4, 8, 1
        shape = (decoder.TINY if tiny else decoder.SHAPES)[name]
        self.model = decoder.Decoder(shape, device, rows, self.until)
        self.slots = torch.arange(rows, device=device)
        self.token = torch.ones(rows, dtype=torch.long, device=device)
        self.at = torch.full((rows,), self.position, device=device)
        self.every, self.groups = every, max(1, shape.layers // every)
        self.done = 0

    def step(self, mark):
        def behind_layer(index):
            if (index + 1) % self.every == 0 and index + 1 < self.every * self.groups:
                mark()
        self.model.behind_layer = behind_layer
        self.token = self.model.decode(self.token, self.slots, self.at)
        mark()
        self.token.tolist()  # an engine looks for the end of each answer
        self.done += 1
        if self.position + self.done % (self.until - self.position) == self.position:
            self.at.fill_(self.position)
        else:
            self.at += 1

    def request(self):
        self.step(lambda: None)


class GraphDecoding(Decoding):
    """The launches of a step are one graph; its marks are the ends of steps."""

    def __init__(self, kind, name, device, tiny):
        super().__init__(kind, name, device, tiny)
        self.groups, self.graph = 1, None
        if device.type != "cuda":
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # as PyTorch's documentation asks before a capture
            for _ in range(3):
                self.token.copy_(self.model.decode(self.token, self.slots, self.at))
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.token.copy_(self.model.decode(self.token, self.slots, self.at))

    def step(self, mark):
        if self.graph is None:  # a machine without a GPU
            self.model.behind_layer = lambda index: None
            self.token.copy_(self.model.decode(self.token, self.slots, self.at))
        else:
            self.graph.replay()
        mark()
        self.token.tolist()


class Prefilling(Work):
    def __init__(self, kind, name, device, tiny):
        super().__init__(device)
        shape = (decoder.TINY if tiny else decoder.SHAPES)[name]
        tokens = 8 if tiny else PROMPT
        self.every = 1 if tiny else 4
        self.groups = max(1, shape.layers // self.every)
        self.model = decoder.Decoder(shape, device, 1, tokens)
        draw = torch.Generator().manual_seed(5)
        self.prompt = torch.randint(0, shape.vocabulary, (tokens,), generator=draw).to(device)

    def step(self, mark):
        def behind_layer(index):
            if (index + 1) % self.every == 0 and index + 1 < self.every * self.groups:
                mark()
        self.model.behind_layer = behind_layer
        token = self.model.prefill(self.prompt, 0)
        mark()
        int(token)

    def request(self):
        self.step(lambda: None)


class Inference(Work):
    """Requests of batch 1; in a closed loop a step is a request, and has no marks inside."""

    def __init__(self, kind, name, device, tiny):
        super().__init__(device)
        shape = (decoder.TINY if tiny else decoder.SHAPES)[name]
        self.tokens, self.answers = (4, 2) if tiny else REQUEST
        self.model = decoder.Decoder(shape, device, 1, self.tokens + self.answers)
        draw = torch.Generator().manual_seed(5)
        self.prompt = torch.randint(0, shape.vocabulary, (self.tokens,), generator=draw).to(device)
        self.slot = torch.zeros(1, dtype=torch.long, device=device)

    def request(self):
        token = self.model.prefill(self.prompt, 0)
        token.tolist()
        for i in range(self.answers - 1):
            token = self.model.decode(token, self.slot, self.slot + self.tokens + i)
            token.tolist()

    def step(self, mark):
        self.request()
        mark()


class Hooked(Work):
    """Marks behind some of the model's blocks, in the forward pass and where it has one in the
    backward pass, and at the end of the step."""

    def hook(self, blocks, every, backward):
        chosen = [b for i, b in enumerate(blocks) if (i + 1) % every == 0]
        self.mark = lambda: None
        for block in chosen:
            block.register_forward_hook(self._behind_backward if backward else self._behind)
        self.groups = (2 if backward else 1) * len(chosen) + 1

    def _behind(self, block, given, answer):
        self.mark()

    def _behind_backward(self, block, given, answer):
        self.mark()
        hidden = answer[0] if isinstance(answer, tuple) else answer
        # When its gradient is there: before the backward pass of the block.
        hidden.register_hook(lambda gradient: self.mark())


class Training(Hooked):
    waits, queued = False, 2  # as bench/evaluation/job.py

    def __init__(self, kind, name, device, tiny):
        super().__init__(device)
        self.work = training.make(name, device, tiny)
        blocks = self._blocks(self.work.model)
        self.hook(blocks, max(1, len(blocks) // 4), True)

    @staticmethod
    def _blocks(model):
        """The longest list of equal modules; of a convolutional network its blocks."""
        lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
        if lists:
            return list(max(lists, key=len))
        return [block for name in ("layer1", "layer2", "layer3", "layer4")
                for block in getattr(model, name)]

    def step(self, mark):
        self.mark = mark
        self.work.step()
        mark()

    def request(self):
        self.step(lambda: None)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rest(self):
        """Gradients are not kept while the job is paused."""
        self.work.optimizer.zero_grad(set_to_none=True)


class Scoring(Hooked):
    """Embeddings: a batch through an encoder."""

    def __init__(self, kind, name, device, tiny):
        super().__init__(device)
        from transformers import BertConfig, BertModel
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=64 if tiny else 1024, num_hidden_layers=2 if tiny else 24,
            num_attention_heads=4 if tiny else 16, intermediate_size=128 if tiny else 4096,
            vocab_size=512 if tiny else 30522, attn_implementation="sdpa")
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                self.model = BertModel(config).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        draw = torch.Generator().manual_seed(3)
        self.batch = torch.randint(0, config.vocab_size, (2, 8) if tiny else SCORE,
                                   generator=draw).to(device)
        blocks = list(self.model.encoder.layer)
        self.hook(blocks, max(1, len(blocks) // 4), False)

    @torch.inference_mode()
    def step(self, mark):
        self.mark = mark
        pooled = self.model(self.batch).pooler_output
        mark()
        pooled.sum().item()

    def request(self):
        self.step(lambda: None)


KINDS = {"decode": Decoding, "decode-graph": GraphDecoding, "rollout": Decoding,
         "prefill": Prefilling, "infer": Inference, "train": Training, "score": Scoring}


def make(kind, name, device, tiny):
    return KINDS[kind](kind, name, device, tiny)
