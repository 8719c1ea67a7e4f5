// SPDX-License-Identifier: Apache-2.0
//
// Shortest predicted work first, on the narrowest entry that loses less than a tenth of the best
// time that is to be had: a policy in C++, with profiles.
//
//     c++ -std=c++20 -shared -fPIC -I.. -o narrow_first.so narrow_first.cpp
#include <cstdlib>
#include <cstring>

#include "vitamin_policy.h"

namespace {

struct NarrowFirst {
  float tolerated = 1.1F;
};

const vitamin_operation& at(const vitamin_operation* operations, uint32_t index) {
  return *VITAMIN_AT(vitamin_operation, operations, index);
}

void* create(const char* parameters, char* error, size_t error_size) {
  if (*parameters == 0) return new NarrowFirst;
  char* end = nullptr;
  const float tolerated = std::strncmp(parameters, "tolerated=", 10) == 0
                              ? std::strtof(parameters + 10, &end)
                              : 0;
  if (tolerated >= 1 && *end == 0) return new NarrowFirst{tolerated};
  std::strncpy(error, "the parameter is tolerated=FACTOR, at least 1", error_size - 1);
  return nullptr;
}

int64_t pick(void*, const vitamin_operation* ready, uint32_t count,
                  const vitamin_pool*) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; ++i)
    if (at(ready, i).times_ns[0] < at(ready, best).times_ns[0]) best = i;
  return best;
}

vitamin_choice select(void* self, const vitamin_operation* operation,
                      const uint32_t* eligible, uint32_t count, const vitamin_pool*) {
  const float* times = operation->times_ns;
  const float most = times[eligible[count - 1]] * static_cast<NarrowFirst*>(self)->tolerated;
  uint32_t i = 0;
  while (times[eligible[i]] > most) ++i;
  return {eligible[i], VITAMIN_UNTIL_CHANGED};
}

}  // namespace

const vitamin_policy_functions* vitamin_policy() {
  static const vitamin_policy_functions functions = {
      sizeof functions, VITAMIN_POLICY_ABI, "narrow-first",
      "shortest first, on the narrowest entry that does", create,
      [](void* self) { delete static_cast<NarrowFirst*>(self); }, pick, select, nullptr};
  return &functions;
}
