// SPDX-License-Identifier: Apache-2.0
//
// The structure audit's logs (runtime/audit/log.h), read. A log may have millions of operations and
// there is one for every process of every run, so none is held: each is read once for a summary,
// and again, side by side with another, when the two are not the same.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/audit/log.h"
#include "tools/vitamin/run/directory.h"

namespace vitamin::tools {

// One logical operation as the audit wrote it down.
struct AuditedOperation {
  runtime::audit::AuditRecord record;
  std::string kernel;          // "library: name", of a launch
  std::uint64_t position = 0;  // in the log, over all streams
};

// Results come when the host waits, launches when they are submitted: each sort in its own order.
enum class Sort : std::uint8_t { kStructure, kResults };
constexpr Sort sort_of(const runtime::audit::AuditRecord& record) {
  return record.kind == runtime::audit::AuditKind::kResult ? Sort::kResults : Sort::kStructure;
}
// Equal but for where they ran.
bool same_operation(const runtime::audit::AuditRecord& a, const runtime::audit::AuditRecord& b);

// All operations of one sort of one logical stream: equal exactly when both numbers are.
struct Sequence {
  std::uint64_t count = 0, digest = 0;
  friend bool operator==(const Sequence&, const Sequence&) = default;
};
struct StreamSummary {
  Sequence structure, results;
  std::uint64_t launches = 0;
  const Sequence& of(Sort sort) const { return sort == Sort::kResults ? results : structure; }
};

// What the audit found wrong: the first such operation, `index` in its stream's structure.
struct AuditFinding {
  AuditedOperation operation;
  std::uint64_t index = 0;
};

// What one process did on one device.
struct AuditedProcess {
  std::uint32_t ordinal = 0;
  bool complete = true;  // false: there was no room for all of it, or it is not readable
  std::map<std::uint32_t, StreamSummary> streams;
  std::map<std::uint32_t, std::uint64_t> widths;  // SMs -> launches
  std::set<std::string> kernels;                  // "library: name"
  std::uint64_t launches = 0;
  std::uint64_t unreadable = 0;  // launches whose arguments could not be read
  std::uint64_t unordered = 0;   // operations after a fault of the device, whose order is not known
  std::optional<AuditFinding> finding;
  std::filesystem::path file;

  bool same_structure_and_results(const AuditedProcess& other) const;
};

// In the order of their names. The files must stay for as long as they are read again.
std::vector<AuditedProcess> read_audit(const std::filesystem::path& directory);

// Walks one log, operation by operation.
class AuditReader {
 public:
  explicit AuditReader(const std::filesystem::path& file);
  ~AuditReader();
  AuditReader(const AuditReader&) = delete;
  AuditReader& operator=(const AuditReader&) = delete;

  bool readable() const;
  const runtime::audit::AuditHeader& header() const;
  // The next operation, or null at the end. Valid until the next call.
  const AuditedOperation* next();
  // The next one of a stream and a sort.
  const AuditedOperation* next(std::uint32_t stream, Sort sort);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitamin::tools
