// SPDX-License-Identifier: Apache-2.0
//
// A queue that is full, and what the rules about full queues call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

#include "session.h"

namespace vitamin::differential {

// Makes one call after the other on a thread of its own until one does not return: a queue behind a
// gate that the caller has put is full then.
class FullQueue {
 public:
  using Make = std::function<CUresult(int)>;
  FullQueue(Session& session, Gate& gate, const Make& make, int enough = 20000)
      : gate_(gate), enough_(enough), maker_([this, &session, make] {
          VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
          while (made_ < enough_ && !stop_) {
            must(make(made_), "a call behind the gate");
            ++made_;
          }
        }) {
    for (int seen = -1; made_ < enough_ && seen != made_;) {
      seen = made_;
      std::this_thread::sleep_for(2 * timeout());
    }
  }
  ~FullQueue() {
    stop_ = true;
    gate_.open();
    maker_.join();
  }
  FullQueue(const FullQueue&) = delete;
  FullQueue& operator=(const FullQueue&) = delete;
  int made() const { return made_; }
  bool is_full() const { return made_ < enough_; }

 private:
  Gate& gate_;
  const int enough_;
  std::atomic<int> made_{0};
  std::atomic<bool> stop_{false};
  std::thread maker_;
};

// More than any device was seen to take.
inline constexpr int kEnoughOfAKind = 4096;

// A call and what the trace calls it.
struct Meanwhile {
  const char* name;
  std::function<CUresult()> call;
};

inline CUresult no_host_function(CUstream stream) {
  return api.cuLaunchHostFunc(
      stream, [](void*) {}, nullptr);
}

// The answers of calls that are made one after the other, as braces promise: the first failure.
inline CUresult failure_of(std::initializer_list<CUresult> answers) {
  for (const CUresult answer : answers)
    if (answer != CUDA_SUCCESS) return answer;
  return CUDA_SUCCESS;
}

inline CUgraphExec graph_of_launches(Session& session, CUdeviceptr word, int count) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const std::uint32_t value = 1;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < count; ++i)
    must(launch(session.function("store"), stream, {&word, &value}), "launch");
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  VITAMIN_MUST(cuGraphLaunch(executable, stream));
  drain();
  return executable;
}

// What the calls use, prepared before the gate closes.
struct Material {
  explicit Material(Session& session)
      : store(session.function("store")),
        large(session.function("store_of_many")),
        word(session.memory(1 << 16)),
        host(session.pinned(1 << 16)),
        one_event(session.event()),
        fired(session.event()),
        held(session.event()),
        holder(session.stream(CU_STREAM_NON_BLOCKING)),
        small_graph(graph_of_launches(session, word, 1)),
        large_graph(graph_of_launches(session, word, 20)) {
    VITAMIN_MUST(cuFuncLoad(large));
    for (int i = 0; i < kEnoughOfAKind; ++i) events.push_back(session.event());
    VITAMIN_MUST(cuEventRecord(fired, holder));
    VITAMIN_MUST(cuMemHostGetDevicePointer(&host_word, host, 0));
    drain();
  }
  CUresult launch_small(CUstream stream) const {
    const std::uint32_t value = 1;
    return launch(store, stream, {&word, &value});
  }
  CUresult launch_large(CUstream stream) const {
    static const std::vector<std::uint32_t> many(kLargeParameterWords);
    return launch(large, stream, {&word, many.data()});
  }

  CUfunction store, large;
  CUdeviceptr word;
  std::uint32_t* host;
  CUdeviceptr host_word = 0;
  CUevent one_event, fired;
  CUevent held;  // pending while the gate is closed
  CUstream holder;
  CUgraphExec small_graph, large_graph;
  std::vector<CUevent> events;
};

}  // namespace vitamin::differential
