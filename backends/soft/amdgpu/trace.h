// SPDX-License-Identifier: Apache-2.0
//
// The trace file: one line a packet and one a call that changes queues. Words are key=value behind
// the name of what happened; README.md lists them. Lines of several threads and processes that
// append to one file do not mix.
#pragma once

#include <string>

namespace vitamin::soft::amdgpu {

class PacketLog {
 public:
  explicit PacketLog(const std::string& path);  // empty: no trace
  bool on() const { return file_ >= 0; }
  void line(const char* format, ...) __attribute__((format(printf, 2, 3)));

 private:
  int file_ = -1;
};

}  // namespace vitamin::soft::amdgpu
