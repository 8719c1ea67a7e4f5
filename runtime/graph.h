// SPDX-License-Identifier: Apache-2.0
//
// An executable graph of the program as the pipeline sees it: one operation. *Ours* are executables
// of the same nodes that the runtime makes for the partitions where it is launched.
//
// What is slow (looking at its nodes, making one of ours) is done without the lock. An application
// thread whose launch could go to a partition, and finds none of ours, makes the first one in its
// own call, which takes about as long as making the program's executable took
// (GraphCache::prepare). Those for other partitions are made by the worker. Meanwhile launches go
// where there is one if the arbiter grants that: one in this process may, vitamind does not, and
// without a grant they go to the whole device. Where no grant at all is at hand a launch waits for
// one, as a kernel does, unless the graph holds kernels that wait for other processes. A launch
// that is submitted by the mover makes none: without one it goes to the whole device, as the
// program's executable on the program's own stream. Where the whole device is granted nothing is
// made, and a graph is looked at only where it would have to wait for a grant, or under one that
// has to know when its work ends (Arbiter::submitted).
//
// Natively an executable never runs beside itself. Ours do not know of each other, so each launch
// comes behind the one before, wherever that went.
//
// Where the program's executable runs on whatever queue it is launched to (`anywhere`), it is the
// executable of every partition: none is made, and the vendor orders its launches.
//
// Threads: the state is guarded by the device lock of its virtual context.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hal/graph.h"
#include "runtime/advice.h"
#include "runtime/kernel_table.h"
#include "runtime/marker.h"
#include "runtime/operation.h"
#include "runtime/pool/layout.h"
#include "runtime/stats.h"
#include "runtime/stream.h"

namespace vitamin::runtime {

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  explicit Graph(std::shared_ptr<hal::GraphSource> of)
      : source(std::move(of)), anywhere(source->runs_anywhere()) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  struct Made {  // one of ours
    PartitionId partition = kNoPartition;
    std::shared_ptr<hal::GraphExecutable> executable;  // null: the program's (`anywhere`)
    std::uint64_t version = 0;  // of the graph, when it was made or brought up to date
    std::uint64_t used = 0;     // when it was launched last, by the cache's count
    std::uint64_t launches = 0;
  };
  Made* find(PartitionId partition) {
    const auto found = std::find_if(made.begin(), made.end(),
                                    [&](const Made& one) { return one.partition == partition; });
    return found != made.end() ? &*found : nullptr;
  }
  // Ours for a partition, of the graph as it is now; null: there is none.
  Made* ready(PartitionId partition) {
    Made* one = find(partition);
    if (!anywhere) return one != nullptr && one->version == version ? one : nullptr;
    if (!looked) return nullptr;
    if (one == nullptr) one = &made.emplace_back(Made{partition, nullptr});
    one->version = version;
    return one;
  }
  // It holds another graph than when it was launched last, not one of the same kernels. Bringing an
  // executable up to date costs as much as making one, so what is replaced before every launch
  // stays where natively it runs.
  bool unsettled() const { return replaced && !anywhere; }
  // The application changed it. What its source did not follow stays where natively it runs, until
  // the graph is replaced as a whole.
  void changed(hal::Followed followed) {
    using hal::Followed;
    const bool whole = followed == Followed::kReplaced || followed == Followed::kReplacedAlike;
    const bool anew = followed != Followed::kNodes && followed != Followed::kReplacedAlike;
    ++version;
    launches = 0;
    replaced = replaced || anew;
    looked = asked = ends_by_itself = false;
    if (stays == stats::GraphReason::kFresh) stays.reset();
    const bool known_again = whole && stays == stats::GraphReason::kUnfollowed;
    if (known_again || (anew && knowable())) {
      stays.reset();
      kernel.refused.reset();
    }
    if (followed == Followed::kNot) stays = stats::GraphReason::kUnfollowed;
  }
  // A look at it says what it holds, whether it stays or not.
  bool knowable() const {
    return stays != stats::GraphReason::kUnfollowed && stays != stats::GraphReason::kContexts;
  }

  const std::shared_ptr<hal::GraphSource> source;
  const bool anywhere;          // hal::GraphSource::runs_anywhere()
  bool gone = false;            // destroyed by the application, or its context is
  std::uint64_t version = 1;    // of what it does
  std::uint64_t launches = 0;   // of this version
  bool replaced = false;        // as a whole, since it was launched last
  bool asked = false;           // the worker is to look at this version
  bool looked = false;          // what follows is known
  bool ends_by_itself = false;  // looked at, and none of its kernels waits for other processes
  bool in_work = false;         // a thread calls its source, without the lock
  // Why no partition takes it, whatever is granted. What a look found holds until it is looked at
  // again or replaced as a whole; kFresh, that it is unknown, until it is changed; that single
  // partitions refused it, in `kernel`, until it is replaced.
  std::optional<stats::GraphReason> stays;
  Kernel kernel;             // what stands for it where kernels are spoken of
  hal::KernelLaunch launch;  // the same
  std::uint32_t needed = 1;  // SMs
  std::uint64_t places = 1;  // that a launch takes in a queue of the driver, as far as is known
  hal::GraphShape shape;
  // How many of its kernels came from each library.
  std::vector<std::pair<stats::LibrarySlot*, std::uint32_t>> libraries;

  std::vector<Made> made;
  std::vector<PartitionId> wanted;  // for which ours are to be made
  PartitionId last_partition = kNoPartition;

  // Its newest launch, submitted or not: the next one is submitted behind it.
  Predecessor newest;
  // Behind the newest one that was submitted; null: that is the program's executable, and none of
  // ours was made or wanted. `host_wait`: unfired when it lies behind a host wait.
  const Stream* last_stream = nullptr;
  MarkerRef last, host_wait;
};

// A launch of a graph. The pipeline says with which executable.
class GraphOperation : public Operation {
 public:
  // `stays`: why this launch goes to the program's own stream, at once. `advice`: copied; null:
  // nothing is said.
  explicit GraphOperation(std::shared_ptr<Graph> graph,
                          std::optional<stats::GraphReason> stays = std::nullopt,
                          const Advice* advice = nullptr)
      : graph_(std::move(graph)), stays_(stays) {
    if (advice != nullptr) advice_ = *advice;
  }
  GraphOperation* as_graph() override { return this; }
  const std::shared_ptr<Graph>& graph() const { return graph_; }
  std::optional<stats::GraphReason> stays() const { return stays_; }
  const Advice* advice() const { return advice_ ? &*advice_ : nullptr; }
  // What the application's own executable holds, for the audit; empty: not asked for.
  virtual std::optional<hal::GraphShape> asked() const { return std::nullopt; }
  // One of ours; null: the program's.
  void use(std::shared_ptr<hal::GraphExecutable> executable) {
    executable_ = std::move(executable);
  }
  const hal::GraphExecutable* used() const { return executable_.get(); }

  hal::NativeStatus submit(hal::Queue& queue) noexcept final {
    return executable_ != nullptr ? executable_->launch(queue) : launch_own(queue.native());
  }

 protected:
  // The application's own executable, on its own stream, or where it runs anywhere.
  virtual hal::NativeStatus launch_own(void* native) noexcept = 0;

 private:
  std::shared_ptr<Graph> graph_;
  std::optional<stats::GraphReason> stays_;
  std::optional<Advice> advice_;
  std::shared_ptr<hal::GraphExecutable> executable_;
};

}  // namespace vitamin::runtime
