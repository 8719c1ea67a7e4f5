// SPDX-License-Identifier: Apache-2.0
//
// Single operations, gates, questions, and launches that the driver refuses.
#include <algorithm>
#include <cstring>
#include <memory>

#include "program.h"

namespace vitamin::random_programs {

namespace {

struct HostWork {
  Word* page;
  Word value;
};
void CUDA_CB on_host(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  for (std::size_t i = 0; i < kWords; ++i) work->page[i] = mixed(work->page[i], 1, work->value);
}
void CUDA_CB on_callback(CUstream, CUresult, void* data) { on_host(data); }

void CUDA_CB wait_for_flag(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) sleep_us(20);
}

// Words of the registered page behind those of the place; each gate has its own.
constexpr std::size_t kGateWords = 64;

}  // namespace

void Program::noise(unsigned count) {
  for (unsigned i = 0; i < count; ++i) one_operation();
}

void Program::one_operation() {
  const std::uint64_t dice = random_.below(100);
  if (dice < 44) {
    if (Line* line = any_line()) kernel(*line, draw_time());
  } else if (dice < 56) {
    copy();
  } else if (dice < 60) {
    fill();
  } else if (dice < 62) {
    write_values();
  } else if (dice < 66) {
    pageable_copy();
  } else if (dice < 71) {
    host_function();
  } else if (dice < 75) {
    scratch();
  } else if (dice < 76) {
    timed();
  } else if (dice < 79) {
    default_copy();
  } else {
    host_step();
  }
}

// --- work ----------------------------------------------------------------------------------------

CUresult Program::launch_mix(const Line& line, const Effect& effect, std::uint64_t ns,
                             unsigned blocks) {
  CUdeviceptr to = address(effect.to), from = address(effect.from);
  Word value = effect.value, count = kWords;
  void* arguments[] = {&to, &from, &value, &count, &ns};
  return cuLaunchKernel(gpu(line.device).mix, blocks, 1, 1, 32, 1, 1, 0, line.handle, arguments,
                        nullptr);
}

bool Program::kernel(Line& line, std::uint64_t ns) {
  Effect effect;
  if (!draw_place(line.device, false, effect.from) || !draw_place(line.device, true, effect.to))
    return false;
  effect.value = static_cast<Word>(random_.next());
  const auto blocks = static_cast<unsigned>(random_.one_in(4) ? 1 + random_.below(64) : 1);
  operation(line, {effect.from}, {effect.to});
  on(line, "kernel", [&] { return launch_mix(line, effect, ns, blocks); });
  apply(effect);
  return true;
}

void Program::copy() {
  Line* line = any_line();
  std::size_t from = 0, to = 0;
  if (line == nullptr) return;
  const auto other = static_cast<unsigned>(random_.below(devices_));
  if (!draw_place(other, false, from) || !draw_place(line->device, false, to) || from == to) return;
  if (!is_cell(from) && !is_cell(to)) return;
  if (other != line->device && line->legacy() && !room_on_legacies()) return;
  operation(*line, {from}, {to});
  if (other != line->device) come_behind_both(*line);
  const auto how = static_cast<unsigned>(random_.below(6));
  on(*line, "copy", [&] {
    if (is_cell(from) && is_cell(to) && device_of(from) != device_of(to))
      return cuMemcpyPeerAsync(cells_[to], gpu(device_of(to)).context, cells_[from],
                               gpu(device_of(from)).context, kBytes, line->handle);
    return copy_within(*line, to, from, how);
  });
  apply({Effect::Kind::kCopy, to, from, 0});
}

