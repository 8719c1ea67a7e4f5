// SPDX-License-Identifier: Apache-2.0
//
// The compute queues of one GPU, shared out among the processes on it. A GPU has 24 for all
// (21 measured), one of RDNA 2 and 3 eight; beyond that they take turns, and nothing is spatial any
// more.
//
// The record is a file that every process locks pieces of: the kernel drops the locks of a process
// that ends, however it ends, so no process needs a daemon. A piece is one byte:
//
//   offset     0 .. 255   one for each process
//            256 .. 511   one for each plain queue: the runtime's own, and those that the
//                         application's streams share. Never refused, only counted
//            512 ..       one for each pool queue; only so many as the plain ones leave are taken
//
// Each process may hold an equal share of the pool queues, and gives back what is above it
// (limit()). Two are left free, for the runtime's queue and the default stream's of the next
// process.
//
// Limits. Processes that do not run under Vitamin, or are confined by the user's own mask, are not
// counted, nor are processes beyond 256, queues of other priorities and of cooperative grids. A
// child that was forked and does not exec keeps its parent's pieces until it ends. Where
// applications' streams have every queue, no process has a pool queue. A share that shrinks is
// given back as its queues come idle, looked at twice a second: until then processes that come
// together may have more than there are.
//
// Threads: any.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::hip {

class QueueLedger : public std::enable_shared_from_this<QueueLedger> {
 public:
  // One queue; destroying it gives it back. Keeps the ledger.
  using Ticket = std::shared_ptr<void>;

  // `directory`: one that all users of the GPU have, as /run/lock. `gpu`: its name in it.
  // `plain_max`: how many queues the application's streams share at most. kUnavailable: no such
  // file, or its file system has no locks.
  static hal::Result<std::shared_ptr<QueueLedger>> open(const std::string& directory,
                                                        const std::string& gpu, unsigned queues,
                                                        unsigned plain_max);
  ~QueueLedger();
  QueueLedger(const QueueLedger&) = delete;
  QueueLedger& operator=(const QueueLedger&) = delete;

  // A stream of the application's lives as long as the ticket.
  Ticket stream();
  // A pool queue; null: the GPU has none left.
  Ticket pool_queue();
  // How many pool queues this process should hold now.
  unsigned limit();

 private:
  QueueLedger(int file, unsigned queues, unsigned plain_max)
      : file_(file), queues_(queues), plain_max_(plain_max) {}
  bool lock(unsigned piece);
  void unlock(unsigned piece);
  unsigned of_others(unsigned first, unsigned count) const;
  unsigned left() const;
  void count_plain();
  void end_stream();
  void end_pool_queue(unsigned piece);

  const int file_;
  const unsigned queues_, plain_max_;
  std::mutex mutex_;
  unsigned streams_ = 0;
  std::vector<unsigned> plain_, pool_;  // pieces that are ours
};

}  // namespace vitamin::hip
