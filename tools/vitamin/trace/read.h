// SPDX-License-Identifier: Apache-2.0
//
// Traces as files: read, checked, and said what is in them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "hal/device.h"
#include "hal/result.h"
#include "runtime/pool/layout.h"
#include "runtime/trace/file.h"

namespace vitamin::tools {

struct TraceFile {
  std::string file;
  runtime::trace::TraceHeader header;
  std::vector<runtime::trace::TraceEntry> records;
  std::unordered_map<std::uint64_t, std::string> kernels;

  bool of_daemon() const { return header.writer == runtime::trace::Writer::kDaemon; }
  hal::DeviceInfo device() const;
  runtime::PoolLimits limits() const;
  // Of a record: nanoseconds of CLOCK_MONOTONIC.
  std::uint64_t nanoseconds(std::uint64_t time) const;
};

// By name. A file without a header, whose recorder found no room or was killed, is left out with a
// warning (VIT-204). The error is a sentence; a directory without any trace is one.
hal::Result<std::vector<TraceFile>> read_traces(const std::string& directory);

// How much was recorded; VIT-204 when something was dropped, VIT-502 when a vitamind that was asked
// for decided nothing. False: there is none that can be read.
bool say_what_was_traced(const std::string& directory, bool daemon);

}  // namespace vitamin::tools
