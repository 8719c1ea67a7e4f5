# SPDX-License-Identifier: Apache-2.0
"""vLLM that sizes itself by gpu_memory_utilization, for bench/memory.py.

    memory_vllm.py SHARE

Llama 3.1 8B's shape, random weights. 32 prompts, 32 tokens each, greedy. A JSON line says what
memory the process was told of, what it used of it and how many tokens its key-value cache holds;
one has the hash of the tokens. What vLLM chooses by the size of the device is set here, but for the
cache: the tokens do not depend on it. Exit code 77: vLLM is not here.
"""
import hashlib
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "compat" / "programs"))

SHAPE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
PROMPTS, TOKENS, LENGTH = 32, 32, 1024


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    share = float(sys.argv[1])
    try:
        import vllm_programs  # sets what vLLM's environment holds without a network
        import torch
        from vllm import LLM, SamplingParams
    except ImportError as error:
        say(cannot=str(error))
        return 77
    with tempfile.TemporaryDirectory(prefix="vllm-memory-") as name:
        vllm_programs.write_model(pathlib.Path(name), SHAPE)
        engine = LLM(model=name, tokenizer=name, dtype="bfloat16", load_format="dummy", seed=0,
                     max_model_len=LENGTH, max_num_seqs=PROMPTS, max_num_batched_tokens=8192,
                     enforce_eager=True, enable_prefix_caching=False, disable_log_stats=True,
                     gpu_memory_utilization=share)
        draw = random.Random(7)
        prompts = [{"prompt_token_ids": [1] + [draw.randrange(3, vllm_programs.VOCABULARY)
                                               for _ in range(draw.randrange(16, 200))]}
                   for _ in range(PROMPTS)]
        answers = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS,
                                                          ignore_eos=True, detokenize=False),
                                  use_tqdm=False)
        tokens = json.dumps([list(answer.outputs[0].token_ids) for answer in answers])
        say(name="tokens", hash=hashlib.sha256(tokens.encode()).hexdigest())
        free, total = torch.cuda.mem_get_info()
        cache = engine.llm_engine.vllm_config.cache_config
        say(total=total, used=total - free, taken=torch.cuda.memory_reserved(), refused=0,
            cached_tokens=(cache.num_gpu_blocks or 0) * cache.block_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
