# SPDX-License-Identifier: Apache-2.0
"""What JAX for ROCm computes, a line for each check: its name, "right" and a digest of the result,
or where it stops. pypi_programs.py runs it bare and under `vitamin run`.
"""
import jax
import jax.numpy as jnp
import numpy
from jax import lax

from checks import Checks

CHECKS = Checks(numpy.asarray, 1e-10)
near, same = CHECKS.near, CHECKS.same
jax.config.update("jax_enable_x64", True)
RANDOM = numpy.random.RandomState(2)
MATRIX = RANDOM.rand(64, 64)
SMALL = RANDOM.rand(8, 8) + numpy.eye(8) * 8


def devices():
    assert jax.devices()[0].platform == "gpu"
    return len(jax.devices())


def arange_sum():
    return same(jnp.arange(1000).sum(), 499500)


def elementwise():
    host = numpy.linspace(0, 10, 5000, dtype="f4")
    return near(jnp.sin(host) * 2 + jnp.sqrt(host), numpy.sin(host) * 2 + numpy.sqrt(host), 2e-5)


def jitted():
    host = numpy.linspace(-1, 1, 1000)
    function = jax.jit(lambda x: jnp.tanh(x * 3 + 1).reshape(20, 50).sum(axis=1))
    return near(function(host), numpy.tanh(host * 3 + 1).reshape(20, 50).sum(1))


def gradient():
    host = numpy.linspace(-2, 2, 500)
    function = jax.jit(jax.grad(lambda x: jnp.sum(jnp.exp(-x * x))))
    return near(function(host), -2 * host * numpy.exp(-host * host))


def scan():
    last, results = lax.scan(lambda c, x: (c * 0.5 + x, c), 0.0, numpy.arange(50.0))
    near(results[2], 1.0)
    return near(last, 2 * 49 - 2 * (1 - 0.5**49))


def while_loop():
    return near(lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, s[1] * 1.1), (0, 1.0))[1],
                1.1**20)


def sort():
    return same(jnp.sort(MATRIX.ravel()), numpy.sort(MATRIX.ravel()))


def cumsum():
    return same(jnp.cumsum(jnp.arange(5000)), numpy.cumsum(numpy.arange(5000)))


def random():
    result = jax.random.normal(jax.random.PRNGKey(3), (2000,))
    assert abs(float(result.mean())) < 0.1
    return result


def transpose():
    host = numpy.arange(7000.0).reshape(100, 70)
    return same(jnp.array(host).T + 0, host.T)


def scatter():
    return same(jnp.zeros(10).at[jnp.arange(1000) % 10].add(1.0), 100)


def mapped_softmax():
    result = jax.vmap(jax.nn.softmax)(MATRIX)
    near(numpy.asarray(result).sum(1), 1)
    return result


def bfloat16():
    array = jnp.arange(500, dtype=jnp.bfloat16) / 3
    return near((array * array).astype(jnp.float32), (numpy.arange(500.0) / 3) ** 2, 2e-2)


def matmul_of_integers():
    host = numpy.arange(480, dtype="i4").reshape(24, 20)
    return same(jnp.array(host) @ jnp.array(host.T), host @ host.T)


def fft():
    return near(jnp.fft.fft(MATRIX.ravel()), numpy.fft.fft(MATRIX.ravel()), 1e-9)


def solve():
    return near(jnp.linalg.solve(SMALL, numpy.ones(8)), numpy.linalg.solve(SMALL, numpy.ones(8)))


def cholesky():
    matrix = SMALL @ SMALL.T
    return near(jnp.linalg.cholesky(matrix), numpy.linalg.cholesky(matrix))


def convolution():
    image, kernel = numpy.ones((1, 3, 16, 16), "f4"), numpy.ones((4, 3, 3, 3), "f4")
    return same(lax.conv(image, kernel, (1, 1), "VALID"), 27)


def matmul_of(kind, tolerance):
    host = MATRIX.astype(kind)
    return near(jnp.array(host) @ jnp.array(host), MATRIX @ MATRIX, tolerance)


def matmul_double():
    return matmul_of("f8", 1e-10)


def matmul_single():
    return matmul_of("f4", 1e-3)


def matmul_half():
    return matmul_of("f2", 1e-2)


# What may end the process comes last.
ALL = (devices, arange_sum, elementwise, jitted, gradient, scan, while_loop, sort, cumsum,
       random, transpose, scatter, mapped_softmax, bfloat16, matmul_of_integers, fft, solve,
       cholesky, convolution, matmul_double, matmul_single, matmul_half)


if __name__ == "__main__":
    CHECKS.run(ALL)
