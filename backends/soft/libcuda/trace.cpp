// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/trace.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace vitamin::soft::driver {
namespace {

// Never closed: operations may end while the process does. Lines are written whole.
std::FILE* open_once(const std::string& path) {
  static std::FILE* const file = [&] {
    std::FILE* opened = std::fopen(path.c_str(), "ae");
    if (opened == nullptr) {
      std::fprintf(stderr, "software driver: VITAMIN_SOFT_TRACE=%s cannot be written\n",
                   path.c_str());
      std::exit(2);
    }
    std::setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  return file;
}

const char* kind_name(EngineOperationKind kind) {
  switch (kind) {
    case EngineOperationKind::kKernel:
      return "kernel";
    case EngineOperationKind::kWork:
      return "copy";
    case EngineOperationKind::kRecord:
      return "record";
    case EngineOperationKind::kWait:
      return "wait";
    case EngineOperationKind::kHostFunction:
      return "host";
    case EngineOperationKind::kValueWait:
      return "value-wait";
    case EngineOperationKind::kValueWrite:
      return "value-write";
    case EngineOperationKind::kGate:
      return "gate";
    case EngineOperationKind::kMarker:
      return "marker";
  }
  return "?";
}

}  // namespace

void start_trace(Device& device, const std::string& path) {
  std::FILE* file = open_once(path);
  auto starts = std::make_shared<std::map<std::pair<std::uint64_t, std::uint64_t>, Nanoseconds>>();
  device.engine->set_trace([file, starts, ordinal = device.ordinal](const TraceRecord& record) {
    const auto key = std::make_pair(record.queue, record.ticket);
    if (record.phase == TraceRecord::Phase::kStart) (*starts)[key] = record.at;
    if (record.phase != TraceRecord::Phase::kEnd) return;
    Nanoseconds start = record.at;
    if (const auto found = starts->find(key); found != starts->end()) {
      start = found->second;
      starts->erase(found);
    }
    std::fprintf(file, "%d %llu %s %s %u,%u,%u %u,%u,%u %u %016llx %u %llu %llu %d\n", ordinal,
                 static_cast<unsigned long long>(record.queue_tag), kind_name(record.kind),
                 record.kernel != nullptr ? record.kernel->name : "-", record.grid.x, record.grid.y,
                 record.grid.z, record.block.x, record.block.y, record.block.z,
                 record.dynamic_shared, static_cast<unsigned long long>(record.launch_hash),
                 record.sms != nullptr ? record.sms->count() : 0,
                 static_cast<unsigned long long>(start), static_cast<unsigned long long>(record.at),
                 static_cast<int>(record.status));
  });
}

}  // namespace vitamin::soft::driver
