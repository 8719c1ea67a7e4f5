// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices by hipcc's builtins for MFMA, one block of the result for each wave. Small
// numbers, so that every sum is exact.
#include <hip/hip_fp16.h>

#include "program.h"

namespace {

template <class T, int kCount>
using Vector = T __attribute__((ext_vector_type(kCount)));

// A block of `kRows` rows and columns; each lane gives `kInLane` elements of A and of B to a step
// of `kStep` columns of A, and holds `kSums` elements of the result.
struct Single {
  using Element = float;
  using Sum = float;
  static constexpr int kRows = 32, kStep = 2, kInLane = 1, kSums = 16;
  static const char* name() { return "f32 32x32x2"; }
};
struct Halves {
  using Element = _Float16;
  using Sum = float;
  static constexpr int kRows = 32, kStep = 8, kInLane = 4, kSums = 16;
  static const char* name() { return "f16 32x32x8"; }
};
struct Bfloat {
  using Element = short;  // the upper half of a float
  using Sum = float;
  static constexpr int kRows = 16, kStep = 16, kInLane = 4, kSums = 4;
  static const char* name() { return "bf16 16x16x16"; }
};
struct Bytes {
  using Element = signed char;
  using Sum = int;
  static constexpr int kRows = 16, kStep = 16, kInLane = 4, kSums = 4;
  static const char* name() { return "i8 16x16x16"; }
};
struct Double {
  using Element = double;
  using Sum = double;
  static constexpr int kRows = 16, kStep = 4, kInLane = 1, kSums = 4;
  static const char* name() { return "f64 16x16x4"; }
};

// The row of the block that `sum` of a lane belongs to.
template <class F>
__device__ int row_of(int lane, int sum) {
  if (sizeof(typename F::Sum) == 8) return 4 * sum + lane / 16;
  if (F::kRows == 32) return sum / 4 * 8 + lane / 32 * 4 + sum % 4;
  return lane / 16 * 4 + sum;
}

#if defined(__gfx90a__)
__device__ auto multiply(Single, Vector<float, 1> a, Vector<float, 1> b, Vector<float, 16> c) {
  return __builtin_amdgcn_mfma_f32_32x32x2f32(a[0], b[0], c, 0, 0, 0);
}
__device__ auto multiply(Halves, Vector<_Float16, 4> a, Vector<_Float16, 4> b,
                         Vector<float, 16> c) {
  return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
}
__device__ auto multiply(Bfloat, Vector<short, 4> a, Vector<short, 4> b, Vector<float, 4> c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}
__device__ auto multiply(Bytes, Vector<signed char, 4> a, Vector<signed char, 4> b,
                         Vector<int, 4> c) {
  return __builtin_amdgcn_mfma_i32_16x16x16i8(__builtin_bit_cast(int, a),
                                              __builtin_bit_cast(int, b), c, 0, 0, 0);
}
__device__ auto multiply(Double, Vector<double, 1> a, Vector<double, 1> b, Vector<double, 4> c) {
  return __builtin_amdgcn_mfma_f64_16x16x4f64(a[0], b[0], c, 0, 0, 0);
}
#else
// Never called: other parts have no such instructions.
template <class F, class A, class C>
__device__ C multiply(F, A, A, C c) {
  return c;
}
#endif

// c = a * b of square matrices. b is stored by columns.
template <class F>
__global__ void multiply_blocks(const typename F::Element* a, const typename F::Element* b,
                                typename F::Sum* c, int size) {
  const int lane = threadIdx.x, row = lane % F::kRows, k_of_lane = lane / F::kRows * F::kInLane;
  const auto* const rows = a + (blockIdx.y * F::kRows + row) * size + k_of_lane;
  const auto* const columns = b + (blockIdx.x * F::kRows + row) * size + k_of_lane;
  Vector<typename F::Sum, F::kSums> sums = {};
  for (int k = 0; k < size; k += F::kStep) {
    Vector<typename F::Element, F::kInLane> left, right;
    for (int at = 0; at < F::kInLane; ++at) left[at] = rows[k + at], right[at] = columns[k + at];
    sums = multiply(F{}, left, right, sums);
  }
  for (int sum = 0; sum < F::kSums; ++sum)
    c[(blockIdx.y * F::kRows + row_of<F>(lane, sum)) * size + blockIdx.x * F::kRows + row] =
        sums[sum];
}

template <class F>
typename F::Element element(int value) {
  if (std::is_same_v<F, Bfloat>) {
    std::uint32_t bits;
    const float single = static_cast<float>(value);
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<typename F::Element>(bits >> 16);
  }
  return static_cast<typename F::Element>(value);
}

template <class F>
void product() {
  constexpr int kSize = 96;
  std::vector<int> a(kSize * kSize), b(kSize * kSize);
  std::vector<typename F::Element> left, right;
  for (int at = 0; at < kSize * kSize; ++at) {
    a[at] = at * 7 % 31 - 15, b[at] = at * 11 % 29 - 14;
    left.push_back(element<F>(a[at])), right.push_back(element<F>(b[at]));
  }
  std::vector<typename F::Sum> expected(kSize * kSize);
  for (int i = 0; i < kSize; ++i)
    for (int j = 0; j < kSize; ++j)
      for (int k = 0; k < kSize; ++k)
        expected[i * kSize + j] += a[i * kSize + k] * b[j * kSize + k];
  const DeviceArray<typename F::Element> da(left), db(right);
  DeviceArray<typename F::Sum> dc(kSize * kSize);
  constexpr int kBlocks = kSize / F::kRows;
  multiply_blocks<F>
      <<<dim3(kBlocks, kBlocks), 64, 0, test_stream()>>>(da.data(), db.data(), dc.data(), kSize);
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto got = dc.host();
  report(std::string("MFMA ") + F::name(), got == expected, bits_of(got));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"single", product<Single>},
                     {"halves", product<Halves>},
                     {"bfloat", product<Bfloat>},
                     {"bytes", product<Bytes>},
                     {"double", product<Double>}},
                    count, arguments);
}
