# SPDX-License-Identifier: Apache-2.0
"""CuPy: its own kernels, raw kernels, captured graphs, and CUDA's libraries through it."""

import cupy
import numpy

import steps

SOURCE = r"""
extern "C" __global__ void mix(const float* x, float* y, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = y[i] * 0.5f + x[i] * 0.25f;
}
"""


def data(*shape, seed=1):
    return cupy.asarray(numpy.random.default_rng(seed).normal(size=shape).astype(numpy.float32))


def tell(name, array):
    steps.tell_hash(name, cupy.asnumpy(cupy.ascontiguousarray(array)).tobytes())


def kernels(options):
    mix = cupy.RawKernel(SOURCE, "mix")
    x, y = data(1 << 16), data(1 << 16, seed=2)
    matrix = data(256, 256, seed=3)

    def step(_):
        for _ in range(20):
            mix((256,), (256,), (x, y, numpy.int32(x.size)))
            product = cupy.tanh(matrix @ matrix) + cupy.exp(-cupy.abs(matrix))
        cupy.cuda.Device().synchronize()
        return product
    product = steps.Batches(options).run(step)
    tell("mix", y)
    tell("product", product)
    tell("sorted", cupy.sort(x))


def graphs(options):
    """One graph launched often, and graphs that are captured and launched once."""
    mix = cupy.RawKernel(SOURCE, "mix")
    x, y, z = data(1 << 14), data(1 << 14, seed=2), data(1 << 14, seed=3)
    stream = cupy.cuda.Stream(non_blocking=True)

    def capture(count, a, b):
        with stream:
            stream.begin_capture()
            for _ in range(count):
                mix((64,), (256,), (a, b, numpy.int32(a.size)))
            return stream.end_capture()
    cupy.cuda.Device().synchronize()
    often = capture(30, x, y)

    def step(_):
        for _ in range(20):
            often.launch(stream)
        capture(5, y, z).launch(stream)
        stream.synchronize()
    steps.Batches(options).run(step)
    tell("often", y)
    tell("once", z)


def libraries(options):
    """cuFFT, cuSOLVER, cuSPARSE (integers, exact in any order)."""
    import cupyx.scipy.sparse
    draw = numpy.random.default_rng(4)
    signal = data(64, 4096)
    square = cupy.asarray(draw.normal(size=(200, 200)))
    positive = square @ square.T + 200 * cupy.eye(200)
    integers = draw.integers(-3, 4, size=(1000, 1000)) * (draw.random((1000, 1000)) < 0.02)
    sparse = cupyx.scipy.sparse.csr_matrix(cupy.asarray(integers.astype(numpy.float32)))
    dense = cupy.asarray(draw.integers(-3, 4, size=(1000, 64)).astype(numpy.float32))

    def step(_):
        spectrum = cupy.fft.rfft(signal)
        q, r = cupy.linalg.qr(square)
        results = {"fft": spectrum, "q": q, "r": r, "cholesky": cupy.linalg.cholesky(positive),
                   "solve": cupy.linalg.solve(positive, square), "sparse product": sparse @ dense,
                   "eigenvalues": cupy.linalg.eigvalsh(positive)}
        cupy.cuda.Device().synchronize()
        return results
    for name, array in steps.Batches(options).run(step).items():
        tell(name, array)


PROGRAMS = {"kernels": kernels, "graphs": graphs, "libraries": libraries}


if __name__ == "__main__":
    chosen = steps.options(PROGRAMS, __doc__.splitlines()[0])
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        steps.cannot(f"CuPy sees no GPU: {error}")
    PROGRAMS[chosen.program](chosen)
