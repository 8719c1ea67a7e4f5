// SPDX-License-Identifier: Apache-2.0
//
// The device as the demo programs see it: the few words that CUDA and HIP have in common. A program
// is linked with cuda_device.cpp, which finds the driver as real programs do and links nothing, or
// compiled by hipcc together with hip_device.cpp, an ordinary program of the HIP runtime.
//
// A demo program has no caller to report to: a failed call ends it with a sentence. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace vitamin::demo {

// The vendor's own handles. A null stream is the legacy default stream.
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Kernel = const struct KernelHandle*;

// How the program finds the driver's functions. HIP programs are linked with theirs.
enum class Door { kSymbol, kProcAddress };

// The first device, its kernels loaded. Everything it gives lasts as long as the program, and no
// call but the three that say so waits for the device.
class DemoDevice {
 public:
  explicit DemoDevice(Door door);
  ~DemoDevice();
  DemoDevice(const DemoDevice&) = delete;
  DemoDevice& operator=(const DemoDevice&) = delete;

  Kernel kernel(const char* name) const;
  Stream stream(bool blocking) const;
  Event event() const;
  float* floats(std::size_t count) const;  // device memory
  float* pinned(std::size_t count) const;  // host memory that asynchronous copies read and write

  // Ceil(threads / 256) blocks of 256 threads, arguments by value.
  template <class... Arguments>
  void launch(Kernel kernel, std::size_t threads, Stream stream, Arguments... arguments) {
    void* pointers[] = {static_cast<void*>(&arguments)...};
    launch_blocks(kernel, static_cast<unsigned>((threads + kThreads - 1) / kThreads), stream,
                  pointers);
    ++launches_;
  }
  std::uint64_t launches() const { return launches_; }

  void clear(float* to, std::size_t count, Stream stream) const;
  void copy_in(float* to, const float* pinned, std::size_t count, Stream stream) const;
  void copy_out(float* pinned, const float* from, std::size_t count, Stream stream) const;
  void record(Event event, Stream stream) const;
  void wait(Stream stream, Event event) const;

  void read(float* to, const float* from, std::size_t count) const;  // waits: default stream
  void synchronize(Stream stream) const;                             // waits
  void synchronize() const;                                          // waits: all streams

 private:
  static constexpr unsigned kThreads = 256;
  void launch_blocks(Kernel kernel, unsigned blocks, Stream stream, void** arguments) const;

  struct Vendor;
  std::unique_ptr<Vendor> vendor_;
  std::uint64_t launches_ = 0;
};

}  // namespace vitamin::demo
