// SPDX-License-Identifier: Apache-2.0
//
// Programs of bench/daemon/fault_matrix.py: one that computes, and ones that fault when told to.
//
//   faults step SECONDS ROUNDS BLOCKS NS LINGER   computes steps, at least one: a line with the
//                                     hash of its results and the time of each. BLOCKS x 256
//                                     threads of ROUNDS multiplications a step (NS: on the software
//                                     device). At an error of CUDA: a line with it, LINGER seconds
//                                     more, exit code 4
//   faults illegal | trap | hang      says that it is ready, waits for a line on standard input,
//                                     launches the kernel, and says what the next call answers
//
// Times are nanoseconds of CLOCK_MONOTONIC.
#include <array>
#include <cinttypes>
#include <iostream>
#include <string>
#include <thread>

#include "driver.h"

namespace {

using bench::now_ns;

class Steps {
 public:
  // Values that differ, so that the layers have something to mix.
  Steps() {
    for (std::uint32_t part = 0; part < kParts; ++part)
      BENCH_MUST(d_.cu.cuMemsetD32(weights_ + part * (kCount / kParts) * sizeof(float),
                                   0x3e800000 + part * 0x00123456, kCount / kParts));
    BENCH_MUST(d_.cu.cuCtxSynchronize());
  }

  // The hash of the weights behind another step in `hash`.
  CUresult step(std::uint32_t rounds, unsigned blocks, std::uint64_t ns, std::uint64_t& hash) {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (const CUresult status =
              d_.launch(layer_, stream_, 32, 256, weights_, moved_, kCount, 0.01f);
          status != CUDA_SUCCESS)
        return status;
      std::swap(weights_, moved_);
    }
    CUresult status = d_.launch(compute_, stream_, blocks, 256, out_, rounds, ns);
    if (status == CUDA_SUCCESS) status = d_.cu.cuStreamSynchronize(stream_);
    if (status == CUDA_SUCCESS) status = d_.cu.cuMemcpyDtoH(host_.data(), weights_, sizeof host_);
    hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time
    for (const std::uint32_t word : host_) hash = (hash ^ word) * 0x100000001b3;
    return status;
  }

 private:
  static constexpr std::uint32_t kCount = 1 << 15, kParts = 8;
  static constexpr int kLayers = 8;

  bench::Device d_;
  CUfunction layer_ = d_.kernel("rank_layer"), compute_ = d_.kernel("compute");
  CUstream stream_ = d_.stream();
  CUdeviceptr weights_ = d_.words(kCount), moved_ = d_.words(kCount), out_ = d_.words(1);
  std::array<std::uint32_t, kCount> host_{};
};

int run_steps(char** words) {
  const double seconds = std::atof(words[0]);
  const auto rounds = static_cast<std::uint32_t>(std::atol(words[1]));
  const auto blocks = static_cast<unsigned>(std::atol(words[2]));
  const auto ns = static_cast<std::uint64_t>(std::atoll(words[3]));
  static Steps steps;  // 128 KiB
  const std::uint64_t until = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  std::uint64_t number = 0;
  do {
    std::uint64_t hash = 0;
    const CUresult status = steps.step(rounds, blocks, ns, hash);
    if (status != CUDA_SUCCESS) {
      std::printf("{\"error\": %d, \"step\": %" PRIu64 ", \"ns\": %" PRIu64 "}\n",
                  static_cast<int>(status), number, now_ns());
      std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(words[4])));
      return 4;
    }
    std::printf("{\"step\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\", \"ns\": %" PRIu64 "}\n",
                number++, hash, now_ns());
    std::fflush(stdout);
  } while (now_ns() < until);
  return 0;
}

int fault(const std::string& kind) {
  const bench::Device device;
  CUstream const stream = device.stream();
  const CUdeviceptr words = device.words(64);
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  CUresult status = CUDA_SUCCESS;
  if (kind == "hang")  // on all SMs: it waits for a word that nothing sets
    status = device.launch(device.kernel("meet"), stream, 264, 1024, words, words + 128, words);
  else
    status = device.launch(device.kernel(kind == "trap" ? "fault_by_trap" : "fault"), stream, 1, 32,
                           CUdeviceptr{0});
  std::printf("{\"launched\": %d, \"ns\": %" PRIu64 "}\n", static_cast<int>(status), now_ns());
  std::fflush(stdout);
  if (status == CUDA_SUCCESS) status = device.cu.cuStreamSynchronize(stream);
  std::printf("{\"status\": %d, \"ns\": %" PRIu64 "}\n", static_cast<int>(status), now_ns());
  return status != CUDA_SUCCESS ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "step" && argc == 7) return run_steps(argv + 2);
  if ((verb == "illegal" || verb == "trap" || verb == "hang") && argc == 2) return fault(verb);
  std::fprintf(stderr,
               "usage: faults step SECONDS ROUNDS BLOCKS NS LINGER | illegal | trap | hang\n");
  return 2;
}
