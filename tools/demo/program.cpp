// SPDX-License-Identifier: Apache-2.0
#include "tools/demo/program.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vitamin::demo {

void stop(const std::string& message) {
  std::fprintf(stderr, "demo: %s\n", message.c_str());
  std::exit(1);
}

std::uint64_t hash(const std::vector<float>& values) {
  std::uint64_t result = 0xcbf29ce484222325;
  for (const float value : values) {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (const unsigned char byte : bytes) result = (result ^ byte) * 0x100000001b3;
  }
  return result;
}

unsigned count_argument(int argc, char** argv, unsigned preset) {
  if (argc < 2) return preset;
  char* end = nullptr;
  constexpr unsigned long kMost = 1'000'000;
  const unsigned long value = std::strtoul(argv[1], &end, 10);
  if (argc > 2 || *argv[1] == '\0' || *end != '\0' || value == 0 || value > kMost)
    stop(std::string("usage: ") + argv[0] + " [COUNT], COUNT from 1 to 1000000");
  return static_cast<unsigned>(value);
}

void print_result(const char* name, std::uint64_t hash, std::uint64_t launches, double seconds) {
  std::printf("%s: hash %016llx, %llu launches, %.3f seconds\n", name,
              static_cast<unsigned long long>(hash), static_cast<unsigned long long>(launches),
              seconds);
}

}  // namespace vitamin::demo
