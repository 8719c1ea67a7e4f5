// SPDX-License-Identifier: Apache-2.0
//
// What the programs of graphs share.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "session.h"

inline constexpr std::uint64_t kShort = 2'000;

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
// For what is made off the path. PAUSE_MS: how long that takes is the machine's.
inline void wait_a_little() {
  static const char* const given = std::getenv("PAUSE_MS");
  static const long ms = given != nullptr ? std::strtol(given, nullptr, 10) : 2;
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// Kernels of a library, as cudart launches them, or functions of a module, as Triton does.
struct Kernels {
  explicit Kernels(const Session& of, bool of_library) : session(of) {
    if (!of_library) return;
    check(drv.cuLibraryLoadData(&library, module_image("TEST_KERNELS").data(), nullptr, nullptr, 0,
                                nullptr, nullptr, 0));
  }
  CUfunction operator()(const char* name) const {
    if (library == nullptr) return session.kernel(name);
    CUkernel kernel = nullptr;
    check(drv.cuLibraryGetKernel(&kernel, library, name));
    return reinterpret_cast<CUfunction>(kernel);
  }
  template <class... Args>
  void launch(const char* name, CUstream stream, Args... args) const {
    void* pointers[] = {&args..., nullptr};
    check(drv.cuLaunchKernel((*this)(name), 1, 1, 1, 32, 1, 1, 0, stream, pointers, nullptr));
  }
  const Session& session;
  CUlibrary library = nullptr;
};

// Adds one to a word in a way that loses some when two of them overlap: it is `steps` kernels, each
// behind the other, by way of `through`.
inline void add_slowly(const Kernels& kernels, CUstream stream, CUdeviceptr word,
                       CUdeviceptr through, Word value, std::uint64_t ns = kShort) {
  kernels.launch("slow_copy", stream, through, word, Word{1}, ns);
  kernels.launch("slow_add", stream, through, value, ns);
  kernels.launch("slow_copy", stream, word, through, Word{1}, ns);
}

inline CUgraph captured(CUstream stream, CUstreamCaptureMode mode,
                        const std::function<void()>& work) {
  CUgraph graph = nullptr;
  check(drv.cuStreamBeginCapture(stream, mode));
  work();
  check(drv.cuStreamEndCapture(stream, &graph));
  return graph;
}

inline CUgraphExec executable(CUgraph graph) {
  CUgraphExec made = nullptr;
  check(drv.cuGraphInstantiate(&made, graph, 0));
  return made;
}

inline std::vector<CUgraphNode> nodes_of(CUgraph graph, CUgraphNodeType type) {
  std::size_t count = 0;
  check(drv.cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count), found;
  check(drv.cuGraphGetNodes(graph, nodes.data(), &count));
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType is;
    check(drv.cuGraphNodeGetType(node, &is));
    if (is == type) found.push_back(node);
  }
  return found;
}
