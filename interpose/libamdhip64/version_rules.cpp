// SPDX-License-Identifier: Apache-2.0
#include "interpose/libamdhip64/version_rules.h"

#include <atomic>

#include "backends/hip/version.h"
#include "interpose/call_wrappers.h"
#include "interpose/context.h"

namespace vitamin::interpose {
namespace {

// 0: the runtime does not say. It does not change while the process runs.
int runtime_version() {
  static const int version = [] {
    int answer = 0;
    return VITAMIN_REAL(hipRuntimeGetVersion)(&answer) == hipSuccess ? answer : 0;
  }();
  return version;
}

// The program set HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS of some memory. From then on copies of all
// memory are waited for: which one has the attribute is not kept.
constinit std::atomic<bool> copies_are_waited_for{false};

bool since(int major, int minor) { return runtime_version() >= hip::hip_version(major, minor); }

}  // namespace

bool newer_than_known() { return since(7, 3); }

bool memory_types_renumbered() { return since(6, 0); }

// hipGraphExec::Run and UpdateQueue (hipamd, src/hip_graph_internal.cpp, rocm-5.2.3). Tags up to
// rocm-6.2.2 read much the same for a single branch, but keep kernel arguments and packets from
// launch to launch since 6.0. Debian's 6.4.3 seems to do what 5.2.3 does: each kernel and fill of a
// chain has the mask of its stream, and an update changes no launch that was made before it. But
// with chains on parts 2 of some 900 runs of a program with two graphs hung under `static`, and it
// is not known why (tests/amdgpu/README.md). Versions between were not run.
bool chains_run_on_launch_stream() { return since(5, 2) && !since(5, 3); }

// HIP_RETURN (clr, hipamd/src/hip_internal.hpp) stores each call's answer, in every tag from
// rocm-5.0.0 to rocm-6.2.2; Debian's 6.4.3 does the same. 7.0 is announced to keep a failure, which
// no runtime here has shown.
bool success_replaces_last_error() { return !since(7, 0); }

// hipStreamQuery_common and hipStreamSynchronize_common (hipamd, src/hip_stream.cpp; later clr,
// hipamd/src/hip_stream.cpp) ask for the queue of their stream. Up to tag rocm-5.7.1 that leaves a
// marker on a blocking stream which waits for the NULL stream's newest command; since rocm-6.0.0
// they ask without that wait for every stream but the NULL stream itself.
bool blocking_covers_legacy() { return !since(6, 0); }

// Measured for each copy and fill: on 6.4.3 those within device memory return, and all wait on
// 5.2.3. Versions between were not run; one that waits more is right.
bool calls_within_device_return() {
  return since(6, 4) && !copies_are_waited_for.load(std::memory_order_relaxed);
}

hipError_t pointer_set_attribute(
    EntryPoint<hipError_t(const void*, hipPointer_attribute, hipDeviceptr_t)> entry,
    const void* value, hipPointer_attribute attribute, hipDeviceptr_t memory) {
  const hipError_t answer = entry.real(value, attribute, memory);
  if (answer == hipSuccess && attribute == HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    copies_are_waited_for.store(true, std::memory_order_relaxed);
  return answer;
}

// Event::streamWait (hipamd, src/hip_event.cpp) asks for that queue, too, before it sees that there
// is nothing to wait for. Debian's 6.4.3 leaves nothing on the stream then.
bool ended_wait_covers_legacy() { return blocking_covers_legacy(); }

}  // namespace vitamin::interpose
