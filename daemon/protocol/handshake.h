// SPDX-License-Identifier: Apache-2.0
//
// Messages on the socket (SOCK_SEQPACKET: one packet each) before a session has its rings.
//
//     client                                 daemon
//     Hello: program and device        --->  identity from the kernel, never from the message
//                                      <---  Welcome: epoch, pool, fallback; two memfds
//                                       or   Refusal: a sentence for the user
//     Control: a verb, for tools       --->
//                                      <---  Answer: JSON
//
// Every message begins with the same 16 bytes in all versions for ever, so that either side can
// refuse the other by name: the daemon refuses a Hello, the client a Welcome, of another major
// version, and the client then runs as if there were no daemon.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/protocol/version.h"
#include "hal/device.h"
#include "hal/result.h"
#include "runtime/pool/layout.h"

namespace vitamin::protocol {

enum class MessageKind : std::uint16_t { kHello = 1, kWelcome, kRefusal, kControl, kAnswer };

struct Preamble {
  std::array<char, 8> magic{'v', 'i', 't', 'a', 'm', 'i', 'n', '\0'};
  std::uint16_t major = kMajor;
  std::uint16_t minor = kMinor;
  MessageKind kind = MessageKind::kHello;
  std::uint16_t unused = 0;
};
static_assert(sizeof(Preamble) == 16);

template <std::size_t kSize>
struct MessageText {
  std::array<char, kSize> bytes{};
  void set(std::string_view text) {
    bytes = {};
    text.substr(0, kSize - 1).copy(bytes.data(), kSize - 1);
  }
  // Up to the first null, or all of it, as UTF-8: what is none, and control characters, become '?'.
  std::string get() const;
};

// What a program claims about itself. A claim may reduce the program's own quota; one that would
// raise it holds only as far as the daemon can verify it.
struct Claim {
  std::string workload_class;  // of vitamin.toml; empty: none
  std::string job;             // the step of a Slurm job, "12.0"; empty: none
  std::uint32_t share = 0;     // percent of the device, at most; 0: no claim
  std::string mps_directory;   // pipe directory of MPS that the process has; empty: none is named
};

struct Hello {
  static constexpr MessageKind kKind = MessageKind::kHello;
  Preamble preamble;
  std::uint32_t vendor = 0;  // hal::Vendor
  std::uint32_t sms = 0;     // of the whole device
  std::uint32_t units = 0;
  std::uint32_t share = 0;  // since 1.3: Claim::share
  std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> sms_per_unit{};
  MessageText<64> uuid;
  MessageText<64> device_name;
  MessageText<64> program;         // for messages only
  MessageText<64> workload_class;  // since 1.1: Claim
  MessageText<64> job;             // since 1.3
  MessageText<128> mps_directory;  // since 1.10
};

struct Welcome {
  static constexpr MessageKind kKind = MessageKind::kWelcome;
  Preamble preamble;
  std::uint32_t epoch = 0;
  std::uint32_t client = 0;
  std::uint32_t partitions_max = 0;  // runtime::PoolLimits
  std::uint32_t leaf_units = 0;
  std::uint32_t all_runs = 0;
  std::uint32_t fallback = 0;         // the client's fallback partition, while it has no daemon
  std::uint32_t fallback_shared = 0;  // not 0: other clients have the same one
  std::uint32_t unused = 0;
  std::uint64_t pool_hash = 0;  // of the pool that both sides compute
  // A closed gate is answered at least this often, else the client is overdue and its leases are
  // granted again.
  std::uint64_t answer_within_ns = 0;
  MessageText<64> policy;
};

struct Refusal {
  static constexpr MessageKind kKind = MessageKind::kRefusal;
  Preamble preamble;
  MessageText<256> sentence;
};

inline constexpr std::size_t kVerbMax = 256;

struct Control {
  static constexpr MessageKind kKind = MessageKind::kControl;
  Preamble preamble;
  MessageText<kVerbMax> verb;
};

// The most bytes that are received of a Hello or a Control, of any minor version.
inline constexpr std::size_t kGreetingMax = 4096;

// An Answer is a Preamble and then text, up to this much together; longer ones: answer.h.
inline constexpr std::size_t kMessageMax = 128 * 1024;

template <class Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

// The message, if these bytes are one of this kind and of our major version; else an error that
// says what they are. A message of another minor version may be shorter (the rest is zero) or
// longer (the rest is unknown here, and dropped).
template <class Message>
hal::Result<Message> parse(std::span<const std::byte> bytes);

// The device that a client reports. An error unless its values are in the ranges that later code
// relies on.
hal::Result<hal::DeviceInfo> device_of(const Hello& hello);
Hello hello_of(const hal::DeviceInfo& info, std::string_view program, const Claim& claim = {});
// A share that is not a percentage counts as no claim.
Claim claim_of(const Hello& hello);
runtime::PoolLimits limits_of(const Welcome& welcome);
Refusal refusal(std::string_view sentence);

// Both sides build the pool from the same facts; equal hashes mean equal partitions with equal
// numbers.
std::uint64_t hash_of(const runtime::PoolLayout& layout);

}  // namespace vitamin::protocol
