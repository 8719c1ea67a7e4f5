// SPDX-License-Identifier: Apache-2.0
//
// What the scenarios of boundaries.cpp and held_streams.cpp share: answers as lines, and a gate.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "session.h"

inline void print(const char* what, unsigned long long value) {
  std::printf("%s %llu\n", what, value);
}
inline void print(const char* what, CUresult status) {
  std::printf("%s %d\n", what, static_cast<int>(status));
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// How often a thread of this process went to sleep.
inline unsigned long long sleeps_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; file >> word;) {
    unsigned long long value = 0;
    if (word == "voluntary_ctxt_switches:" && file >> value) return value;
  }
  return 0;
}

// Holds streams with a host function until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  static void CUDA_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) sleep_ms(0);
  }
  void close(CUstream stream) { check(cuLaunchHostFunc(stream, &wait, this)); }
};

inline CUcontext second_context(CUdevice device) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  check(cuCtxCreate(&context, nullptr, 0, device));
#else
  check(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

// Of contexts that end and of copies between contexts, for the program `boundaries`.
extern const Scenarios kContextBoundaries;
