// SPDX-License-Identifier: Apache-2.0
//
// Fragments of several calls or threads: deep queues, calls that another thread is in, chains of
// several threads at once, contexts, processes.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "program.h"

namespace vitamin::random_programs {

// --- deep queues ---------------------------------------------------------------------------------

// One to three held streams with hundreds of operations each. Others go on meanwhile.
void Program::deep() {
  if (!flights_.empty()) return;
  const std::uint64_t lines = 1 + random_.below(3);
  for (std::uint64_t i = 0; i < lines; ++i) {
    Line* line = any_line();
    if (line == nullptr || line->depth > 60) continue;
    if (!held(line->before)) close_gate(*line);
    const bool records = random_.one_in(2);
    const unsigned most = (kDepth - line->depth) / (records ? 2 : 1);
    const auto launches = static_cast<unsigned>(random_.one_in(2) ? most : random_.below(most));
    EventModel& event = fresh_event(line->device);
    operation(*line, {}, {});
    on(
        *line, records ? "deep with records" : "deep",
        [&] { return launch_nothing(*line, launches, records ? event.handle : nullptr); },
        launches * (records ? 2 : 1));
    if (records && launches > 0) {
      event.recorded = line->before;
      event.maybe = line->maybe;
      event.captured = false;
    }
    Line* other = any_line();
    if (other != nullptr && !other->legacy() && !other->blocking() && kernel(*other, 1000) &&
        can_wait(other->maybe))
      wait_for(*other);
  }
}

// --- calls that another thread is in -------------------------------------------------------------

Program::Flight& Program::begin_flight(Line& line, const char* name,
                                       std::function<CUresult()> what) {
  Flight& flight = flights_.emplace_back();
  flight.line = &line;
  flight.name = name;
  flight.answer = std::make_shared<CUresult>(CUDA_SUCCESS);
  flight.before = line.before;
  flight.maybe = line.maybe;
  if (line.thread != Line::kAnyThread) {
    flight.thread = line.thread;
  } else {
    do flight.thread = 1 + static_cast<unsigned>(random_.below(kWorkers));
    while (workers_[flight.thread - 1]->busy());
  }
  line.busy = true;
  say("  thread %u begins: %s, stream %zu", flight.thread, name, number_of(line));
  const CUcontext context = gpu(line).context;
  workers_[flight.thread - 1]->post([what = std::move(what), answer = flight.answer, context] {
    MUST(cuCtxSetCurrent(context));
    *answer = what();
  });
  sleep_us(random_.one_in(4) ? 1500 : random_.below(200));
  return flight;
}

void Program::land(Flight& flight) {
  open_gates_of(flight.maybe);
  if (flight.waits || !can_wait(flight.maybe)) open_all_gates();
  world_.log().begin("join " + flight.name);
  workers_[flight.thread - 1]->join();
  say("  thread %u ends: %s: %d", flight.thread, flight.name.c_str(),
      static_cast<int>(*flight.answer));
  flight.line->busy = false;
  flight.line->before |= flight.before;
  if (flight.partner != nullptr) {
    flight.partner->busy = false;
    flight.partner->before |= flight.partner_before;
  }
  for (const std::size_t place : flight.places) reserved_[place] = false;
  if (flight.waits) reached(flight.before);
  flights_.remove_if([&](const Flight& one) { return &one == &flight; });
}

void Program::land_all() {
  while (!flights_.empty()) land(flights_.front());
}

CUresult Program::launch_nothing(const Line& line, unsigned count, CUevent record_each) {
  const CUfunction nothing = gpu(line.device).nothing;
  for (unsigned i = 0; i < count; ++i) {
    CUresult answer = cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, line.handle, nullptr, nullptr);
    if (answer == CUDA_SUCCESS && record_each != nullptr)
      answer = cuEventRecord(record_each, line.handle);
    if (answer != CUDA_SUCCESS) return answer;
  }
  return CUDA_SUCCESS;
}

