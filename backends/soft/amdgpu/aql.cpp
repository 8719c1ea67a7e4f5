// SPDX-License-Identifier: Apache-2.0
//
// The packet processor of a compute queue. Packets are taken strictly in order, which satisfies
// every barrier bit.
#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa.h>

#include <cstdio>

#include "backends/soft/amdgpu/dispatch.h"
#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu {
namespace {

constexpr std::uint64_t kPacketBytes = 64;

// Error bits of the queue's inactive signal, as the runtime reads them.
constexpr std::uint32_t kIllegalInstruction = 0x40000000, kHardwareException = 0x80000000;

// hsa_amd_barrier_value_packet_t, which Debian's headers do not declare.
struct BarrierValuePacket {
  std::uint16_t header;
  std::uint8_t format, reserved0;
  std::uint32_t reserved1;
  std::uint64_t signal;
  std::int64_t value, mask;
  std::uint32_t condition, reserved2;
  std::uint64_t reserved3, reserved4, completion_signal;
};
static_assert(sizeof(BarrierValuePacket) == kPacketBytes);
// Formats of vendor packets. A command buffer of the runtime's flushes caches, which are none here.
constexpr std::uint8_t kCommandBuffer = 1, kBarrierValue = 2;

std::int64_t signal_value(std::uint64_t handle) {
  return __atomic_load_n(
      const_cast<const std::int64_t*>(&reinterpret_cast<amd_signal_t*>(handle)->value),
      __ATOMIC_ACQUIRE);
}

bool barrier_open(const hsa_barrier_and_packet_t& packet, bool all) {
  unsigned named = 0, zero = 0;
  for (const hsa_signal_t signal : packet.dep_signal) {
    if (signal.handle == 0) continue;
    ++named;
    zero += signal_value(signal.handle) == 0 ? 1 : 0;
  }
  return all ? zero == named : named == 0 || zero != 0;
}

bool value_reached(const BarrierValuePacket& packet) {
  if (packet.signal == 0) return true;
  const std::int64_t value = signal_value(packet.signal) & packet.mask;
  switch (packet.condition) {
    case HSA_SIGNAL_CONDITION_EQ:
      return value == packet.value;
    case HSA_SIGNAL_CONDITION_NE:
      return value != packet.value;
    case HSA_SIGNAL_CONDITION_LT:
      return value < packet.value;
    default:
      return value >= packet.value;
  }
}

template <class Open>
void wait_until(Queue& queue, Open&& open) {
  Backoff backoff;
  while (!queue.stopped() && !open()) {
    backoff.wait();
    if (queue.turn_is_over()) queue.end_turn();
  }
}

}  // namespace

void Queue::run_compute(Machine& machine) {
  Backoff backoff;
  while (!stopped()) {
    if (gpu_.lost && !abandoned_) abandon(kHardwareException);
    const PacketRing ring = this->ring();
    // A ring without room for one packet, which Linux takes, can hold none.
    const std::uint64_t capacity = ring.bytes / kPacketBytes;
    if (!ring.active || capacity == 0 || abandoned_) {
      unmap();
      backoff.wait();
      continue;
    }
    const std::uint64_t index = __atomic_load_n(read_index_, __ATOMIC_ACQUIRE);
    std::uint8_t* const packet = ring.packets + index % capacity * kPacketBytes;
    auto* const header = reinterpret_cast<std::uint16_t*>(packet);
    const bool written =
        index < __atomic_load_n(write_index_, __ATOMIC_ACQUIRE) &&
        (__atomic_load_n(header, __ATOMIC_ACQUIRE) & 0xff) != HSA_PACKET_TYPE_INVALID;
    if (!written) {
      unmap();
      backoff.wait();
      continue;
    }
    backoff.reset();
    if (mapped_ && turn_is_over()) end_turn();
    if (!mapped_ && !map()) break;
    if (!run_packet(machine, packet)) continue;
    __atomic_store_n(header, static_cast<std::uint16_t>(HSA_PACKET_TYPE_INVALID), __ATOMIC_RELEASE);
    __atomic_store_n(read_index_, index + 1, __ATOMIC_RELEASE);
  }
  unmap();
}

// False: the packet stays where it is, and so does the queue.
bool Queue::run_packet(Machine& machine, std::uint8_t* packet) {
  const std::uint64_t start = now_ns();
  const unsigned type = packet[0];
  if (type == HSA_PACKET_TYPE_KERNEL_DISPATCH) {
    auto* const shared = reinterpret_cast<amd_queue_t*>(
        reinterpret_cast<std::uint8_t*>(write_index_) - offsetof(amd_queue_t, write_dispatch_id));
    const auto& dispatch = *reinterpret_cast<hsa_kernel_dispatch_packet_t*>(packet);
    const auto outcome = run_dispatch(machine, *this, *shared, dispatch);
    if (outcome == DispatchOutcome::kFaulted) abandon(kIllegalInstruction);
    if (outcome != DispatchOutcome::kDone) return false;
    complete_signal(machine, dispatch.completion_signal.handle, start);
    return true;
  }
  if (type == HSA_PACKET_TYPE_BARRIER_AND || type == HSA_PACKET_TYPE_BARRIER_OR) {
    const auto& barrier = *reinterpret_cast<hsa_barrier_and_packet_t*>(packet);
    const bool all = type == HSA_PACKET_TYPE_BARRIER_AND;
    wait_until(*this, [&] { return barrier_open(barrier, all); });
    if (stopped()) return false;
    machine.trace.line("barrier queue=%u kind=%s", id_, all ? "and" : "or");
    complete_signal(machine, barrier.completion_signal.handle, start);
    return true;
  }
  if (type == HSA_PACKET_TYPE_VENDOR_SPECIFIC) {
    const auto& vendor = *reinterpret_cast<BarrierValuePacket*>(packet);
    if (vendor.format != kCommandBuffer && vendor.format != kBarrierValue)
      return refuse_packet("vendor packet of the unknown format", vendor.format);
    if (vendor.format == kBarrierValue) wait_until(*this, [&] { return value_reached(vendor); });
    if (stopped()) return false;
    machine.trace.line("vendor queue=%u format=%u", id_, unsigned{vendor.format});
    complete_signal(machine, vendor.completion_signal, start);
    return true;
  }
  return refuse_packet("packet of the unknown type", type);
}

bool Queue::refuse_packet(const char* what, unsigned number) {
  std::fprintf(stderr, "software AMD GPU: queue %u holds a %s %u\n", id_, what, number);
  abandon(kIllegalInstruction);
  return false;
}

}  // namespace vitamin::soft::amdgpu
