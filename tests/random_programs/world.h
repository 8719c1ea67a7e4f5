// SPDX-License-Identifier: Apache-2.0
//
// What the programs of one process share: the devices with their primary contexts, a second context
// of the first device, and the log.
#pragma once

#include <cuda.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "host.h"

namespace vitamin::random_programs {

struct Gpu {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction mix = nullptr, add_slowly = nullptr, nothing = nullptr;
  CUfunction spin = nullptr, barrier = nullptr;
  CUgreenCtx green = nullptr;   // of the first device's primary context
  CUmemoryPool pool = nullptr;  // holds one piece of memory
};

class World {
 public:
  World(Log& log, std::string image) : log_(log), image_(std::move(image)) {}
  // Where gpus() holds the second context of the first device, a device of its own for programs.
  static constexpr std::size_t kSecondContext = 2;
  void start();  // two devices
  // Makes the context, loads the kernels, makes the green context of the application.
  void set_up(std::size_t gpu);
  // Ends the context of one, with its work outstanding. Primary contexts are released or reset.
  CUresult end(std::size_t gpu, bool release);
  void shut_down();
  std::vector<Gpu>& gpus() { return gpus_; }
  Log& log() { return log_; }
  const std::string& image() const { return image_; }

 private:
  static CUcontext make_context(CUdevice device, bool primary);
  Log& log_;
  std::string image_;
  std::vector<Gpu> gpus_;
};

}  // namespace vitamin::random_programs
