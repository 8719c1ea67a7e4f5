// SPDX-License-Identifier: Apache-2.0
//
// Ordinary kernels whose results the CPU checks. Together they make hipcc emit most of the
// instructions that compiled code uses.
#include <hip/hip_fp16.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "host_reference.h"
#include "program.h"

namespace {

bool close(float a, float b, float tolerance) {
  return std::fabs(a - b) <= tolerance * std::max(1.0f, std::fabs(b));
}

__global__ void add_vectors(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

void vector_add() {
  constexpr int kCount = 10'001;
  const auto a = numbers(kCount, 1), b = numbers(kCount, 2);
  DeviceArray<float> da(a), db(b), dc(kCount);
  add_vectors<<<(kCount + 255) / 256, 256, 0, test_stream()>>>(da.data(), db.data(), dc.data(),
                                                               kCount);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto c = dc.host();
  bool right = true;
  for (int i = 0; i < kCount; ++i) right &= c[i] == a[i] + b[i];
  report("vector add", right, bits_of(c));
}

__global__ void reduce_blocks(const float* in, float* out, int n) {
  __shared__ float sums[256];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

void reduction() {
  constexpr int kCount = 1 << 16, kBlocks = 64, kThreads = 256;
  const auto in = numbers(kCount, 3, 1000.0f);
  DeviceArray<float> din(in), dout(kBlocks);
  reduce_blocks<<<kBlocks, kThreads, 0, test_stream()>>>(din.data(), dout.data(), kCount);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  bool right = true;
  for (int block = 0; block < kBlocks; ++block) {
    std::vector<float> sums(kThreads);
    for (int thread = 0; thread < kThreads; ++thread)
      for (int i = block * kThreads + thread; i < kCount; i += kBlocks * kThreads)
        sums[thread] += in[i];
    for (int half = kThreads / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    right &= out[block] == sums[0];
  }
  report("reduction through shared memory, bit for bit", right, bits_of(out));
}

constexpr int kTile = 16;

__global__ void multiply_matrices(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float ta[kTile][kTile], tb[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int step = 0; step < k; step += kTile) {
    const int ka = step + threadIdx.x, kb = step + threadIdx.y;
    ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
    tb[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[kb * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum = fmaf(ta[threadIdx.y][i], tb[i][threadIdx.x], sum);
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

void gemm() {
  constexpr int kM = 70, kN = 50, kK = 90;
  const auto a = numbers(kM * kK, 4), b = numbers(kK * kN, 5);
  DeviceArray<float> da(a), db(b), dc(kM * kN);
  const dim3 grid((kN + kTile - 1) / kTile, (kM + kTile - 1) / kTile);
  multiply_matrices<<<grid, dim3(kTile, kTile), 0, test_stream()>>>(da.data(), db.data(), dc.data(),
                                                                    kM, kN, kK);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto c = dc.host();
  bool right = true;
  for (int row = 0; row < kM; ++row)
    for (int column = 0; column < kN; ++column) {
      float sum = 0;
      for (int i = 0; i < kK; ++i) sum = std::fmaf(a[row * kK + i], b[i * kN + column], sum);
      right &= c[row * kN + column] == sum;
    }
  report("matrix product, bit for bit", right, bits_of(c));
}

template <class Combine>
__device__ float combine_wave(float value, Combine combine) {
  for (int step = warpSize / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor(value, step));
  return value;
}

__global__ void softmax_rows(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float largest = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < columns; i += warpSize) largest = fmaxf(largest, row[i]);
  largest = combine_wave(largest, [](float a, float b) { return fmaxf(a, b); });
  for (int i = threadIdx.x; i < columns; i += warpSize) sum += expf(row[i] - largest);
  sum = combine_wave(sum, [](float a, float b) { return a + b; });
  for (int i = threadIdx.x; i < columns; i += warpSize)
    out[blockIdx.x * columns + i] = expf(row[i] - largest) / sum;
}

__global__ void normalise_rows(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += warpSize) sum += row[i];
  const float mean = combine_wave(sum, [](float a, float b) { return a + b; }) / columns;
  for (int i = threadIdx.x; i < columns; i += warpSize)
    squares += (row[i] - mean) * (row[i] - mean);
  squares = combine_wave(squares, [](float a, float b) { return a + b; });
  const float scale = rsqrtf(squares / columns + 1e-5f);
  for (int i = threadIdx.x; i < columns; i += warpSize)
    out[blockIdx.x * columns + i] = (row[i] - mean) * scale;
}

int wave_size() {
  int size = 0;
  HIP_OK(hipDeviceGetAttribute(&size, hipDeviceAttributeWarpSize, 0));
  return size;
}

void softmax() {
  constexpr int kRows = 20, kColumns = 133;
  const auto in = numbers(kRows * kColumns, 6, 5.0f);
  DeviceArray<float> din(in), dout(in.size());
  softmax_rows<<<kRows, wave_size(), 0, test_stream()>>>(din.data(), dout.data(), kColumns);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  bool right = true;
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int i = 0; i < kColumns; ++i) sum += std::exp(double(in[row * kColumns + i]));
    for (int i = 0; i < kColumns; ++i)
      right &= close(out[row * kColumns + i], float(std::exp(double(in[row * kColumns + i])) / sum),
                     1e-5f);
  }
  report("softmax", right, bits_of(out));
}

void layernorm() {
  constexpr int kRows = 16, kColumns = 200;
  const auto in = numbers(kRows * kColumns, 7, 3.0f);
  DeviceArray<float> din(in), dout(in.size());
  normalise_rows<<<kRows, wave_size(), 0, test_stream()>>>(din.data(), dout.data(), kColumns);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  bool right = true;
  for (int row = 0; row < kRows; ++row) {
    double mean = 0, squares = 0;
    for (int i = 0; i < kColumns; ++i) mean += in[row * kColumns + i] / double(kColumns);
    for (int i = 0; i < kColumns; ++i) squares += std::pow(in[row * kColumns + i] - mean, 2);
    const double scale = 1 / std::sqrt(squares / kColumns + 1e-5);
    for (int i = 0; i < kColumns; ++i)
      right &=
          close(out[row * kColumns + i], float((in[row * kColumns + i] - mean) * scale), 1e-4f);
  }
  report("layer norm", right, bits_of(out));
}

struct Counters {
  int sum, least, most, bits_and, bits_or, bits_xor, ring, swaps;
  unsigned long long wide;
  float real;
  double precise;
};

__global__ void count(Counters* counters, int* histogram) {
  __shared__ int local[16];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&local[i % 16], 1);
  atomicAdd(&counters->sum, i);
  atomicMin(&counters->least, -i);
  atomicMax(&counters->most, i);
  atomicAnd(&counters->bits_and, ~(1 << (i % 4)));
  atomicOr(&counters->bits_or, 1 << (i % 20));
  atomicXor(&counters->bits_xor, i);
  atomicInc(reinterpret_cast<unsigned*>(&counters->ring), 9);
  atomicAdd(&counters->wide, 1ull << 33);
  atomicAdd(&counters->real, 0.5f);
  int seen = counters->swaps, expected;
  do {
    expected = seen;
    seen = atomicCAS(&counters->swaps, expected, expected + 2);
  } while (seen != expected);
  unsigned long long old = __double_as_longlong(counters->precise), assumed;
  do {
    assumed = old;
    old = atomicCAS(reinterpret_cast<unsigned long long*>(&counters->precise), assumed,
                    __double_as_longlong(__longlong_as_double(assumed) + 0.25));
  } while (assumed != old);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&histogram[threadIdx.x], local[threadIdx.x]);
}

void atomics() {
  constexpr int kBlocks = 12, kThreads = 96, kCount = kBlocks * kThreads;
  std::vector<Counters> host(1);
  host[0] = {0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0};
  DeviceArray<Counters> counters(host);
  DeviceArray<int> histogram(std::vector<int>(16));
  count<<<kBlocks, kThreads, 0, test_stream()>>>(counters.data(), histogram.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  const Counters got = counters.host()[0];
  int folded = 0;
  for (int i = 0; i < kCount; ++i) folded ^= i;
  const auto bins = histogram.host();
  report("atomics on global and shared memory",
         got.sum == kCount * (kCount - 1) / 2 && got.least == -(kCount - 1) &&
             got.most == kCount - 1 && got.bits_and == ~15 && got.bits_or == 0xfffff &&
             got.bits_xor == folded && got.ring == kCount % 10 && got.swaps == 2 * kCount &&
             got.wide == (1ull << 33) * kCount && got.real == 0.5f * kCount &&
             got.precise == 0.25 * kCount &&
             std::all_of(bins.begin(), bins.end(), [](int n) { return n == kCount / 16; }));
}

__device__ unsigned short to_bfloat(float value) {
  const unsigned bits = __float_as_uint(value);
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__global__ void convert(const float* in, __half* halves, unsigned short* bfloats, float* back,
                        __half2* pairs, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  halves[i] = __float2half(in[i]);
  bfloats[i] = to_bfloat(in[i]);
  back[i] = __half2float(halves[i]) + __uint_as_float(unsigned(bfloats[i]) << 16);
  const __half2 pair = __floats2half2_rn(in[i], in[n - 1 - i]);
  pairs[i] = __hfma2(pair, pair, __hadd2(pair, __hmul2(pair, pair)));
}

void halves() {
  constexpr int kCount = 1000;
  const auto in = numbers(kCount, 8, 100.0f);
  DeviceArray<float> din(in), back(kCount);
  DeviceArray<__half> dhalves(kCount);
  DeviceArray<unsigned short> dbfloats(kCount);
  DeviceArray<__half2> pairs(kCount);
  convert<<<(kCount + 127) / 128, 128, 0, test_stream()>>>(
      din.data(), dhalves.data(), dbfloats.data(), back.data(), pairs.data(), kCount);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto got = back.host();
  const auto raw_pairs = pairs.host();
  bool right = true, packed = true;
  for (int i = 0; i < kCount; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &in[i], 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    float bfloat;
    std::memcpy(&bfloat, &bits, 4);
    const auto half = static_cast<_Float16>(in[i]);
    right &= got[i] == static_cast<float>(half) + bfloat;
    _Float16 low;
    std::memcpy(&low, &raw_pairs[i], 2);
    const double x = static_cast<double>(half);
    const auto square = static_cast<_Float16>(static_cast<float>(half) * static_cast<float>(half));
    const auto sum = static_cast<_Float16>(static_cast<float>(half) + static_cast<float>(square));
    packed &= low == static_cast<_Float16>(x * x + static_cast<double>(sum));
  }
  report("half and bfloat16 conversions", right, bits_of(got));
  report("packed half arithmetic", packed);
}

__global__ void mix_integers(const std::uint64_t* in, std::uint64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const std::uint64_t x = in[i], y = in[(i + 1) % n] | 1;
  const auto sx = static_cast<std::int64_t>(x);
  const auto narrow = static_cast<std::int32_t>(x);
  std::uint64_t r = x * y + x / y + x % y;
  r ^= static_cast<std::uint64_t>(sx / 77 + sx % 1001);
  r += __popcll(x) + __clzll(y) + __ffsll(static_cast<unsigned long long>(x)) +
       __brev(static_cast<unsigned>(x));
  r ^= (x << (y & 63)) | (y >> (x & 31)) | static_cast<std::uint64_t>(sx >> (y & 15));
  r += __umulhi(static_cast<unsigned>(x), static_cast<unsigned>(y)) + __byte_perm(x, y, 0x3715);
  r += static_cast<std::uint64_t>(narrow / 13 - narrow % 7) * static_cast<std::uint8_t>(x >> 9);
  switch (x % 7) {
    case 0:
      r += 11;
      break;
    case 1:
      r *= 3;
      break;
    case 2:
      r ^= y;
      break;
    case 3:
      r -= 5;
      break;
    case 4:
      r = ~r;
      break;
    default:
      r += static_cast<std::uint16_t>(y) * static_cast<std::int16_t>(x);
  }
  out[i] = r;
}

void integers() {
  constexpr int kCount = 3000;
  std::vector<std::uint64_t> in(kCount);
  std::uint64_t seed = 9;
  for (auto& value : in) value = (seed = seed * 6364136223846793005 + 1442695040888963407) | 4;
  DeviceArray<std::uint64_t> din(in), dout(kCount);
  mix_integers<<<(kCount + 255) / 256, 256, 0, test_stream()>>>(din.data(), dout.data(), kCount);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  bool right = true;
  for (int i = 0; i < kCount; ++i) right &= out[i] == mix_on_host(in[i], in[(i + 1) % kCount] | 1);
  report("integer arithmetic of 8 to 64 bits", right, bits_of(out));
}

__global__ void functions(const float* in, float* out, double* precise, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = in[i];
  out[i] = sinf(x) + cosf(x) * expf(-fabsf(x)) + logf(1 + fabsf(x)) + sqrtf(fabsf(x)) + tanhf(x) +
           powf(fabsf(x) + 1, 1.5f) + floorf(x) + rintf(x) + fmodf(x, 0.7f) + erff(x);
  const double d = x;
  precise[i] = sin(d) + exp(-d * d) + log(1 + fabs(d)) + sqrt(fabs(d)) / (1 + d * d) + floor(d);
}

void mathematics() {
  constexpr int kCount = 2000;
  const auto in = numbers(kCount, 10, 20.0f);
  DeviceArray<float> din(in), dout(kCount);
  DeviceArray<double> dprecise(kCount);
  functions<<<(kCount + 63) / 64, 64, 0, test_stream()>>>(din.data(), dout.data(), dprecise.data(),
                                                          kCount);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  const auto precise = dprecise.host();
  bool right = true, right_double = true;
  for (int i = 0; i < kCount; ++i) {
    const double d = in[i], a = std::fabs(d);
    const double expected = std::sin(d) + std::cos(d) * std::exp(-a) + std::log(1 + a) +
                            std::sqrt(a) + std::tanh(d) + std::pow(a + 1, 1.5) + std::floor(d) +
                            std::rint(d) + std::fmod(in[i], 0.7f) + std::erf(d);
    right &= close(out[i], float(expected), 1e-4f);
    const double exact = std::sin(d) + std::exp(-d * d) + std::log(1 + a) +
                         std::sqrt(a) / (1 + d * d) + std::floor(d);
    right_double &= std::fabs(precise[i] - exact) <= 1e-12 * std::max(1.0, std::fabs(exact));
  }
  report("functions in single precision", right, bits_of(out));
  report("functions in double precision", right_double, bits_of(precise));
}

__global__ void exchange(const int* in, int* out, unsigned long long* votes) {
  const int lane = threadIdx.x % warpSize;
  const int value = in[threadIdx.x];
  int sum = value;
  for (int step = 1; step < warpSize; step *= 2) {
    const int below = __shfl_up(sum, step);
    if (lane >= step) sum += below;
  }
  out[threadIdx.x] = sum + __shfl(value, 3) + __shfl_down(value, 1) + __any(value > 90);
  const unsigned long long vote = __ballot(value % 3 == 0);
  if (lane == 0) votes[threadIdx.x / warpSize] = vote;
}

void lanes() {
  constexpr int kCount = 256;
  const int width = wave_size();
  std::vector<int> in(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = (i * 37 + 11) % 100;
  DeviceArray<int> din(in), dout(kCount);
  DeviceArray<unsigned long long> dvotes(kCount / width);
  exchange<<<1, kCount, 0, test_stream()>>>(din.data(), dout.data(), dvotes.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  const auto votes = dvotes.host();
  bool right = true;
  for (int first = 0; first < kCount; first += width) {
    unsigned long long vote = 0;
    int sum = 0;
    bool any = false;
    for (int lane = 0; lane < width; ++lane) any |= in[first + lane] > 90;
    for (int lane = 0; lane < width; ++lane) {
      sum += in[first + lane];
      vote |= static_cast<unsigned long long>(in[first + lane] % 3 == 0) << lane;
      const int next = in[first + (lane + 1 < width ? lane + 1 : lane)];
      right &= out[first + lane] == sum + in[first + 3] + next + (any ? 1 : 0);
    }
    right &= votes[first / width] == vote;
  }
  report("exchanges between lanes and votes", right, bits_of(out));
}

// A scan in which a workgroup waits for its predecessor's sum: workgroups must start in order and
// wait without stopping the others.
__global__ void scan_with_lookback(const int* in, int* out, volatile int* sums,
                                   volatile int* ready) {
  __shared__ int before;
  if (threadIdx.x == 0) {
    int sum = 0;
    if (blockIdx.x > 0) {
      while (ready[blockIdx.x - 1] == 0) __builtin_amdgcn_s_sleep(1);
      __threadfence();
      sum = sums[blockIdx.x - 1];
    }
    before = sum;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += in[blockIdx.x * blockDim.x + i];
    sums[blockIdx.x] = sum;
    __threadfence();
    ready[blockIdx.x] = 1;
  }
  __syncthreads();
  int sum = before;
  for (unsigned i = 0; i <= threadIdx.x; ++i) sum += in[blockIdx.x * blockDim.x + i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

void lookback() {
  constexpr int kBlocks = 300, kThreads = 32, kCount = kBlocks * kThreads;
  std::vector<int> in(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = i % 17;
  std::partial_sum(in.begin(), in.end(), expected.begin());
  DeviceArray<int> din(in), dout(kCount), sums(kBlocks), ready(std::vector<int>(kBlocks, 0));
  scan_with_lookback<<<kBlocks, kThreads, 0, test_stream()>>>(din.data(), dout.data(), sums.data(),
                                                              ready.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("scan whose workgroups wait for one another", dout.host() == expected);
}

__device__ __noinline__ int collatz(int n) {
  return n <= 1 ? 0 : 1 + collatz(n % 2 == 0 ? n / 2 : 3 * n + 1);
}

__global__ void private_memory(int* out, int rounds) {
  int values[40];
  for (int i = 0; i < 40; ++i) values[i] = i * threadIdx.x;
  for (int i = 0; i < rounds; ++i) {
    const int from = (i * 7 + threadIdx.x) % 40;
    values[(from * 3 + 1) % 40] += values[from];
  }
  int sum = 0;
  for (int i = 0; i < 40; ++i) sum = sum * 31 + values[i];
  out[threadIdx.x] = sum + collatz(threadIdx.x % 20 + 1);
}

void stacks() {
  constexpr int kThreads = 128, kRounds = 100;
  DeviceArray<int> dout(kThreads);
  private_memory<<<1, kThreads, 0, test_stream()>>>(dout.data(), kRounds);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto out = dout.host();
  bool right = true;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    unsigned values[40], sum = 0;
    for (unsigned i = 0; i < 40; ++i) values[i] = i * thread;
    for (unsigned i = 0; i < kRounds; ++i) {
      const unsigned from = (i * 7 + thread) % 40;
      values[(from * 3 + 1) % 40] += values[from];
    }
    for (const unsigned value : values) sum = sum * 31 + value;
    right &= out[thread] == int(sum) + collatz_on_host(int(thread) % 20 + 1);
  }
  report("private memory and recursion", right, bits_of(out));
}

void fills_and_copies() {
  constexpr std::size_t kBytes = 100'003;
  DeviceArray<unsigned char> a(kBytes), b(kBytes);
  HIP_OK(hipMemsetAsync(a.data(), 0x5a, kBytes, test_stream()));
  HIP_OK(hipMemsetD32Async(a.data(), 0x01020304, 1000, test_stream()));
  HIP_OK(hipMemsetD16Async(a.data() + 8000, 0x0506, 500, test_stream()));
  HIP_OK(hipMemcpyAsync(b.data(), a.data(), kBytes, hipMemcpyDeviceToDevice, test_stream()));
  HIP_OK(hipMemset2DAsync(b.data() + 20'000, 64, 0x77, 10, 5, test_stream()));
  HIP_OK(hipMemcpy2DAsync(b.data() + 40'000, 100, a.data(), 50, 20, 6, hipMemcpyDeviceToDevice,
                          test_stream()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  std::vector<unsigned char> expected(kBytes, 0x5a);
  for (int i = 0; i < 1000; ++i)
    for (int byte = 0; byte < 4; ++byte) expected[i * 4 + byte] = 4 - byte;
  for (int i = 0; i < 500; ++i) expected[8000 + 2 * i] = 6, expected[8001 + 2 * i] = 5;
  const auto source = expected;
  for (int row = 0; row < 5; ++row)
    for (int i = 0; i < 10; ++i) expected[20'000 + 64 * row + i] = 0x77;
  for (int row = 0; row < 6; ++row)
    for (int i = 0; i < 20; ++i) expected[40'000 + 100 * row + i] = source[50 * row + i];
  report("fills and copies on the device", b.host() == expected && a.host() == source);
}

// One half of each of two register pairs, in every choice. Compilers since LLVM 16 emit the mixed
// ones.
__global__ void move_halves(unsigned long long a, unsigned long long b, unsigned long long* out) {
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
  asm volatile("v_pk_mov_b32 %0, %1, %2" : "=v"(out[0]) : "v"(a), "v"(b));
  asm volatile("v_pk_mov_b32 %0, %1, %2 op_sel:[1,0]" : "=v"(out[1]) : "v"(a), "v"(b));
  asm volatile("v_pk_mov_b32 %0, %1, %2 op_sel:[0,1]" : "=v"(out[2]) : "v"(a), "v"(b));
  asm volatile("v_pk_mov_b32 %0, %1, %2 op_sel:[1,1]" : "=v"(out[3]) : "v"(a), "v"(b));
#else
  for (unsigned choice = 0; choice < 4; ++choice)
    out[choice] = unsigned(a >> 32 * (choice & 1)) | (b >> 32 * (choice >> 1)) << 32;
#endif
}

void pairs() {
  DeviceArray<unsigned long long> out(4);
  const unsigned long long a = 0x1111111122222222, b = 0x3333333344444444;
  move_halves<<<1, 1, 0, test_stream()>>>(a, b, out.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  bool right = true;
  for (unsigned choice = 0; choice < 4; ++choice)
    right &=
        out.host()[choice] == (unsigned(a >> 32 * (choice & 1)) | (b >> 32 * (choice >> 1)) << 32);
  report("moves of halves of register pairs", right, bits_of(out.host()));
}

// Floating-point sums in the order in which workgroups come: the bits may differ between masks.
__global__ void sum_in_any_order(const float* in, float* out) {
  atomicAdd(out, in[blockIdx.x * blockDim.x + threadIdx.x]);
}

void order_dependent() {
  constexpr int kCount = 64 * 400;
  DeviceArray<float> din(numbers(kCount, 11, 1e4f)), dout(std::vector<float>(1));
  sum_in_any_order<<<kCount / 64, 64, 0, test_stream()>>>(din.data(), dout.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("sum in any order", true, bits_of(dout.host()));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"vector_add", vector_add},
                     {"reduction", reduction},
                     {"gemm", gemm},
                     {"softmax", softmax},
                     {"layernorm", layernorm},
                     {"atomics", atomics},
                     {"halves", halves},
                     {"integers", integers},
                     {"mathematics", mathematics},
                     {"lanes", lanes},
                     {"lookback", lookback},
                     {"stacks", stacks},
                     {"pairs", pairs},
                     {"fills_and_copies", fills_and_copies},
                     {"order_dependent", order_dependent}},
                    count, arguments);
}
