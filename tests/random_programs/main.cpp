// SPDX-License-Identifier: Apache-2.0
//
// Runs random CUDA programs and prints every answer (README.md).
//
//   random_cuda_programs FIRST COUNT [--limit-ms N] [--drop I,J,...] [--without KIND,...]
//                        [--only KIND,...]
//
// Exit code 2: memory holds wrong values. AddressSanitizer ends a program with 1.
// Environment: RANDOM_KERNELS names the module of kernels.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "program.h"

namespace {

using vitamin::random_programs::Log;
using vitamin::random_programs::Program;
using vitamin::random_programs::Watchdog;
using vitamin::random_programs::World;

std::set<std::string> words_of(const char* list) {
  std::set<std::string> words;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) words.insert(word);
  return words;
}

std::string image() {
  const char* path = std::getenv("RANDOM_KERNELS");
  std::ifstream file(path != nullptr ? path : "", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (!bytes.empty()) return bytes;
  std::printf("RANDOM_KERNELS names no module\n");
  std::exit(3);
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) return 64;
  const std::uint64_t first = std::strtoull(words[1], nullptr, 10);
  const std::uint64_t programs = std::strtoull(words[2], nullptr, 10);
  Program::Options options;
  unsigned long limit_ms = 10'000;
  for (int i = 3; i + 1 < count; i += 2) {
    const std::string option = words[i];
    if (option == "--limit-ms") limit_ms = std::strtoul(words[i + 1], nullptr, 10);
    if (option == "--without") options.without = words_of(words[i + 1]);
    if (option == "--only") options.only = words_of(words[i + 1]);
    if (option == "--drop")
      for (const std::string& word : words_of(words[i + 1]))
        options.dropped.insert(static_cast<unsigned>(std::stoul(word)));
  }
  options.child_limit_ms = limit_ms / 2;
  // Both outlive main: what is queued may still look at them. Static, so that they are no leak.
  static Log& log = *new Log;
  static World& world = *new World(log, image());
  bool right = true;
  world.start();
  {
    Watchdog watchdog(log, std::chrono::milliseconds(limit_ms));
    for (std::uint64_t seed = first; seed < first + programs; ++seed) {
      watchdog.begin();
      const auto begin = std::chrono::steady_clock::now();
      log.say("program %llu", static_cast<unsigned long long>(seed));
      options.seed = seed;
      {
        Program program(world, options);
        right = program.run() && right;
        log.say("end of %u fragments", program.fragments());
      }
      const auto took = std::chrono::steady_clock::now() - begin;
      log.say("# %lld us",
              static_cast<long long>(
                  std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
      log.flush();
    }
  }
  world.shut_down();
  return right ? 0 : 2;
}
