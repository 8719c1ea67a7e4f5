// SPDX-License-Identifier: Apache-2.0
//
// Which process held which partitions of which device: the evidence by which the next daemon
// accepts clients' reports of work that began before it (protocol::Holding).
//
// A file beside the daemon's socket, which only the daemon's user can write: one slot for each
// session, with the process (id and start time, from the kernel), the device, the fallback
// partition and the partitions that the session holds. The daemon writes it with plain stores
// through a mapping, before it answers the client; so the file is right even if the daemon is
// killed between any two instructions. Its blocks are allocated when it is made: a disk that is
// full later causes no fault.
//
// The next daemon reads the file when it starts and replaces it. Its contents count for
// `believed_ns` from that start, which is the longest time that work may drain, however often a
// process reports. If that daemon ends earlier, the one after it takes over what still counts.
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

// Identifies a process until the machine restarts: ids are reused, but not with the same start
// time.
struct ProcessIdentity {
  std::uint64_t process = 0;
  std::uint64_t started = 0;  // in ticks since the machine started
  bool operator==(const ProcessIdentity&) const = default;
  explicit operator bool() const { return process != 0 && started != 0; }
};
// Empty: the process cannot be seen from here (another pid namespace, hidden /proc), or has ended.
ProcessIdentity identity_of(pid_t process);

// Identifies a device and its pool: for equal keys, equal partition numbers mean equal partitions.
// `domain`: the isolation domain; empty: the shared one.
std::uint64_t key_of_device(const std::string& uuid, const std::string& domain,
                            std::uint64_t pool_hash);

class LeaseRecord {
 public:
  static constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);

  // Records nothing.
  LeaseRecord() = default;
  // In memory, as the successor of `before` (null: there is none).
  LeaseRecord(std::size_t sessions, std::uint64_t now_ns, std::uint64_t believed_ns,
              const LeaseRecord* before);
  // In a new file at `path`, as the successor of the file that is there. `problem` becomes empty,
  // or says why no file could be made; then the record still has the former daemon's contents, but
  // begin() returns kNoSlot.
  static LeaseRecord at(const std::string& path, std::size_t sessions, std::uint64_t now_ns,
                        std::uint64_t believed_ns, std::string& problem);
  LeaseRecord(LeaseRecord&&) noexcept = default;
  LeaseRecord& operator=(LeaseRecord&&) noexcept = default;

  // Begins a session; kNoSlot: there is no room, or the process has no identity.
  std::size_t begin(const ProcessIdentity& process, std::uint64_t device,
                    runtime::PartitionId fallback);
  void end(std::size_t slot);
  void holds(std::size_t slot, runtime::PartitionId partition, bool held);

  // Partitions on which this process may have work that began under a former daemon: those that it
  // held, and its fallback partitions. Valid until believed_until().
  std::vector<runtime::PartitionId> before(const ProcessIdentity& process,
                                           std::uint64_t device) const;
  // The process has reported all of that work: before() is empty for it from now on.
  void reported(const ProcessIdentity& process, std::uint64_t device);
  // Processes with such work on this device that have begun no session since, each once.
  std::vector<ProcessIdentity> absent(std::uint64_t device) const;
  std::uint64_t believed_until() const { return believed_until_; }

  // Ends the record in order. Removes the file, unless it names a process that still runs.
  void close(std::uint64_t now_ns);

 private:
  static constexpr std::size_t kWords = runtime::kPartitionsMax / 64;
  using Word = std::atomic<std::uint64_t>;
  struct Slot {
    Word process;  // 0: free; written last, and cleared first
    Word started;
    Word device;
    Word fallback;
    Word former;  // 1: copied from the former daemon's file
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
    std::uint64_t device = 0, fallback = 0;
    std::array<std::uint64_t, kWords> held{};
    bool back = false;      // it has begun a session
    bool reported = false;  // reported()
  };
  struct Unmap {
    Unmap() : size(0) {}
    explicit Unmap(std::size_t bytes) : size(bytes) {}
    std::size_t size;  // 0: allocated by operator new
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
