// SPDX-License-Identifier: Apache-2.0
//
// Seeded random programs over every kind of stream, checked against a reference.
//
//   random_programs FIRST COUNT     runs the programs of seeds FIRST ... FIRST + COUNT - 1
//
// RANDOM_VERBOSE: says each operation on stderr.
//
// A program is a list of operations on a few cells (device memory) and pages (page-locked memory).
// The generator keeps, for each operation, the set of earlier ones that the rules of CUDA order
// before it: stream order, events, the legacy default stream, what the host waited for. Where an
// operation conflicts with one that is not in that set it first adds an event or a wait. So every
// two operations that touch the same memory are ordered, the result is that of program order, and
// the reference simply executes the list on the host. Kernels take random time: an order that got
// lost shows in the result.
#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstring>
#include <memory>
#include <random>

#include "session.h"

namespace {

constexpr std::size_t kCells = 5, kPages = 3, kPlaces = kCells + kPages, kCount = 16;
constexpr std::size_t kOperationsMax = 256, kEvents = 4;
using Set = std::bitset<kOperationsMax>;
using Data = std::array<Word, kCount>;

Word mixed(Word to, Word from, Word value) { return (to ^ value) * 2654435761u + from; }

struct HostWork {
  std::atomic<Word>* page;
  Word value;
};
void CUDA_CB on_host(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  for (std::size_t i = 0; i < kCount; ++i) work->page[i] = mixed(work->page[i], 1, work->value);
}

struct Line {
  CUstream handle = nullptr;
  bool legacy = false, blocking = false;
  Set before;  // of its next operation
};

class Program {
 public:
  Program(const Session& session, CUfunction mix, std::uint64_t seed)
      : s_(session), mix_(mix), random_(seed) {
    lines_.push_back({CU_STREAM_LEGACY, true, false, {}});
    lines_.push_back({CU_STREAM_PER_THREAD, false, true, {}});
    for (int i = 0; i < 2; ++i) {
      lines_.push_back({s_.stream(CU_STREAM_DEFAULT), false, true, {}});
      lines_.push_back({s_.stream(CU_STREAM_NON_BLOCKING), false, false, {}});
    }
    for (CUevent& event : events_) event = s_.event();
    for (std::size_t i = 0; i < kPlaces; ++i) {
      for (std::size_t k = 0; k < kCount; ++k) expected_[i][k] = static_cast<Word>(i * 100 + k);
      if (i < kCells)
        check(drv.cuMemAlloc(&cells_[i], sizeof(Data)));
      else
        pages_[i - kCells] = std::make_unique<Pinned>(kCount);
      if (i < kCells)
        check(drv.cuMemcpyHtoD(cells_[i], expected_[i].data(), sizeof(Data)));
      else
        for (std::size_t k = 0; k < kCount; ++k) pages_[i - kCells]->words[k] = expected_[i][k];
    }
    check(drv.cuCtxSynchronize());
  }
  ~Program() {
    for (const Line& line : lines_)
      if (line.handle != CU_STREAM_LEGACY && line.handle != CU_STREAM_PER_THREAD)
        check(drv.cuStreamDestroy(line.handle));
    for (const CUevent event : events_) check(drv.cuEventDestroy(event));
    for (const CUdeviceptr cell : cells_) check(drv.cuMemFree(cell));
    for (const auto& page : pages_) check(drv.cuMemFreeHost(page->host()));
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  static inline bool verbose = false;
  // False: some word is not what program order makes it.
  bool run() {
    const std::size_t steps = 10 + draw(50);
    for (std::size_t i = 0; i < steps && operations_ + 8 < kOperationsMax; ++i) step();
    check(drv.cuCtxSynchronize());
    for (std::size_t i = 0; i < kPlaces; ++i) {
      Data seen;
      if (i < kCells)
        check(drv.cuMemcpyDtoH(seen.data(), cells_[i], sizeof seen));
      else
        for (std::size_t k = 0; k < kCount; ++k) seen[k] = pages_[i - kCells]->words[k];
      if (seen != expected_[i]) {
        say("place %zu is wrong\n", i);
        return false;
      }
    }
    return true;
  }

 private:
  std::uint64_t draw(std::uint64_t bound) { return random_() % bound; }
  template <class... Args>
  void say(const char* format, Args... args) const {
    if (verbose) std::fprintf(stderr, format, args...);
  }
  std::size_t index(const Line& line) const {
    return static_cast<std::size_t>(&line - lines_.data());
  }
  bool is_cell(std::size_t place) const { return place < kCells; }
  CUdeviceptr address(std::size_t place) const {
    return is_cell(place) ? cells_[place] : pages_[place - kCells]->device;
  }
  Line& any_line() { return lines_[draw(lines_.size())]; }

  // What the rules order before the next operation of the line.
  Set ordered(const Line& line) const {
    Set set = line.before | host_;
    for (const Line& other : lines_)
      if ((line.legacy && other.blocking) || (line.blocking && other.legacy)) set |= other.before;
    return set;
  }

  // Orders everything that touched `place` before the next operation of `line`.
  void order(Line& line, std::size_t place, bool writes) {
    for (const bool of_writes : {true, false}) {
      if (!of_writes && !writes) continue;
      const Set wanted = of_writes ? written_[place] : read_[place];
      for (Line& other : lines_) {
        if (&other == &line || (wanted & other.before & ~ordered(line)).none()) continue;
        if (draw(6) == 0) {
          wait_for(other);
        } else {
          const std::size_t event = draw(kEvents);
          record(event, other);
          wait(line, event);
        }
      }
    }
  }
  // One more operation of the line that touches these places.
  void operation(const char* what, Line& line, std::initializer_list<std::size_t> reads,
                 std::size_t writes) {
    for (const std::size_t place : reads) order(line, place, false);
    order(line, writes, true);
    line.before = ordered(line);
    line.before.set(operations_);
    for (const std::size_t place : reads) read_[place].set(operations_);
    written_[writes].set(operations_);
    say("%zu %s line %zu: %zu -> %zu\n", operations_, what, index(line),
        reads.size() > 0 ? *reads.begin() : 99, writes);
    ++operations_;
  }

  void record(std::size_t event, Line& line) {
    say("  record e%zu line %zu\n", event, index(line));
    check(drv.cuEventRecord(events_[event], line.handle));
    recorded_[event] = line.before;
  }
  void wait(Line& line, std::size_t event) {
    say("  wait e%zu line %zu\n", event, index(line));
    check(drv.cuStreamWaitEvent(line.handle, events_[event], 0));
    line.before |= recorded_[event];
  }
  void wait_for(Line& line) {
    say("  synchronize line %zu\n", index(line));
    check(drv.cuStreamSynchronize(line.handle));
    host_ |= line.before;
  }

  void kernel() {
    Line& line = any_line();
    std::size_t from = draw(kPlaces), to = draw(kCells);
    Word value = static_cast<Word>(random_()), count = kCount;
    operation("kernel", line, {from}, to);
    constexpr std::uint64_t kTimes[] = {0, 1'000, 5'000, 40'000, 200'000};
    std::uint64_t ns = kTimes[draw(5)];
    CUdeviceptr target = address(to), source = address(from);
    void* arguments[] = {&target, &source, &value, &count, &ns};
    check(drv.cuLaunchKernel(mix_, 1, 1, 1, 32, 1, 1, 0, line.handle, arguments, nullptr));
    const Data before = expected_[from];
    for (std::size_t i = 0; i < kCount; ++i)
      expected_[to][i] = mixed(expected_[to][i], from == to ? expected_[to][i] : before[i], value);
  }
  void copy() {
    Line& line = any_line();
    const std::size_t from = draw(kPlaces), to = draw(kPlaces);
    if (from == to) return;
    operation("copy", line, {from}, to);
    if (is_cell(from) && is_cell(to))
      check(drv.cuMemcpyDtoDAsync(cells_[to], cells_[from], sizeof(Data), line.handle));
    else if (is_cell(to))
      check(drv.cuMemcpyHtoDAsync(cells_[to], pages_[from - kCells]->host(), sizeof(Data),
                                  line.handle));
    else if (is_cell(from))
      check(drv.cuMemcpyDtoHAsync(pages_[to - kCells]->host(), cells_[from], sizeof(Data),
                                  line.handle));
    else
      check(drv.cuMemcpyAsync(address(to), address(from), sizeof(Data), line.handle));
    expected_[to] = expected_[from];
  }
  void pageable_copy() {
    Line& line = any_line();
    const std::size_t to = draw(kCells);
    operation("pageable copy", line, {}, to);
    Data source;
    for (Word& word : source) word = static_cast<Word>(random_());
    expected_[to] = source;
    check(drv.cuMemcpyHtoDAsync(cells_[to], source.data(), sizeof source, line.handle));
    source.fill(0xdead);
  }
  void fill() {
    Line& line = any_line();
    const std::size_t to = draw(kCells);
    const Word value = static_cast<Word>(random_());
    operation("fill", line, {}, to);
    check(drv.cuMemsetD32Async(cells_[to], value, kCount, line.handle));
    expected_[to].fill(value);
  }
  void host_function() {
    Line& line = any_line();
    const std::size_t page = draw(kPages), place = kCells + page;
    const Word value = static_cast<Word>(random_());
    operation("host function", line, {}, place);
    auto* work = new HostWork{pages_[page]->words, value};
    check(drv.cuLaunchHostFunc(line.handle, &on_host, work));
    for (Word& word : expected_[place]) word = mixed(word, 1, value);
  }
  // Scratch memory that lives in the stream only.
  void scratch() {
    Line& line = any_line();
    const std::size_t from = draw(kCells), to = draw(kCells);
    operation("scratch", line, {from}, to);
    CUdeviceptr memory = 0;
    check(drv.cuMemAllocAsync(&memory, sizeof(Data), line.handle));
    check(drv.cuMemcpyDtoDAsync(memory, cells_[from], sizeof(Data), line.handle));
    Word value = static_cast<Word>(random_()), count = kCount;
    std::uint64_t ns = 20'000;
    void* arguments[] = {&cells_[to], &memory, &value, &count, &ns};
    check(drv.cuLaunchKernel(mix_, 1, 1, 1, 32, 1, 1, 0, line.handle, arguments, nullptr));
    check(drv.cuMemFreeAsync(memory, line.handle));
    const Data before = expected_[from];
    for (std::size_t i = 0; i < kCount; ++i)
      expected_[to][i] = mixed(expected_[to][i], before[i], value);
  }
  // A copy without a stream: on the legacy stream, or on this thread's own where the program was
  // compiled so. The host knows its end.
  void default_copy() {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
    Line& line = lines_[1];
#else
    Line& line = lines_[0];
#endif
    const std::size_t from = draw(kCells);
    for (const std::size_t page : {kCells + draw(kPages)})
      operation("copy to host", line, {from}, page);
    Data seen;
    check(drv.cuMemcpyDtoH(seen.data(), cells_[from], sizeof seen));
    host_ |= line.before;
    if (seen != expected_[from]) {
      std::printf("a copy to the host saw another value\n");
      std::exit(1);
    }
  }
  void something_else() {
    switch (draw(6)) {
      case 0:
        record(draw(kEvents), any_line());
        break;
      case 1:
        wait(any_line(), draw(kEvents));
        break;
      case 2:
        wait_for(any_line());
        break;
      case 3: {
        const std::size_t event = draw(kEvents);
        say("  synchronize e%zu\n", event);
        check(drv.cuEventSynchronize(events_[event]));
        host_ |= recorded_[event];
        break;
      }
      case 4: {
        // An answer in time: whatever it is, it must not be early.
        const std::size_t event = draw(kEvents);
        const CUresult answer = drv.cuEventQuery(events_[event]);
        say("  query e%zu: %d\n", event, static_cast<int>(answer));
        if (answer == CUDA_SUCCESS)
          host_ |= recorded_[event];
        else if (answer != CUDA_ERROR_NOT_READY)
          check(answer);
        break;
      }
      default: {
        Line& line = any_line();
        const CUresult answer = drv.cuStreamQuery(line.handle);
        say("  query line %zu: %d\n", index(line), static_cast<int>(answer));
        if (answer == CUDA_SUCCESS)
          host_ |= line.before;
        else if (answer != CUDA_ERROR_NOT_READY)
          check(answer);
      }
    }
  }
  void step() {
    const std::uint64_t dice = draw(100);
    if (dice < 45)
      kernel();
    else if (dice < 60)
      copy();
    else if (dice < 66)
      fill();
    else if (dice < 70)
      pageable_copy();
    else if (dice < 76)
      host_function();
    else if (dice < 81)
      scratch();
    else if (dice < 84)
      default_copy();
    else
      something_else();
  }

  const Session& s_;
  CUfunction mix_;
  std::mt19937_64 random_;
  std::vector<Line> lines_;
  CUevent events_[kEvents] = {};
  Set recorded_[kEvents];
  CUdeviceptr cells_[kCells] = {};
  std::unique_ptr<Pinned> pages_[kPages];
  Data expected_[kPlaces] = {};
  Set written_[kPlaces], read_[kPlaces];
  Set host_;  // known to have ended
  std::size_t operations_ = 0;
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 64;
  reach_driver();
  const Session session;
  const CUfunction mix = session.kernel("mix");
  const std::uint64_t first = std::strtoull(words[1], nullptr, 10);
  const std::uint64_t programs = std::strtoull(words[2], nullptr, 10);
  std::uint64_t wrong = 0;
  Program::verbose = std::getenv("RANDOM_VERBOSE") != nullptr;
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    if (Program(session, mix, seed).run()) continue;
    ++wrong;
    std::printf("seed %llu is wrong\n", static_cast<unsigned long long>(seed));
  }
  std::printf("%llu programs, %llu wrong\n", static_cast<unsigned long long>(programs),
              static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}
