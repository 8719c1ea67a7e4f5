// SPDX-License-Identifier: Apache-2.0
//
// What a GPU says of its CU masks and hardware queues, for the kit of scripts/amd-silicon.
//
//   silicon device | bits | queues | masks | isolation | places
//
// Prints one JSON object a line. Sizes are found by time, so that it takes seconds on any device.
// No mask leaves a shader engine without a CU: what hardware does then is not known.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "program.h"

namespace {

using Clock = std::chrono::steady_clock;
using Mask = std::vector<std::uint32_t>;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// XCC, shader engine, shader array, CU in bytes from the highest.
__device__ unsigned place() {
  unsigned id;
#if defined(__GFX9__)
  unsigned xcc = 0;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(id));
#if defined(__gfx942__) || defined(__gfx950__)
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(xcc));
#endif
  return (xcc & 15) << 24 | (id >> 13 & 7) << 16 | (id >> 12 & 1) << 8 | (id >> 8 & 15);
#else
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID1)" : "=s"(id));
  // The upper bit of the SIMD's number tells the two CUs of a workgroup processor apart.
  return (id >> 18 & 7) << 16 | (id >> 16 & 1) << 8 | (id >> 10 & 15) << 1 | (id >> 9 & 1);
#endif
}

__device__ int spin(int value, int rounds) {
  for (int i = 0; i < rounds; ++i) value = value * 1664525 + 1013904223;
  return value;
}

__global__ void see(unsigned* places, int rounds) {
  const int value = spin(static_cast<int>(threadIdx.x), rounds);
  if (threadIdx.x == 0 || value == 12345) places[blockIdx.x] = place();
}

__global__ void add(const float4* from, float4* to, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float4 value = from[i];
    to[i] = make_float4(value.x + 1, value.y, value.z, value.w);
  }
}

struct Device {
  hipDeviceProp_t properties{};
  int runtime = 0, driver = 0;
  bool pairs = false;     // CUs work in pairs (gfx10 and later)
  unsigned bits = 0;      // of a mask, as the runtime takes it
  unsigned together = 1;  // neighbouring bits that must agree
  unsigned groups() const { return bits / together; }

  Device() {
    HIP_OK(hipGetDeviceProperties(&properties, 0));
    HIP_OK(hipRuntimeGetVersion(&runtime));
    HIP_OK(hipDriverGetVersion(&driver));
    pairs = properties.major >= 10;
    // One bit is one CU up to HIP 5.2 and one pair from 5.6 on (backends/hip/mask_plan.h).
    together = pairs && runtime < 50'600'000 ? 2 : 1;
    bits = static_cast<unsigned>(properties.multiProcessorCount) * together;
  }
  Mask all() const {
    return groups_of([](unsigned) { return true; });
  }
  template <class Wanted>
  Mask groups_of(Wanted&& wanted) const {
    Mask mask((bits + 31) / 32);
    for (unsigned bit = 0; bit < bits; ++bit)
      if (wanted(bit / together)) mask[bit / 32] |= 1u << (bit % 32);
    return mask;
  }
};

