// SPDX-License-Identifier: Apache-2.0
//
// Contexts that end, and processes that fork, while work is outstanding.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "session.h"

namespace vitamin::differential {
namespace {

constexpr unsigned kAdds = 50;
constexpr std::uint64_t kAddNs = 2'000'000;

// Memory of the host that stays when the context has ended.
struct Registered {
  std::uint32_t* words;
  CUdeviceptr device = 0;
  Registered() : words(static_cast<std::uint32_t*>(std::aligned_alloc(4096, 4096))) {
    std::memset(words, 0, 4096);
    VITAMIN_MUST(cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    VITAMIN_MUST(cuMemHostGetDevicePointer(&device, words, 0));
  }
  std::uint32_t read(unsigned i) const { return __atomic_load_n(&words[i], __ATOMIC_SEQ_CST); }
};

// The context ends while kernels run that take 100 ms together: how many had added when the call
// came back, and 300 ms later.
void end_with_running_kernels(Session& session, const std::function<CUresult()>& end) {
  const Registered registered;
  CUfunction add = session.function("slow_add");
  const std::uint32_t one = 1;
  for (unsigned i = 0; i < kAdds; ++i)
    must(launch(add, session.stream(CU_STREAM_NON_BLOCKING), {&registered.device, &one, &kAddNs}),
         "launch");
  CUstream chain = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr second = registered.device + sizeof(std::uint32_t);
  for (unsigned i = 0; i < kAdds; ++i) must(launch(add, chain, {&second, &one, &kAddNs}), "launch");
  const std::string answer = code(end());
  const auto all = [&] {
    return std::string(registered.read(0) == kAdds ? "all" : "not all") + " of many streams, " +
           (registered.read(1) == kAdds ? "all" : "not all") + " of one";
  };
  const std::string at_return = all();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  Say{"kernels running: {}; added at its return: {}; later: {}", answer, at_return, all()};
}

// The context ends while a stream waits for a word that the host writes.
void end_with_a_held_stream(Session& session, const std::function<CUresult()>& end) {
  const Registered registered;
  CUfunction store = session.function("store");
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr second = registered.device + sizeof(std::uint32_t);
  const std::uint32_t seven = 7;
  VITAMIN_MUST(cuStreamWaitValue32(held, registered.device, 1, CU_STREAM_WAIT_VALUE_GEQ));
  must(launch(store, held, {&second, &seven}), "launch");
  std::atomic<bool> returned{false};
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    const auto until = std::chrono::steady_clock::now() + timeout();
    while (!returned && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    opened = !returned;
    __atomic_store_n(registered.words, 1, __ATOMIC_SEQ_CST);
  });
  const std::string answer = code(end());
  const bool waited = opened;
  returned = true;
  const bool stored = registered.read(1) == seven;
  opener.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Say{"a stream held: {}{}; the work behind it was done at its return: {}, in the end: {}",
      waited ? "waits for the gate, then " : "returns ", answer, stored ? "yes" : "no",
      registered.read(1) == seven ? "yes" : "no"};
}

void use_again(const char* what) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  VITAMIN_MUST(cuDeviceGet(&device, 0));
  Say{"{}: retain {}", what, code(api.cuDevicePrimaryCtxRetain(&context, device))};
  Say{"{}: make current {}", what, code(api.cuCtxSetCurrent(context))};
  Say{"{}: alloc {}, stream {}, synchronize {}", what, code(api.cuMemAlloc(&memory, 64)),
      code(api.cuStreamCreate(&stream, 0)), code(api.cuCtxSynchronize())};
}

CUcontext second_context(Session& session, CUmodule* module) {
  CUcontext context = nullptr;
  must(api.create_context(&context, 0, session.device()), "cuCtxCreate");
  VITAMIN_MUST(cuModuleLoadData(module, session.image().data()));
  return context;
}

}  // namespace

VITAMIN_RULE(primary_context_reset_with_running_kernels,
             "Does cuDevicePrimaryCtxReset wait for kernels that run?") {
  Session session;
  end_with_running_kernels(session, [&] { return api.cuDevicePrimaryCtxReset(session.device()); });
  use_again("after the reset");
}

VITAMIN_RULE(primary_context_reset_with_a_held_stream,
             "Does cuDevicePrimaryCtxReset wait for a stream that waits for the host?") {
  Session session;
  end_with_a_held_stream(session, [&] { return api.cuDevicePrimaryCtxReset(session.device()); });
  use_again("after the reset");
}

VITAMIN_RULE(primary_context_released_with_running_kernels,
             "Does the last cuDevicePrimaryCtxRelease wait for kernels that run?") {
  Session session;
  end_with_running_kernels(session,
                           [&] { return api.cuDevicePrimaryCtxRelease(session.device()); });
  use_again("after the release");
}

VITAMIN_RULE(primary_context_released_with_a_held_stream,
             "Does the last cuDevicePrimaryCtxRelease wait for a stream that waits for the host?") {
  Session session;
  end_with_a_held_stream(session, [&] { return api.cuDevicePrimaryCtxRelease(session.device()); });
  use_again("after the release");
}

VITAMIN_RULE(primary_context_released_with_references_left,
             "Does a cuDevicePrimaryCtxRelease that is not the last one wait for a held stream?") {
  Session session;
  CUcontext again = nullptr;
  VITAMIN_MUST(cuDevicePrimaryCtxRetain(&again, session.device()));
  CUstream stream = session.stream();
  Gate gate(session, stream);
  Say{"release {}",
      waits_for(gate, [&] { return api.cuDevicePrimaryCtxRelease(session.device()); })};
  gate.open();
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
}

VITAMIN_RULE(created_context_destroyed_with_work,
             "Does cuCtxDestroy wait for the work of its context, and of the primary context?") {
  Session session;
  CUmodule module = nullptr;
  CUcontext second = second_context(session, &module);
  {
    const Registered registered;
    CUfunction add = nullptr;
    VITAMIN_MUST(cuModuleGetFunction(&add, module, "slow_add"));
    CUstream chain = session.stream(CU_STREAM_NON_BLOCKING);
    const std::uint32_t one = 1;
    for (unsigned i = 0; i < kAdds; ++i)
      must(launch(add, chain, {&registered.device, &one, &kAddNs}), "launch");
    const std::string answer = code(api.cuCtxDestroy(second));
    Say{"kernels of its own running: {}; all have added: {}", answer,
        registered.read(0) == kAdds ? "yes" : "no"};
  }
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
  second = second_context(session, &module);
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
  CUstream stream = session.stream();
  Gate gate(session, stream);
  Say{"a stream of the primary held: {}",
      waits_for(gate, [&] { return api.cuCtxDestroy(second); })};
  gate.open();
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
}

VITAMIN_RULE(forked_child_exits, "Does a forked child that calls exit() end by itself?") {
  Session session;
  CUstream stream = session.stream();
  Gate gate(session, stream);
  std::fflush(stdout);
  for (const bool held : {true, false}) {
    if (!held) gate.open();
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      std::exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    Say{"{}: child ended by itself: {}, code {}", held ? "a stream held" : "nothing held",
        WIFEXITED(status) ? "yes" : "no", WIFEXITED(status) ? WEXITSTATUS(status) : -1};
  }
  Say{"parent: synchronize {}", code(api.cuCtxSynchronize())};
}

}  // namespace vitamin::differential
