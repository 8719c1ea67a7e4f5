# SPDX-License-Identifier: Apache-2.0
"""A plugin of vLLM (entry point `vllm.general_plugins` of the package vitamin-advice). It announces
each step of the engine to Vitamin: one that only begins requests as a prefill, any other as a
decode. `ttft` and `tpot` of the server's class are then bounds of a step.

vLLM loads it in each of its processes; without Vitamin it changes nothing. VLLM_PLUGINS, which
names the plugins that vLLM is to load, can leave it out. Needs vLLM 0.11 or newer; seen with 0.26.
"""
import functools
import logging

import vitamin_advice

_log = logging.getLogger(__name__)


def _announce(scheduler_output):
    import torch

    if scheduler_output.total_num_scheduled_tokens == 0:
        return
    running = scheduler_output.scheduled_cached_reqs.req_ids  # requests that have had a step before
    vitamin_advice.expect(vitamin_advice.DECODE if running else vitamin_advice.PREFILL,
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
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if not hasattr(WorkerWrapperBase.execute_model, "announces"):
        WorkerWrapperBase.execute_model = _announcing(WorkerWrapperBase.execute_model)
