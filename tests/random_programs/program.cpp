// SPDX-License-Identifier: Apache-2.0
//
// A program's life, its threads, and the order of its operations.
#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace vitamin::random_programs {

namespace {

constexpr std::size_t kPageBytes = 4096;  // what can be registered
constexpr std::size_t kGates = 64;

std::uint64_t mixed_seed(std::uint64_t seed, std::uint64_t index) {
  return Random(seed * 1000003 + index).next();
}

}  // namespace

// --- life ----------------------------------------------------------------------------------------

Program::Program(World& world, const Options& options)
    : world_(world), options_(options), random_(mixed_seed(options.seed, ~std::uint64_t{0})) {
  devices_ = random_.below(5) < 2 ? 2 : 1;
  if (random_.one_in(3)) gpus_[1] = World::kSecondContext;
  fragments_ = static_cast<unsigned>(4 + random_.below(16));
  for (std::size_t i = 0; i < kWorkers; ++i) workers_.push_back(std::make_unique<Worker>());
  const std::size_t places = kCells * devices_ + kPages;
  expected_.resize(places);
  written_.resize(places);
  read_.resize(places);
  reserved_.resize(places);
  for (std::size_t i = 0; i < places; ++i)
    for (std::size_t k = 0; k < kWords; ++k) expected_[i][k] = static_cast<Word>(i * 100 + k);
  large_.resize(32 * 1024);
  MUST(cuCtxSetCurrent(world.gpus()[0].context));
  for (std::size_t i = 0; i < kPages; ++i) {
    void* memory = nullptr;
    if (i + 1 < kPages) {
      MUST(cuMemHostAlloc(&memory, kPageBytes, CU_MEMHOSTALLOC_PORTABLE));
    } else {
      memory = std::aligned_alloc(kPageBytes, kPageBytes);
      MUST(cuMemHostRegister(memory, kPageBytes,
                             CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    }
    pages_[i] = static_cast<Word*>(memory);
    std::memset(memory, 0, kPageBytes);
    std::memcpy(memory, expected_[kCells * devices_ + i].data(), kBytes);
    MUST(cuMemHostGetDevicePointer(&page_addresses_[i], memory, 0));
  }
  for (unsigned i = 0; i < devices_; ++i) make_device(i);
}

void Program::make_device(unsigned device) {
  MUST(cuCtxSetCurrent(gpu(device).context));
  for (std::size_t i = 0; i < kCells; ++i) {
    CUdeviceptr cell = 0;
    MUST(cuMemAlloc(&cell, kBytes));
    MUST(cuMemcpyHtoD(cell, expected_[cells_.size()].data(), kBytes));
    cells_.push_back(cell);
  }
  for (std::size_t i = 0; i < kEvents; ++i) {
    CUevent event = nullptr;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    events_.push_back({event, device, {}, {}, false});
    shared_events_.push_back(&events_.back());
  }
  make_line(CU_STREAM_LEGACY, device, LineKind::kLegacy, Line::kAnyThread);
  make_line(CU_STREAM_PER_THREAD, device, LineKind::kPerThread, 0);
  make_line(CU_STREAM_PER_THREAD, device, LineKind::kPerThread, 1);
  CUstream stream = nullptr;
  for (int i = 0; i < 2; ++i) {
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    make_line(stream, device, LineKind::kBlocking, Line::kAnyThread);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    make_line(stream, device, LineKind::kNonBlocking, Line::kAnyThread);
  }
  if (device == 0) {
    MUST(cuGreenCtxStreamCreate(&stream, gpu(0).green, CU_STREAM_NON_BLOCKING, 0));
    make_line(stream, device, LineKind::kGreen, Line::kAnyThread);
  }
  MUST(cuCtxSynchronize());
}

Line& Program::make_line(CUstream handle, unsigned device, LineKind kind, unsigned thread) {
  Line line;
  line.handle = handle;
  line.device = device;
  line.kind = kind;
  line.thread = thread;
  lines_.push_back(line);
  return lines_.back();
}

Program::~Program() = default;

bool Program::run() {
  for (unsigned i = 0; i < fragments_; ++i) {
    if (options_.dropped.contains(i)) continue;
    if (!fragment(i)) break;
  }
  random_ = Random(mixed_seed(options_.seed, 1'000'000));
  const bool resets = random_.one_in(12);
  land_all();
  open_all_gates();
  if (resets && !options_.without.contains("reset") &&
      (options_.only.empty() || options_.only.contains("reset")))
    ends_with_reset();
  const bool right = check_memory();
  tear_down();
  return right;
}

bool Program::fragment(unsigned index) {
  struct Kind {
    const char* name;
    unsigned weight;
    void (Program::*run)();
  };
  static constexpr Kind kKinds[] = {
      {"noise", 30, nullptr},
      {"gate", 10, &Program::gate_fragment},
      {"open", 4, &Program::open_fragment},
      {"ask", 6, &Program::ask},
      {"graph", 7, &Program::make_graph},
      {"launch", 10, &Program::launch_graph},
      {"change", 4, &Program::change_graph},
      {"destroy", 2, &Program::destroy_graph},
      {"capture", 7, &Program::capture},
      {"deep", 3, &Program::deep},
      {"flight", 8, &Program::flight},
      {"chains", 3, &Program::chains},
      {"sums", 3, &Program::sums},
      {"memory", 4, &Program::stream_memory},
      {"pool", 3, &Program::limited_pool},
      {"peer", 3, &Program::peer_copy},
      {"draining", 5, &Program::draining_call},
      {"temporary", 3, &Program::temporary_stream},
      {"refused", 4, &Program::refused},
      {"fork", 1, &Program::fork_child},
  };
  random_ = Random(mixed_seed(options_.seed, index));
  unsigned total = 0;
  for (const Kind& kind : kKinds) total += kind.weight;
  std::uint64_t at = random_.below(total);
  const Kind* kind = kKinds;
  while (at >= kind->weight) at -= (kind++)->weight;
  if (options_.without.contains(kind->name)) return true;
  if (!options_.only.empty() && !options_.only.contains(kind->name)) return true;
  if (operations_ + 300 > kOperationsMax) return false;
  // What a held stream takes has an end.
  for (const Line& line : lines_)
    if (line.depth > kDepth && !can_wait(line.maybe)) open_all_gates();
  while (gates_.size() + 4 > kGates) return false;
  say("%u %s", index, kind->name);
  if (kind->run == nullptr)
    noise(static_cast<unsigned>(1 + random_.below(6)));
  else
    (this->*kind->run)();
  if (!flights_.empty() && random_.one_in(3)) land(flights_.front());
  return true;
}

bool Program::check_memory() {
  for (unsigned device = 0; device < devices_; ++device)
    if (static_cast<int>(device) != reset_)
      say("synchronize %d", call(0, device, [] { return cuCtxSynchronize(); }));
  bool right = true;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (is_cell(i) && static_cast<int>(device_of(i)) == reset_) continue;
    if (!is_cell(i) && reset_ >= 0 && i + 1 < expected_.size()) continue;  // gone with the context
    Data seen{};
    if (is_cell(i))
      say("read %d",
          call(0, device_of(i), [&] { return cuMemcpyDtoH(seen.data(), cells_[i], kBytes); }));
    else
      std::memcpy(seen.data(), host_address(i), kBytes);
    const bool same = seen == expected_[i];
    say("place %zu: %08x%s", i, static_cast<unsigned>(seen[0]), same ? "" : " not in order");
    right = right && same;
  }
  return right;
}

void Program::tear_down() {
  workers_.clear();
  for (unsigned device = 0; device < devices_; ++device)
    if (static_cast<int>(device) != reset_) destroy_device_objects(device);
  if (reset_ >= 0) {
    const std::size_t ended = gpus_[static_cast<std::size_t>(reset_)];
    if (!release_ && ended != World::kSecondContext)
      MUST(cuDevicePrimaryCtxRelease(world_.gpus()[ended].device));
    world_.set_up(ended);
  }
  for (std::size_t i = 0; i < kPages; ++i) {
    const bool registered = i + 1 == kPages;
    // What was allocated or registered in the context that was reset went with it.
    if (reset_ != 0) {
      MUST(cuCtxSetCurrent(gpu(0).context));
      if (registered)
        MUST(cuMemHostUnregister(pages_[i]));
      else
        MUST(cuMemFreeHost(pages_[i]));
    }
    if (registered) std::free(pages_[i]);
  }
}

void Program::destroy_device_objects(unsigned device) {
  MUST(cuCtxSetCurrent(gpu(device).context));
  for (GraphModel& graph : graphs_) {
    if (graph.device != device) continue;
    if (graph.executable != nullptr) MUST(cuGraphExecDestroy(graph.executable));
    MUST(cuGraphDestroy(graph.graph));
  }
  for (const Line& line : lines_)
    if (line.device == device && line.handle != CU_STREAM_LEGACY &&
        line.handle != CU_STREAM_PER_THREAD)
      MUST(cuStreamDestroy(line.handle));
  for (const EventModel& event : events_)
    if (event.device == device) MUST(cuEventDestroy(event.handle));
  for (std::size_t i = 0; i < cells_.size(); ++i)
    if (device_of(i) == device) MUST(cuMemFree(cells_[i]));
}

// --- threads -------------------------------------------------------------------------------------

CUresult Program::call(unsigned thread, unsigned device, const std::function<CUresult()>& what) {
  CUresult answer = CUDA_SUCCESS;
  const CUcontext context = gpu(device).context;
  const auto task = [&] {
    MUST(cuCtxSetCurrent(context));
    answer = what();
  };
  if (thread == 0) {
    task();
  } else {
    workers_[thread - 1]->post(task);
    workers_[thread - 1]->join();
  }
  return answer;
}

// The one that directs, or now and then another that is free.
unsigned Program::thread_for(const Line& line) {
  if (line.thread != Line::kAnyThread) return line.thread;
  const auto thread = static_cast<unsigned>(random_.below(4 * kWorkers));
  if (thread == 0 || thread > kWorkers || workers_[thread - 1]->busy()) return 0;
  return thread;
}

// As the log names it.
std::size_t Program::number_of(const Line& line) const {
  const auto at =
      std::find_if(lines_.begin(), lines_.end(), [&](const Line& one) { return &one == &line; });
  return static_cast<std::size_t>(at - lines_.begin());
}

std::size_t Program::number_of(const EventModel& event) const {
  const auto at = std::find_if(events_.begin(), events_.end(),
                               [&](const EventModel& one) { return &one == &event; });
  return static_cast<std::size_t>(at - events_.begin());
}

CUresult Program::on(Line& line, const char* name, const std::function<CUresult()>& what,
                     unsigned cost) {
  const unsigned thread = thread_for(line);
  const std::string text = std::string(name) + ", stream " + std::to_string(number_of(line)) +
                           ", thread " + std::to_string(thread);
  world_.log().begin(text);
  line.depth += cost;
  const CUresult answer = call(thread, line.device, what);
  say("  %s: %d", text.c_str(), static_cast<int>(answer));
  return answer;
}

// --- order ---------------------------------------------------------------------------------------

// What the rules order before the next operation of the line.
Set Program::ordered(const Line& line) const {
  Set set = line.before | host_;
  for (const Line& other : lines_)
    if (line.ordered_with(other)) set |= other.before;
  return set;
}

Set Program::all_of(unsigned device) const {
  Set set;
  for (const Line& line : lines_)
    if (line.device == device) set |= line.maybe;
  for (const Orphan& orphan : orphans_)
    if (orphan.event->device == device) set |= orphan.maybe;
  for (const Flight& flight : flights_)
    if (flight.line->device == device) set |= flight.maybe;
  return set;
}

bool Program::can_wait(const Set& set) const {
  const Set left = set & ~host_;
  if (held(left)) return false;
  const bool host_gate = std::any_of(gates_.begin(), gates_.end(), [](const Gate& gate) {
    return gate.closed && gate.kind == Gate::Kind::kHostFunction;
  });
  return !host_gate || (left & host_functions_).none();
}

void Program::reached(const Set& set) {
  world_.log().begin("nothing");
  host_ |= set;
  for (Line& line : lines_)
    if ((line.maybe & ~host_).none()) line.depth = 0;
}

// Another thread is in a call on it, or its own thread in one on another line.
bool Program::taken(const Line& line) const {
  return line.busy ||
         (line.thread != Line::kAnyThread && line.thread > 0 && workers_[line.thread - 1]->busy());
}

// An operation may use it now: no call that another thread is in may touch it, nor did anything on
// the stream of such a call, which could not be waited for.
bool Program::available(std::size_t place) const {
  if (reserved_[place]) return false;
  return std::none_of(lines_.begin(), lines_.end(), [&](const Line& line) {
    return taken(line) && ((written_[place] | read_[place]) & line.before & ~host_).any();
  });
}

// For every legacy or blocking line the others count, too.
static Set may_wait_for(const std::deque<Line>& lines, const Line& line) {
  Set set = line.maybe;
  if (!line.legacy() && !line.blocking()) return set;
  for (const Line& other : lines)
    if (other.device == line.device && (other.legacy() || other.blocking())) set |= other.maybe;
  return set;
}

// A copy between devices on a legacy stream is one of the legacy streams of both (measured).
void Program::come_behind_both(Line& here) {
  if (!here.legacy()) return;
  Set maybe;
  for (const Line& line : lines_)
    if (line.legacy()) maybe |= may_wait_for(lines_, line);
  for (Line& line : lines_)
    if (line.legacy()) line.maybe |= maybe;
}

bool Program::room(const Line& line, unsigned cost) const {
  return line.depth + cost <= kDepth || can_wait(may_wait_for(lines_, line));
}

bool Program::room_on_legacies() const {
  return std::all_of(lines_.begin(), lines_.end(),
                     [&](const Line& line) { return !line.legacy() || room(line, 1); });
}

// Orders everything that touched `place` before the next operation of `line`.
void Program::order(Line& line, std::size_t place, bool writes) {
  for (const bool of_writes : {true, false}) {
    if (!of_writes && !writes) continue;
    const Set wanted = of_writes ? written_[place] : read_[place];
    for (const Orphan& orphan : orphans_)
      if ((wanted & orphan.before & ~ordered(line)).any()) wait(line, *orphan.event);
    for (Line& other : lines_) {
      if (&other == &line || taken(other) || (wanted & other.before & ~ordered(line)).none())
        continue;
      if (random_.one_in(6) && can_wait(may_wait_for(lines_, other)) && flights_.empty()) {
        wait_for(other);
        continue;
      }
      EventModel& event = fresh_event(other.device);
      record(event, other);
      wait(line, event);
    }
  }
}

// What is in the line now takes time; no operation need be ordered with it.
void Program::add(Line& line) {
  line.before.set(operations_);
  line.maybe.set(operations_);
  ++operations_;
}

void Program::operation(Line& line, const Places& reads, const Places& writes) {
  for (const std::size_t place : reads) order(line, place, false);
  for (const std::size_t place : writes) order(line, place, true);
  std::string text;
  for (const std::size_t place : reads) text += " " + std::to_string(place);
  if (!writes.empty()) text += " ->";
  for (const std::size_t place : writes) text += " " + std::to_string(place);
  say("  operation %zu:%s", operations_, text.c_str());
  line.before = ordered(line);
  line.maybe |= may_wait_for(lines_, line);
  for (const std::size_t place : reads) read_[place].set(operations_);
  for (const std::size_t place : writes) written_[place].set(operations_);
  add(line);
}

void Program::apply(const Effect& effect) {
  Data& to = expected_[effect.to];
  const Data from = expected_[effect.from];
  for (std::size_t i = 0; i < kWords; ++i) {
    switch (effect.kind) {
      case Effect::Kind::kMix:
        to[i] = mixed(to[i], from[i], effect.value);
        break;
      case Effect::Kind::kCopy:
        to[i] = from[i];
        break;
      case Effect::Kind::kFill:
        to[i] = effect.value;
        break;
      case Effect::Kind::kHost:
        to[i] = mixed(to[i], 1, effect.value);
        break;
    }
  }
}

// A thread may not have made its call that waits for the event yet: a record would change what the
// call waits for.
bool Program::awaited(const EventModel& event) const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [&](const Flight& flight) { return flight.event == &event; });
}

