// SPDX-License-Identifier: Apache-2.0
//
// The code object that streams.hip.cpp and corners.hip.cpp load by name.
#include <hip/hip_runtime.h>

extern "C" __global__ void scale(float* values, float by, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= by;
}

extern "C" __global__ void triple(float* value) {
  if (threadIdx.x == 0 && blockIdx.x == 0) *value *= 3;
}
