// SPDX-License-Identifier: Apache-2.0
//
// What an arriving operation comes behind besides its own stream's tail: the legacy default stream
// and every blocking stream order themselves against each other, both ways (CUDA Driver API,
// "Legacy default stream"). Applied in program order, whatever is submitted when.
//
// Threads: guarded by the lock of the virtual context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/stream.h"

namespace vitamin::runtime {

class DefaultStreamOrder {
 public:
  // Adds to `after` what the next operation of `stream` comes behind.
  void arrive(Stream& stream, Stream& legacy, std::vector<Predecessor>& after);
  // arrive() would add nothing.
  bool adds_nothing(const Stream& stream) const {
    if (stream.kind == StreamKind::kLegacy) return dirty_.empty();
    return stream.kind == StreamKind::kNonBlocking || stream.legacy_seen == legacy_operations_;
  }
  // The operation that arrived with `after` did not come about: what arrive() took for seen or for
  // done is not.
  void retract(Stream& stream, std::span<const Predecessor> after);
  // An operation that had arrived is made only now, after the lock was dropped: whoever took its
  // stream for seen, or for clean, meanwhile has to look again.
  void repeat(Stream& stream);
  // Blocking streams with work since the legacy stream's newest operation.
  std::span<Stream* const> dirty() const { return dirty_; }

 private:
  // No legacy operation has this number.
  static constexpr std::uint64_t kNothingSeen = ~std::uint64_t{0};
  std::vector<Stream*> dirty_;
  std::uint64_t legacy_operations_ = 0;
};

inline void DefaultStreamOrder::arrive(Stream& stream, Stream& legacy,
                                       std::vector<Predecessor>& after) {
  if (stream.kind == StreamKind::kLegacy) {
    ++legacy_operations_;
    for (Stream* blocking : dirty_) {
      blocking->dirty = false;
      after.push_back({blocking, blocking->timeline.newest()});
    }
    dirty_.clear();
  } else if (stream.kind == StreamKind::kBlocking) {
    repeat(stream);
    if (stream.legacy_seen != legacy_operations_) {
      stream.legacy_seen = legacy_operations_;
      after.push_back({&legacy, legacy.timeline.newest()});
    }
  }
}

inline void DefaultStreamOrder::retract(Stream& stream, std::span<const Predecessor> after) {
  stream.legacy_seen = kNothingSeen;
  for (const Predecessor& p : after)
    if (p.stream->kind == StreamKind::kBlocking) repeat(*p.stream);
}

inline void DefaultStreamOrder::repeat(Stream& stream) {
  if (stream.kind == StreamKind::kLegacy) ++legacy_operations_;
  if (stream.kind == StreamKind::kBlocking && !stream.dirty) {
    stream.dirty = true;
    dirty_.push_back(&stream);
  }
}

}  // namespace vitamin::runtime
