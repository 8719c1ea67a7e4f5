// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes share by IPC handles. Of a process that has a ledger (others have a device
// of their own) all memory of cuMemAlloc lies in one file, so that a handle can name it at any time
// and another process can map it. The file has no name: it ends with the last process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// Driver::mutex guards it. The device's account of memory is the caller's.
class SharedHeap {
 public:
  SharedHeap() = default;
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Fills *place but for the process. Null: the file cannot grow.
  void* allocate(std::size_t bytes, SharedPlace* place);
  // Handles of it are refused from now on. `open`: other processes have it open and keep what it
  // holds.
  void free(void* address, std::size_t bytes, const SharedPlace& place, bool open);

 private:
  int file_ = -1;
  std::uint64_t end_ = 0;  // no place is used twice
};

// Memory for cuMemAlloc; *shared stays null where no other process can have it.
CUresult allocate_shareable(Device& device, std::size_t bytes, void** address,
                            std::shared_ptr<SharedMemory>* shared);
void free_shareable(const MemoryAllocation& allocation);
// Memory of another process that this one opened.
void unmap_opened(const MemoryAllocation& allocation);

}  // namespace vitamin::soft::driver
