// SPDX-License-Identifier: Apache-2.0
//
// Kinds of a graph's nodes. HIP 5.3 gave hipGraphNodeType new numbers, one less each, and put other
// kinds behind them: a program's answer is read by the version of its runtime, not by the header
// that this was compiled with. Sources: hip_runtime_api.h of the tags rocm-5.2.3, 5.3.0, 5.5.0 and
// 6.2.0, and of Debian's 6.4.3.
#pragma once

#include "backends/hip/version.h"

namespace vitamin::hip {

enum class GraphNodeKind {
  kKernel,
  kFill,
  kEmpty,
  kGraph,
  kCopy,  // or an allocation or its end
  kHost,
  kWaitEvent,
  kRecordEvent,
  kOther,  // semaphores, writes and waits in batches, what is newer
};

// `number`: hipGraphNodeType. `version`: Api::version.
constexpr GraphNodeKind graph_node_kind(int number, int version) {
  constexpr GraphNodeKind kFirst[] = {GraphNodeKind::kKernel,    GraphNodeKind::kCopy,
                                      GraphNodeKind::kFill,      GraphNodeKind::kHost,
                                      GraphNodeKind::kGraph,     GraphNodeKind::kEmpty,
                                      GraphNodeKind::kWaitEvent, GraphNodeKind::kRecordEvent};
  const bool old = version < hip_version(5, 3);
  const int place = old ? number - 1 : number;
  if (place < 0) return GraphNodeKind::kOther;
  if (place < 8) return kFirst[place];
  // Old: copies by 9, 10 and 11. Else 8 and 9 are semaphores, and 10 to 13 copies of symbols, from
  // 5.5 on behind allocations and their ends.
  const bool copy = old ? number <= 11 : number >= 10 && number <= 13;
  return copy ? GraphNodeKind::kCopy : GraphNodeKind::kOther;
}

}  // namespace vitamin::hip