class Stream {
 public:
  Stream() { HIP_OK(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking)); }
  explicit Stream(const Mask& mask) { HIP_OK(create(mask, stream_)); }
  explicit Stream(hipStream_t stream) : stream_(stream) {}
  ~Stream() { static_cast<void>(hipStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  static hipError_t create(const Mask& mask, hipStream_t& stream) {
    return hipExtStreamCreateWithCUMask(&stream, static_cast<std::uint32_t>(mask.size()),
                                        mask.data());
  }
  hipStream_t get() const { return stream_; }
  void wait() const { HIP_OK(hipStreamSynchronize(stream_)); }

 private:
  hipStream_t stream_ = nullptr;
};

// Looks where workgroups run. The memory is the host's: a fill would be a kernel on another queue.
class Watch {
 public:
  explicit Watch(const Device& device)
      : blocks_(4 * device.bits),
        shared_(std::min<std::size_t>(device.properties.sharedMemPerBlock, 64 << 10)) {
    HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&places_), blocks_ * sizeof(unsigned)));
    const Stream stream;
    launch(stream);  // loads the code
    stream.wait();
    for (double took = 0; took < 50; rounds_ *= 2) {
      const auto start = Clock::now();
      see<<<1, 64, 0, stream.get()>>>(places_, rounds_);
      stream.wait();
      took = since(start) - empty_us(stream);
    }
  }
  ~Watch() { static_cast<void>(hipHostFree(places_)); }
  // Where the workgroups of one launch ran: so many, each with a CU's shared memory for itself,
  // that a CU that may run one does.
  std::set<unsigned> once(const Stream& stream) {
    launch(stream);
    stream.wait();
    return {places_, places_ + blocks_};
  }
  // The same of up to 16 launches, until `expected` CUs were seen.
  std::set<unsigned> places(const Stream& stream, std::size_t expected) {
    std::set<unsigned> seen;
    for (int tries = 0; tries < 16 && seen.size() < expected; ++tries) seen.merge(once(stream));
    return seen;
  }
  // A launch and the wait for it.
  double empty_us(const Stream& stream) {
    const auto start = Clock::now();
    see<<<1, 64, 0, stream.get()>>>(places_, 0);
    stream.wait();
    return since(start);
  }

 private:
  void launch(const Stream& stream) {
    see<<<blocks_, 64, shared_, stream.get()>>>(places_, rounds_);
    HIP_OK(hipGetLastError());
  }
  unsigned blocks_;
  std::size_t shared_;
  unsigned* places_ = nullptr;
  int rounds_ = 64;
};

void print_places(const std::set<unsigned>& places) {
  std::printf("[");
  const char* between = "";
  for (const unsigned p : places) {
    std::printf("%s[%u, %u, %u, %u]", between, p >> 24, p >> 16 & 255, p >> 8 & 255, p & 255);
    between = ", ";
  }
  std::printf("]");
}

void device() {
  const Device d;
  std::printf(
      "{\"name\": \"%s\", \"part\": \"%s\", \"multiprocessors\": %d, \"wave\": %d, "
      "\"mask_bits\": %u, \"bits_together\": %u, \"memory\": %zu, \"runtime\": %d, "
      "\"driver\": %d}\n",
      d.properties.name, d.properties.gcnArchName, d.properties.multiProcessorCount,
      d.properties.warpSize, d.bits, d.together, d.properties.totalGlobalMem, d.runtime, d.driver);
}

// Which CU each bit of a mask is: the one that is missing where all bits but this one are set.
void bits() {
  const Device d;
  Watch watch(d);
  const unsigned width = d.pairs ? 2 : 1;  // CUs of a group
  const std::set<unsigned> all = watch.places(Stream(d.all()), d.groups() * width);
  std::printf("{\"cus\": ");
  print_places(all);
  std::printf("}\n");
  for (unsigned group = 0; group < d.groups(); ++group) {
    const Stream stream(d.groups_of([&](unsigned other) { return other != group; }));
    std::set<unsigned> missing = all;
    for (const unsigned seen : watch.places(stream, all.size() - width)) missing.erase(seen);
    std::printf("{\"bit\": %u, \"missing\": ", group * d.together);
    print_places(missing);
    std::printf("}\n");
  }
}

// The cost of one more masked queue, and of a launch on each of them in turn, until one is refused.
void queues() {
  constexpr unsigned kMost = 40;
  const Device d;
  Watch watch(d);
  std::vector<std::unique_ptr<Stream>> made;
  while (made.size() < kMost) {
    const auto start = Clock::now();
    hipStream_t stream = nullptr;
    if (const hipError_t error = Stream::create(d.all(), stream); error != hipSuccess) {
      std::printf("{\"refused\": %zu, \"error\": \"%s\"}\n", made.size() + 1,
                  hipGetErrorName(error));
      break;
    }
    const double create = since(start);
    made.push_back(std::make_unique<Stream>(stream));
    const double first = watch.empty_us(*made.back());
    std::vector<double> rounds;
    for (int i = 0; i < 5; ++i) {
      const auto began = Clock::now();
      for (const auto& each : made) watch.empty_us(*each);
      rounds.push_back(since(began) / static_cast<double>(made.size()));
    }
    std::size_t available = 0, total = 0;
    HIP_OK(hipMemGetInfo(&available, &total));
    std::printf(
        "{\"queues\": %zu, \"create_us\": %.1f, \"first_launch_us\": %.1f, "
        "\"launch_us\": %.1f, \"memory_available\": %zu}\n",
        made.size(), create, first, median(rounds), available);
  }
  const auto start = Clock::now();
  const std::size_t count = made.size();
  made.clear();
  std::printf("{\"destroyed\": %zu, \"destroy_us\": %.1f}\n", count,
              since(start) / static_cast<double>(count));
}

