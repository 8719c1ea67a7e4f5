// SPDX-License-Identifier: Apache-2.0
//
// What can stand in a stream or in a node of a graph: one value that owns everything it needs.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

struct KernelCommand {
  Function* function = nullptr;  // as the application named it: a CUfunction or a CUkernel
  bool is_kernel_handle = false;
  std::shared_ptr<ModuleImage> image;  // keeps the code loaded
  const KernelDescriptor* descriptor = nullptr;
  Index3 grid, block;
  std::uint32_t shared = 0;
  Index3 cluster{0, 0, 0};  // 0: no cluster was asked for
  bool cooperative = false;
  bool non_portable_cluster = false;
  std::vector<unsigned char> parameters;      // packed
  std::vector<CUlaunchAttribute> attributes;  // as given
  EventObject* completion = nullptr;          // recorded behind the launch

  std::uint32_t cluster_blocks() const {
    return cluster.x == 0 ? 1 : cluster.x * cluster.y * cluster.z;
  }
};

// A box of bytes from one place to another. Pitches and slices are bytes from row to row and from
// layer to layer.
struct CopyCommand {
  unsigned char* target = nullptr;
  const unsigned char* source = nullptr;
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t target_pitch = 0, source_pitch = 0;
  std::size_t target_slice = 0, source_slice = 0;
  // Set when the source was copied while the call was made: `source` points into it.
  std::shared_ptr<const std::vector<unsigned char>> staged;

  std::size_t bytes() const { return width * height * depth; }
};

struct FillCommand {
  unsigned char* target = nullptr;
  std::size_t pitch = 0;
  std::uint32_t value = 0;
  std::uint32_t element_bytes = 1;
  std::size_t width = 0, height = 1;  // elements, rows
};

struct HostCommand {
  CUhostFn function = nullptr;
  void* data = nullptr;
};

struct CallbackCommand {
  CUstreamCallback function = nullptr;
  CUstream stream = nullptr;
  void* data = nullptr;
};

struct ValueWaitCommand {
  const void* address = nullptr;
  std::uint64_t value = 0;
  Width width = Width::k32;
  Compare compare = Compare::kGreaterOrEqual;
};

struct ValueWriteCommand {
  void* address = nullptr;
  std::uint64_t value = 0;
  Width width = Width::k32;
};

// `external` matters in a capture only: the record or wait becomes a node of the graph.
struct EventRecordCommand {
  EventObject* event = nullptr;
  bool external = false;
};
struct EventWaitCommand {
  EventObject* event = nullptr;
  bool external = false;
};
struct EmptyCommand {};
// Nodes of a graph that allocate and free; the launch of the graph does what they stand for.
struct GraphBlock;
struct GraphAllocCommand {
  std::shared_ptr<GraphBlock> block;
  std::size_t bytes = 0;  // that were asked for
  int ordinal = 0;
};
struct GraphFreeCommand {
  std::shared_ptr<GraphBlock> block;
};

struct GraphBody;
struct ChildGraphCommand {
  std::shared_ptr<GraphBody> body;
};

using Command =
    std::variant<KernelCommand, CopyCommand, FillCommand, HostCommand, CallbackCommand,
                 ValueWaitCommand, ValueWriteCommand, EventRecordCommand, EventWaitCommand,
                 EmptyCommand, ChildGraphCommand, GraphAllocCommand, GraphFreeCommand>;

// Gives a command to one queue of the engine. ChildGraphCommand is the graph launcher's.
CUresult submit(Context& context, Queue* queue, const Command& command);

// A command of the application on a stream: into the capture when the stream is part of one, else
// to the device. Holds `lock` on entry and exit, releases it while the stream has no place.
CUresult enqueue(std::unique_lock<std::mutex>& lock, Stream& stream, Command command);
// The commands of one cuStreamBatchMemOp, which together take one place of the stream.
CUresult enqueue_batch(std::unique_lock<std::mutex>& lock, Stream& stream,
                       std::vector<Command> commands);

// Blocks the caller while the stream has no place (kStreamPlaces) for one more operation. Releases
// `lock` meanwhile.
CUresult wait_for_place(std::unique_lock<std::mutex>& lock, Stream& stream,
                        std::size_t parameter_bytes);
// The stream's newest operation takes a place.
void take_place(Stream& stream, std::size_t parameter_bytes);

// What enqueue() checks before it accepts anything on a stream outside a capture.
CUresult admit_to_stream(Stream& stream);

// The copy that a CUDA_MEMCPY3D describes.
CUresult copy_from_box(const CUDA_MEMCPY3D& box, CopyCommand* copy);

// Runs a copy or a fill now, on this thread.
void perform(const CopyCommand& copy);
void perform(const FillCommand& fill);

}  // namespace vitamin::soft::driver