// The same copy by one of several calls: as a line, as four rows, as two planes of two rows.
CUresult Program::copy_within(const Line& line, std::size_t to, std::size_t from, unsigned how) {
  const bool to_device = is_cell(to), from_device = is_cell(from);
  if (how == 0) return cuMemcpyAsync(address(to), address(from), kBytes, line.handle);
  if (how == 1 || how == 2) {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    box.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    if (from_device)
      box.srcDevice = cells_[from];
    else
      box.srcHost = host_address(from);
    if (to_device)
      box.dstDevice = cells_[to];
    else
      box.dstHost = host_address(to);
    box.WidthInBytes = box.srcPitch = box.dstPitch = kBytes / 4;
    box.Height = how == 1 ? 4 : 2;
    box.srcHeight = box.dstHeight = box.Height;
    box.Depth = 4 / box.Height;
    if (how == 2) return cuMemcpy3DAsync(&box, line.handle);
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = box.srcMemoryType;
    rows.srcHost = box.srcHost;
    rows.srcDevice = box.srcDevice;
    rows.srcPitch = box.srcPitch;
    rows.dstMemoryType = box.dstMemoryType;
    rows.dstHost = box.dstHost;
    rows.dstDevice = box.dstDevice;
    rows.dstPitch = box.dstPitch;
    rows.WidthInBytes = box.WidthInBytes;
    rows.Height = box.Height;
    return cuMemcpy2DAsync(&rows, line.handle);
  }
  if (to_device && from_device)
    return cuMemcpyDtoDAsync(cells_[to], cells_[from], kBytes, line.handle);
  if (to_device) return cuMemcpyHtoDAsync(cells_[to], host_address(from), kBytes, line.handle);
  return cuMemcpyDtoHAsync(host_address(to), cells_[from], kBytes, line.handle);
}

// The source changes when the call has returned.
void Program::pageable_copy() {
  Line* line = any_line();
  std::size_t to = 0;
  if (line == nullptr || !draw_place(line->device, true, to)) return;
  operation(*line, {}, {to});
  Data source;
  for (Word& word : source) word = static_cast<Word>(random_.next());
  expected_[to] = source;
  on(*line, "pageable copy",
     [&] { return cuMemcpyHtoDAsync(cells_[to], source.data(), kBytes, line->handle); });
  source.fill(0xdead);
}

void Program::fill() {
  Line* line = any_line();
  std::size_t to = 0;
  if (line == nullptr || !draw_place(line->device, true, to)) return;
  const auto value = static_cast<Word>(random_.next());
  operation(*line, {}, {to});
  const bool rows = random_.one_in(3);
  on(*line, "fill", [&] {
    return rows ? cuMemsetD2D32Async(cells_[to], kBytes / 4, value, kWords / 4, 4, line->handle)
                : cuMemsetD32Async(cells_[to], value, kWords, line->handle);
  });
  apply({Effect::Kind::kFill, to, to, value});
}

