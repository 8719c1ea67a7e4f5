# SPDX-License-Identifier: Apache-2.0
"""transformers: greedy generation, and continuous batching. Random weights of a fixed seed."""

import dataclasses
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import transformers

import steps

VOCABULARY, TOKENS = 4096, 24


def model(options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        bos_token_id=1, eos_token_id=None, pad_token_id=0, initializer_range=0.2)
    made = transformers.LlamaForCausalLM(config).to(torch.bfloat16).to(options.device).eval()
    made.generation_config.eos_token_id = None
    return made


def prompts(count, least, most):
    draw = random.Random(1)
    return [[draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(least, most))]
            for _ in range(count)]


def generate(options):
    made = model(options)
    inputs = torch.tensor(prompts(4, 40, 41)).to(options.device)

    @torch.no_grad()
    def step(_):
        return made.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                             min_new_tokens=TOKENS, max_new_tokens=TOKENS).tolist()
    steps.tell_value("tokens", steps.Batches(options).run(step))


def known(kind, **values):
    """A configuration of what this version of transformers knows of these."""
    names = {f.name for f in dataclasses.fields(kind)}
    return kind(**{k: v for k, v in values.items() if k in names})


def continuous_batching(options):
    made = model(options)
    if not hasattr(made, "generate_batch"):
        steps.cannot(f"transformers {transformers.__version__} has no continuous batching")
    if options.device == "cpu":
        steps.cannot("continuous batching needs a GPU")
    inputs = prompts(16, 8, 120)
    settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=TOKENS,
                                             eos_token_id=-1, pad_token_id=0)
    more = {}
    if hasattr(transformers, "ContinuousBatchingConfig"):
        more["continuous_batching_config"] = known(
            transformers.ContinuousBatchingConfig, max_memory_percent=0.02, seed=0)

    def step(_):
        answers = made.generate_batch(inputs=inputs, generation_config=settings, **more)
        if len(answers) != len(inputs):
            raise SystemExit(f"{len(answers)} of {len(inputs)} requests were answered")
        return sorted((list(a.prompt_ids), list(a.generated_tokens)) for a in answers.values())
    steps.tell_value("tokens", steps.Batches(options).run(step))


PROGRAMS = {"generate": generate, "continuous-batching": continuous_batching}


if __name__ == "__main__":
    chosen = steps.options(PROGRAMS, __doc__.splitlines()[0], batches=6)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        steps.cannot("PyTorch sees no GPU")
    PROGRAMS[chosen.program](chosen)
