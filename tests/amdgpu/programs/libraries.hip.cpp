// SPDX-License-Identifier: Apache-2.0
//
// AMD's own libraries as Debian ships them: rocPRIM's templates (what hipCUB is made of) and the
// compiled kernels of rocRAND behind hipRAND.
#include <hiprand/hiprand.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <rocprim/rocprim.hpp>

#include "program.h"

namespace {

constexpr std::size_t kCount = 6'000;

std::vector<unsigned> random_words() {
  std::vector<unsigned> values(kCount);
  unsigned seed = 1;
  for (unsigned& value : values) value = (seed = seed * 1664525 + 1013904223) >> 4;
  return values;
}

// rocPRIM says how much memory it wants when it is given none.
template <class Call>
std::vector<unsigned> run_primitive(std::size_t results, Call&& call) {
  DeviceArray<unsigned> in(random_words()), out(results);
  std::size_t bytes = 0;
  HIP_OK(call(nullptr, bytes, in.data(), out.data()));
  DeviceArray<unsigned char> storage(bytes);
  HIP_OK(call(storage.data(), bytes, in.data(), out.data()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  return out.host();
}

void sort() {
  auto expected = random_words();
  std::sort(expected.begin(), expected.end());
  const auto got =
      run_primitive(kCount, [](void* storage, std::size_t& bytes, auto* in, auto* out) {
        return rocprim::radix_sort_keys(storage, bytes, in, out, kCount, 0, 32, test_stream());
      });
  report("rocPRIM radix sort", got == expected, bits_of(got));
}

void scan() {
  auto expected = random_words();
  std::partial_sum(expected.begin(), expected.end(), expected.begin());
  const auto got =
      run_primitive(kCount, [](void* storage, std::size_t& bytes, auto* in, auto* out) {
        return rocprim::inclusive_scan(storage, bytes, in, out, kCount, rocprim::plus<unsigned>(),
                                       test_stream());
      });
  report("rocPRIM scan", got == expected, bits_of(got));
}

void reduce() {
  const auto values = random_words();
  const auto got = run_primitive(1, [](void* storage, std::size_t& bytes, auto* in, auto* out) {
    return rocprim::reduce(storage, bytes, in, out, 0u, kCount, rocprim::plus<unsigned>(),
                           test_stream());
  });
  report("rocPRIM reduction", got[0] == std::accumulate(values.begin(), values.end(), 0u),
         bits_of(got));
}

void random_numbers() {
  for (const auto type :
       {HIPRAND_RNG_PSEUDO_XORWOW, HIPRAND_RNG_PSEUDO_PHILOX4_32_10, HIPRAND_RNG_PSEUDO_MRG32K3A}) {
    hiprandGenerator_t generator = nullptr;
    bool fine = hiprandCreateGenerator(&generator, type) == HIPRAND_STATUS_SUCCESS;
    fine &= hiprandSetStream(generator, test_stream()) == HIPRAND_STATUS_SUCCESS;
    DeviceArray<float> numbers(kCount);
    fine &=
        hiprandGenerateNormal(generator, numbers.data(), kCount, 0, 1) == HIPRAND_STATUS_SUCCESS;
    HIP_OK(hipStreamSynchronize(test_stream()));
    const auto values = numbers.host();
    double sum = 0, squares = 0;
    for (const float value : values) sum += value, squares += double(value) * value;
    fine &= std::fabs(sum / kCount) < 0.05 && std::fabs(squares / kCount - 1) < 0.05;
    report("hipRAND normal numbers", fine, bits_of(values));
    hiprandDestroyGenerator(generator);
  }
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks(
      {{"sort", sort}, {"scan", scan}, {"reduce", reduce}, {"random_numbers", random_numbers}},
      count, arguments);
}
