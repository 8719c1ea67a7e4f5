// SPDX-License-Identifier: Apache-2.0
//
// Policy libraries that misbehave, one way for each parameter (and, by BAD_ABI, one that was
// compiled for another time).
#include <cstring>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "policies/vitamin_policy.h"

namespace {

void* create(const char* parameters, char* error, std::size_t size) {
  if (std::strcmp(parameters, "refuse") == 0) {
    std::strncpy(error, "I do not like these parameters", size - 1);
    return nullptr;
  }
  return new std::string(parameters);
}

bool is(void* self, const char* what) { return *static_cast<std::string*>(self) == what; }

void loop() {
  for (volatile bool for_ever = true; for_ever;) {
  }
}

std::int64_t pick(void* self, const vitamin_operation*, std::uint32_t count,
                  const vitamin_pool*) {
  if (is(self, "throw")) throw std::runtime_error("planted");
  if (is(self, "loop")) loop();
  return is(self, "beyond") ? count : 0;
}

vitamin_choice select(void* self, const vitamin_operation*, const std::uint32_t* eligible,
                      std::uint32_t, const vitamin_pool*) {
  if (is(self, "loop-select")) loop();
  if (is(self, "entry")) return {12345678, 1};
  if (is(self, "launches")) return {eligible[0], 0};
  return {eligible[0], 1};
}

vitamin_plan prepare(void* self, const vitamin_hint*, const vitamin_pool*) {
  if (is(self, "plan")) return {999, 1, 0, VITAMIN_NO_ENTRY};
  return {VITAMIN_NO_ENTRY, 0, 0, VITAMIN_NO_ENTRY};
}

#ifndef BAD_ABI
#define BAD_ABI VITAMIN_POLICY_ABI
#endif

}  // namespace

const vitamin_policy_functions* vitamin_policy() {
  static const vitamin_policy_functions functions = {
      sizeof functions, BAD_ABI, "bad", "misbehaves", create,
      [](void* self) { delete static_cast<std::string*>(self); }, pick, select, prepare};
  return &functions;
}
