// SPDX-License-Identifier: Apache-2.0
//
// The statistics page: what one process of a `vitamin run` tree did, readable while it runs and
// after it died.
//
// Each process maps one file, $VITAMIN_RUN_DIR/<pid>.<n>.stats, MAP_SHARED: a counter is in the
// page cache the moment it is written, so nothing has to run at exit and SIGKILL loses nothing. `n`
// counts the images that had this pid (a shell that execs a program is two). `vitamin run` reads
// the pages when the tree has ended.
//
// Layout. Fixed size, no pointers, no std types but std::atomic of lock-free words. A change of
// layout changes kVersion; a reader refuses what it does not know. A page is a sparse file of about
// 270 KiB, of which a process touches the parts that it has room for: all but `devices`, and those
// devices that device() has answered. Where there is no room (a full file system), nothing is
// touched, and the process goes on without counting.
//
// Threads. The counters of one DevicePage are written under that device's lock: `add` is
// a load and a store, not a locked instruction. What threads share without a lock (process-wide
// counters, warnings) uses `add_shared`. Readers may be a counter behind.
//
// Accounting. A launch that the driver accepted on a stream of a managed context adds one to
// launches.seen, and to launches.bound or launches.bridged. On any other stream it adds one to
// ProcessPage::passed_unmanaged only: its device is not known. Recorded into a capture it adds one
// to launches.captured only. Coverage is bound / (seen + passed_unmanaged).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "hal/file_memory.h"

namespace vitamin::runtime::stats {

inline constexpr std::uint64_t kMagic = 0x76697461'6d696e53;  // "vitaminS"
inline constexpr std::uint32_t kVersion = 7;
inline constexpr unsigned kDevices = 16;
inline constexpr unsigned kWidths = 256;
inline constexpr unsigned kLibraries = 64;
inline constexpr unsigned kWarnings = 16;

class Counter {
 public:
  Counter() noexcept = default;
  // A snapshot.
  Counter(const Counter& other) noexcept : value_(other.get()) {}
  Counter& operator=(const Counter& other) noexcept {
    set(other.get());
    return *this;
  }

