// SPDX-License-Identifier: Apache-2.0
//
// One kernel dispatch: from its packet to the last workgroup. Runs on the queue's thread.
#pragma once

#include <hsa/amd_hsa_queue.h>
#include <hsa/hsa.h>

#include <cstdint>

namespace vitamin::soft::amdgpu {

struct Machine;
class Queue;

enum class DispatchOutcome : std::uint8_t {
  kDone,
  kFaulted,  // said on stderr; the queue is broken
  kHung,     // the queue was stopped, or the device lost, before the end
};

DispatchOutcome run_dispatch(Machine& machine, Queue& queue, const amd_queue_t& shared,
                             const hsa_kernel_dispatch_packet_t& packet);

}  // namespace vitamin::soft::amdgpu