// One that may be recorded. There are fewer flights than events.
EventModel& Program::fresh_event(unsigned device) {
  EventModel* event = nullptr;
  do event = shared_events_[device * kEvents + random_.below(kEvents)];
  while (awaited(*event));
  return *event;
}

void Program::record(EventModel& event, Line& line) {
  const std::string name = "record of event " + std::to_string(number_of(event));
  on(line, name.c_str(), [&] { return cuEventRecord(event.handle, line.handle); });
  add(line);
  event.recorded = line.before;
  event.maybe = may_wait_for(lines_, line);
  event.captured = false;
  line.maybe |= event.maybe;
}

void Program::wait(Line& line, EventModel& event) {
  const std::string name = "wait for event " + std::to_string(number_of(event));
  on(line, name.c_str(), [&] { return cuStreamWaitEvent(line.handle, event.handle, 0); });
  add(line);
  line.maybe |= event.maybe | may_wait_for(lines_, line);
  if (!event.captured) line.before |= event.recorded;  // else it is refused
}

void Program::wait_for(Line& line) {
  on(
      line, "synchronize", [&] { return cuStreamSynchronize(line.handle); }, 0);
  reached(line.before);
}

// --- draws ---------------------------------------------------------------------------------------

// A line that another operation may go to. For captures: one that can be captured.
Line* Program::any_line(bool captures) {
  return line_of(static_cast<unsigned>(random_.below(devices_)), captures);
}

Line* Program::line_of(unsigned device, bool captures) {
  for (int tries = 0; tries < 12; ++tries) {
    Line& line = lines_[random_.below(lines_.size())];
    if (line.device != device || taken(line) || (captures && line.legacy())) continue;
    if (room(line, 24)) return &line;
  }
  return nullptr;
}

bool Program::draw_place(unsigned device, bool cells_only, std::size_t& place) {
  for (int tries = 0; tries < 8; ++tries) {
    const std::size_t pages = cells_only ? 0 : kPages;
    const std::uint64_t at = random_.below(kCells + pages);
    place = at < kCells ? device * kCells + at : devices_ * kCells + (at - kCells);
    if (available(place)) return true;
  }
  return false;
}

CUdeviceptr Program::address(std::size_t place) const {
  return is_cell(place) ? cells_[place] : page_addresses_[place - kCells * devices_];
}

void* Program::host_address(std::size_t place) const { return pages_[place - kCells * devices_]; }

std::uint64_t Program::draw_time() {
  static constexpr std::uint64_t kTimes[] = {0,      1'000,   1'000,   5'000,
                                             40'000, 200'000, 200'000, 2'000'000};
  return kTimes[random_.below(8)];
}

}  // namespace vitamin::random_programs
