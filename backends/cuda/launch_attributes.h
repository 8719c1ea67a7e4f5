// SPDX-License-Identifier: Apache-2.0
//
// What the attributes of a launch, or of a graph's kernel node, say of where and how the kernel can
// run. The attributes themselves travel untouched.
// Source: CUDA Driver API, CUlaunchAttributeID and CUlaunchAttributeValue.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "hal/operation.h"

namespace vitamin::cuda {

struct LaunchAttributes {
  std::uint32_t cluster_blocks = 1;  // the most blocks that have to be resident together
  bool cooperative = false;
  bool programmatic = false;    // may start before what is ahead of it in its stream has ended
  CUevent recorded = nullptr;   // the launch records it
  bool updatable_node = false;  // kernels may change it; has a meaning in a graph only

  LaunchAttributes() = default;
  LaunchAttributes(const CUlaunchAttribute* records, unsigned count) {
    for (unsigned i = 0; i < count; ++i) read(records[i].id, records[i].value);
  }

  void read(CUlaunchAttributeID attribute, const CUlaunchAttributeValue& value) {
    switch (attribute) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        widen(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
        break;
#if CUDA_VERSION >= 12080
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        widen(value.preferredClusterDim.x, value.preferredClusterDim.y,
              value.preferredClusterDim.z);
        break;
#endif
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        cooperative = value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        programmatic = value.programmaticStreamSerializationAllowed != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        recorded = value.programmaticEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        recorded = value.launchCompletionEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        updatable_node = value.deviceUpdatableKernelNode.deviceUpdatable != 0;
        break;
      default:
        break;
    }
  }

  // Into the words of the HAL.
  void describe(hal::KernelLaunch& launch) const {
    launch.cluster_blocks = cluster_blocks;
    launch.cooperative = cooperative;
    launch.programmatic = programmatic;
  }

 private:
  void widen(unsigned x, unsigned y, unsigned z) {
    cluster_blocks = std::max(cluster_blocks, x * std::max(1U, y) * std::max(1U, z));
  }
};

}  // namespace vitamin::cuda
