// SPDX-License-Identifier: Apache-2.0
//
// A resident process that keeps its part of the device busy when told to. Commands on standard
// input, one line each, answered by one JSON line:
//
//   occupy AT NS SECONDS AHEAD FILE   kernels of one block that last NS, at most AHEAD of them
//                                     submitted and not ended; FILE gets begin and end of each,
//                                     in nanoseconds of CLOCK_MONOTONIC, as 64-bit numbers
//   compute AT ROUNDS BLOCKS NS BATCH SECONDS
//                                     kernels of BLOCKS x 256 threads that compute (NS: on the
//                                     software device), waited for by the BATCH; time of each
//   samples COUNT WARM NS             one kernel of NS after the other, each waited for: the host's
//                                     microseconds from the call to the end of each, behind WARM
//                                     that are not told
//   chain COUNT ROUNDS BLOCKS NS      COUNT kernels as of `compute` in one stream, each behind the
//                                     one before: microseconds a kernel, from the first call to the
//                                     end of the last
//
// AT: nanoseconds of CLOCK_MONOTONIC at which to begin; 0: at once. Times of the device are tied to
// that clock before and after: the host asks a kernel for the time, and keeps the quickest answer.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <iostream>
#include <sstream>
#include <thread>

#include "driver.h"

namespace {

using bench::now_ns;

void wait_until(std::uint64_t at_ns) {
  while (now_ns() + 500'000 < at_ns) std::this_thread::sleep_for(std::chrono::microseconds(200));
  while (now_ns() < at_ns) {
  }
}

// What the device's clock said at one moment of ours, and by how much that may be wrong.
struct Moment {
  std::uint64_t host_ns = 0, device_ns = 0, error_ns = ~std::uint64_t{0};
};

class Occupant {
 public:
  void occupy(std::istream& words) {
    std::uint64_t at = 0, ns = 0, ahead = 0;
    double seconds = 0;
    std::string file;
    words >> at >> ns >> seconds >> ahead >> file;
    const Moment first = ask_time();
    wait_until(at);
    const std::uint64_t until = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
    std::vector<std::uint64_t> seen;
    std::uint64_t launched = 0, ended = 0;
    const auto collect = [&] {
      volatile std::uint64_t* span = spans_ + ended % kSpans * 2;
      if (ended == launched || span[1] == 0) return false;
      seen.insert(seen.end(), {span[0], span[1]});
      ++ended;
      return true;
    };
    while (now_ns() < until) {
      while (collect()) {
      }
      if (launched - ended >= std::min(ahead, kSpans)) {
        std::this_thread::yield();
        continue;
      }
      std::uint64_t* span = spans_ + launched % kSpans * 2;
      static_cast<volatile std::uint64_t*>(span)[1] = 0;
      BENCH_MUST(d_.launch(occupy_, stream_, 1, 32, span, ns));
      ++launched;
    }
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    while (collect()) {
    }
    const Moment last = ask_time();
    const double drift = (static_cast<double>(last.device_ns - first.device_ns) /
                          static_cast<double>(last.host_ns - first.host_ns));
    for (std::uint64_t& time : seen)
      time = first.host_ns +
             static_cast<std::uint64_t>(static_cast<double>(time - first.device_ns) / drift);
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(seen.data()),
               static_cast<std::streamsize>(seen.size() * sizeof seen[0]));
    std::printf("{\"kernels\": %" PRIu64 ", \"clock_error_ns\": %" PRIu64
                ", \"drift_ppm\": %.2f}\n",
                ended, std::max(first.error_ns, last.error_ns), 1e6 * (drift - 1));
  }

  // Batches, two of them ahead: the rate between the end of the first and the end of the last.
  void compute(std::istream& words) {
    std::uint64_t at = 0, ns = 0, batch = 1;
    std::uint32_t rounds = 0;
    unsigned blocks = 0;
    double seconds = 0;
    words >> at >> rounds >> blocks >> ns >> batch >> seconds;
    wait_until(at);
    const std::uint64_t until = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
    std::vector<std::uint64_t> ends;
    std::uint64_t batches = 0;
    const auto wait = [&] {
      BENCH_MUST(d_.cu.cuEventSynchronize(events_[ends.size() % events_.size()]));
      ends.push_back(now_ns());
    };
    while (now_ns() < until) {
      for (std::uint64_t i = 0; i < batch; ++i)
        BENCH_MUST(d_.launch(compute_, stream_, blocks, 256, out_, rounds, ns));
      BENCH_MUST(d_.cu.cuEventRecord(events_[batches++ % events_.size()], stream_));
      if (batches - ends.size() == events_.size()) wait();
    }
    while (ends.size() < batches) wait();
    const std::uint64_t kernels = batch * (batches - 1);
    std::printf("{\"kernels\": %" PRIu64 ", \"us\": %.4f, \"begin_ns\": %" PRIu64
                ", \"end_ns\": %" PRIu64 "}\n",
                kernels,
                1e-3 * static_cast<double>(ends.back() - ends.front()) /
                    static_cast<double>(std::max<std::uint64_t>(kernels, 1)),
                ends.front(), ends.back());
  }

  void samples(std::istream& words) {
    long count = 0, warm = 0;
    std::uint64_t ns = 0;
    words >> count >> warm >> ns;
    std::printf("{\"wall_us\": [");
    for (long i = -warm; i < count; ++i) {
      const std::uint64_t begin = now_ns();
      BENCH_MUST(d_.launch(occupy_, stream_, 1, 32, spans_, ns));
      BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
      if (i >= 0)
        std::printf("%s%.2f", i > 0 ? ", " : "", 1e-3 * static_cast<double>(now_ns() - begin));
    }
    std::printf("]}\n");
  }

  void chain(std::istream& words) {
    long count = 1;
    std::uint32_t rounds = 0;
    unsigned blocks = 1;
    std::uint64_t ns = 0;
    words >> count >> rounds >> blocks >> ns;
    const std::uint64_t begin = now_ns();
    for (long i = 0; i < count; ++i)
      BENCH_MUST(d_.launch(compute_, stream_, blocks, 256, out_, rounds, ns));
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    std::printf("{\"us\": [%.4f]}\n",
                1e-3 * static_cast<double>(now_ns() - begin) / static_cast<double>(count));
  }

 private:
  static constexpr std::uint64_t kSpans = 4096;

  Moment ask_time() {
    Moment best;
    const std::uint64_t enough = now_ns() + 100'000'000;  // on a busy machine each try takes long
    for (int i = 0; i < 3 || (i < 40 && now_ns() < enough); ++i) {
      const std::uint32_t value = ++asked_;
      told_[0] = 0;
      BENCH_MUST(d_.launch(tell_time_, stream_, 1, 32, question_, value, told_));
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // it runs by now
      const std::uint64_t before = now_ns();
      __atomic_store_n(question_, value, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(told_, __ATOMIC_ACQUIRE) == 0)
        if (now_ns() - before > 1'000'000) std::this_thread::yield();  // of no use any more
      const std::uint64_t after = now_ns();
      BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
      if ((after - before) / 2 < best.error_ns)
        best = {before + (after - before) / 2, told_[0], (after - before) / 2};
    }
    return best;
  }

  bench::Device d_;
  CUstream stream_ = d_.stream();
  CUfunction occupy_ = d_.kernel("occupy"), tell_time_ = d_.kernel("tell_time");
  CUfunction compute_ = d_.kernel("compute");
  std::uint64_t* spans_ = d_.pinned<std::uint64_t>(2 * kSpans);
  std::uint32_t* question_ = d_.pinned<std::uint32_t>(16);
  std::uint64_t* told_ = d_.pinned<std::uint64_t>(8);
  CUdeviceptr out_ = d_.words(64);
  std::array<CUevent, 3> events_{d_.event(), d_.event(), d_.event()};
  std::uint32_t asked_ = 0;
};

}  // namespace

int main() {
  Occupant occupant;
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "occupy")
      occupant.occupy(words);
    else if (what == "compute")
      occupant.compute(words);
    else if (what == "chain")
      occupant.chain(words);
    else if (what == "samples")
      occupant.samples(words);
    else
      bench::Driver::stop("unknown command: " + line);
  }
}