// Every word by a write of its own, all in one batch or in a call each.
void Program::write_values() {
  Line* line = any_line();
  std::size_t to = 0;
  if (line == nullptr || !draw_place(line->device, false, to)) return;
  const auto value = static_cast<Word>(random_.next());
  const bool batch = random_.one_in(2);
  operation(*line, {}, {to});
  on(
      *line, "write values",
      [&] {
        std::array<CUstreamBatchMemOpParams, kWords> writes{};
        for (std::size_t i = 0; i < kWords; ++i) {
          const CUdeviceptr word = address(to) + i * sizeof(Word);
          writes[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
          writes[i].writeValue.address = word;
          writes[i].writeValue.value = value;
          if (batch) continue;
          const CUresult answer = cuStreamWriteValue32(line->handle, word, value, 0);
          if (answer != CUDA_SUCCESS) return answer;
        }
        return batch ? cuStreamBatchMemOp(line->handle, kWords, writes.data(), 0) : CUDA_SUCCESS;
      },
      kWords);
  apply({Effect::Kind::kFill, to, to, value});
}

void Program::host_function() {
  Line* line = any_line();
  if (line == nullptr) return;
  const std::size_t place = kCells * devices_ + random_.below(kPages);
  if (!available(place)) return;
  const auto value = static_cast<Word>(random_.next());
  host_functions_.set(operations_);
  operation(*line, {}, {place});
  host_functions_.set(operations_ - 1);
  const bool callback = random_.one_in(4);
  on(*line, callback ? "callback" : "host function", [&] {
    auto* const work = new HostWork{static_cast<Word*>(host_address(place)), value};
    return callback ? cuStreamAddCallback(line->handle, &on_callback, work, 0)
                    : cuLaunchHostFunc(line->handle, &on_host, work);
  });
  apply({Effect::Kind::kHost, place, place, value});
}

// Memory that lives in the stream only.
void Program::scratch() {
  Line* line = any_line();
  if (line == nullptr) return;
  Effect effect;
  if (!draw_place(line->device, true, effect.from) || !draw_place(line->device, true, effect.to))
    return;
  effect.value = static_cast<Word>(random_.next());
  operation(*line, {effect.from}, {effect.to});
  const std::uint64_t ns = draw_time();
  on(
      *line, "scratch",
      [&] {
        CUdeviceptr memory = 0;
        CUresult answer = cuMemAllocAsync(&memory, kBytes, line->handle);
        if (answer != CUDA_SUCCESS) return answer;
        answer = cuMemcpyDtoDAsync(memory, cells_[effect.from], kBytes, line->handle);
        if (answer != CUDA_SUCCESS) return answer;
        Word value = effect.value, count = kWords;
        std::uint64_t time = ns;
        void* arguments[] = {&cells_[effect.to], &memory, &value, &count, &time};
        answer =
            cuLaunchKernel(gpu(*line).mix, 1, 1, 1, 32, 1, 1, 0, line->handle, arguments, nullptr);
        if (answer != CUDA_SUCCESS) return answer;
        return cuMemFreeAsync(memory, line->handle);
      },
      4);
  apply(effect);
}

// The time between two events is there as soon as both have happened, and covers what lies between.
void Program::timed() {
  Line* line = any_line();
  if (line == nullptr || !flights_.empty() || !can_wait(all_of(line->device))) return;
  MUST(cuCtxSetCurrent(gpu(*line).context));
  std::array<CUevent, 2> events{};
  for (CUevent& event : events) MUST(cuEventCreate(&event, CU_EVENT_DEFAULT));
  const auto record = [&](CUevent event) {
    add(*line);
    on(*line, "record of a time", [&] { return cuEventRecord(event, line->handle); });
  };
  const auto elapsed = [&](const char* when) {
    float ms = -1;
    const CUresult answer = cuEventElapsedTime(&ms, events[0], events[1]);
    say("  elapsed %s: %d%s", when, answer, ms >= 1 && ms < 1e6F ? ", a time" : "");
  };
  elapsed("before a record");
  record(events[0]);
  kernel(*line, 2'000'000);
  record(events[1]);
  if (!can_wait(line->maybe)) open_all_gates();  // the kernel's places may be another device's
  wait_for(*line);
  elapsed("afterwards");
  for (const CUevent event : events) MUST(cuEventDestroy(event));
}

// A copy without a stream: the host knows its end.
void Program::default_copy() {
  Line* line = nullptr;
  for (Line& one : lines_)
    if (one.legacy() && one.device == random_.below(devices_)) line = &one;
  std::size_t from = 0;
  if (line == nullptr || !flights_.empty() || !draw_place(line->device, true, from)) return;
  Set all;
  for (const Line& one : lines_)
    if (one.device == line->device && (one.legacy() || one.blocking())) all |= one.maybe;
  for (const Line& one : lines_)
    if ((written_[from] & one.before).any()) all |= one.maybe;
  for (const Orphan& one : orphans_)
    if ((written_[from] & one.before).any()) all |= one.maybe;
  if (!can_wait(all)) return;
  operation(*line, {from}, {});
  Data seen{};
  on(*line, "copy to the host", [&] { return cuMemcpyDtoH(seen.data(), cells_[from], kBytes); });
  reached(line->before);
  if (seen != expected_[from]) say("  place %zu was read too early", from);
}

// --- the host waits and asks ---------------------------------------------------------------------

void Program::host_step() {
  Line* line = any_line();
  if (line == nullptr) return;
  EventModel& event = fresh_event(line->device);
  switch (random_.below(5)) {
    case 0:
      return record(event, *line);
    case 1:
      return wait(*line, event);
    case 2: {
      const Set all = all_of(line->device);
      if (flights_.empty() && can_wait(line->legacy() || line->blocking() ? all : line->maybe))
        wait_for(*line);
      return;
    }
    case 3:
      if (event.captured || !can_wait(event.maybe)) return;
      say("  synchronize event %d",
          call(0, event.device, [&] { return cuEventSynchronize(event.handle); }));
      return reached(event.recorded);
    default:
      return ask();
  }
}

// The host has waited for all that was asked for before, but what comes behind it in the driver's
// queue, the record of an event too, may take some microseconds more.
CUresult Program::until_ready(const std::function<CUresult()>& query) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) answer = query();
  return answer;
}

