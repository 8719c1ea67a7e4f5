# SPDX-License-Identifier: Apache-2.0
"""A plugin of vLLM (entry point `vllm.general_plugins` of the package vitamin-advice). It announces
each step of the engine to Vitamin: one with tokens of prompts as a prefill, any other as a decode.
`ttft` and `tpot` of the server's class are then bounds of a step.

vLLM loads it in each of its processes; without Vitamin it changes nothing. VLLM_PLUGINS, which
names the plugins that vLLM is to load, can leave it out. Seen with vLLM 0.26; workers of Ray call
the model without this step, and announce nothing.
"""
import functools
import logging

import vitamin_advice

_log = logging.getLogger(__name__)


def _announce(scheduler_output):
    import torch

    tokens = scheduler_output.total_num_scheduled_tokens
    if tokens == 0:
        return
    guessed = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
    of_prompts = tokens > len(scheduler_output.num_scheduled_tokens) + guessed
    vitamin_advice.expect(vitamin_advice.PREFILL if of_prompts else vitamin_advice.DECODE,
                          stream=torch.cuda.current_stream().cuda_stream)


def _announcing(execute_model):
    working = True

    @functools.wraps(execute_model)
    def announcing(worker, scheduler_output, *arguments, **named):
        nonlocal working
        if working:
            try:
                _announce(scheduler_output)
            except Exception as problem:  # another vLLM than this was written for
                working = False
                _log.warning("vitamin: steps are not announced: %r", problem)
        return execute_model(worker, scheduler_output, *arguments, **named)

    announcing.announces = True
    return announcing


def register():
    """Called by vLLM, more than once in a process too."""
    if not vitamin_advice.offered():
        return
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        if not hasattr(WorkerWrapperBase.execute_model, "announces"):
            WorkerWrapperBase.execute_model = _announcing(WorkerWrapperBase.execute_model)
    except (ImportError, AttributeError) as problem:
        _log.warning("vitamin: steps are not announced: %r", problem)
