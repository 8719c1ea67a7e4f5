// SPDX-License-Identifier: Apache-2.0
//
// Fragments about memory in stream order and copies between devices.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "program.h"

namespace vitamin::random_programs {

// --- memory --------------------------------------------------------------------------------------

// Memory of one stream that another uses and frees, behind an event or what the host waited for.
void Program::stream_memory() {
  const auto device = static_cast<unsigned>(random_.below(devices_));
  Line* from = line_of(device, false);
  Line* to = line_of(device, false);
  std::size_t cell = 0, source = 0;
  if (from == nullptr || to == nullptr || !draw_place(device, true, cell) ||
      !draw_place(device, true, source))
    return;
  CUdeviceptr memory = 0;
  on(*from, "allocate", [&] { return cuMemAllocAsync(&memory, kBytes, from->handle); });
  if (from != to && random_.one_in(2) && flights_.empty() && can_wait(all_of(device))) {
    wait_for(*from);
  } else {
    operation(*from, {source}, {});
    on(*from, "copy in",
       [&] { return cuMemcpyDtoDAsync(memory, cells_[source], kBytes, from->handle); });
    EventModel& event = fresh_event(device);
    record(event, *from);
    wait(*to, event);
  }
  use_and_free(*to, memory, cell);
}

void Program::use_and_free(Line& line, CUdeviceptr memory, std::size_t cell) {
  operation(line, {}, {cell});
  const auto value = static_cast<Word>(random_.next());
  const std::uint64_t ns = draw_time();
  on(
      line, "use",
      [&] {
        CUdeviceptr target = memory;
        Word count = kWords, v = value;
        std::uint64_t time = ns;
        CUresult answer = cuMemsetD32Async(target, value, kWords, line.handle);
        void* arguments[] = {&target, &target, &v, &count, &time};
        if (answer == CUDA_SUCCESS)
          answer =
              cuLaunchKernel(gpu(line).mix, 1, 1, 1, 32, 1, 1, 0, line.handle, arguments, nullptr);
        if (answer == CUDA_SUCCESS)
          answer = cuMemcpyDtoDAsync(cells_[cell], target, kBytes, line.handle);
        if (answer == CUDA_SUCCESS) answer = cuMemFreeAsync(target, line.handle);
        return answer;
      },
      4);
  for (Word& word : expected_[cell]) word = mixed(value, value, value);
}

// The pool has one piece: its next owner comes behind the free of the last one.
CUdeviceptr Program::allocate_limited(Line& line) {
  CUdeviceptr memory = 0;
  on(line, "allocate from the limited pool",
     [&] { return cuMemAllocFromPoolAsync(&memory, kBytes, gpu(line).pool, line.handle); });
  line.before |= pool_before_[line.device];
  line.maybe |= pool_maybe_[line.device];
  add(line);
  return memory;
}

// Memory that is handed from stream to stream; the host may wait for its allocation alone.
void Program::limited_pool() {
  const auto device = static_cast<unsigned>(random_.below(devices_));
  Line* first = line_of(device, false);
  Line* second = line_of(device, false);
  Line* user = line_of(device, false);
  std::size_t cell = 0, other = 0;
  if (first == nullptr || second == nullptr || user == nullptr || first == second ||
      !draw_place(device, true, cell) || !draw_place(device, true, other))
    return;
  use_and_free(*first, allocate_limited(*first), cell);
  pool_before_[device] = first->before;
  pool_maybe_[device] = first->maybe;
  const CUdeviceptr memory = allocate_limited(*second);
  if (!flights_.empty() || !can_wait(all_of(device))) user = second;
  if (user != second && random_.one_in(2)) {
    wait_for(*second);
  } else if (user != second) {
    query_until_idle(*second);
    reached(second->before);
  }
  use_and_free(*user, memory, other);
  pool_before_[device] = user->before;
  pool_maybe_[device] = user->maybe;
}

// --- copies between devices ----------------------------------------------------------------------

// Without a stream: behind and before the work of both contexts.
void Program::peer_copy() {
  if (devices_ < 2 || !flights_.empty()) return;
  std::size_t from = 0, to = 0;
  const auto target = static_cast<unsigned>(random_.below(2));
  if (!draw_place(1 - target, true, from) || !draw_place(target, true, to)) return;
  Line* legacies[2] = {};
  for (Line& line : lines_)
    if (line.legacy()) legacies[line.device] = &line;
  for (Line* line : legacies)
    if (!room(*line, 24)) return;
  const unsigned current = random_.one_in(2) ? target : 1 - target;
  const auto kind = random_.below(3);
  // Of another stream than the default ones the rules say nothing.
  Line& here = *legacies[current];
  // Between two contexts of one device nothing but the order of the current one is relied on.
  const Set implied = one_device() ? ordered(here) : ordered(*legacies[0]) | ordered(*legacies[1]);
  const Set wanted = written_[from] | written_[to] | read_[to];
  if ((wanted & ~implied & ~host_).any()) {
    order(here, from, false);
    order(here, to, true);
  }
  here.before |= implied;
  operation(here, {}, {});
  come_behind_both(here);
  written_[to].set(operations_ - 1);
  read_[from].set(operations_ - 1);
  on(here, "peer copy", [&] {
    const CUcontext source_context = gpu(1 - target).context;
    const CUcontext target_context = gpu(target).context;
    if (kind == 0)
      return cuMemcpyPeer(cells_[to], target_context, cells_[from], source_context, kBytes);
    if (kind == 1) return cuMemcpy(cells_[to], cells_[from], kBytes);
    CUDA_MEMCPY3D_PEER box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = cells_[from];
    box.dstDevice = cells_[to];
    box.srcContext = source_context;
    box.dstContext = target_context;
    box.WidthInBytes = kBytes;
    box.Height = box.Depth = 1;
    return cuMemcpy3DPeer(&box);
  });
  apply({Effect::Kind::kCopy, to, from, 0});
  for (Line* line : legacies) {
    if (!one_device()) line->before |= here.before;
    line->maybe |= here.maybe;
  }
}

}  // namespace vitamin::random_programs