bool Program::fly_graph(Line& line) {
  GraphModel* graph = any_graph();
  if (graph == nullptr || graph->device != line.device || graph->records != nullptr) return false;
  const Set before = line.before;
  if (!prepare_graph(*graph, line)) return false;
  finish_graph(*graph, line);
  Flight& flight =
      begin_flight(line, "graph", [executable = graph->executable, stream = line.handle] {
        return cuGraphLaunch(executable, stream);
      });
  line.before = before;  // until it has returned nothing is certain to come behind it
  for (const Effect& effect : graph->effects)
    flight.places.insert(flight.places.end(), {effect.to, effect.from});
  return true;
}

// Launches, now and then more than the driver takes; or a copy that reads the host's memory.
bool Program::fly_work(Line& line) {
  Effect effect;
  if (!draw_place(line.device, false, effect.from) || !draw_place(line.device, true, effect.to))
    return false;
  effect.value = static_cast<Word>(random_.next());
  const bool copies = random_.one_in(3);
  const std::uint64_t ns = draw_time();
  const unsigned count = random_.one_in(2) ? 1 : static_cast<unsigned>(random_.below(300));
  if (held_by_kernel(line) && line.depth + count > kDepth) return false;
  const Set before = line.before;
  operation(line, {effect.from}, {effect.to});
  Flight* flight = nullptr;
  if (copies) {
    for (Word& word : expected_[effect.to]) word = effect.value;
    flight = &begin_flight(line, "pageable copy",
                           [value = effect.value, to = address(effect.to), s = line.handle] {
                             std::vector<Word> source(kWords, value);
                             return cuMemcpyHtoDAsync(to, source.data(), kBytes, s);
                           });
  } else {
    for (unsigned i = 0; i < count; ++i) apply(effect);
    line.depth += count;
    flight = &begin_flight(line, "kernels", [this, &line, effect, ns, count] {
      for (unsigned i = 0; i < count; ++i)
        if (const CUresult answer = launch_mix(line, effect, i == 0 ? ns : 0, 1);
            answer != CUDA_SUCCESS)
          return answer;
      return CUDA_SUCCESS;
    });
  }
  flight->places = {effect.from, effect.to};
  line.before = before;
  return true;
}

bool Program::fly_wait(Line& line) {
  Flight* flight = nullptr;
  switch (random_.below(3)) {
    case 0:
      flight = &begin_flight(line, "synchronize stream",
                             [stream = line.handle] { return cuStreamSynchronize(stream); });
      break;
    case 1:
      flight = &begin_flight(line, "synchronize context", [] { return cuCtxSynchronize(); });
      break;
    default: {
      const EventModel& event = fresh_event(line.device);
      if (event.captured) return false;
      flight = &begin_flight(line, "synchronize event",
                             [event = event.handle] { return cuEventSynchronize(event); });
      flight->before = event.recorded;
      flight->event = &event;
    }
  }
  flight->waits = true;
  return true;
}

// The runtime does not know that a kernel waits for the host: see "Rules" in README.md.
bool Program::held_by_kernel(const Line& line) const {
  return std::any_of(gates_.begin(), gates_.end(), [&](const Gate& gate) {
    return gate.closed && gate.kind == Gate::Kind::kKernel && line.maybe.test(gate.operation);
  });
}

// One call of another thread; this one goes on meanwhile.
bool Program::draw_flight() {
  Line* line = any_line();
  if (line == nullptr || flights_.size() + 1 >= kWorkers || line->thread == 0) return false;
  // Often behind a gate, now and then behind all that the driver takes.
  if (random_.one_in(2) && !held(line->before)) close_gate(*line);
  if (random_.one_in(3) && held(line->before) && !held_by_kernel(*line) &&
      line->depth + 150 < kDepth) {
    const unsigned launches = kDepth - line->depth - static_cast<unsigned>(random_.below(120));
    operation(*line, {}, {});
    on(
        *line, "deep", [&] { return launch_nothing(*line, launches, nullptr); }, launches);
  }
  const std::uint64_t dice = random_.below(7);
  if (!(dice < 2 ? fly_graph(*line) : dice < 5 ? fly_work(*line) : fly_wait(*line))) return false;
  for (const std::size_t place : flights_.back().places) reserved_[place] = true;
  return true;
}

