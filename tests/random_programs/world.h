// SPDX-License-Identifier: Apache-2.0
//
// What the programs of one process share: the devices with their primary contexts, and the log.
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
  CUgreenCtx green = nullptr;
  CUmemoryPool pool = nullptr;  // holds one piece of memory
  bool alive = false;
};

class World {
 public:
  World(Log& log, std::string image) : log_(log), image_(std::move(image)) {}
  void start();  // of every device
  // Makes the primary context, loads the kernels, makes the green context of the application.
  void set_up(unsigned device);
  void shut_down();
  std::vector<Gpu>& gpus() { return gpus_; }
  Log& log() { return log_; }
  const std::string& image() const { return image_; }

 private:
  Log& log_;
  std::string image_;
  std::vector<Gpu> gpus_;
};

}  // namespace vitamin::random_programs
