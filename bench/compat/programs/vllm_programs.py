# SPDX-License-Identifier: Apache-2.0
"""vLLM on a small Llama of random weights: 32 prompts, 64 tokens each, greedy, as one batch."""

import json
import os
import pathlib
import random
import tempfile

for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1",
                    "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
                    "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
                    "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "WARNING",
                    "VLLM_USE_FLASHINFER_SAMPLER": "0",
                    # The engine in this process: its launches and its clock are ours.
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
    os.environ.setdefault(name, value)

import steps

VOCABULARY, PROMPTS, TOKENS = 32000, 32, 64


SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}


def write_model(directory, shape=None):
    """A configuration and a tokenizer of whole words; weights are drawn by vLLM."""
    import tokenizers
    import transformers
    words = {"<unk>": 0, "<s>": 1, "</s>": 2,
             **{f"word{i}": i for i in range(3, VOCABULARY)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>",
        "eos_token": "</s>", "model_max_length": 2048}))
    transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"], vocab_size=VOCABULARY, max_position_embeddings=2048,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, dtype="bfloat16",
        **(shape or SHAPE)).save_pretrained(directory)


def serve(options, eager):
    with tempfile.TemporaryDirectory(prefix="vllm-model-") as name:
        # Before vLLM: where its compiled code is kept, apart from other runs on this machine.
        os.environ.setdefault("VLLM_CACHE_ROOT", f"{name}/cache")
        write_model(pathlib.Path(name))
        from vllm import LLM, SamplingParams
        engine = LLM(model=name, tokenizer=name, dtype="bfloat16", load_format="dummy", seed=0,
                     max_model_len=1024, enforce_eager=eager, enable_prefix_caching=False,
                     # A size of its own: several of these may stand beside each other.
                     gpu_memory_utilization=0.05, kv_cache_memory_bytes=2 << 30,
                     disable_log_stats=True)
        draw = random.Random(7)
        prompts = [{"prompt_token_ids": [1] + [draw.randrange(3, VOCABULARY) for _ in
                                               range(draw.randrange(16, 200))]}
                   for _ in range(PROMPTS)]
        settings = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True,
                                  detokenize=False)

        def step(_):
            answers = engine.generate(prompts, settings, use_tqdm=False)
            return [list(a.outputs[0].token_ids) for a in answers]
        steps.tell_value("tokens", steps.Batches(options).run(step))


PROGRAMS = {"eager": True, "graphs": False}


if __name__ == "__main__":
    chosen = steps.options(PROGRAMS, __doc__.splitlines()[0], batches=6)
    if chosen.device != "cuda":
        steps.cannot("vLLM is tried on a GPU")
    serve(chosen, PROGRAMS[chosen.program])
