// SPDX-License-Identifier: Apache-2.0
//
// Stream capture: which calls it takes in, which it forbids, and what ends it badly.
#pragma once

#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// A call that might wait for the device (queries, synchronisation, allocation). Answers
// STREAM_CAPTURE_UNSUPPORTED and invalidates what it offends when this thread's capture mode does
// not allow it while a capture is open; `stream`, when given, is the stream that the call is about.
CUresult forbid_in_capture(const Stream* stream);

// A call that waits for a whole context: no capture in it survives, whatever the modes.
CUresult forbid_while_capturing(const Context& context);

// A call that waits for one stream and that the modes do not concern (synchronous copies).
CUresult forbid_on_stream(const Stream& stream);

// An operation in the legacy stream of a context that has a blocking stream in a capture.
CUresult refuse_implicit_dependency(Context& context);

// An operation on a capturing stream becomes a node.
CUresult capture_command(Stream& stream, Command command);
// The same for an allocation, whose address is decided now, and for a free.
CUresult capture_allocation(Stream& stream, std::size_t bytes, CUdeviceptr* pointer);
CUresult capture_free(Stream& stream, CUdeviceptr pointer);

// What a capturing stream cannot take in: STREAM_CAPTURE_UNSUPPORTED, and the capture ends badly.
CUresult refuse_in_capture(Stream& stream);

// A wait for an event that was recorded inside a capture: the stream joins it.
CUresult join_capture(Stream& stream, EventObject& event);

// The stream leaves the capture that it is part of, which cannot be ended well any more.
void abandon_capture(Stream& stream);

// A look from the host at an event that was last recorded in a capture: CAPTURED_EVENT while that
// one is open, which ends badly; INVALID_VALUE when it is over.
CUresult refuse_captured_event(EventObject& event);

// The capture of a stream, if there is one, ends badly.
void spoil_capture(Stream& stream);

}  // namespace vitamin::soft::driver
