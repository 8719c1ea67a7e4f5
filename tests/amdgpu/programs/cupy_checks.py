# SPDX-License-Identifier: Apache-2.0
"""What CuPy for ROCm computes, a line for each check: its name, "right" and a digest of the result,
or where it stops. pypi_programs.py runs it bare and under `vitamin run`.
"""
import cupy
import cupyx
import numpy
from cupyx.scipy import ndimage, sparse

from checks import Checks

CHECKS = Checks(cupy.asnumpy, 1e-12)
near, same = CHECKS.near, CHECKS.same
TRANSPOSE = """
extern "C" __global__ void transpose(const float* in, float* out, int n) {
  __shared__ float tile[16][17];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
  __syncthreads();
  x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
  if (x < n && y < n) out[y * n + x] = tile[threadIdx.x][threadIdx.y];
}
"""


def random_integers(high, count):
    return numpy.random.RandomState(3).randint(0, high, count)


def arange_sum():
    return same(cupy.arange(1000).sum(), 499500)


def elementwise():
    host = numpy.linspace(0, 10, 5000, dtype="f4")
    array = cupy.linspace(0, 10, 5000, dtype="f4")
    return near(cupy.sin(array) * 2 + cupy.sqrt(array), numpy.sin(host) * 2 + numpy.sqrt(host),
                2e-5)


def elementwise_kernel():
    kernel = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z",
                                    "z = (x - y) * (x - y)", "squared_difference")
    host = numpy.arange(3000, dtype="f4")
    array = cupy.arange(3000, dtype="f4")
    return same(kernel(array, array[::-1].copy()), (host - host[::-1]) ** 2)


def reduction_kernel():
    kernel = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    host = numpy.arange(4096.0).reshape(64, 64)
    return near(kernel(cupy.arange(4096.0).reshape(64, 64), axis=1),
                numpy.sqrt((host**2).sum(1)))


def fused():
    @cupy.fuse()
    def function(x, y):
        return cupy.exp(-x) * y + x

    array = cupy.linspace(0, 1, 2000)
    host = cupy.asnumpy(array)
    return near(function(array, array * 2), numpy.exp(-host) * host * 2 + host)


def raw_kernel():
    kernel, size = cupy.RawKernel(TRANSPOSE, "transpose"), 100
    array = cupy.arange(size * size, dtype="f4")
    result = cupy.empty_like(array)
    kernel((7, 7), (16, 16), (array, result, numpy.int32(size)))
    return same(result.reshape(size, size), cupy.asnumpy(array).reshape(size, size).T)


def integer_matmul():
    host = numpy.arange(64 * 48, dtype="i4").reshape(64, 48)
    array = cupy.arange(64 * 48, dtype="i4").reshape(64, 48)
    return same(array @ array.T.copy(), host @ host.T)


def sort():
    host = random_integers(100000, 20000)
    return same(cupy.sort(cupy.asarray(host)), numpy.sort(host))


def unique():
    host = random_integers(100, 2000)
    return same(cupy.unique(cupy.asarray(host)), numpy.unique(host))


def cumsum():
    return same(cupy.cumsum(cupy.arange(10000)), numpy.cumsum(numpy.arange(10000)))


def reduction_of_cub():
    cupy._core.set_reduction_accelerators(["cub"])
    cupy._core.set_routine_accelerators(["cub"])
    try:
        array = cupy.arange(100000)
        same(array.sum(), 4999950000)
        return same(array.reshape(100, 1000).max(axis=1), numpy.arange(999, 100000, 1000))
    finally:
        cupy._core.set_reduction_accelerators([])
        cupy._core.set_routine_accelerators([])


def bincount():
    host = random_integers(16, 5000)
    return same(cupy.bincount(cupy.asarray(host)), numpy.bincount(host))


def random_of_rocrand():
    result = cupy.random.RandomState(7).random_sample(5000)
    assert 0.48 < float(result.mean()) < 0.52
    return result


def random_generator():
    result = cupy.random.Generator(cupy.random.XORWOW(5)).random(1000)
    assert 0.45 < float(result.mean()) < 0.55
    return result


def streams():
    results = []
    for index, stream in enumerate([cupy.cuda.Stream(non_blocking=True) for _ in range(4)]):
        with stream:
            results.append(cupy.arange(2000) * (index + 1))
        stream.synchronize()
    return same(cupy.stack(results), numpy.outer(numpy.arange(1, 5), numpy.arange(2000)))


def indexing():
    array, host = cupy.arange(10000), numpy.arange(10000)
    same(array[array % 3 == 0], host[host % 3 == 0])
    return same(cupy.where(array > 50, array, -array), numpy.where(host > 50, host, -host))


def scatter():
    result = cupy.zeros(10, "f4")
    cupyx.scatter_add(result, cupy.arange(1000) % 10, cupy.float32(1))
    return same(result, 100)


def half_precision():
    host = numpy.arange(1000, dtype="f2") / numpy.float16(7)
    array = cupy.arange(1000, dtype="f2") / 7
    return near((array * array).astype("f4"), (host * host).astype("f4"), 1e-2)


def complex_numbers():
    return near(abs(cupy.exp(1j * cupy.linspace(0, 6, 1000))), numpy.ones(1000))


def gaussian_filter():
    result = ndimage.gaussian_filter(cupy.ones((20, 20)), 2)
    return near(result, numpy.ones((20, 20)))


def matmul():
    host = numpy.arange(64 * 48, dtype="f4").reshape(64, 48)
    array = cupy.asarray(host)
    return near(array @ array.T, host @ host.T, 1e-5)


def fft():
    return near(cupy.fft.fft(cupy.arange(64.0)), numpy.fft.fft(numpy.arange(64.0)))


def sparse_product():
    matrix = sparse.csr_matrix(cupy.diag(cupy.arange(1.0, 65)))
    return near(matrix @ cupy.ones(64), numpy.arange(1.0, 65))


def solve():
    return near(cupy.linalg.solve(cupy.eye(8) * 2, cupy.ones(8)), 0.5)


def texture_array():
    kind = cupy.cuda.runtime.cudaChannelFormatKindFloat
    array = cupy.cuda.texture.CUDAarray(
        cupy.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, kind), 8, 8)
    result = cupy.zeros((8, 8), "f4")
    array.copy_from(cupy.ones((8, 8), "f4"))
    array.copy_to(result)
    return same(result, 1)


def graph():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = cupy.arange(100)
        stream.begin_capture()
        result += 1
        stream.end_capture().launch()
    stream.synchronize()
    return same(result, numpy.arange(1, 101))


ALL = (arange_sum, elementwise, elementwise_kernel, reduction_kernel, fused, raw_kernel,
       integer_matmul, sort, unique, cumsum, reduction_of_cub, bincount, random_of_rocrand,
       random_generator, streams, indexing, scatter, half_precision, complex_numbers,
       gaussian_filter, matmul, fft, sparse_product, solve, texture_array, graph)


if __name__ == "__main__":
    CHECKS.run(ALL)
