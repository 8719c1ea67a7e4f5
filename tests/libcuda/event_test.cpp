// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

TEST_CASE("an event that was never recorded has happened, and a wait for it is none") {
  const Primary primary;
  const Event event;
  const Stream stream;
  CHECK_RESULT(cuEventQuery(event), CUDA_SUCCESS);
  CHECK_RESULT(cuEventSynchronize(event), CUDA_SUCCESS);
  REQUIRE_OK(cuStreamWaitEvent(stream, event, 0));
  REQUIRE_OK(cuStreamSynchronize(stream));
}

TEST_CASE("an event happens when its stream gets there") {
  const Primary primary;
  const Event event;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Gate gate(stream);
  REQUIRE_OK(cuEventRecord(event, stream));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuEventSynchronize(event));
  CHECK_RESULT(cuEventQuery(event), CUDA_SUCCESS);
}

TEST_CASE("a wait keeps the record that it saw when the event is recorded again") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(1);
  const Event event;
  const Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING),
      held(CU_STREAM_NON_BLOCKING);
  REQUIRE_OK(cuEventRecord(event, first));
  REQUIRE_OK(cuStreamWaitEvent(second, event, 0));
  Gate gate(held);
  REQUIRE_OK(cuEventRecord(event, held));
  REQUIRE_OK(launch(kernels["fill"], second, {}, words.get(), 4u, 1u));
  REQUIRE_OK(cuStreamSynchronize(second));
  CHECK_EQ(words.now(), 4);
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate.open();
}

TEST_CASE("a destroyed event still holds and releases those who wait for it") {
  const Primary primary;
  const Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
  CUevent event;
  REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Gate gate(first);
  REQUIRE_OK(cuEventRecord(event, first));
  REQUIRE_OK(cuStreamWaitEvent(second, event, 0));
  REQUIRE_OK(cuEventDestroy(event));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  CHECK_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(second));
}

TEST_CASE("elapsed time is that of the device, and needs two timed records that happened") {
  const Primary primary;
  const Kernels kernels;
  const Stream stream;
  const Event start(CU_EVENT_DEFAULT), end(CU_EVENT_DEFAULT), untimed;
  float milliseconds = 0;
  CHECK_RESULT(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE_OK(cuEventRecord(start, stream));
  REQUIRE_OK(launch(kernels["busy"], stream, {}, std::uint64_t{3'000'000}));
  REQUIRE_OK(cuEventRecord(untimed, stream));
  {
    Gate gate(stream);
    REQUIRE_OK(cuEventRecord(end, stream));
    CHECK_RESULT(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
    gate.open();
  }
  REQUIRE_OK(cuEventSynchronize(end));
  REQUIRE_OK(cuEventElapsedTime(&milliseconds, start, end));
  CHECK_GE(milliseconds, 3.0f);
  CHECK_RESULT(cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE(
    "an event of the primary context can be recorded in a green stream and timed across two") {
  const Primary primary;
  const Split split;
  const Green left({split.groups[0]}), right({split.groups[1]});
  const Event start(CU_EVENT_DEFAULT), end(CU_EVENT_DEFAULT);
  REQUIRE_OK(cuEventRecord(start, left.stream()));
  REQUIRE_OK(cuStreamWaitEvent(right.stream(), start, 0));
  REQUIRE_OK(cuEventRecord(end, right.stream()));
  REQUIRE_OK(cuEventSynchronize(end));
  float milliseconds = -1;
  REQUIRE_OK(cuEventElapsedTime(&milliseconds, start, end));
  CHECK_GE(milliseconds, 0.0f);
}

#if CUDA_VERSION >= 12050
TEST_CASE("an event over a context happens when all its streams got there") {
  const Primary primary;
  const Event event;
  const Split split;
  const Green green({split.groups[0]});
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Gate first(stream), second(green.stream());
  REQUIRE_OK(cuCtxRecordEvent(primary.get(), event));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  first.open();
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  second.open();
  REQUIRE_OK(cuEventSynchronize(event));
}
#endif

TEST_CASE("an interprocess event opened from its handle sees the records of the original") {
  const Primary primary;
  const Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  const Stream stream(CU_STREAM_NON_BLOCKING), follower(CU_STREAM_NON_BLOCKING);
  CUipcEventHandle handle;
  REQUIRE_OK(cuIpcGetEventHandle(&handle, event));
  CUevent opened;
  REQUIRE_OK(cuIpcOpenEventHandle(&opened, handle));
  CHECK_RESULT(cuEventQuery(opened), CUDA_SUCCESS);
  Gate gate(stream);
  REQUIRE_OK(cuEventRecord(event, stream));
  CHECK_RESULT(cuEventQuery(opened), CUDA_ERROR_NOT_READY);
  REQUIRE_OK(cuStreamWaitEvent(follower, opened, 0));
  CHECK_RESULT(cuStreamQuery(follower), CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE_OK(cuEventSynchronize(opened));
  REQUIRE_OK(cuStreamSynchronize(follower));
  REQUIRE_OK(cuEventDestroy(opened));
}

TEST_CASE("flags that contradict each other are refused") {
  const Primary primary;
  CUevent event;
  CHECK_RESULT(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(cuEventCreate(&event, 64), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