void Program::query_until_idle(Line& line) {
  on(
      line, "query until it is idle",
      [&] { return until_ready([&] { return cuStreamQuery(line.handle); }); }, 0);
}

// Questions with one answer.
void Program::ask() {
  for (Line& line : lines_) {
    if (taken(line) || !flights_.empty() || !random_.one_in(2)) continue;
    Set maybe = line.maybe;
    if (line.legacy() || line.blocking()) maybe = all_of(line.device);
    if (held(line.before))
      on(
          line, "query", [&] { return cuStreamQuery(line.handle); }, 0);
    else if ((maybe & ~host_).none())
      query_until_idle(line);
  }
  for (const EventModel* event : shared_events_) {
    if (event->captured || !random_.one_in(2)) continue;
    const auto query = [&] { return cuEventQuery(event->handle); };
    if (held(event->recorded))
      say("  query event %d", call(0, event->device, query));
    else if ((event->maybe & ~host_).none())
      say("  query event until it is complete %d",
          call(0, event->device, [&] { return until_ready(query); }));
  }
}

// --- gates ---------------------------------------------------------------------------------------

void Program::close_gate(Line& line) {
  const auto index = gates_.size();
  Gate& gate = gates_.emplace_back();
  gate.kind = static_cast<Gate::Kind>(random_.below(3));
  operation(line, {}, {});
  gate.operation = operations_ - 1;
  closed_.set(gate.operation);
  if (gate.kind == Gate::Kind::kHostFunction) {
    host_functions_.set(gate.operation);
    on(line, "gate: host function",
       [&] { return cuLaunchHostFunc(line.handle, &wait_for_flag, &gate.flag); });
    return;
  }
  gate.word = pages_[kPages - 1] + kGateWords + index;
  *gate.word = 0;
  CUdeviceptr word = page_addresses_[kPages - 1] + (kGateWords + index) * sizeof(Word);
  if (gate.kind == Gate::Kind::kKernel) {
    on(line, "gate: kernel", [&] {
      Word value = 1;
      void* arguments[] = {&word, &value};
      return cuLaunchKernel(gpu(line).spin, 1, 1, 1, 1, 1, 1, 0, line.handle, arguments, nullptr);
    });
  } else {
    on(line, "gate: value",
       [&] { return cuStreamWaitValue32(line.handle, word, 1, CU_STREAM_WAIT_VALUE_EQ); });
  }
}

void Program::open_gate(Gate& gate) {
  if (!gate.closed) return;
  gate.closed = false;
  closed_.reset(gate.operation);
  if (gate.kind == Gate::Kind::kHostFunction)
    gate.flag = true;
  else
    __atomic_store_n(gate.word, 1, __ATOMIC_RELEASE);  // the device looks at it meanwhile
}

void Program::open_gates_of(const Set& set) {
  for (Gate& gate : gates_)
    if (set.test(gate.operation)) open_gate(gate);
}

void Program::open_all_gates() {
  for (Gate& gate : gates_) open_gate(gate);
}

void Program::gate_fragment() {
  if (Line* line = any_line()) {
    close_gate(*line);
    for (std::uint64_t i = random_.below(3); i > 0; --i) kernel(*line, draw_time());
  }
}

void Program::open_fragment() {
  std::vector<Gate*> closed;
  for (Gate& gate : gates_)
    if (gate.closed) closed.push_back(&gate);
  if (!closed.empty()) open_gate(*random_.of(closed));
}

