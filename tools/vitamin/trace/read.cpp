// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/trace/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

namespace fs = std::filesystem;
using runtime::trace::TraceEntry;
using runtime::trace::TraceHeader;
using runtime::trace::TraceKind;

tl::unexpected<hal::Error> damaged(const std::string& file, const std::string& why) {
  return hal::fail(hal::Errc::kInvalidArgument, fmt::format("'{}' is no trace ({})", file, why));
}

// Nothing: the recorder found no room for a header, or was killed before it wrote one.
hal::Result<std::optional<TraceFile>> read_one(const fs::path& path) {
  TraceFile trace;
  trace.file = path.native();
  std::ifstream in(path, std::ios::binary);
  if (!in) return damaged(trace.file, std::strerror(errno));
  char page[runtime::trace::kHeaderBytes] = {};
  in.read(page, sizeof page);
  if (in.bad()) return damaged(trace.file, "it cannot be read");
  TraceHeader& header = trace.header;
  std::memcpy(&header, page, sizeof header);
  if (std::all_of(page, page + sizeof page, [](char byte) { return byte == 0; }))
    return std::nullopt;
  if (!in && header.magic == runtime::trace::kMagic) return std::nullopt;  // a part of it
  if (!in) return damaged(trace.file, "it ends in its header");
  if (header.magic != runtime::trace::kMagic) return damaged(trace.file, "another kind of file");
  if (header.version != runtime::trace::kVersion || header.record_bytes != sizeof(TraceEntry))
    return damaged(trace.file, fmt::format("version {}, this release reads {}", header.version,
                                           runtime::trace::kVersion));
  if (header.units > runtime::trace::kUnitsMax || header.units == 0)
    return damaged(trace.file, "a device of no units");
  for (char* text : {header.policy, header.uuid, header.device, header.program}) {
    text[text == header.policy ? sizeof header.policy - 1 : 63] = '\0';
    for (const char* at = text; *at != '\0'; ++at)  // it will be shown to a person
      if (*at < ' ' || *at > '~') return damaged(trace.file, "a name that is no text");
  }
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error || header.records > (bytes - sizeof page) / sizeof(TraceEntry))
    return damaged(trace.file, "it is shorter than it says");
  trace.records.resize(header.records);
  in.read(reinterpret_cast<char*>(trace.records.data()),
          static_cast<std::streamsize>(header.records * sizeof(TraceEntry)));
  // Names are texts in the records behind; they are told apart here once.
  std::vector<TraceEntry> kept;
  for (std::size_t i = 0; i < trace.records.size(); ++i) {
    const TraceEntry& record = trace.records[i];
    if (record.kind != TraceKind::kName) {
      kept.push_back(record);
      if (runtime::trace::has_bytes(record.kind) && i + 1 < trace.records.size())
        kept.push_back(trace.records[++i]);
      continue;
    }
    const std::size_t slots = (record.serial + sizeof(TraceEntry) - 1) / sizeof(TraceEntry);
    if (slots >= trace.records.size() - i) break;
    trace.kernels[record.a].assign(reinterpret_cast<const char*>(&trace.records[i + 1]),
                                   record.serial);
    i += slots;
  }
  trace.records = std::move(kept);
  return {std::move(trace)};
}

}  // namespace

hal::DeviceInfo TraceFile::device() const {
  hal::DeviceInfo info;
  info.name = header.device;
  info.uuid = header.uuid;
  info.sms = header.sms;
  info.sms_per_unit.assign(header.per_unit, header.per_unit + header.units);
  return info;
}

runtime::PoolLimits TraceFile::limits() const {
  return {header.partitions_max, header.leaf_units, header.all_runs != 0};
}

std::uint64_t TraceFile::nanoseconds(std::uint64_t time) const {
  if (of_daemon()) return time;
  const double ticks = static_cast<double>(header.last_ticks - header.first_ticks);
  const double scale =
      ticks > 0 ? static_cast<double>(header.last_ns - header.first_ns) / ticks : 0;
  const double since = static_cast<double>(time - std::min(time, header.first_ticks)) * scale;
  return header.first_ns + static_cast<std::uint64_t>(since);
}

hal::Result<std::vector<TraceFile>> read_traces(const std::string& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& partition : fs::directory_iterator(directory, error))
    if (partition.path().extension() == ".trace") paths.push_back(partition.path());
  if (error)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("'{}' cannot be read ({})", directory, error.message()));
  if (paths.empty())
    return hal::fail(hal::Errc::kUnavailable, fmt::format("there is no trace in '{}'", directory));
  std::sort(paths.begin(), paths.end());
  std::vector<TraceFile> traces;
  for (const fs::path& path : paths) {
    auto trace = read_one(path);
    if (!trace) return tl::unexpected(trace.error());
    if (std::optional<TraceFile>& found = *trace) traces.push_back(std::move(*found));
  }
  if (traces.size() < paths.size()) {
    const std::string lost = fmt::format(
        "{} of {} files in '{}' have no header: the disk was full, or their processes "
        "were killed",
        paths.size() - traces.size(), paths.size(), directory);
    if (traces.empty()) return hal::fail(hal::Errc::kUnavailable, "there is no trace: " + lost);
    say(Problem::kTraceDropped, lost + ".");
  }
  return traces;
}

bool say_what_was_traced(const std::string& directory, bool daemon) {
  const auto traces = read_traces(directory);
  if (!traces) {
    say(Problem::kCannotRead, traces.error().message + ".");
    return false;
  }
  std::uint64_t records = 0, dropped = 0;
  int disk = 0;
  for (const TraceFile& trace : *traces) {
    records += trace.header.records;
    dropped += trace.header.dropped;
    if (trace.header.disk_error != 0) disk = trace.header.disk_error;
  }
  say(fmt::format("{} records of {} processes and devices are in {}.", grouped(records),
                  traces->size(), directory));
  if (daemon && std::none_of(traces->begin(), traces->end(),
                             [](const TraceFile& trace) { return trace.of_daemon(); }))
    say(Problem::kDaemonLeft,
        "vitamind decided nothing: is the device another vitamind's? `vitamin status` shows it.");
  if (dropped > 0)
    say(Problem::kTraceDropped,
        fmt::format("{} records were dropped ({}).", grouped(dropped),
                    disk != 0 ? std::strerror(disk) : "they came faster than the disk takes them"));
  return true;
}

}  // namespace vitamin::tools
