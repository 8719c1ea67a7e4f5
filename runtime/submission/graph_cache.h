// SPDX-License-Identifier: Apache-2.0
//
// GraphCache: what is slow about graphs (graph.h), and what their executables for partitions take.
// A graph is looked at, and executables are made, without the lock: by the application thread that
// launches it, within its call, or by the worker. The executables that were launched longest ago go
// when there is no more room (DispatchOptions::graph_bytes).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/graph.h"
#include "runtime/submission/core.h"

namespace vitamin::runtime {

class GraphCache {
 public:
  explicit GraphCache(Core& core) : core_(core) {}
  // SMs of the widest partition: no wider graph is made for one.
  void set_widest(std::uint32_t sms) { widest_ = sms; }

  // The graph is gone. Waits until no thread works at it: what the application destroys next may
  // be in use there. What it held goes away with the answer, which must happen without the lock.
  std::vector<Graph::Made> forget(Lock& lock, Graph& graph);
  // The application is about to destroy code, which graphs that it does not launch any more may
  // name: NVIDIA's driver faults where it makes such a graph executable or reads one of its kernels
  // (bench/results/engines/unloaded_code.txt; freed memory does no harm). No graph is worked at
  // from hold() on, but for what is in work, for which await_held() waits, until release(), which
  // forgets what is wanted: a later launch wants it anew. These and await_released() take the lock.
  void hold();
  void await_held();
  void release();
  // No thread holds it any more.
  void await_released();
  // Whether what is wanted will be done soon. Else a launch does not wait for it.
  bool works() const { return !finished_ && held_ == 0; }

  // The worker is to look at it (kNoPartition), or to make an executable for the partition.
  void want(const std::shared_ptr<Graph>& graph, PartitionId partition);
  bool awaited() const { return !wanted_.empty() && works(); }
  // Does now what is wanted. Drops the lock.
  void make_wanted(Lock& lock);
  // Does what a submission said that a graph needs (Blocked::kGraph), unless another thread works
  // at that graph. Drops the lock, and waits for no call of the application: what would have to is
  // left to the worker.
  void prepare(Lock& lock, const std::shared_ptr<Graph>& graph, PartitionId partition);
  // No graph is looked at or made any more: the process ends. Waits for the one at hand. Takes the
  // lock.
  void finish();
  // It was launched.
  void used(Graph::Made& made) { made.used = ++clock_; }

 private:
  struct Wanted {
    std::shared_ptr<Graph> graph;
    PartitionId partition;
  };
  void work(Lock& lock, const Wanted& want, hal::WaitsUntil waits);
  void look_at(Lock& lock, const std::shared_ptr<Graph>& graph);
  void describe(Graph& graph, const hal::GraphContents& contents);
  void make(Lock& lock, const std::shared_ptr<Graph>& graph, PartitionId partition,
            hal::WaitsUntil waits);
  template <class Ended>
  void wait_for_work(Lock& lock, Ended ended);
  std::vector<Graph::Made> make_room(std::uint64_t bytes, const Graph& but);
  void drop(Graph::Made& made);

  Core& core_;
  std::uint32_t widest_ = 0;
  std::deque<Wanted> wanted_;
  std::vector<Graph*> graphs_;  // those that have executables of ours
  std::uint64_t bytes_ = 0;     // what those take
  std::uint64_t clock_ = 0;     // counts their launches
  std::condition_variable made_;
  unsigned in_work_ = 0;   // by how many threads
  unsigned held_ = 0;      // by how many threads
  unsigned awaiting_ = 0;  // threads that wait for work at hand
  // There are some: the worker does not wait for calls of the application (hal::WaitsUntil).
  std::atomic<bool> hurry_{false};
  bool finished_ = false;
};

}  // namespace vitamin::runtime
