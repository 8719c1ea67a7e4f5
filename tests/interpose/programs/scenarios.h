// SPDX-License-Identifier: Apache-2.0
//
// What the files of the program `scenarios` share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "session.h"

inline void print(const char* what, unsigned long long value) {
  std::printf("%s %llu\n", what, value);
}
inline void print(const char* what, CUresult status) {
  std::printf("%s answers %d\n", what, static_cast<int>(status));
}
inline void print(const char* what, const std::vector<Word>& words) {
  std::printf("%s", what);
  for (const Word word : words) std::printf(" %u", word);
  std::printf("\n");
}
inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds a stream until the host says so.
struct Gate {
  std::atomic<bool> open{false};
  static void CUDA_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) sleep_ms(0);
  }
  void close(CUstream stream) { check(drv.cuLaunchHostFunc(stream, &wait, this)); }
};

#define SCENARIO(name) \
  {                    \
#name, &name       \
  }

// Captures, errors, structure that no entry may change, contexts, devices, processes.
extern const Scenarios kContextScenarios;
