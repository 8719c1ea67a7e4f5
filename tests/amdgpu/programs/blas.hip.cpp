// SPDX-License-Identifier: Apache-2.0
//
// rocBLAS, as a binary: products of matrices of several sizes, A as it is and transposed. Small
// numbers, so that every sum is exact.
#include <rocblas/rocblas.h>

#include "program.h"

#define BLAS_OK(call) STATUS_OK(call, rocblas_status_success)

namespace {

rocblas_handle handle() {
  static const rocblas_handle made = [] {
    rocblas_handle fresh = nullptr;
    BLAS_OK(rocblas_create_handle(&fresh));
    BLAS_OK(rocblas_set_stream(fresh, test_stream()));
    return fresh;
  }();
  return made;
}

struct Shape {
  int rows, columns, depth;
  bool transposed;  // A
};
constexpr Shape kShapes[] = {
    {16, 16, 16, false}, {64, 48, 32, false}, {100, 70, 50, false}, {128, 128, 64, true}};

// Of columns. `call`: C = 2 * A * B + 1 * C.
template <class T, class Call>
void product(const char* name, Call&& call) {
  for (const auto& [m, n, k, transposed] : kShapes) {
    std::vector<T> a, b, c;
    for (int at = 0; at < m * k; ++at) a.push_back(static_cast<T>(float(at * 7 % 9 - 4)));
    for (int at = 0; at < k * n; ++at) b.push_back(static_cast<T>(float(at * 5 % 7 - 3)));
    for (int at = 0; at < m * n; ++at) c.push_back(static_cast<T>(float(at % 5 - 2)));
    const DeviceArray<T> da(a), db(b), dc(c);
    BLAS_OK(call(handle(), transposed ? rocblas_operation_transpose : rocblas_operation_none, m, n,
                 k, da.data(), transposed ? k : m, db.data(), dc.data()));
    HIP_OK(hipStreamSynchronize(test_stream()));
    const auto got = dc.host();
    bool right = true;
    for (int row = 0; row < m; ++row)
      for (int column = 0; column < n; ++column) {
        float sum = static_cast<float>(c[row + column * m]);
        for (int at = 0; at < k; ++at)
          sum += 2 * static_cast<float>(a[transposed ? at + row * k : row + at * m]) *
                 static_cast<float>(b[at + column * k]);
        right = right && static_cast<float>(got[row + column * m]) == sum;
      }
    report(std::string("rocBLAS ") + name + " " + std::to_string(m) + "x" + std::to_string(n) +
               "x" + std::to_string(k),
           right, bits_of(got));
  }
}

void single() {
  product<float>("sgemm", [](auto h, auto op, int m, int n, int k, const float* a, int lda,
                             const float* b, float* c) {
    const float two = 2, one = 1;
    return rocblas_sgemm(h, op, rocblas_operation_none, m, n, k, &two, a, lda, b, k, &one, c, m);
  });
}

void double_precision() {
  product<double>("dgemm", [](auto h, auto op, int m, int n, int k, const double* a, int lda,
                              const double* b, double* c) {
    const double two = 2, one = 1;
    return rocblas_dgemm(h, op, rocblas_operation_none, m, n, k, &two, a, lda, b, k, &one, c, m);
  });
}

void halves() {
  product<_Float16>("hgemm", [](auto h, auto op, int m, int n, int k, const _Float16* a, int lda,
                                const _Float16* b, _Float16* c) {
    const float two = 2, one = 1;
    return rocblas_gemm_ex(h, op, rocblas_operation_none, m, n, k, &two, a, rocblas_datatype_f16_r,
                           lda, b, rocblas_datatype_f16_r, k, &one, c, rocblas_datatype_f16_r, m, c,
                           rocblas_datatype_f16_r, m, rocblas_datatype_f32_r,
                           rocblas_gemm_algo_standard, 0, 0);
  });
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"single", single}, {"double", double_precision}, {"halves", halves}}, count,
                    arguments);
}
