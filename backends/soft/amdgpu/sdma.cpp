// SPDX-License-Identifier: Apache-2.0
//
// The packet processor of a copy queue (SDMA 4 and 5): what the runtime's copy paths emit.
#include <cstdio>
#include <cstring>

#include "backends/soft/amdgpu/isa/alias.h"
#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu {
namespace {

enum Operation : std::uint32_t {
  kNop = 0,
  kCopy = 1,
  kFence = 5,
  kTrap = 6,
  kPoll = 8,
  kAtomic = 10,
  kFill = 11,
  kTimestamp = 13,
  kCacheControl = 17,
};
enum CopyOperation : std::uint32_t { kLinear = 0, kWindow = 4 };

std::uint64_t address_at(const std::uint32_t* packet, unsigned word) {
  const std::uint64_t address = packet[word] | static_cast<std::uint64_t>(packet[word + 1]) << 32;
  return isa::host_address(address);
}

template <class T>
T* pointer_at(const std::uint32_t* packet, unsigned word) {
  return reinterpret_cast<T*>(address_at(packet, word));
}

// One side of a sub-window copy, in elements of 1 << `element` bytes. The packet holds pitch and
// slice less one.
struct Window {
  std::uint8_t* base;
  unsigned element;
  std::uint64_t x, y, z, pitch, slice;

  Window(const std::uint32_t* packet, unsigned word)
      : base(pointer_at<std::uint8_t>(packet, word)),
        element(packet[0] >> 29),
        x(packet[word + 2] & 0x3fff),
        y(packet[word + 2] >> 16 & 0x3fff),
        z(packet[word + 3] & 0x7ff),
        pitch((packet[word + 3] >> 13) + 1ull),
        slice((packet[word + 4] & 0xfffffff) + 1ull) {}

  std::uint8_t* row(std::uint64_t rows, std::uint64_t slices) const {
    return base + (((z + slices) * slice + (y + rows) * pitch + x) << element);
  }
};

// Bytes copied.
std::size_t copy_window(const std::uint32_t* packet) {
  const Window from(packet, 1), to(packet, 6);
  const std::size_t row_bytes = ((packet[11] & 0x3fff) + std::size_t{1}) << from.element;
  const std::uint64_t rows = (packet[11] >> 16 & 0x3fff) + 1ull;
  const std::uint64_t slices = (packet[12] & 0x7ff) + 1ull;
  for (std::uint64_t slice = 0; slice < slices; ++slice)
    for (std::uint64_t row = 0; row < rows; ++row)
      std::memmove(to.row(row, slice), from.row(row, slice), row_bytes);
  return row_bytes * rows * slices;
}

bool holds(std::uint32_t relation, std::uint32_t value, std::uint32_t reference) {
  switch (relation) {
    case 1:
      return value < reference;
    case 2:
      return value <= reference;
    case 3:
      return value == reference;
    case 4:
      return value != reference;
    case 5:
      return value >= reference;
    case 6:
      return value > reference;
    default:
      return true;
  }
}

}  // namespace

void Queue::run_copies(Machine& machine) {
  Backoff backoff;
  while (!stopped()) {
    const PacketRing ring = this->ring();
    std::uint64_t read = ring.active ? *read_index_ : 0;
    const std::uint64_t written = __atomic_load_n(doorbell_, __ATOMIC_ACQUIRE);
    if (!ring.active || read >= written || gpu_.lost) {
      backoff.wait();
      continue;
    }
    backoff.reset();
    while (read < written && !stopped() && !gpu_.lost && active_) {
      const auto* packet = reinterpret_cast<const std::uint32_t*>(ring.packets + read % ring.bytes);
      read += std::uint64_t{run_copy_packet(machine, packet)} * sizeof(std::uint32_t);
      __atomic_store_n(read_index_, read, __ATOMIC_RELEASE);
    }
  }
}

// Words of the packet. 0: it stays where it is, and the GPU is lost.
std::uint32_t Queue::run_copy_packet(Machine& machine, const std::uint32_t* packet) {
  const std::uint32_t operation = packet[0] & 0xff, sub = packet[0] >> 8 & 0xff;
  switch (operation) {
    case kNop:
      return 1;
    case kCopy: {
      if (sub == kWindow) {
        machine.trace.line("copy queue=%u bytes=%zu", id_, copy_window(packet));
        return 13;
      }
      if (sub != kLinear) break;
      const std::size_t bytes = (packet[1] & 0x3fffffff) + std::size_t{1};
      std::memmove(pointer_at<void>(packet, 5), pointer_at<void>(packet, 3), bytes);
      machine.trace.line("copy queue=%u bytes=%zu", id_, bytes);
      return 7;
    }
    case kFence:
      __atomic_store_n(pointer_at<std::uint32_t>(packet, 1), packet[3], __ATOMIC_RELEASE);
      return 4;
    case kTrap:
      machine.events.raise(packet[1]);
      return 2;
    case kPoll: {
      const std::uint32_t relation = packet[0] >> 28 & 7;
      Backoff backoff;  // relation 0 flushes the host data path and waits for nothing
      while (relation != 0 && !stopped() &&
             !holds(relation,
                    __atomic_load_n(pointer_at<std::uint32_t>(packet, 1), __ATOMIC_ACQUIRE) &
                        packet[4],
                    packet[3]))
        backoff.wait();
      return 6;
    }
    case kAtomic: {
      constexpr std::uint32_t kAdd64 = 47;
      if (packet[0] >> 25 != kAdd64) break;
      const std::uint64_t operand = packet[3] | static_cast<std::uint64_t>(packet[4]) << 32;
      __atomic_fetch_add(pointer_at<std::uint64_t>(packet, 1), operand, __ATOMIC_ACQ_REL);
      return 8;
    }
    case kFill: {
      const std::size_t words = ((packet[4] & 0x3fffff) + std::size_t{4}) / 4;
      auto* const to = pointer_at<std::uint32_t>(packet, 1);
      for (std::size_t at = 0; at < words; ++at) to[at] = packet[3];
      return 5;
    }
    case kTimestamp:
      *pointer_at<std::uint64_t>(packet, 1) = now_ns();
      return 3;
    case kCacheControl:
      return 5;
    default:
      break;
  }
  std::fprintf(stderr,
               "software AMD GPU: copy queue %u holds an unknown packet (operation %u.%u, %#x)\n",
               id_, operation, sub, packet[0]);
  machine.lose(gpu_, "an unknown copy packet");
  return 0;
}

}  // namespace vitamin::soft::amdgpu
