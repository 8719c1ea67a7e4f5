// SPDX-License-Identifier: Apache-2.0
//
// Debian's rocSPARSE, as a binary: a vector operation, a matrix times a vector, and a triangular
// solve, whose blocks wait for each other. Small numbers, so that every sum is exact.
#include <rocsparse/rocsparse.h>

#include <algorithm>

#include "program.h"

#define SPARSE_OK(call) STATUS_OK(call, rocsparse_status_success)

namespace {

rocsparse_handle handle() {
  rocsparse_handle made = nullptr;
  SPARSE_OK(rocsparse_create_handle(&made));
  SPARSE_OK(rocsparse_set_stream(made, test_stream()));
  return made;
}

// y[index] += a * x
void axpyi() {
  constexpr int kCount = 500, kRoom = 2000;
  std::vector<int> places(kCount);
  std::vector<float> x(kCount), y(kRoom, 1.0f);
  std::vector<float> expected = y;
  for (int i = 0; i < kCount; ++i) {
    places[i] = i * 3;
    x[i] = static_cast<float>(i % 17);
    expected[places[i]] += 2.0f * x[i];
  }
  const DeviceArray<int> device_places(places);
  const DeviceArray<float> device_x(x), device_y(y);
  const float alpha = 2.0f;
  SPARSE_OK(rocsparse_saxpyi(handle(), kCount, &alpha, device_x.data(), device_places.data(),
                             device_y.data(), rocsparse_index_base_zero));
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto got = device_y.host();
  report("rocSPARSE axpyi", got == expected, bits_of(got));
}

// A band of width five below and on the diagonal, ones on the diagonal.
struct Band {
  static constexpr int kRows = 200, kWidth = 5;
  std::vector<int> begins{0}, columns;
  std::vector<float> values;

  Band() {
    for (int row = 0; row < kRows; ++row) {
      for (int column = std::max(0, row - kWidth + 1); column <= row; ++column) {
        columns.push_back(column);
        values.push_back(column == row ? 1.0f : static_cast<float>((row + column) % 3 - 1));
      }
      begins.push_back(static_cast<int>(columns.size()));
    }
  }
  std::vector<float> times(const std::vector<float>& x) const {
    std::vector<float> y(kRows);
    for (int row = 0; row < kRows; ++row)
      for (int at = begins[row]; at < begins[row + 1]; ++at) y[row] += values[at] * x[columns[at]];
    return y;
  }
};

std::vector<float> small_numbers() {
  std::vector<float> x(Band::kRows);
  for (int i = 0; i < Band::kRows; ++i) x[i] = static_cast<float>(i % 7 - 3);
  return x;
}

void csrmv() {
  const Band band;
  const std::vector<float> x = small_numbers();
  const DeviceArray<int> begins(band.begins), columns(band.columns);
  const DeviceArray<float> values(band.values), device_x(x),
      y(std::vector<float>(Band::kRows, 0.0f));
  rocsparse_mat_descr description = nullptr;
  SPARSE_OK(rocsparse_create_mat_descr(&description));
  const float one = 1.0f, none = 0.0f;
  SPARSE_OK(rocsparse_scsrmv(handle(), rocsparse_operation_none, Band::kRows, Band::kRows,
                             static_cast<int>(band.columns.size()), &one, description,
                             values.data(), begins.data(), columns.data(), nullptr, device_x.data(),
                             &none, y.data()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto got = y.host();
  report("rocSPARSE csrmv", got == band.times(x), bits_of(got));
}

void csrsv() {
  const Band band;
  const std::vector<float> wanted = small_numbers();
  const DeviceArray<int> begins(band.begins), columns(band.columns);
  const DeviceArray<float> values(band.values), right(band.times(wanted)),
      x(std::vector<float>(Band::kRows, 0.0f));
  const rocsparse_handle library = handle();
  rocsparse_mat_descr description = nullptr;
  rocsparse_mat_info analysed = nullptr;
  SPARSE_OK(rocsparse_create_mat_descr(&description));
  SPARSE_OK(rocsparse_set_mat_fill_mode(description, rocsparse_fill_mode_lower));
  SPARSE_OK(rocsparse_set_mat_diag_type(description, rocsparse_diag_type_unit));
  SPARSE_OK(rocsparse_create_mat_info(&analysed));
  const int nonzeros = static_cast<int>(band.columns.size());
  std::size_t bytes = 0;
  SPARSE_OK(rocsparse_scsrsv_buffer_size(library, rocsparse_operation_none, Band::kRows, nonzeros,
                                         description, values.data(), begins.data(), columns.data(),
                                         analysed, &bytes));
  const DeviceArray<char> buffer(bytes);
  SPARSE_OK(rocsparse_scsrsv_analysis(library, rocsparse_operation_none, Band::kRows, nonzeros,
                                      description, values.data(), begins.data(), columns.data(),
                                      analysed, rocsparse_analysis_policy_force,
                                      rocsparse_solve_policy_auto, buffer.data()));
  const float one = 1.0f;
  SPARSE_OK(rocsparse_scsrsv_solve(library, rocsparse_operation_none, Band::kRows, nonzeros, &one,
                                   description, values.data(), begins.data(), columns.data(),
                                   analysed, right.data(), x.data(), rocsparse_solve_policy_auto,
                                   buffer.data()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto got = x.host();
  report("rocSPARSE triangular solve", got == wanted, bits_of(got));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"axpyi", axpyi}, {"csrmv", csrmv}, {"csrsv", csrsv}}, count, arguments);
}
