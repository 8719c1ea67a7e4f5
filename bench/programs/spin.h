// SPDX-License-Identifier: Apache-2.0
//
// A kernel that takes time and nothing else.
#pragma once

namespace bench {

// Keeps the SMs it runs on busy for about `cycles`.
static __global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

}  // namespace bench
