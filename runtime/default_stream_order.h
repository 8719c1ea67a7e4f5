// SPDX-License-Identifier: Apache-2.0
//
// What an arriving operation comes behind besides its own stream's tail: the legacy default stream
// and every blocking stream order themselves against each other, both ways (CUDA Driver API,
// "Legacy default stream"). Applied in program order, whatever is submitted when.
//
// Threads: guarded by the device lock.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/stream.h"

namespace vitamin::runtime {

class DefaultStreamOrder {
 public:
  // Adds to `predecessors` what the next operation of `stream` comes behind, as of now: a caller
  // that drops the lock before the operation is issued asks again.
  void list(const Stream& stream, Stream& legacy, std::vector<Predecessor>& predecessors) const;
  // list() would add nothing.
  bool adds_nothing(const Stream& stream) const {
    if (stream.kind == StreamKind::kLegacy) return dirty_.empty();
    return stream.kind == StreamKind::kNonBlocking ||
           stream.order.legacy_seen == legacy_operations_;
  }
  // The stream's next operation is issued, behind what list() says. An operation that does not come
  // about is never issued, so nothing has to be taken back.
  void issue(Stream& stream) {
    if (stream.kind != StreamKind::kNonBlocking) issue_ordered(stream);
  }
  // An operation that was issued ends only now, after the lock was dropped: a stage that took its
  // stream for seen, or for clean, meanwhile has to look again.
  void end_late(Stream& stream);
  // A destroyed stream whose work has all ended: nothing comes behind it any more.
  void forget(Stream& stream);
  // Blocking streams with work since the legacy stream's newest operation.
  std::span<Stream* const> dirty() const { return dirty_; }

 private:
  void issue_ordered(Stream& stream);
  std::vector<Stream*> dirty_;
  std::uint64_t legacy_operations_ = 0;
};

inline void DefaultStreamOrder::list(const Stream& stream, Stream& legacy,
                                     std::vector<Predecessor>& predecessors) const {
  if (adds_nothing(stream)) return;
  if (stream.kind == StreamKind::kLegacy) {
    for (Stream* blocking : dirty_) predecessors.push_back({blocking, blocking->timeline.newest()});
  } else {
    predecessors.push_back({&legacy, legacy.timeline.newest()});
  }
}

inline void DefaultStreamOrder::issue_ordered(Stream& stream) {
  if (stream.kind == StreamKind::kLegacy) {
    for (Stream* blocking : dirty_) blocking->order.dirty = false;
    dirty_.clear();
  } else if (stream.kind == StreamKind::kBlocking) {
    stream.order.legacy_seen = legacy_operations_;
  }
  end_late(stream);
}

inline void DefaultStreamOrder::end_late(Stream& stream) {
  if (stream.kind == StreamKind::kLegacy) ++legacy_operations_;
  if (stream.kind == StreamKind::kBlocking && !stream.order.dirty) {
    stream.order.dirty = true;
    dirty_.push_back(&stream);
  }
}

inline void DefaultStreamOrder::forget(Stream& stream) {
  if (std::exchange(stream.order.dirty, false)) std::erase(dirty_, &stream);
}

}  // namespace vitamin::runtime
