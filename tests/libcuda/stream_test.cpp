// SPDX-License-Identifier: Apache-2.0
//
// Streams and the rules of the default streams, host functions, value operations, queue depth.
#include <atomic>
#include <chrono>
#include <thread>

#include "fixture.h"
#include "tests/time_limit.h"

namespace vitamin::libcuda_tests {
namespace {

struct Log {
  Kernels kernels;
  DeviceWords words{64};
  void append(CUstream stream, std::uint32_t value) const {
    REQUIRE_OK(launch(kernels["append"], stream, {}, words.get(), value));
  }
  std::vector<std::uint32_t> values() const {
    const std::vector<std::uint32_t> all = words.all();
    return {all.begin() + 1, all.begin() + 1 + all[0]};
  }
};

using Values = std::vector<std::uint32_t>;

TEST_CASE("a stream runs its work in order") {
  const Primary primary;
  const Log log;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  for (std::uint32_t i = 0; i < 20; ++i) log.append(stream, i);
  REQUIRE_OK(cuStreamSynchronize(stream));
  Values expected(20);
  for (std::uint32_t i = 0; i < 20; ++i) expected[i] = i;
  CHECK_EQ(log.values(), expected);
}

TEST_CASE("a held stream does not hold another") {
  const Primary primary;
  const Log log;
  const Stream held(CU_STREAM_NON_BLOCKING), free(CU_STREAM_NON_BLOCKING);
  Gate gate(held);
  log.append(held, 1);
  log.append(free, 2);
  REQUIRE_OK(cuStreamSynchronize(free));
  CHECK_RESULT(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
  CHECK_EQ(log.values(), Values{2});
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(held));
  CHECK_EQ(log.values(), Values{2, 1});
}

TEST_CASE("the legacy stream waits for blocking streams, and they for it") {
  const Primary primary;
  const Log log;
  const Stream first, second;
  Gate gate(first);
  log.append(first, 1);
  log.append(nullptr, 2);
  log.append(second, 3);
  CHECK_RESULT(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  CHECK_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(log.values(), Values{1, 2, 3});
}

TEST_CASE("a non-blocking stream takes no part in the legacy stream's order") {
  const Primary primary;
  const Log log;
  const Stream held(CU_STREAM_NON_BLOCKING);
  Gate gate(held);
  log.append(held, 1);
  log.append(CU_STREAM_LEGACY, 2);
  REQUIRE_OK(cuStreamSynchronize(CU_STREAM_LEGACY));
  CHECK_EQ(log.values(), Values{2});
  gate.open();
}

TEST_CASE("a green stream takes no part in the legacy stream's order") {
  const Primary primary;
  const Log log;
  const Split split;
  const Green green({split.groups[3]});
  Gate gate(green.stream());
  log.append(green.stream(), 1);
  log.append(nullptr, 2);
  REQUIRE_OK(cuStreamSynchronize(nullptr));
  CHECK_EQ(log.values(), Values{2});
  gate.open();
}

TEST_CASE("NULL through a _ptsz entry is the thread's own stream, one for each thread") {
  const Primary primary;
  const Log log;
  std::uint32_t value = 7;
  CUdeviceptr words = log.words.get();
  void* parameters[] = {&words, &value};
  Gate gate(CU_STREAM_PER_THREAD);
  REQUIRE_OK(cuLaunchKernel_ptsz(log.kernels["append"], 1, 1, 1, 1, 1, 1, 0, nullptr, parameters,
                                 nullptr));
  CHECK_RESULT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  CHECK_RESULT(cuStreamQuery_ptsz(nullptr), CUDA_ERROR_NOT_READY);
  std::thread([&] {
    REQUIRE_OK(cuCtxSetCurrent(primary.get()));
    CHECK_RESULT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  // It is a blocking stream: the legacy stream waits for it.
  CHECK_RESULT(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(nullptr));
  CHECK_EQ(log.values(), Values{7});
}

TEST_CASE("0x1 through a _ptsz entry stays the legacy stream") {
  const Primary primary;
  const Stream blocking;
  Gate gate(blocking);
  CHECK_RESULT(cuStreamQuery_ptsz(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  CHECK_RESULT(cuStreamQuery_ptsz(nullptr), CUDA_SUCCESS);
  gate.open();
}

TEST_CASE("destroying a stream returns at once and its work is still done") {
  const Primary primary;
  const Log log;
  CUstream stream;
  REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Gate gate(stream);
    log.append(stream, 5);
    REQUIRE_OK(cuStreamDestroy(stream));
    CHECK_EQ(log.values(), Values{});
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    gate.open();
  }
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(log.values(), Values{5});
}

TEST_CASE("a stream says what it was made with") {
  const Primary primary;
  const Stream stream(CU_STREAM_NON_BLOCKING, -100);
  unsigned flags = 0;
  int priority = 0, least = 1, greatest = 1;
  REQUIRE_OK(cuStreamGetFlags(stream, &flags));
  CHECK_EQ(flags, CU_STREAM_NON_BLOCKING);
  REQUIRE_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  REQUIRE_OK(cuStreamGetPriority(stream, &priority));
  CHECK_EQ(priority, greatest);
  unsigned long long id = 0, other = 0;
  REQUIRE_OK(cuStreamGetId(stream, &id));
  REQUIRE_OK(cuStreamGetId(nullptr, &other));
  CHECK_NE(id, other);
  CUcontext context = nullptr;
  REQUIRE_OK(cuStreamGetCtx(stream, &context));
  CHECK_EQ(context, primary.get());
}

TEST_CASE("stream attributes are kept and copied") {
  const Primary primary;
  const Stream first, second;
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  REQUIRE_OK(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  REQUIRE_OK(cuStreamCopyAttributes(second, first));
  CUstreamAttrValue copy{};
  REQUIRE_OK(cuStreamGetAttribute(second, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &copy));
  CHECK_EQ(copy.syncPolicy, CU_SYNC_POLICY_BLOCKING_SYNC);
  CHECK_RESULT(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value),
               CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a record that only the legacy stream holds is no work of its blocking stream") {
  const Primary primary;
  const Stream blocking;
  const Event event;
  Gate gate(CU_STREAM_LEGACY);
  REQUIRE_OK(cuEventRecord(event, blocking));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  REQUIRE_OK(cuStreamSynchronize(blocking));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuEventSynchronize(event));
}

// ------------------------------------------------------------------------------ host functions

struct HostCall {
  std::atomic<int> calls{0};
  std::atomic<int> answer{-1};
  std::uint32_t seen = 0;
  const DeviceWords* words = nullptr;
};

void CUDA_CB note(void* data) {
  auto* call = static_cast<HostCall*>(data);
  call->seen = call->words->now(1);
  CUstream stream;
  call->answer = static_cast<int>(cuStreamCreate(&stream, 0));
  ++call->calls;
}

TEST_CASE("a host function has its place in the stream and may not call the driver") {
  const Primary primary;
  const Log log;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  HostCall call;
  call.words = &log.words;
  REQUIRE_OK(launch(log.kernels["slow_add"], stream, {}, log.words.get() + 4, 9u,
                    std::uint64_t{1'000'000}));
  REQUIRE_OK(cuLaunchHostFunc(stream, note, &call));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(call.calls, 1);
  CHECK_EQ(call.seen, 9);
  CHECK_EQ(call.answer, static_cast<int>(CUDA_ERROR_NOT_PERMITTED));
}

void CUDA_CB sleep_and_count(void* data) {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ++*static_cast<std::atomic<int>*>(data);
}

TEST_CASE("work behind a host function waits for it to return") {
  const Primary primary;
  const Log log;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  std::atomic<int> done{0};
  REQUIRE_OK(cuLaunchHostFunc(stream, sleep_and_count, &done));
  log.append(stream, 1);
  while (log.words.now() == 0 && cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
  }
  CHECK_EQ(done, 1);
  REQUIRE_OK(cuStreamSynchronize(stream));
}

void CUDA_CB note_status(CUstream, CUresult status, void* data) {
  static_cast<std::atomic<int>*>(data)->store(static_cast<int>(status));
}

TEST_CASE("a callback is told that all went well") {
  const Primary primary;
  const Stream stream;
  std::atomic<int> status{-1};
  REQUIRE_OK(cuStreamAddCallback(stream, note_status, &status, 0));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(status, static_cast<int>(CUDA_SUCCESS));
}

// ----------------------------------------------------------------------------- value operations

TEST_CASE("value waits compare as they are told") {
  const Primary primary;
  struct Case {
    unsigned flags;
    std::uint32_t wanted, too_early, enough;
  };
  for (const Case& one :
       {Case{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6}, Case{CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
        Case{CU_STREAM_WAIT_VALUE_AND, 6, 1, 2},
        Case{CU_STREAM_WAIT_VALUE_NOR, 0xf0, 0xffffffff, 0x0f}}) {
    CAPTURE(one.flags);
    const PinnedWords word(2);
    const Stream stream(CU_STREAM_NON_BLOCKING);
    word.store(0, one.too_early);
    REQUIRE_OK(cuStreamWaitValue32_v2(stream, word.device(), one.wanted, one.flags));
    REQUIRE_OK(cuStreamWriteValue32_v2(stream, word.device() + 4, 1, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQ(word[1], 0);
    word.store(0, one.enough);
    REQUIRE_OK(cuStreamSynchronize(stream));
    CHECK_EQ(word[1], 1);
  }
}

TEST_CASE("one stream's write lets another stream's wait go on") {
  const Primary primary;
  const Log log;
  const DeviceWords flag(2);
  const Stream waiter(CU_STREAM_NON_BLOCKING), writer(CU_STREAM_NON_BLOCKING);
  REQUIRE_OK(cuStreamWaitValue64_v2(waiter, flag.get(), 0x100000001, CU_STREAM_WAIT_VALUE_EQ));
  log.append(waiter, 2);
  log.append(writer, 1);
  REQUIRE_OK(cuStreamWriteValue64_v2(writer, flag.get(), 0x100000001, 0));
  REQUIRE_OK(cuStreamSynchronize(waiter));
  CHECK_EQ(log.values(), Values{1, 2});
}

TEST_CASE("a batch of memory operations is taken whole or not at all") {
  const Primary primary;
  const PinnedWords words(2);
  const Stream stream;
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = words.device();
  operations[0].writeValue.value = 3;
  operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[1].writeValue.address = 0;
  CHECK_RESULT(cuStreamBatchMemOp_v2(stream, 2, operations, 0), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words[0], 0);
  operations[1].writeValue.address = words.device() + 4;
  REQUIRE_OK(cuStreamBatchMemOp_v2(stream, 2, operations, 0));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words[0], 3);
}

// ---------------------------------------------------------------------------------------- depth

TEST_CASE("a launch behind a full stream blocks the host until there is room") {
  const Primary primary;
  const Kernels kernels;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  CUfunction nothing = kernels["nothing"];
  std::atomic<int> launched{0};
  Gate gate(stream);
  std::thread launcher([&] {
    REQUIRE_OK(cuCtxSetCurrent(primary.get()));
    for (int i = 0; i < 1200; ++i) {
      REQUIRE_OK(launch(nothing, stream, {}));
      ++launched;
    }
  });
  CHECK(test::eventually([&] { return launched == 1019; }));  // and the gate in front
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_EQ(launched, 1019);
  // Records and waits on the full stream do not block, nor do launches on another stream.
  const Event event;
  for (int i = 0; i < 2000; ++i) {
    REQUIRE_OK(cuEventRecord(event, stream));
    REQUIRE_OK(cuStreamWaitEvent(stream, event, 0));
  }
  const Stream other(CU_STREAM_NON_BLOCKING);
  REQUIRE_OK(launch(nothing, other, {}));
  REQUIRE_OK(cuStreamSynchronize(other));
  gate.open();
  launcher.join();
  REQUIRE_OK(cuStreamSynchronize(stream));
}

}  // namespace
}  // namespace vitamin::libcuda_tests
