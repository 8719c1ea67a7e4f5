// SPDX-License-Identifier: Apache-2.0
//
// Numbers of graph nodes by version, as the headers have them that graph_node.h names.
#include "backends/hip/graph_node.h"

#include <doctest/doctest.h>

#include <initializer_list>

using vitamin::hip::graph_node_kind;
using vitamin::hip::hip_version;
using Kind = vitamin::hip::GraphNodeKind;

namespace {

constexpr int kOld = hip_version(5, 2) + 21153, k54 = hip_version(5, 4), k64 = hip_version(6, 4);

TEST_CASE("a node's number is read by the version of the runtime") {
  struct Row {
    Kind kind;
    int old, since_5_3;
  };
  for (const Row& row : {Row{Kind::kKernel, 1, 0}, Row{Kind::kCopy, 2, 1}, Row{Kind::kFill, 3, 2},
                         Row{Kind::kHost, 4, 3}, Row{Kind::kGraph, 5, 4}, Row{Kind::kEmpty, 6, 5},
                         Row{Kind::kWaitEvent, 7, 6}, Row{Kind::kRecordEvent, 8, 7}}) {
    CHECK(graph_node_kind(row.old, kOld) == row.kind);
    CHECK(graph_node_kind(row.since_5_3, k54) == row.kind);
    CHECK(graph_node_kind(row.since_5_3, k64) == row.kind);
  }
}

TEST_CASE("copies of symbols, allocations and what may wait are told apart") {
  for (const int number : {9, 10, 11}) CHECK(graph_node_kind(number, kOld) == Kind::kCopy);
  for (const int number : {10, 11, 12, 13}) CHECK(graph_node_kind(number, k64) == Kind::kCopy);
  for (const int number : {8, 9, 14, 15, -1}) CHECK(graph_node_kind(number, k64) == Kind::kOther);
  for (const int number : {0, 12, 40}) CHECK(graph_node_kind(number, kOld) == Kind::kOther);
}

}  // namespace
