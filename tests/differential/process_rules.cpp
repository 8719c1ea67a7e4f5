// SPDX-License-Identifier: Apache-2.0
//
// Processes and contexts: before initialisation, after fork, several contexts, entry point lookup.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "proc_address_names.h"
#include "session.h"

namespace vitamin::differential {

VITAMIN_RULE(before_initialisation, "What do calls answer before cuInit and without a context?") {
  int count = -1;
  int version = 0;
  CUdevice device = 0;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  CUcontext context = nullptr;
  Say{"device count {}", code(api.cuDeviceGetCount(&count))};
  Say{"driver version {}, known: {}", code(api.cuDriverGetVersion(&version)),
      version >= 12040 ? "yes" : "no"};
  Say{"alloc {}", code(api.cuMemAlloc(&memory, 64))};
  Say{"stream query {}", code(api.cuStreamQuery(nullptr))};
  Say{"synchronize {}", code(api.cuCtxSynchronize())};
  Say{"current context {}", code(api.cuCtxGetCurrent(&context))};
  Say{"init with flags {}", code(api.cuInit(1))};
  Say{"init {}", code(api.cuInit(0))};
  Say{"init again {}", code(api.cuInit(0))};
  Say{"device {}", code(api.cuDeviceGet(&device, 0))};
  Say{"device 99 {}", code(api.cuDeviceGet(&device, 99))};
  Say{"alloc without a context {}", code(api.cuMemAlloc(&memory, 64))};
  Say{"stream without a context {}", code(api.cuStreamCreate(&stream, 0))};
  Say{"stream query without a context {}", code(api.cuStreamQuery(nullptr))};
  Say{"synchronize without a context {}", code(api.cuCtxSynchronize())};
  Say{"launch of nothing without a context {}",
      code(api.cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr))};
  unsigned flags = 0;
  int active = -1;
  Say{"primary state {}, active {}", code(api.cuDevicePrimaryCtxGetState(0, &flags, &active)),
      active};
}

VITAMIN_RULE(no_visible_device, "What does a process see whose CUDA_VISIBLE_DEVICES is empty?") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  int count = -1;
  Say{"init {}", code(api.cuInit(0))};
  Say{"count {}", code(api.cuDeviceGetCount(&count))};
}

VITAMIN_RULE(fork_after_initialisation, "What do calls in a forked child answer?") {
  Session session;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // a call that hangs is an answer too
    CUdeviceptr memory = 0;
    CUcontext context = nullptr;
    int count = -1;
    Say{"child: init {}", code(api.cuInit(0))};
    Say{"child: count {}", code(api.cuDeviceGetCount(&count))};
    Say{"child: current context {}", code(api.cuCtxGetCurrent(&context))};
    Say{"child: alloc {}", code(api.cuMemAlloc(&memory, 64))};
    // Nothing on streams: an H200's driver does not come back from cuStreamQuery here.
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Say{"child ended by itself: {}", WIFEXITED(status) ? "yes" : "no"};
  Say{"parent: synchronize {}", code(api.cuCtxSynchronize())};
}

namespace {

CUdeviceptr pinned_address(Session& session) {
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemHostGetDevicePointer(&address, session.pinned(1 << 16), 0));
  return address;
}

}  // namespace

VITAMIN_RULE(several_contexts, "How do streams, events and kernels of two contexts mix?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream();
  CUevent event = session.event();
  CUfunction store = session.function("store");
  auto kernel = reinterpret_cast<CUfunction>(session.kernel("append"));
  // Pinned memory is every context's; device memory of the primary is not the second one's.
  const CUdeviceptr words = pinned_address(session);
  const std::uint32_t value = 0;
  CUcontext second = nullptr;
  Say{"create {}", code(api.create_context(&second, 0, session.device()))};
  CUcontext current = nullptr;
  VITAMIN_MUST(cuCtxGetCurrent(&current));
  Say{"the new one is current: {}", current == second ? "yes" : "no"};
  CUstream foreign = nullptr;
  CUevent foreign_event = nullptr;
  VITAMIN_MUST(cuStreamCreate(&foreign, CU_STREAM_DEFAULT));
  VITAMIN_MUST(cuEventCreate(&foreign_event, CU_EVENT_DISABLE_TIMING));
  const auto in = [&](const char* name) {
    Say{"{} current: record own event on a stream of the other {}", name,
        code(api.cuEventRecord(event, foreign))};
    Say{"{} current: record on its own stream {}", name, code(api.cuEventRecord(event, stream))};
    Say{"{} current: wait across contexts {}", name,
        code(api.cuStreamWaitEvent(foreign, event, 0))};
    Say{"{} current: function of the primary on a stream of the second {}", name,
        code(launch(store, foreign, {&words, &value}))};
    Say{"{} current: kernel on a stream of the second {}", name,
        code(launch(kernel, foreign, {&words, &value}))};
    Say{"{} current: function on its own stream {}", name,
        code(launch(store, stream, {&words, &value}))};
    Say{"{} current: kernel on a stream of the primary {}", name,
        code(launch(kernel, stream, {&words, &value}))};
    Say{"{} current: function of the primary on NULL {}", name,
        code(launch(store, nullptr, {&words, &value}))};
    Say{"{} current: query of the primary's stream {}", name, soon(stream)};
    Say{"{} current: synchronize of the other's stream {}", name,
        code(api.cuStreamSynchronize(foreign))};
  };
  in("second");
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
  in("primary");
  drain();
  {
    Gate gate(session, nullptr);
    must(log.append(static_cast<CUstream>(nullptr), 1), "launch");
    Say{"primary NULL held: stream of the second {}", soon(foreign)};
    VITAMIN_MUST(cuCtxSetCurrent(second));
    Say{"NULL of the second {}", soon(static_cast<CUstream>(nullptr))};
    Say{"cuCtxSynchronize of the second {}",
        waits_for(gate, [] { return api.cuCtxSynchronize(); })};
    VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
    gate.open();
    drain();
  }
  {
    Gate gate(session, stream);
    must(log.append(stream, 1), "launch");
    VITAMIN_MUST(cuEventRecord(event, stream));
    VITAMIN_MUST(cuStreamWaitEvent(foreign, event, 0));
    Say{"stream of the second behind a wait {}", soon(foreign)};
    gate.open();
    Say{"after the gate {}", soon(foreign)};
    drain();
  }
  Say{"destroy {}", code(api.cuCtxDestroy(second))};
}

