// SPDX-License-Identifier: Apache-2.0
//
// Do streams that wait hold streams that do not? `--blocked` streams wait for a predecessor that
// takes long: a kernel of --hold-ms (`--by kernel`), or a word that the host stores after that time
// (`--by host`). `--innocent` streams then run short kernels; each should end long before the hold
// does. With --launches N the held stream gets N launches behind its gate, from a thread of its
// own, as a program that launches far ahead does.
#include <atomic>
#include <thread>

#include "green.h"
#include "spin.h"

namespace {

__global__ void count(std::uint32_t* word) { atomicAdd(word, 1); }

struct Options {
  std::string by;
  long blocked, innocent, launches, hold_ms, pool;
};

class Hold {
 public:
  Hold(const Options& options, cudaStream_t stream) : options_(options) {
    if (options.by == "kernel") {
      int khz = 0;
      BENCH_CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
      bench::spin<<<1, 32, 0, stream>>>(static_cast<long long>(khz) * options.hold_ms);
      BENCH_CHECK(cudaGetLastError());
    } else {
      gate_.hold(stream);
    }
  }
  void release() { gate_.open(); }

 private:
  const Options& options_;
  bench::Gate gate_;
};

// A thread for each stream, which runs short kernels on it and says how long that took.
std::vector<std::thread> use(const std::vector<cudaStream_t>& streams, std::uint32_t* word,
                             std::vector<double>& took_ms) {
  std::vector<std::thread> users;
  for (std::size_t i = 0; i < streams.size(); ++i)
    users.emplace_back([&took_ms, i, word, stream = streams[i]] {
      const std::uint64_t start = bench::now_ns();
      for (int j = 0; j < 20; ++j) count<<<1, 1, 0, stream>>>(word);
      BENCH_CHECK(cudaStreamSynchronize(stream));
      took_ms[i] = 1e-6 * static_cast<double>(bench::now_ns() - start);
    });
  return users;
}

// A pool of the program's own, with one stream each: what the hardware does with so many streams.
std::vector<bench::GreenStream> make_pool(long sets) {
  std::vector<bench::GreenStream> pool;
  if (sets <= 0) return pool;
  const bench::GreenDevice device;
  for (const std::uint64_t set : device.sets(static_cast<std::size_t>(sets)))
    pool.push_back(device.create(set));
  return pool;
}

std::vector<cudaStream_t> make_streams(long count) {
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(count));
  for (cudaStream_t& stream : streams)
    BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return streams;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options{
      bench::option(argc, argv, "--by", "host"),   bench::number(argc, argv, "--blocked", 7),
      bench::number(argc, argv, "--innocent", 8),  bench::number(argc, argv, "--launches", 0),
      bench::number(argc, argv, "--hold-ms", 300), bench::number(argc, argv, "--pool", 0)};
  BENCH_CHECK(cudaFree(nullptr));
  const std::vector<bench::GreenStream> pool = make_pool(options.pool);
  cudaStream_t held = make_streams(1).front();
  const std::vector<cudaStream_t> blocked = make_streams(options.blocked);
  std::vector<cudaStream_t> innocent = make_streams(options.innocent);
  if (options.pool > 0)
    for (std::size_t i = 0; i < innocent.size() && i < pool.size(); i += 2)
      innocent[i] = pool[i * pool.size() / innocent.size()].stream;
  auto* words = bench::device_zeros<std::uint32_t>(64);
  cudaEvent_t event = nullptr;
  BENCH_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (cudaStream_t stream : innocent) count<<<1, 1, 0, stream>>>(words);  // loads the kernel
  bench::spin<<<1, 32, 0, held>>>(1000);
  count<<<1, 1, 0, held>>>(words);
  BENCH_CHECK(cudaDeviceSynchronize());

  const std::uint64_t begin = bench::now_ns();
  Hold hold(options, held);
  BENCH_CHECK(cudaEventRecord(event, held));
  for (cudaStream_t stream : blocked) {
    BENCH_CHECK(cudaStreamWaitEvent(stream, event, 0));
    count<<<1, 1, 0, stream>>>(words + 1);
  }
  BENCH_CHECK(cudaGetLastError());
  std::atomic<long> launched{0};
  std::thread far_ahead([&] {
    for (long i = 0; i < options.launches; ++i) {
      count<<<1, 1, 0, held>>>(words + 2);
      ++launched;
    }
  });
  // Give the launcher the time to fill the queue.
  if (options.launches > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const long launched_before = launched;

  std::vector<double> innocent_ms(innocent.size(), -1);
  std::vector<std::thread> users = use(innocent, words + 3, innocent_ms);
  // The hold lasts at least as long as every answer is waited for.
  const auto end_of_hold = std::chrono::milliseconds(options.hold_ms) +
                           std::chrono::milliseconds(options.launches > 0 ? 100 : 0);
  std::thread release([&] {
    std::this_thread::sleep_for(end_of_hold);
    hold.release();
  });
  for (std::thread& user : users) user.join();
  const double innocent_done_ms = 1e-6 * static_cast<double>(bench::now_ns() - begin);
  release.join();
  far_ahead.join();
  BENCH_CHECK(cudaDeviceSynchronize());
  const double all_done_ms = 1e-6 * static_cast<double>(bench::now_ns() - begin);

  std::uint32_t result[4] = {};
  BENCH_CHECK(cudaMemcpy(result, words, sizeof result, cudaMemcpyDeviceToHost));
  const bench::Order times(innocent_ms);
  const auto slow = std::count_if(innocent_ms.begin(), innocent_ms.end(), [&](double ms) {
    return ms > 0.5 * static_cast<double>(options.hold_ms);
  });
  const bool complete = result[1] == options.blocked && result[2] == options.launches &&
                        result[3] == 20 * options.innocent;
  std::printf(
      "{\"name\": \"blocked streams\", \"by\": \"%s\", \"blocked\": %ld, \"innocent\": %ld, "
      "\"launches\": %ld, \"own_pool\": %zu, \"hold_ms\": %ld, \"innocent_blocked\": %ld, "
      "\"innocent_median_ms\": %.3f, \"innocent_max_ms\": %.3f, \"innocent_done_ms\": %.1f, "
      "\"launched_before_release\": %ld, \"all_done_ms\": %.1f, \"every_kernel_ran\": %s}\n",
      options.by.c_str(), options.blocked, options.innocent, options.launches, pool.size(),
      options.hold_ms, static_cast<long>(slow), times.median(), times.at(1), innocent_done_ms,
      launched_before, all_done_ms, complete ? "true" : "false");
  return complete ? 0 : 1;
}
