// SPDX-License-Identifier: Apache-2.0
//
// What a random program knows of itself while it is made: which operations the rules of CUDA order
// before which, what is held by a gate, and what memory must hold in the end.
//
// A program is directed by one thread in one order ("program order"); every two operations that
// touch the same memory are ordered by the rules, so the result is that of program order.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitamin::random_programs {

using Word = std::uint32_t;
inline constexpr std::size_t kWords = 16;
inline constexpr std::size_t kBytes = kWords * sizeof(Word);
using Data = std::array<Word, kWords>;

inline constexpr std::size_t kOperationsMax = 2048;
using Set = std::bitset<kOperationsMax>;

inline Word mixed(Word to, Word from, Word value) { return (to ^ value) * 2654435761u + from; }

// What an operation does to the places (see Program).
struct Effect {
  enum class Kind : std::uint8_t { kMix, kCopy, kFill, kHost };
  Kind kind = Kind::kMix;
  std::size_t to = 0, from = 0;
  Word value = 0;
};

enum class LineKind : std::uint8_t { kLegacy, kPerThread, kBlocking, kNonBlocking, kGreen };

// A stream, or a default stream as one thread sees it.
struct Line {
  CUstream handle = nullptr;
  unsigned device = 0;
  LineKind kind = LineKind::kNonBlocking;
  unsigned thread = kAnyThread;  // of a per-thread default stream
  Set before;                    // what is ordered before its next operation
  Set maybe;                     // what its operations may wait for, at most
  unsigned depth = 0;            // operations since it was last known to be empty, at most
  bool busy = false;             // another thread is in a call on it
  static constexpr unsigned kAnyThread = ~0U;
  bool legacy() const { return kind == LineKind::kLegacy; }
  bool blocking() const { return kind == LineKind::kBlocking || kind == LineKind::kPerThread; }
  // A legacy and a blocking stream of one device: each operation comes behind all of the other.
  bool ordered_with(const Line& other) const {
    return device == other.device &&
           ((legacy() && other.blocking()) || (blocking() && other.legacy()));
  }
};

struct EventModel {
  CUevent handle = nullptr;
  unsigned device = 0;
  Set recorded;           // what is ordered before its newest record
  Set maybe;              // what that record may wait for, at most
  bool captured = false;  // its newest record is in a capture
};

// Holds a line until the directing thread opens it.
struct Gate {
  enum class Kind : std::uint8_t { kHostFunction, kKernel, kValueWait };
  Kind kind = Kind::kHostFunction;
  std::size_t operation = 0;
  bool closed = true;  // of the directing thread
  std::atomic<bool> flag{false};
  Word* word = nullptr;
};

struct GraphModel {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  unsigned device = 0;
  std::vector<Effect> effects;  // in an order that its edges allow
  struct Node {
    CUgraphNode handle = nullptr;
    std::size_t effect = 0;
    std::uint64_t ns = 0;
    unsigned blocks = 1;
  };
  std::vector<Node> kernels;
  EventModel* records = nullptr;  // behind all else
  EventModel* waits = nullptr;    // before all else
  // What its newest launch may wait for: natively the next one, on whatever stream, waits for it.
  Set maybe;
};

}  // namespace vitamin::random_programs
