// SPDX-License-Identifier: Apache-2.0
//
// The HIP backend and the runtime over it, as backend_test.py asks for them.
//
//   probe open                            what the device says of itself
//   probe launch POLICY COUNT STAY_MS     COUNT launches on each of two streams; slots stay so long
//   probe hide NAME                       a runtime without this function
//   probe version NUMBER                  a runtime of this version
// With VITAMIN_TEST_VERSION the runtime says that this is its version; with VITAMIN_TEST_GREEN it
// has execution contexts (green_fake.h). Prints "key value" lines, and "notice ..." for each
// sentence that the backend tells a person.
#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/hip/device.h"
#include "daemon/client/local_arbiter.h"
#include "runtime/virtual_context.h"
#include "tests/hip/green_fake.h"

namespace vitamin {
namespace {

void notice(const char* sentence) { std::printf("notice %s\n", sentence); }

[[noreturn]] void fail(const hal::Error& error) {
  std::printf("error %d %s\n", static_cast<int>(error.code), error.message.c_str());
  std::exit(1);
}
template <class Value>
Value needed(hal::Result<Value> result) {
  if (!result) fail(result.error());
  return std::move(*result);
}
void check(int status, const char* what) {
  if (status != 0) fail({hal::Errc::kInternal, status, what});
}

bool green() { return std::getenv("VITAMIN_TEST_GREEN") != nullptr; }
std::unique_ptr<hal::Device> opened() {
  hip::Api api = needed(green() ? tests::open_runtime_with_green_contexts() : hip::open_runtime());
  if (const char* claimed = std::getenv("VITAMIN_TEST_VERSION"); claimed != nullptr)
    api.version = std::atoi(claimed);
  return needed(hip::open_device(api, {.notice = &notice}));
}

void open() {
  const auto device = opened();
  std::printf("name %s\nunits %u\nprocessors %u\npool_queues_max %u\n", device->info().name.c_str(),
              device->info().units(), device->info().sms, device->info().pool_queues_max);
  std::printf("priorities %d\n", device->info().pool_priorities);
}

void launch(const std::string& policy, unsigned count, unsigned stay_ms) {
  hipModule_t module = nullptr;
  hip::Kernel kernel{hip::Kernel::Kind::kFunction, nullptr, "", "probe",
                     hal::KernelLayout{{{0, 8}, {8, 8}, {16, 8}, {24, 8}}, 32}};
  check(hipModuleLoad(&module, std::getenv("VITAMIN_TEST_KERNELS")), "VITAMIN_TEST_KERNELS");
  hipFunction_t function = nullptr;
  check(hipModuleGetFunction(&function, module, "add_slowly"), "add_slowly");
  kernel.native = function;
  std::uint64_t* values = nullptr;
  check(hipHostMalloc(reinterpret_cast<void**>(&values), 16, hipHostMallocDefault), "memory");
  values[0] = values[1] = 0;

  runtime::stats::DevicePage page{};
  runtime::DispatchOptions options;
  options.page = &page;
  options.markers = 64;
  options.slots_stay = std::chrono::milliseconds(stay_ms);
  auto context = needed(runtime::VirtualContext::create(
      opened(), needed(client::local_arbiter(policy, 1)), options, nullptr));
  runtime::Stream* streams[2];
  for (runtime::Stream*& stream : streams) {
    hipStream_t native = nullptr;
    check(hipStreamCreateWithFlags(&native, hipStreamNonBlocking), "a stream");
    stream = &context->adopt(native, runtime::StreamKind::kNonBlocking, 0);
  }
  std::uint64_t most = 0;
  for (unsigned i = 0; i < count; ++i)
    for (unsigned s = 0; s < 2; ++s) {
      std::uint64_t *value = values + s, add = s + 1, ns = 0;
      void* arguments[] = {&value, &value, &add, &ns};
      hal::KernelLaunch one;
      one.kernel = &kernel;
      one.arguments = arguments;
      check(context->launch(*streams[s], one), "a launch");
      most = std::max(most, page.pool.queues.get());
    }
  for (runtime::Stream* stream : streams) check(context->synchronize(*stream), "the end");
  std::printf("right %d\nbound %llu\nnarrow %llu\nmoved %llu\nmost_queues %llu\n",
              values[0] == count && values[1] == 2 * count,
              static_cast<unsigned long long>(page.launches.bound.get()),
              static_cast<unsigned long long>(page.launches.narrow.get()),
              static_cast<unsigned long long>(page.launches.moved.get()),
              static_cast<unsigned long long>(most));
  context.reset();
  const tests::GreenCounts counts = tests::green_counts();
  std::printf("contexts %d\nalive %d\nstreams %d\nblocking %d\n", counts.contexts, counts.alive,
              counts.streams, counts.blocking);
}

// A libamdhip64 that is not the one that is there.
std::string hidden;
int version = 0;
hipError_t old_version(int* value) {
  *value = version;
  return hipSuccess;
}
void load() {
  needed(hip::Api::load([](const char* name) -> void* {
    if (hidden == name) return nullptr;
    // No other function is called.
    return reinterpret_cast<void*>(&old_version);
  }));
  std::printf("loaded 1\n");
}

int run(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "open")
    open();
  else if (what == "launch" && count == 5)
    launch(words[2], unsigned(std::atoi(words[3])), unsigned(std::atoi(words[4])));
  else if (what == "hide" && count == 3)
    hidden = words[2], version = 60'000'000, load();
  else if (what == "version" && count == 3)
    version = std::atoi(words[2]), load();
  else
    return 2;
  return 0;
}

}  // namespace
}  // namespace vitamin

int main(int count, char** words) { return vitamin::run(count, words); }
