// SPDX-License-Identifier: Apache-2.0
//
// Rules of HIP that differ between versions of the runtime, answered for the runtime that this
// process loaded. Each names the source that it was read in; the tests over the software GPU
// compare programs with and without the interposer, so they show when a version answers otherwise.
//
// Also here: blocking_covers_legacy() and ended_wait_covers_legacy() of interpose/context.h.
#pragma once

namespace vitamin::interpose {

// Whether the runtime is newer than the headers that runtime.def was written from: up to 7.2.
bool newer_than_known();

// hipMemoryType was numbered anew in 6.0 (what was device memory is page-locked since), and the
// sizes of HIP_MEMCPY3D became size_t.
bool memory_types_renumbered();

// Whether a graph without branches runs on the stream that it is launched to as a whole, each
// launch by itself, as backends/hip/graph.h says.
bool chains_run_on_launch_stream();

// Whether every call replaces the last error, one that succeeds as well, or a failure stays until
// it is asked for.
bool success_replaces_last_error();

// Whether a copy or a fill without a stream that touches device memory alone returns before it
// ends.
bool calls_within_device_return();

}  // namespace vitamin::interpose