void Program::flight() {
  if (!draw_flight()) return;
  noise(static_cast<unsigned>(random_.below(4)));
  if (random_.one_in(2)) launch_graph();
  // What nothing holds ends while the other thread waits.
  for (int i = 0; i < 2; ++i) {
    Line* line = any_line();
    if (line == nullptr || line->legacy() || line->blocking() || held(line->maybe)) continue;
    const auto launches = static_cast<unsigned>(random_.below(60));
    add(*line);
    on(
        *line, "nothing", [&] { return launch_nothing(*line, launches, nullptr); }, launches);
    if (kernel(*line, 20'000) && can_wait(line->maybe)) wait_for(*line);
  }
  if (!flights_.empty() && !random_.one_in(3)) land(flights_.front());
}

// --- several threads at once ---------------------------------------------------------------------

// Steps that each change the cell, alternately on a line and its partner (a legacy and a blocking
// one, which order themselves).
std::function<CUresult()> Program::make_chain(Line& line, Line* partner, std::size_t cell,
                                              unsigned steps) {
  std::vector<std::pair<Effect, std::uint64_t>> work;
  std::vector<unsigned> kinds;
  for (unsigned i = 0; i < steps; ++i) {
    work.emplace_back(Effect{Effect::Kind::kMix, cell, cell, static_cast<Word>(random_.next())},
                      random_.one_in(4) ? 50'000 : random_.below(5000));
    kinds.push_back(static_cast<unsigned>(random_.below(12)));
    apply(work.back().first);
  }
  // The model has it that the line comes first and last and its partner in between.
  kinds.front() = kinds.back() = 0;
  kinds[1] = 1;
  CUevent event = nullptr;
  MUST(cuCtxSetCurrent(gpu(line).context));
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  events_.push_back({event, line.device, {}, {}, false});
  return [this, &line, partner, work, kinds, event] {
    for (std::size_t i = 0; i < work.size(); ++i) {
      const Line& here = partner != nullptr && (kinds[i] & 1) != 0 ? *partner : line;
      CUresult answer = launch_mix(here, work[i].first, work[i].second, 1);
      if (answer == CUDA_SUCCESS && kinds[i] == 8) answer = cuEventRecord(event, here.handle);
      if (answer == CUDA_SUCCESS && kinds[i] == 9)
        answer = cuStreamWaitEvent(here.handle, event, 0);
      if (answer == CUDA_SUCCESS && kinds[i] == 10) {
        CUdeviceptr memory = 0;
        answer = cuMemAllocAsync(&memory, kBytes, here.handle);
        if (answer == CUDA_SUCCESS) answer = cuMemsetD32Async(memory, 1, kWords, here.handle);
        if (answer == CUDA_SUCCESS) answer = cuMemFreeAsync(memory, here.handle);
      }
      if (kinds[i] == 11) {
        const CUresult query = cuStreamQuery(here.handle);
        if (query != CUDA_ERROR_NOT_READY && answer == CUDA_SUCCESS) answer = query;
      }
      if (answer != CUDA_SUCCESS) return answer;
    }
    return CUDA_SUCCESS;
  };
}

// A stream that orders itself with this one, for calls of any thread; null: there is none now.
Line* Program::partner_of(const Line& line, unsigned cost) {
  Line* partner = nullptr;
  for (Line& other : lines_)
    if (line.ordered_with(other) && !taken(other) && other.thread == Line::kAnyThread &&
        room(other, cost))
      partner = &other;
  return partner;
}

void Program::chains() {
  if (!flights_.empty()) return;
  for (unsigned i = 0; i < kWorkers; ++i) {
    const auto device = static_cast<unsigned>(random_.below(devices_));
    Line* line = line_of(device, false);
    std::size_t cell = 0;
    if (line == nullptr || line->thread == 0 || !room(*line, 300) ||
        !draw_place(device, true, cell))
      continue;
    Line* const partner = partner_of(*line, 300);
    const Set before = line->before, partner_before = partner != nullptr ? partner->before : Set();
    operation(*line, {cell}, {cell});
    if (partner != nullptr) {
      operation(*partner, {cell}, {cell});
      operation(*line, {cell}, {cell});
      partner->busy = true;
    }
    const auto steps = static_cast<unsigned>(5 + random_.below(60));
    Flight& flight = begin_flight(*line, "chain", make_chain(*line, partner, cell, steps));
    flight.partner = partner;
    flight.places = {cell};
    reserved_[cell] = true;
    line->depth += steps * 4;
    // Until it has returned nothing is certain to come behind it: another chain may be quicker.
    line->before = before;
    if (partner == nullptr) continue;
    flight.partner_before = std::exchange(partner->before, partner_before);
    partner->depth += steps * 4;
  }
  land_all();
}

CUresult Program::launch_additions(const Line& line, std::size_t cell, Word value, unsigned count,
                                   std::uint64_t ns) {
  CUdeviceptr word = address(cell);
  void* arguments[] = {&word, &value, &ns};
  CUresult answer = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && answer == CUDA_SUCCESS; ++i)
    answer = cuLaunchKernel(gpu(line.device).add_slowly, 1, 1, 1, 1, 1, 1, 0, line.handle,
                            arguments, nullptr);
  return answer;
}

// Another thread adds to a word on a held stream, mostly more often than the driver takes; this
// thread does so on the stream's partner, before the gate opens and after. No order is certain, but
// no two additions may overlap.
void Program::sums() {
  if (!flights_.empty()) return;
  Line* line = any_line();
  if (line == nullptr || line->thread == 0 || !room(*line, 300)) return;
  Line* const partner = partner_of(*line, 300);
  std::size_t cell = 0;
  if (partner == nullptr || !draw_place(line->device, true, cell)) return;
  const auto value = static_cast<Word>(random_.next());
  const std::uint64_t ns = random_.below(50'000);
  const auto additions = static_cast<unsigned>(1 + random_.below(40));
  const auto nothing = static_cast<unsigned>(random_.below(300));
  if (!held(line->before)) close_gate(*line);
  operation(*line, {}, {});
  // Behind a kernel that waits for the host what the other thread launches fits, too.
  const unsigned depth = line->depth + (held_by_kernel(*line) ? nothing + additions : 0);
  if (depth < kDepth) {
    const unsigned fill = kDepth - depth;
    on(
        *line, "fill", [&] { return launch_nothing(*line, fill, nullptr); }, fill);
  }
  const Set before = line->before;
  operation(*line, {cell}, {cell});
  operation(*partner, {cell}, {cell});
  operation(*line, {cell}, {cell});
  unsigned total = additions;
  Flight& flight = begin_flight(*line, "additions", [=, this] {
    const CUresult answer = launch_nothing(*line, nothing, nullptr);
    return answer == CUDA_SUCCESS ? launch_additions(*line, cell, value, additions, ns) : answer;
  });
  line->before = before;  // until it has returned nothing is certain to come behind it
  line->depth += nothing + additions;
  flight.places = {cell};
  reserved_[cell] = true;
  const auto add_here = [&](Line& here) {
    const auto count = static_cast<unsigned>(1 + random_.below(12));
    on(
        here, "additions", [&] { return launch_additions(here, cell, value, count, ns); }, count);
    total += count;
  };
  sleep_us(random_.below(2000));
  add_here(*partner);
  noise(static_cast<unsigned>(random_.below(3)));
  add_here(*partner);
  open_gates_of(line->maybe);
  for (int i = 0; i < 3; ++i) add_here(*partner);
  land(flight);
  operation(*line, {cell}, {cell});
  add_here(*line);
  expected_[cell][0] += value * total;
}

// --- calls that wait for a context ---------------------------------------------------------------

// Of a device whose work all ends; the other one may be held.
void Program::draining_call() {
  if (!flights_.empty()) return;
  const auto device = static_cast<unsigned>(random_.below(devices_));
  Gpu& gpu = this->gpu(device);
  const auto kind = random_.below(5);
  // What is to go is made while nothing holds the device.
  if (!can_wait(all_of(device))) return;
  MUST(cuCtxSetCurrent(gpu.context));
  CUdeviceptr memory = 0;
  void* host = nullptr;
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;
  if (kind == 0) MUST(cuMemAlloc(&memory, kBytes));
  if (kind == 1) MUST(cuMemAllocHost(&host, kBytes));
  if (kind == 2) {
    MUST(cuModuleLoadData(&module, world_.image().data()));
    MUST(cuModuleGetFunction(&nothing, module, "mix"));
  }
  if (devices_ > 1 && random_.one_in(2)) {
    Line* other = line_of(1 - device, false);
    if (other != nullptr) {
      close_gate(*other);
      for (std::uint64_t i = random_.below(4); i > 0; --i) kernel(*other, draw_time());
    }
    if (!can_wait(all_of(device))) open_all_gates();
  }
  Line* line = line_of(device, false);
  std::size_t cell = 0;
  if (module != nullptr && line != nullptr && draw_place(device, true, cell)) {
    // The code of a kernel that still runs.
    const Effect effect{Effect::Kind::kMix, cell, cell, static_cast<Word>(random_.next())};
    const std::uint64_t ns = draw_time();
    operation(*line, {cell}, {cell});
    on(*line, "kernel of a module", [&] {
      CUdeviceptr to = address(cell);
      Word value = effect.value, count = kWords;
      std::uint64_t time = ns;
      void* arguments[] = {&to, &to, &value, &count, &time};
      return cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, line->handle, arguments, nullptr);
    });
    apply(effect);
    if (!can_wait(all_of(device))) open_all_gates();
  }
  world_.log().begin("draining call " + std::to_string(kind));
  say("  draining call %llu of device %u: %d", static_cast<unsigned long long>(kind), device,
      call(static_cast<unsigned>(random_.below(2)), device, [&] {
        switch (kind) {
          case 0:
            return cuMemFree(memory);
          case 1:
            return cuMemFreeHost(host);
          case 2:
            return cuModuleUnload(module);
          default:
            return cuCtxSynchronize();
        }
      }));
  Set done;
  for (const Line& one : lines_)
    if (one.device == device) done |= one.before;
  if (kind > 2) reached(done);
}

// A stream that is destroyed with its work outstanding.
void Program::temporary_stream() {
  const auto device = static_cast<unsigned>(random_.below(devices_));
  Gpu& gpu = this->gpu(device);
  MUST(cuCtxSetCurrent(gpu.context));
  CUstream stream = nullptr;
  const bool blocking = random_.one_in(2);
  MUST(cuStreamCreate(&stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  Line& line = make_line(stream, device, blocking ? LineKind::kBlocking : LineKind::kNonBlocking,
                         Line::kAnyThread);
  if (random_.one_in(2)) close_gate(line);
  for (std::uint64_t i = random_.below(4); i > 0; --i) kernel(line, draw_time());
  const auto launches = static_cast<unsigned>(random_.one_in(4) ? 400 + random_.below(500) : 0);
  on(
      line, "deep", [&] { return launch_nothing(line, launches, nullptr); }, launches);
  CUevent event = nullptr;
  MUST(cuCtxSetCurrent(gpu.context));  // which what was ordered may have changed
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  events_.push_back({event, device, {}, {}, false});
  record(events_.back(), line);
  say("  destroy stream %d", call(0, device, [&] { return cuStreamDestroy(stream); }));
  orphans_.push_back({line.before, events_.back().maybe, &events_.back()});
  // A blocking stream that is gone still holds what the legacy stream does next.
  for (Line& other : lines_)
    if (other.device == device && blocking && other.legacy()) other.maybe |= line.maybe;
  lines_.pop_back();
}

// --- processes -----------------------------------------------------------------------------------

namespace {

[[noreturn]] void exit_child(int code) {
#ifdef __SANITIZE_ADDRESS__
  // AddressSanitizer (GCC 12) does not take its locks at fork: what runs at exit frees memory, and
  // can wait for a thread that only the parent has.
  std::_Exit(code);
#else
  std::exit(code);
#endif
}

}  // namespace

// Children that end in different ways while other threads of the parent launch.
void Program::fork_child() {
  if (!flights_.empty()) return;
  std::atomic<bool> stop{false};
  Line* lines[2] = {};
  for (unsigned i = 0; i < 2; ++i) {
    Line* line = line_of(0, false);
    if (line == nullptr || line->legacy() || line->blocking() || !can_wait(line->maybe) ||
        (i == 1 && line == lines[0]))
      continue;
    lines[i] = line;
    workers_[i]->post([&stop, line, nothing = gpu(*line).nothing, context = gpu(*line).context] {
      MUST(cuCtxSetCurrent(context));
      for (unsigned n = 1; !stop.load(); ++n) {
        MUST(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, line->handle, nullptr, nullptr));
        if (n % 64 == 0) MUST(cuStreamSynchronize(line->handle));
      }
    });
  }
  const std::uint64_t children = 1 + random_.below(5);
  for (std::uint64_t i = 0; i < children; ++i) {
    const auto how = static_cast<int>(random_.below(3));
    world_.log().flush();
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      CUcontext context = nullptr;
      if (how == 1) exit_child(static_cast<int>(cuCtxGetCurrent(&context)) == 3 ? 11 : 12);
      if (how == 2) std::_Exit(13);
      exit_child(10);
    }
    int status = 0;
    unsigned long waited_ms = 0;
    while (waitpid(child, &status, WNOHANG) == 0 && ++waited_ms < options_.child_limit_ms)
      sleep_us(1000);
    if (waited_ms >= options_.child_limit_ms) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    }
    say("  child %d: %s %d", how, WIFEXITED(status) ? "exit code" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    if (WIFSIGNALED(status)) break;
  }
  stop = true;
  for (unsigned i = 0; i < 2; ++i)
    if (lines[i] != nullptr) {
      workers_[i]->join();
      wait_for(*lines[i]);
    }
}

// The context of one device ends with its work outstanding; what that did to registered
// memory stays.
void Program::ends_with_reset() {
  reset_ = static_cast<int>(random_.below(devices_));
  release_ = random_.one_in(2);
  const auto device = static_cast<unsigned>(reset_);
  for (unsigned other = 0; other < devices_; ++other)  // it may use memory of the context that ends
    if (other != device) MUST(call(0, other, [] { return cuCtxSynchronize(); }));
  // The application's green context holds on to the primary one.
  for (Line& one : lines_)
    if (one.kind == LineKind::kGreen && one.device == device) wait_for(one);
  if (gpus_[device] == 0) MUST(cuGreenCtxDestroy(gpu(0).green));
  Line* line = line_of(device, false);
  if (line != nullptr && line->kind == LineKind::kGreen) line = nullptr;
  const std::size_t page = kCells * devices_ + kPages - 1;
  for (std::uint64_t i = random_.below(30); i > 0 && line != nullptr; --i) {
    const Effect effect{Effect::Kind::kMix, page, page, static_cast<Word>(random_.next())};
    const std::uint64_t ns = random_.one_in(4) ? 2'000'000 : draw_time();
    operation(*line, {page}, {page});
    on(*line, "kernel", [&] { return launch_mix(*line, effect, ns, 1); });
    apply(effect);
    if (operations_ + 40 > kOperationsMax) break;
  }
  world_.log().begin(release_ ? "release" : "reset");
  say("%s device %u: %d", release_ ? "release" : "reset", device,
      call(0, device, [&] { return world_.end(gpus_[device], release_); }));
}

}  // namespace vitamin::random_programs