  // Single writer (the holder of the device lock).
  void add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void add_shared(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A string of fixed room, cut when too long, always ending in 0.
template <std::size_t N>
struct PageText {
  char bytes[N];
  void set(const char* text) noexcept {
    const std::size_t length = ::strnlen(text, N - 1);
    std::memcpy(bytes, text, length);
    std::memset(bytes + length, 0, N - length);
  }
};

// Why a launch was bound to the whole device although partitions exist.
enum class WholeReason : std::uint32_t {
  kPolicy,       // the policy chose it
  kCluster,      // its cluster fits no partition
  kCooperative,  // its cooperative grid fits no partition
  kResident,     // a kernel that waits for its own blocks (by name, list, watchdog, or doubt)
  kNoEligiblePartition,  // no partition of the pool can take it unchanged, for another reason
  kNoQueue,              // every queue of the eligible partitions was owned by another stream
  kHostWait,             // behind a host function, value wait or external wait not yet complete
  kPartitionRefused,     // the driver refused it on the partition that was tried
  kUnsupportedLayout,    // its parameters cannot be copied
  kCapture,              // a capture is open
  kPoolMissing,          // the pool could not be made
  kFlushed,              // it waited for a grant or its window when it was flushed
  kCollective,           // it waits for kernels of other processes
  kCount,
};
inline constexpr unsigned kWholeReasons = static_cast<unsigned>(WholeReason::kCount);

// One short phrase each, for reports. Indexed by WholeReason.
inline constexpr const char* kWholeReasonText[kWholeReasons] = {
    "policy",
    "cluster too large",
    "cooperative grid",
    "resident kernel",
    "no eligible partition",
    "no free queue",
    "behind host work",
    "partition refused",
    "argument layout",
    "stream capture",
    "no pool",
    "flushed before a grant",
    "collective",
};
// The same as keys of the JSON report.
inline constexpr const char* kWholeReasonKey[kWholeReasons] = {
    "policy",       "cluster",    "cooperative",   "resident",           "no_eligible_entry",
    "no_queue",     "host_gated", "entry_refused", "unsupported_layout", "capture",
    "pool_missing", "flushed",    "collective",
};

// Why a launch was bridged or passed instead of bound.
enum class UnboundReason : std::uint32_t {
  kForeignContext,  // current context is not the primary context of a device that we manage
  kCapture,         // on the legacy stream while a capture is open, or a node that kernels change
  kNoPool,          // the runtime failed to start; see `message`
  kOther,
  kConfined,  // a stream that the application itself confined to a part of the device
  kCount,
};
inline constexpr unsigned kUnboundReasons = static_cast<unsigned>(UnboundReason::kCount);
inline constexpr const char* kUnboundReasonText[kUnboundReasons] = {
    "foreign context", "stream capture", "no pool", "other", "stream with a mask of its own",
};
inline constexpr const char* kUnboundReasonKey[kUnboundReasons] = {
    "foreign_context", "capture", "no_pool", "other", "confined",
};

// Why a launch of a graph ran on the whole device, on the program's own stream.
enum class GraphReason : std::uint32_t {
  kPolicy,       // the policy chose it
  kFresh,        // it is new, or was changed, and had not been looked at
  kNotMade,      // there was no executable for the partition yet
  kNoGrant,      // no grant was at hand, and it is not known that the graph ends by itself
  kNoQueue,      // every queue of the eligible partitions was owned by another stream
  kHostWait,     // behind a host function, value wait or external wait not yet complete
  kNodes,        // host, event, memory or conditional nodes, or ones that this code does not know
  kContexts,     // its nodes belong to several contexts, or to one that is not managed
  kDevice,       // it is launched or changed by kernels
  kNarrow,       // a cluster, a cooperative grid or a kernel that waits: no partition holds it
  kCollective,   // it holds kernels that wait for other processes
  kMemory,       // its executables would not fit in the memory that graphs may have
  kRefused,      // the driver refused to make it for a partition, or made something else
  kUnfollowed,   // it was changed in a way that is not followed
  kUnknown,      // how it was made is unknown
  kCapture,      // a capture is open
  kUnsupported,  // the vendor has no way to do it, or it was switched off
  kBranches,     // HIP: it has branches, which run on streams of the vendor's own
  kConfined,     // HIP: it is launched to a stream that the program confined to some CUs
  kCount,
};
inline constexpr unsigned kGraphReasons = static_cast<unsigned>(GraphReason::kCount);
inline constexpr const char* kGraphReasonText[kGraphReasons] = {
    "policy",
    "new or changed",
    "executable not made yet",
    "no grant at hand",
    "no free queue",
    "behind host work",
    "nodes that stay",
    "several contexts",
    "device-side",
    "no eligible partition",
    "collective",
    "graph memory",
    "partition refused",
    "change not followed",
    "origin unknown",
    "stream capture",
    "not supported",
    "branches",
    "confined stream",
};
inline constexpr const char* kGraphReasonKey[kGraphReasons] = {
    "policy",     "fresh",       "not_made", "no_lease",    "no_queue",
    "host_gated", "nodes",       "contexts", "device_side", "no_eligible_entry",
    "collective", "memory",      "refused",  "unfollowed",  "unknown",
    "capture",    "unsupported", "branches", "confined",
};

struct WidthSlot {
  std::atomic<std::uint32_t> sms;  // 0: unused
  std::uint32_t unused;
  Counter launches;
  Counter graphs;  // launches of graphs, on partitions of the pool
};

struct LibrarySlot {
  std::atomic<std::uint32_t> used;
  std::uint32_t unused;
  PageText<64> name;
  Counter seen, bound, bridged, passed, narrow, moved;
  Counter graph_kernels, graph_kernels_bound;  // kernels of it that launches of graphs ran
};

struct PoolFigures {
  PageText<64> device_name;
  PageText<64> device_uuid;
  Counter sms;  // of the whole device
  Counter units;
  Counter partitions;  // the whole device included
  Counter queues;
  Counter creation_ns;
  Counter device_bytes;  // free memory before minus after, 0 where unknown
  Counter host_bytes;    // resident set after minus before
};

struct Launches {
  Counter seen;
  Counter bound;            // to a partition of the pool, the whole device included
  Counter bridged, passed;  // glossary
  Counter failed;           // the driver refused it and the application got the error
  Counter moved;            // ran on another partition than the launch before it in its stream
  Counter successors;       // launches that had a launch before them in their stream
  Counter narrow_eligible;  // could have run on a partition narrower than the whole device
  Counter narrow;           // did
  Counter deferred;         // submitted later by the runtime, not inline by the calling thread
  Counter retried;          // refused by a partition and then accepted by a wider one
  Counter captured;         // recorded into a capture: no launch, not in `seen`
};

// Launches of graphs: OtherWork::graph_launches counts them all.
struct Graphs {
  Counter bound;             // to a part: unlike Launches::bound, not to the whole device
  Counter narrow;            // to one that is narrower than the device
  Counter moved;             // to another partition than the launch before of the same graph
  Counter successors;        // that had a launch before
  Counter deferred;          // submitted later by the runtime
  Counter made, updated;     // executables for partitions
  Counter evicted;           // to make room for others
  Counter held, held_bytes;  // now
};

struct OtherWork {
  // Launches of graphs; of those that ran on the whole device: how many were timed, and how long
  // these took together.
  Counter graph_launches, graphs_timed, graph_whole_ns;
  Counter copies_queued, fills_queued;  // on the queue that holds the stream's tail
  // Ordered by us, made on the program's own stream: of whatever kind, also what another
  // counter counts (bridged launches, host functions, value waits).
  Counter calls_bridged;
  Counter calls_passed;  // needs no order
  Counter host_functions, value_waits;
  Counter edges;  // device-side waits inserted by us
};

// Begins a page of memory, so that it can have room of its own.
struct alignas(hal::kMemoryPage) DevicePage {
  std::atomic<std::uint32_t> used;
  std::uint32_t ordinal;
  PoolFigures pool;
  Launches launches;
  Counter whole[kWholeReasons];  // sum = launches that ran on the whole device
  Counter unbound[kUnboundReasons];
  Counter graph_whole[kGraphReasons];  // sum = launches of graphs that ran on the whole device
  Graphs graphs;
  OtherWork other;
  WidthSlot widths[kWidths];
  LibrarySlot libraries[kLibraries];

  // Single writer. The slot of a width; the last one takes what finds no room.
  WidthSlot& width(std::uint32_t sms) noexcept {
    for (WidthSlot& slot : widths) {
      const std::uint32_t held = slot.sms.load(std::memory_order_relaxed);
      if (held == sms) return slot;
      if (held == 0) {
        slot.sms.store(sms, std::memory_order_relaxed);
        return slot;
      }
    }
    return widths[kWidths - 1];
  }
  // Single writer. The slot of a library; ask once for a kernel and keep the reference.
  LibrarySlot& library(const char* name) noexcept {
    for (LibrarySlot& slot : libraries) {
      if (slot.used.load(std::memory_order_relaxed) == 0) {
        slot.name.set(name);
        slot.used.store(1, std::memory_order_release);
        return slot;
      }
      if (std::strncmp(slot.name.bytes, name, sizeof slot.name.bytes - 1) == 0) return slot;
    }
    LibrarySlot& last = libraries[kLibraries - 1];
    last.name.set("(others)");
    return last;
  }
};

// How far a process got; tells "never used CUDA" from "our part failed".
enum class Stage : std::uint32_t {
  kLoaded,    // the preload library is in
  kDriver,    // the process asked for the driver: a hooked entry point was looked up or called
  kReady,     // cuInit succeeded
  kManaged,   // at least one device has its pool
  kDegraded,  // our part failed to start; `message` says why; every call is passed
};

struct Warning {
  std::atomic<std::uint32_t> ready;
  std::uint32_t unused;
  PageText<248> text;
};

struct ProcessPage {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t bytes;  // sizeof(ProcessPage) of the writer
  std::uint32_t pid;
  std::uint32_t parent;
  std::uint64_t started_ns;  // CLOCK_REALTIME
  PageText<64> program;      // /proc/self/comm
  PageText<64> policy;       // as the runtime understood it
  PageText<256> message;     // with Stage::kDegraded, and for the driver's refusal of cuInit
  std::atomic<std::uint32_t> stage;
  std::atomic<std::int32_t> init_status;  // cuInit's answer, 0 before
  Counter window_ns;
  Counter passed_unmanaged;  // launches in contexts that are not managed; in no DevicePage
  Counter warnings_seen;     // may exceed kWarnings
  Warning warnings[kWarnings];
  std::uint64_t roomy;  // a bit for each of `devices` that has room; of the writer
  DevicePage devices[kDevices];

  // The part of a device, to be written; null, with errno, where there is no room for it. One
  // thread at a time.
  DevicePage* device(unsigned ordinal) noexcept {
    if (ordinal >= kDevices) return errno = ERANGE, nullptr;
    DevicePage& part = devices[ordinal];
    const std::uint64_t bit = std::uint64_t{1} << ordinal;
    if ((roomy & bit) == 0 && !hal::make_room(&part, sizeof part)) return nullptr;
    roomy |= bit;
    return &part;
  }

  void reach(Stage to) noexcept {
    const auto value = static_cast<std::uint32_t>(to);
    if (stage.load(std::memory_order_relaxed) < value)
      stage.store(value, std::memory_order_relaxed);
  }
  // Any thread. The first kWarnings are kept.
  void warn(const char* text) noexcept {
    warnings_seen.add_shared();
    for (Warning& warning : warnings) {
      std::uint32_t free = 0;
      if (!warning.ready.compare_exchange_strong(free, 1, std::memory_order_relaxed)) continue;
      warning.text.set(text);
      warning.ready.store(2, std::memory_order_release);  // 1: being written
      return;
    }
  }
};

// Another layout, or another meaning of a place in it, is another version: change these with it.
static_assert(kVersion == 7 && kWholeReasons == 13 && kUnboundReasons == 5 && kGraphReasons == 19 &&
              offsetof(ProcessPage, roomy) == 4544 &&
              offsetof(DevicePage, libraries) + sizeof(DevicePage::libraries) == 15592);

// Makes this process's page in `directory`; null, with errno, when that fails (the caller counts
// into memory of its own then). A file that found no room stays, empty: a reader learns of it.
// After fork the child must call it again: it inherits the parent's mapping, which stays the
// parent's.
inline ProcessPage* create(const char* directory) noexcept {
  char path[4096];
  int file = -1;
  for (unsigned image = 0; image < 1000 && file < 0; ++image) {
    const int length = std::snprintf(path, sizeof path, "%s/%d.%u.stats", directory,
                                     static_cast<int>(::getpid()), image);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) {
      errno = ENAMETOOLONG;
      return nullptr;
    }
    file = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 && errno != EEXIST) return nullptr;
  }
  if (file < 0) return nullptr;
  void* memory = nullptr;
  if (hal::set_file_size(file, sizeof(ProcessPage)))
    memory = hal::map_file(file, sizeof(ProcessPage), PROT_READ | PROT_WRITE);
  if (memory == nullptr || !hal::make_room(memory, offsetof(ProcessPage, devices))) {
    const int error = errno;
    if (memory != nullptr) ::munmap(memory, sizeof(ProcessPage));
    hal::set_file_size(file, 0);
    ::close(file);
    errno = error;
    return nullptr;
  }
  ::close(file);
  auto* page =
      static_cast<ProcessPage*>(memory);  // a file's new bytes are zero: every counter is 0
  page->version = kVersion;
  page->bytes = sizeof(ProcessPage);
  page->pid = static_cast<std::uint32_t>(::getpid());
  page->parent = static_cast<std::uint32_t>(::getppid());
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  page->started_ns = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
                     static_cast<std::uint64_t>(now.tv_nsec);
  if (const int comm = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC); comm >= 0) {
    const ssize_t length = ::read(comm, page->program.bytes, sizeof page->program.bytes - 1);
    if (length > 0) page->program.bytes[length - 1] = '\0';  // the kernel ends it with a newline
    ::close(comm);
  }
  std::atomic_thread_fence(std::memory_order_release);
  page->magic = kMagic;  // last: a reader takes a page without it for an empty one
  return page;
}

enum class Read : std::uint8_t {
  kGood,
  kEmpty,    // it found no room, or its process was killed while it made it
  kUnknown,  // of another version, or broken
};

// A snapshot of the page in the file `path`, which its process may be writing.
inline Read read(const char* path, ProcessPage& page) noexcept {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return Read::kUnknown;
  const bool whole = hal::read_at(file, static_cast<void*>(&page), sizeof page);
  const off_t size = ::lseek(file, 0, SEEK_END);
  ::close(file);
  if (size == 0) return Read::kEmpty;
  if (!whole) return Read::kUnknown;
  if (page.magic == 0) return Read::kEmpty;
  return page.magic == kMagic && page.version == kVersion && page.bytes == sizeof page
             ? Read::kGood
             : Read::kUnknown;
}

}  // namespace vitamin::runtime::stats
