# SPDX-License-Identifier: Apache-2.0
"""JAX: training of a small network under jit; XLA's own choice of kernels by time is off."""

import os

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""),
                                    "--xla_gpu_deterministic_ops=true",
                                    "--xla_gpu_autotune_level=0"]).strip()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy

import steps


def training(options):
    if options.device == "cuda" and jax.default_backend() != "gpu":
        steps.cannot(f"JAX sees no GPU but {jax.default_backend()}")
    draw = numpy.random.default_rng(1)
    widths = [128, 512, 512, 512, 16]
    parameters = [(jnp.asarray(draw.normal(size=(a, b), scale=a ** -0.5), jnp.float32),
                   jnp.zeros(b)) for a, b in zip(widths, widths[1:])]
    inputs = jnp.asarray(draw.normal(size=(8, 256, widths[0])), jnp.float32)
    targets = jnp.asarray(draw.integers(0, widths[-1], size=(8, 256)))

    def loss(weights, x, y):
        for w, b in weights[:-1]:
            x = jax.nn.gelu(x @ w + b)
        w, b = weights[-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1).mean()

    @jax.jit
    def update(weights, x, y):
        value, slope = jax.value_and_grad(loss)(weights, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.05 * g, weights, slope)

    state = {"weights": parameters, "loss": None}

    def step(i):
        for j in range(20):
            state["loss"], state["weights"] = update(state["weights"], inputs[j % 8],
                                                     targets[j % 8])
        jax.block_until_ready(state["weights"])
    steps.Batches(options).run(step)
    steps.tell_hash("loss", numpy.asarray(state["loss"]).tobytes())
    steps.tell_hash("weights", b"".join(numpy.asarray(p).tobytes()
                                        for p in jax.tree.leaves(state["weights"])))


if __name__ == "__main__":
    chosen = steps.options(["training"], __doc__.splitlines()[0])
    if chosen.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    training(chosen)