namespace {

// The exported name whose address `address` is: the plain name, a numbered or a per-thread variant.
std::string exported_name(const char* name, const void* address) {
  for (const char* thread : {"", "_ptsz", "_ptds"})
    for (const char* version : {"", "_v2", "_v3", "_v4"}) {
      const std::string candidate = std::string(name) + version + thread;
      if (api.symbol(candidate.c_str()) == address) return candidate;
    }
  return "no exported variant";
}

std::string lookup(const char* name, int version, cuuint64_t flags) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = api.get_proc_address(name, &address, version, flags, &status);
  if (address == nullptr)
    return code(result) + ", status " + std::to_string(static_cast<int>(status));
  return code(result) + ", " + exported_name(name, address);
}

}  // namespace

VITAMIN_RULE(proc_address_is_the_exported_symbol,
             "Does cuGetProcAddress answer with the exported symbol of the version asked for?") {
  // Lookups that an interposer's mapping can get wrong: old and new variants, per-thread flags,
  // versions between two variants, names that do not exist.
  static constexpr struct {
    const char* name;
    int version;
    cuuint64_t flags;
  } kLookups[] = {{"cuLaunchKernel", 4000, 0},
                  {"cuLaunchKernel", 7000, 2},
                  {"cuLaunchKernel", 13000, 0},
                  {"cuLaunchKernel", 13000, 1},
                  {"cuLaunchKernel", 13000, 2},
                  {"cuLaunchKernel", 3999, 0},
                  {"cuLaunchKernel_ptsz", 13000, 0},
                  {"cuLaunchKernelEx", 11060, 0},
                  {"cuLaunchKernelEx", 11060, 2},
                  {"cuLaunchCooperativeKernel", 9000, 2},
                  {"cuMemcpyHtoDAsync", 2000, 0},
                  {"cuMemcpyHtoDAsync", 3020, 0},
                  {"cuMemcpyHtoDAsync", 7000, 2},
                  {"cuMemcpyHtoDAsync_v2", 13000, 0},
                  {"cuMemcpyHtoD", 3020, 0},
                  {"cuMemcpyHtoD", 13000, 2},
                  {"cuMemAlloc", 2000, 0},
                  {"cuMemAlloc", 3020, 0},
                  {"cuMemAlloc", 13000, 2},
                  {"cuMemFreeAsync", 11020, 2},
                  {"cuStreamWaitValue32", 8000, 0},
                  {"cuStreamWaitValue32", 11070, 0},
                  {"cuStreamWaitValue32", 11070, 2},
                  {"cuEventRecord", 2000, 0},
                  {"cuEventRecord", 7000, 2},
                  {"cuEventQuery", 13000, 2},
                  {"cuEventDestroy", 2000, 0},
                  {"cuEventDestroy", 4000, 0},
                  {"cuEventElapsedTime", 2000, 0},
                  {"cuEventElapsedTime", 12080, 0},
                  {"cuStreamDestroy", 2000, 0},
                  {"cuStreamDestroy", 4000, 0},
                  {"cuStreamBeginCapture", 10000, 0},
                  {"cuStreamBeginCapture", 10010, 0},
                  {"cuStreamGetCtx", 9020, 0},
                  {"cuStreamGetCtx", 12050, 0},
                  {"cuCtxSynchronize", 2000, 0},
                  {"cuCtxSynchronize", 13000, 0},
                  {"cuGetProcAddress", 11030, 0},
                  {"cuGetProcAddress", 12000, 0},
                  {"cuGreenCtxStreamCreate", 12050, 0},
                  {"cuInit", 2000, 0},
                  {"cuInit", 2000, 2},
                  {"cuNoSuchFunction", 13000, 0},
                  {"", 13000, 0}};
  VITAMIN_MUST(cuInit(0));
  for (const auto& l : kLookups)
    Say{"{}, version {}, flags {}: {}", l.name, l.version, static_cast<int>(l.flags),
        lookup(l.name, l.version, l.flags)};
}

VITAMIN_RULE(
    proc_address_of_every_typed_entry,
    "Which exported symbol answers each name and version of the toolkit's cudaTypedefs.h?") {
  VITAMIN_MUST(cuInit(0));
  for (const ProcAddressName& name : kProcAddressNames)
    Say{"{}, version {}, flags {}: {}", name.name, name.version, name.per_thread ? 2 : 1,
        lookup(name.name, name.version, name.per_thread ? 2 : 1)};
}

}  // namespace vitamin::differential