// --- what the driver refuses ---------------------------------------------------------------------

void Program::refused() {
  Line* line = any_line();
  if (line == nullptr) return;
  for (std::uint64_t i = 1 + random_.below(3); i > 0; --i) {
    const auto which = static_cast<unsigned>(random_.below(24));
    const std::string name = "refused " + std::to_string(which);
    on(
        *line, name.c_str(),
        [&] { return which < 12 ? refused_launch(*line, which) : refused_call(*line, which - 12); },
        0);
  }
}

CUresult Program::refused_launch(Line& line, unsigned which) {
  CUdeviceptr word = page_addresses_[0] + 1024;
  void* one[] = {&word};
  const CUfunction barrier = gpu(line).barrier, nothing = gpu(line).nothing;
  CUlaunchAttribute attribute{};
  CUlaunchConfig config{};
  config.gridDimX = 128;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  config.hStream = line.handle;
  config.attrs = &attribute;
  config.numAttrs = 1;
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {1, 1, 1};
  switch (which) {
    case 0:
      return cuLaunchKernel(nothing, 0, 1, 1, 32, 1, 1, 0, line.handle, nullptr, nullptr);
    case 1:
      return cuLaunchKernel(nothing, 1, 1, 1, 4096, 1, 1, 0, line.handle, nullptr, nullptr);
    case 2:
      return cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 1 << 22, line.handle, nullptr, nullptr);
    case 3:
      return cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, line.handle, nullptr, nullptr);
    case 4:  // more blocks than can be resident
      return cuLaunchCooperativeKernel(barrier, 100'000, 1, 1, 256, 1, 1, 0, line.handle, one);
    case 5:
      attribute.value.clusterDim.x = 64;
      return cuLaunchKernelEx(&config, nothing, nullptr, nullptr);
    case 6:  // does not divide the grid
      attribute.value.clusterDim.x = 3;
      return cuLaunchKernelEx(&config, nothing, nullptr, nullptr);
    case 7:  // too many cooperative blocks, as an attribute
      attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute.value.cooperative = 1;
      config.gridDimX = 1 << 20;
      return cuLaunchKernelEx(&config, barrier, one, nullptr);
    case 8:
      return cuMemsetD32Async(0, 1, kWords, line.handle);
    case 9:
      return cuMemcpyDtoDAsync(0, word, kBytes, line.handle);
    case 10:
      return cuStreamWaitEvent(line.handle, fresh_event(line.device).handle, 99);
    default:
      return cuMemFreeAsync(word, line.handle);
  }
}

CUresult Program::refused_call(Line& line, unsigned which) {
  const CUdeviceptr word = page_addresses_[0] + 1024;
  switch (which) {
    case 0:
      return cuLaunchHostFunc(line.handle, nullptr, nullptr);
    case 1:
      return cuStreamAddCallback(line.handle, &on_callback, nullptr, 7);
    case 2:
      return cuEventRecord(nullptr, line.handle);
    case 3:
      return cuStreamWaitEvent(line.handle, nullptr, 0);
    case 4:
      return cuGraphLaunch(nullptr, line.handle);
    case 5:  // not aligned
      return cuStreamWriteValue32(line.handle, word + 1, 1, 0);
    case 6:
      return cuMemsetD32Async(word + 2, 1, kWords, line.handle);
    case 7:  // a row is wider than its pitch
      return cuMemsetD2D32Async(word, kBytes / 8, 1, kWords / 4, 4, line.handle);
    case 8:
      return cuStreamBatchMemOp(line.handle, 1, nullptr, 0);
    case 9:
      return cuMemcpyHtoDAsync(0, host_address(kCells * devices_), kBytes, line.handle);
    case 10: {
      CUdeviceptr memory = 0;
      return cuMemAllocAsync(&memory, 0, line.handle);
    }
    default:
      return cuStreamWaitValue32(line.handle, word, 1, 0xff00);
  }
}

}  // namespace vitamin::random_programs
