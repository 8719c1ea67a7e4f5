// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/audit.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace vitamin::tools {

namespace fs = std::filesystem;
namespace audit = runtime::audit;

// --- one log ---------------------------------------------------------------------------------

struct AuditReader::State {
  std::ifstream file;
  audit::AuditHeader header{};
  bool readable = false;
  std::uint64_t at = 0, count = 0;  // records
  std::map<std::uint32_t, std::string> names;
  AuditedOperation operation;

  bool read(void* to, std::size_t bytes) {
    return static_cast<bool>(
        file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)));
  }
};

AuditReader::AuditReader(const fs::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.file.open(path, std::ios::binary);
  s.readable = s.read(&s.header, sizeof s.header) && s.header.magic == audit::kMagic &&
               s.header.version == audit::kVersion;
  if (!s.readable) return;
  std::error_code error;
  const std::uint64_t room =
      (fs::file_size(path, error) - sizeof s.header) / sizeof(audit::AuditRecord);
  s.count = error ? 0 : std::min(s.header.records.load(), room);
}

AuditReader::~AuditReader() = default;

bool AuditReader::readable() const { return state_->readable; }
const audit::AuditHeader& AuditReader::header() const { return state_->header; }

const AuditedOperation* AuditReader::next() {
  State& s = *state_;
  AuditedOperation& operation = s.operation;
  while (s.at < s.count) {
    operation.position = s.at++;
    audit::AuditRecord& record = operation.record;
    if (!s.read(&record, sizeof record)) break;
    operation.kernel.clear();
    if (record.kind == audit::AuditKind::kLaunch || record.kind == audit::AuditKind::kGraph)
      operation.kernel = s.names[record.index];
    if (record.kind != audit::AuditKind::kName) return &operation;
    const std::uint64_t records = (record.stream + sizeof record - 1) / sizeof record;
    if (records > s.count - s.at) break;
    std::string text(records * sizeof record, '\0');
    if (!s.read(text.data(), text.size())) break;
    text.resize(record.stream);
    s.names[record.index] = std::move(text);
    s.at += records;
  }
  return nullptr;
}

const AuditedOperation* AuditReader::next(std::uint32_t stream, Sort sort) {
  const AuditedOperation* operation = next();
  while (operation != nullptr &&
         (operation->record.stream != stream || sort_of(operation->record) != sort))
    operation = next();
  return operation;
}

// --- summaries -------------------------------------------------------------------------------

namespace {

void add(Sequence& sequence, const audit::AuditRecord& record) {
  ++sequence.count;
  for (const std::uint64_t word :
       {std::uint64_t{static_cast<std::uint32_t>(record.kind)}, record.structure, record.content,
        record.edges, std::uint64_t{record.grid}}) {
    std::uint64_t z = sequence.digest ^ word;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    sequence.digest = (z ^ (z >> 31)) * 0x100000001b3ULL + 1;
  }
}

AuditedProcess summary_of(const fs::path& file) {
  AuditedProcess process;
  process.file = file;
  AuditReader reader(file);
  process.complete = reader.readable() && reader.header().dropped.load() == 0;
  if (!reader.readable()) return process;
  process.ordinal = reader.header().ordinal;
  while (const AuditedOperation* operation = reader.next()) {
    const audit::AuditRecord& record = operation->record;
    StreamSummary& stream = process.streams[record.stream];
    if (record.kind == audit::AuditKind::kLaunch) {
      ++stream.launches;
      ++process.launches;
      ++process.widths[record.sms];
      process.kernels.insert(operation->kernel);
      process.unreadable += (record.flags & audit::kUnreadable) != 0 ? 1 : 0;
    }
    process.unordered += (record.flags & audit::kUnordered) != 0 ? 1 : 0;
    if ((record.flags & (audit::kChanged | audit::kUncovered)) != 0 && !process.finding)
      process.finding = AuditFinding{*operation, stream.structure.count};
    add(sort_of(record) == Sort::kResults ? stream.results : stream.structure, record);
  }
  return process;
}

}  // namespace

bool same_operation(const audit::AuditRecord& a, const audit::AuditRecord& b) {
  return a.kind == b.kind && a.structure == b.structure && a.content == b.content &&
         a.edges == b.edges && a.grid == b.grid;
}

bool AuditedProcess::same_structure_and_results(const AuditedProcess& other) const {
  return std::equal(streams.begin(), streams.end(), other.streams.begin(), other.streams.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && a.second.structure == b.second.structure &&
                             a.second.results == b.second.results;
                    });
}

std::vector<AuditedProcess> read_audit(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    if (entry.path().extension() == ".audit") files.push_back(entry.path());
  // By process number and image, which are not of one length.
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    const std::string x = a.filename(), y = b.filename();
    const auto key = [](const std::string& name) {
      const char* dot = std::strchr(name.c_str(), '.');
      return std::pair(std::strtoul(name.c_str(), nullptr, 10),
                       std::strtoul(dot != nullptr ? dot + 1 : "", nullptr, 10));
    };
    return key(x) < key(y);
  });
  std::vector<AuditedProcess> processes;
  for (const fs::path& file : files) processes.push_back(summary_of(file));
  return processes;
}

}  // namespace vitamin::tools
