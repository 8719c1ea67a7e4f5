// SPDX-License-Identifier: Apache-2.0
//
// A policy library that misbehaves, one way for each parameter; by BAD_ABI, one that was compiled
// for another version; by BAD_INTERFACE, one of another interface; by BAD_LAST, one whose table
// ends before that field.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "scheduler/policies/vitamin_policy.h"

#ifndef BAD_ABI
#define BAD_ABI VITAMIN_POLICY_ABI
#endif
#ifndef BAD_INTERFACE
#define BAD_INTERFACE 0
#endif

namespace {

bool is(void* self, const char* what) { return *static_cast<std::string*>(self) == what; }

void loop() {
  for (volatile bool for_ever = true; for_ever;) {
  }
}

void* create(const char* parameters, char* error, std::size_t size) {
  if (std::strcmp(parameters, "refuse") == 0) {
    std::strncpy(error, "I do not like these parameters", size - 1);
    return nullptr;
  }
  if (std::strcmp(parameters, "create-throw") == 0) throw std::runtime_error("planted");
  if (std::strcmp(parameters, "create-loop") == 0) loop();
  return new std::string(parameters);
}

void destroy(void* self) { delete static_cast<std::string*>(self); }

std::int64_t allocate(void* self, const vitamin_snapshot* snapshot, vitamin_row* rows,
                      std::uint32_t capacity, std::uint64_t*) {
  if (is(self, "throw")) throw std::runtime_error("planted");
  if (is(self, "loop")) loop();
  if (is(self, "fail")) return -1;
  if (is(self, "beyond")) return std::int64_t{capacity} + 1;
  rows[0] = vitamin_row_for(snapshot->clients_count > 0 ? snapshot->clients->id : 0);
  if (is(self, "size")) rows[0].size = 3;
  if (is(self, "partition")) rows[0].partition = 70'000;
  if (is(self, "mode")) rows[0].mode = 256;
  if (is(self, "client")) rows[0].client = 4711;
  return 1;
}

vitamin_choice place(void* self, const vitamin_launch*, const std::uint32_t* eligible,
                     std::uint32_t) {
  if (is(self, "throw")) throw std::runtime_error("planted");
  if (is(self, "loop")) loop();
  return {is(self, "partition") ? 70'000U : eligible[0], 1};
}

void forget(void* self, std::uint32_t) {
  if (is(self, "forget")) throw std::runtime_error("planted");
}

std::int64_t pick(void* self, const vitamin_operation*, std::uint32_t count,
                  const vitamin_snapshot*) {
  return is(self, "beyond") ? count : 0;
}

vitamin_choice select(void* self, const vitamin_operation*, const std::uint32_t* eligible,
                      std::uint32_t, const vitamin_snapshot*) {
  if (is(self, "loop")) loop();
  if (is(self, "taken")) return {1, 1};  // the narrowest, whether or not another client has it
  return {is(self, "partition") ? 70'000U : eligible[0], 1};
}

}  // namespace

const vitamin_policy_functions* vitamin_policy() {
  static const vitamin_policy_functions functions = [] {
    vitamin_policy_functions table{};
#ifdef BAD_LAST
    table.size = offsetof(vitamin_policy_functions, BAD_LAST);
#else
    table.size = sizeof table;
#endif
    table.abi = BAD_ABI;
    table.name = "bad";
    table.summary = "misbehaves";
    table.create = create;
    table.destroy = destroy;
    table.forget = forget;
    if (BAD_INTERFACE == 0 || BAD_INTERFACE == 3) table.allocate = allocate;
    if (BAD_INTERFACE == 1 || BAD_INTERFACE == 3) table.place = place;
    if (BAD_INTERFACE == 2) {
      table.pick = pick;
      table.select = select;
    }
    return table;
  }();
  return &functions;
}
