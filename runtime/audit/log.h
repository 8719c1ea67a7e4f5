// SPDX-License-Identifier: Apache-2.0
//
// The audit's file: what one process submitted to one device, readable after any death.
//
// $VITAMIN_AUDIT/<pid>.<n>.audit is mapped MAP_SHARED: a record is in the page cache the moment
// that it is counted, so a process that is killed leaves a true prefix. A header and records of one
// size; a kernel's name is said once, in as many records as it needs, before its first launch.
//
// Threads: one writer (the holder of the device lock). Readers read after the writer's death.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "hal/file_memory.h"

namespace vitamin::runtime::audit {

inline constexpr std::uint64_t kMagic = 0x76697461'6d696e41;  // "vitaminA"
inline constexpr std::uint32_t kVersion = 2;

enum class AuditKind : std::uint32_t {
  kLaunch,
  kRecord,
  kWait,
  kOther,   // a copy, a fill, a bridged call
  kResult,  // bytes that a copy brought to the host: `structure` their number, `content` a digest
  kName,    // `index`, `stream` bytes of text in the records behind it
  kGraph,   // a launch of a graph as a whole: `grid` its nodes, `structure` and `content` of all
};

enum Flag : std::uint32_t {
  kChanged = 1,     // what reached the backend is not what the application submitted
  kUncovered = 2,   // something that it comes behind was neither ahead of it nor seen complete
  kUnreadable = 4,  // its arguments could not be read
  kUnordered = 8,   // the device failed before: what it comes behind was not looked at
};

struct AuditRecord {
  AuditKind kind;
  std::uint32_t index;   // of the kernel's name
  std::uint32_t stream;  // the logical stream, in the order of first use
  std::uint32_t flags;
  std::uint64_t structure;  // kernel, grid, block, shared memory, attributes
  std::uint64_t content;    // argument bytes, with what looks like an address masked
  std::uint64_t edges;      // what it comes behind besides its own stream: (stream, position) each
  std::uint32_t sms;        // of the partition that it was bound to
  std::uint32_t grid;       // blocks
};
static_assert(sizeof(AuditRecord) == 48);

struct AuditHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t record_bytes;
  std::uint32_t pid;
  std::uint32_t ordinal;
  std::atomic<std::uint64_t> records;
  std::atomic<std::uint64_t> dropped;  // there was no room (kBytesMax, or a full disk)
  std::uint64_t unused[3];
};
static_assert(sizeof(AuditHeader) == 64);

class Log {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{512} << 20;
  static constexpr std::size_t kStep = std::size_t{1} << 20;

  // Null when the file cannot be made, or has no room.
  static std::unique_ptr<Log> create(const char* directory, std::uint32_t ordinal) {
    char path[4096];
    int file = -1;
    for (unsigned image = 0; image < 1000 && file < 0; ++image) {
      const int length = std::snprintf(path, sizeof path, "%s/%d.%u.audit", directory,
                                       static_cast<int>(::getpid()), image);
      if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) return nullptr;
      file = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (file < 0 && errno != EEXIST) return nullptr;
    }
    if (file < 0) return nullptr;
    std::unique_ptr<Log> log(new Log(file));
    if (!log->grow(kStep)) return nullptr;
    AuditHeader& header = log->header();
    header.version = kVersion;
    header.record_bytes = sizeof(AuditRecord);
    header.pid = static_cast<std::uint32_t>(::getpid());
    header.ordinal = ordinal;
    std::atomic_thread_fence(std::memory_order_release);
    header.magic = kMagic;
    return log;
  }
  ~Log() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    ::close(file_);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void add(const AuditRecord& record) {
    if (!room(1)) return;
    *at(count_) = record;
    commit(1);
  }
  void name(std::uint32_t index, std::string_view text) {
    const std::size_t records = (text.size() + sizeof(AuditRecord) - 1) / sizeof(AuditRecord);
    if (!room(1 + records)) return;
    AuditRecord head{};
    head.kind = AuditKind::kName;
    head.index = index;
    head.stream = static_cast<std::uint32_t>(text.size());
    *at(count_) = head;
    std::memcpy(at(count_ + 1), text.data(), text.size());
    commit(1 + records);
  }

 private:
  explicit Log(int file) : file_(file) {}
  AuditHeader& header() { return *reinterpret_cast<AuditHeader*>(memory_); }
  AuditRecord* at(std::uint64_t i) {
    return reinterpret_cast<AuditRecord*>(memory_ + sizeof(AuditHeader) + i * sizeof(AuditRecord));
  }
  bool room(std::size_t records) {
    const std::size_t wanted = sizeof(AuditHeader) + (count_ + records) * sizeof(AuditRecord);
    if (wanted <= bytes_) return true;
    const std::size_t steps = (wanted + kStep - 1) / kStep;
    if (!full_ && steps * kStep <= kBytesMax && grow(steps * kStep)) return true;
    full_ = true;  // a log with a gap would be no prefix
    header().dropped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  void commit(std::size_t records) {
    count_ += records;
    header().records.store(count_, std::memory_order_release);
  }
  bool grow(std::size_t bytes) {
    void* const grown = hal::grow_file(file_, memory_, bytes_, bytes);
    if (grown == nullptr) return false;
    memory_ = static_cast<unsigned char*>(grown);
    bytes_ = bytes;
    return true;
  }

  int file_;
  unsigned char* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t count_ = 0;
  bool full_ = false;
};

}  // namespace vitamin::runtime::audit