// What creating streams with and without a mask costs, and what it costs launches of another one
// meanwhile: each is a change of the queues that the hardware runs.
void masks() {
  constexpr int kTimes = 20;
  const Device d;
  Watch watch(d);
  const Mask half = d.groups_of([&](unsigned group) { return group < d.groups() / 2; });
  const Stream beside;
  std::vector<double> quiet, busy, plain, masked;
  for (int i = 0; i < 200; ++i) quiet.push_back(watch.empty_us(beside));
  for (int i = 0; i < kTimes; ++i) {
    const auto start = Clock::now();
    { const Stream stream; }
    plain.push_back(since(start));
  }
  std::atomic<bool> over{false};
  std::thread changes([&] {
    for (int i = 0; i < kTimes; ++i) {
      const auto start = Clock::now();
      { const Stream stream(half); }
      masked.push_back(since(start));
    }
    over = true;
  });
  do busy.push_back(watch.empty_us(beside));
  while (!over);
  changes.join();
  const double longest = *std::max_element(busy.begin(), busy.end());
  std::printf(
      "{\"plain_stream_us\": %.1f, \"masked_stream_us\": %.1f, \"launch_us\": %.1f, "
      "\"launch_beside_changes_us\": %.1f, \"longest_beside_changes_us\": %.1f}\n",
      median(plain), median(masked), median(quiet), median(busy), longest);
}

// Memory traffic on halves of the CUs: of one alone and of both at once.
void isolation() {
  const Device d;
  std::size_t bytes = 1 << 18;
  const auto half = [&](bool upper) {
    return d.groups_of([&, upper](unsigned g) { return (g >= d.groups() / 2) == upper; });
  };
  const Stream whole(d.all()), lower(half(false)), upper(half(true));
  const auto copies = [&](const std::vector<const Stream*>& streams) {
    std::vector<std::unique_ptr<DeviceArray<float4>>> arrays;
    const std::size_t count = bytes / sizeof(float4);
    for (std::size_t i = 0; i < 2 * streams.size(); ++i)
      arrays.push_back(std::make_unique<DeviceArray<float4>>(count));
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
      const auto start = Clock::now();
      for (std::size_t s = 0; s < streams.size(); ++s)
        add<<<4 * d.bits, 256, 0, streams[s]->get()>>>(arrays[2 * s]->data(),
                                                       arrays[2 * s + 1]->data(), count);
      for (const Stream* stream : streams) stream->wait();
      if (i > 0) times.push_back(since(start));
    }
    return median(times);
  };
  while (copies({&whole}) < 5'000 && bytes < std::size_t{1} << 31) bytes *= 2;
  const double one = copies({&lower}), both = copies({&lower, &upper}), all = copies({&whole});
  const auto rate = [&](double us) { return 2 * static_cast<double>(bytes) / us / 1e3; };
  std::printf(
      "{\"bytes\": %zu, \"whole_gb_s\": %.4g, \"half_gb_s\": %.4g, "
      "\"half_beside_half_gb_s\": %.4g, \"slowdown\": %.3f}\n",
      bytes, rate(all), rate(one), rate(both), both / one);
}

// Where launches on an ordinary stream ran, from "go" on standard input to its end.
void places() {
  const Device d;
  Watch watch(d);
  const Stream stream;
  watch.once(stream);
  std::printf("ready\n");
  std::fflush(stdout);
  static_cast<void>(std::getchar());
  std::set<unsigned> seen;
  const auto start = Clock::now();
  unsigned launches = 0;
  for (; launches < 200 && since(start) < 5e6; ++launches) seen.merge(watch.once(stream));
  std::printf("{\"launches\": %u, \"cus\": ", launches);
  print_places(seen);
  std::printf("}\n");
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was found stays when a GPU hangs
  return run_checks({{"device", device},
                     {"bits", bits},
                     {"queues", queues},
                     {"masks", masks},
                     {"isolation", isolation},
                     {"places", places}},
                    count, arguments);
}
