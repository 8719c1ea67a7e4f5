#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM with tensor parallelism: one batch of requests for each line of standard input.

    vllm_batches.py --tensor N        a Llama of random weights over the first N GPUs that it sees

Answers each line with one: a hash of all tokens, the wall time, and of every request the time to
its first token (since the batch was given to the engine) and the mean time of each further one.
Decoding steps are CUDA graphs, with the collectives of the ranks inside.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "compat" / "programs"))
os.environ.update({"NCCL_NVLS_ENABLE": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
                   "VLLM_WORKER_MULTIPROC_METHOD": "spawn"})

import steps  # noqa: E402
import vllm_programs  # noqa: E402  (sets what vLLM's environment holds without a network)

PROMPTS, TOKENS = 16, 64
SHAPE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensor", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vllm-model-") as name:
        os.environ["VLLM_CACHE_ROOT"] = f"{name}/cache"
        vllm_programs.write_model(pathlib.Path(name), SHAPE)
        from vllm import LLM, SamplingParams
        engine = LLM(model=name, tokenizer=name, dtype="bfloat16", load_format="dummy", seed=0,
                     max_model_len=1024, enable_prefix_caching=False,
                     tensor_parallel_size=options.tensor, gpu_memory_utilization=0.05,
                     kv_cache_memory_bytes=2 << 30, disable_log_stats=False,
                     # Graphs of the model as it is: compiling it takes longer than all batches.
                     compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                                         "cudagraph_capture_sizes": [1, 2, 4, 8, 16]})
        draw = random.Random(7)
        prompts = [{"prompt_token_ids": [1] + [draw.randrange(3, vllm_programs.VOCABULARY)
                                               for _ in range(draw.randrange(64, 400))]}
                   for _ in range(PROMPTS)]
        settings = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True,
                                  detokenize=False)

        def batch():
            began = time.monotonic()
            answers = engine.generate(prompts, settings, use_tqdm=False)
            ended = time.monotonic()
            tokens = [list(a.outputs[0].token_ids) for a in answers]
            times = [a.metrics for a in answers]
            return {"tokens": steps.hash_of(tokens), "count": sum(map(len, tokens)),
                    "began": began, "ended": ended,
                    "first_s": [m.first_token_latency for m in times],
                    "each_s": [(m.last_token_ts - m.first_token_ts) / (TOKENS - 1)
                               for m in times]}
        batch()
        steps.tell({"ready": time.monotonic()})
        for _ in sys.stdin:
            steps.tell(batch())


if __name__ == "__main__":
    main()
