// SPDX-License-Identifier: Apache-2.0
//
// Which process held which parts of which device: the evidence by which the next daemon believes
// what clients tell of work that began before it (protocol::Holding).
//
// A file beside the daemon's socket, which only the daemon's user can write: one slot for each
// session, with the process (id and start time, by the kernel's word), the device, its home and the
// entries that it holds. The daemon writes it with plain stores through a mapping, before the
// client is told; so it says what is true even if the daemon is killed between any two
// instructions. Its blocks are allocated when it is made: a disk that is full later faults nobody.
//
// The next daemon reads it at its start and makes a new one in its place. What it has read counts
// for `believed_ns` from its start, however often a process tells of it: that is how long work may
// drain at all. If that daemon ends earlier, the one after it takes over what still counts.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/protocol/socket.h"
#include "hal/result.h"
#include "runtime/pool/layout.h"

namespace vitamin::daemon {

// A process for as long as the machine runs: ids are used again, not with the same start time.
struct ProcessIdentity {
  std::uint64_t process = 0;
  std::uint64_t started = 0;  // in ticks since the machine started
  bool operator==(const ProcessIdentity&) const = default;
  explicit operator bool() const { return process != 0 && started != 0; }
};
// Nothing: it cannot be named from here (another pid namespace, hidden /proc), or has ended.
ProcessIdentity identity_of(pid_t process);

// A device as its clients have it: equal numbers of entries mean equal entries.
std::uint64_t key_of_device(const std::string& uuid, std::uint64_t pool_hash);

class LeaseRecord {
 public:
  static constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);

  // Keeps nothing: nobody's word on earlier work is believed then.
  LeaseRecord() = default;
  // In memory, after `before` (null: the first).
  LeaseRecord(std::size_t sessions, std::uint64_t now_ns, std::uint64_t believed_ns,
              const LeaseRecord* before);
  // In a new file at `path`, after the one that is there. Without an error of its own there is a
  // record in memory, which knows what the former daemon's said, too; `problem`: why there is no
  // file, empty: there is one.
  static LeaseRecord at(const std::string& path, std::size_t sessions, std::uint64_t now_ns,
                        std::uint64_t believed_ns, std::string& problem);
  LeaseRecord(LeaseRecord&&) noexcept = default;
  LeaseRecord& operator=(LeaseRecord&&) noexcept = default;

  // A session begins; kNoSlot: there is no room, or the process has no identity.
  std::size_t begin(const ProcessIdentity& process, std::uint64_t device, runtime::EntryId home);
  void end(std::size_t slot);
  void holds(std::size_t slot, runtime::EntryId entry, bool held);

  // Entries on which this process may have work that began under a former daemon: those that it
  // held, and its homes. Until believed_until().
  std::vector<runtime::EntryId> before(const ProcessIdentity& process, std::uint64_t device) const;
  // The process has told its daemon all of that: it counts no more.
  void told(const ProcessIdentity& process, std::uint64_t device);
  // The processes of which before() says something for this device and that have begun no session
  // since, each once.
  std::vector<ProcessIdentity> absent(std::uint64_t device) const;
  std::uint64_t believed_until() const { return believed_until_; }

  // The daemon ends in order. The file goes with it, unless it says something of a process that
  // lives.
  void close(std::uint64_t now_ns);

 private:
  static constexpr std::size_t kWords = runtime::kEntriesMax / 64;
  using Word = std::atomic<std::uint64_t>;
  struct Slot {
    Word process;  // 0: free; written last, and cleared first
    Word started;
    Word device;
    Word home;
    Word former;  // 1: of the daemon before this one
    std::array<Word, kWords> held;
    std::array<Word, 3> unused;
  };
  static_assert(sizeof(Slot) == 128);
  struct Header {
    std::array<char, 16> magic;
    std::uint64_t slots, started_ns, believed_ns;
    std::uint64_t unused[11];
  };
  static_assert(sizeof(Header) == 128);
  struct Past {
    ProcessIdentity process;
    std::uint64_t device = 0, home = 0;
    std::array<std::uint64_t, kWords> held{};
    bool back = false;  // it has begun a session
    bool told = false;
  };
  struct Unmap {
    Unmap() : size(0) {}
    explicit Unmap(std::size_t bytes) : size(bytes) {}
    std::size_t size;  // 0: the memory is our own
    void operator()(std::byte* memory) const;
  };

  static std::vector<Past> past_of(std::span<const std::byte> bytes, std::uint64_t now_ns);
  static std::size_t bytes_for(std::size_t slots) { return sizeof(Header) + slots * sizeof(Slot); }
  void fill(std::byte* memory, std::size_t slots, std::uint64_t now_ns, std::uint64_t believed_ns);
  std::span<const std::byte> bytes() const;

  std::unique_ptr<std::byte, Unmap> memory_;
  std::span<Slot> slots_;
  std::vector<std::size_t> free_;
  std::vector<Past> past_;
  std::uint64_t believed_until_ = 0;
  protocol::PlacedFile file_;
};

}  // namespace vitamin::daemon
