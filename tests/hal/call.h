// SPDX-License-Identifier: Apache-2.0
//
// A launch for tests of the HAL, together with the argument values that it points to.
#pragma once

#include <cstddef>
#include <tuple>

#include "hal/operation.h"

namespace vitamin {

// Lives as long as the launch is used, and stays where it is.
template <class... Parameters>
struct HalCall {
  HalCall(hal::KernelHandle kernel, hal::Dim3 grid, hal::Dim3 block, Parameters... values)
      : storage(values...) {
    std::apply([&](auto&... value) { ((arguments[count++] = &value), ...); }, storage);
    launch.kernel = kernel;
    launch.grid = grid;
    launch.block = block;
    launch.arguments = arguments;
  }
  std::tuple<Parameters...> storage;
  void* arguments[8] = {};
  std::size_t count = 0;
  hal::KernelLaunch launch;
};

}  // namespace vitamin
