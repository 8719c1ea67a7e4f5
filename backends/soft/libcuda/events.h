// SPDX-License-Identifier: Apache-2.0
//
// Recording and awaiting events on queues of the engine, also across devices and processes.
#pragma once

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// Null when the device has no memory for it.
std::shared_ptr<vitamin::soft::Event> make_native(Engine& engine);
CUresult record_on_queue(EventObject& event, Engine& engine, Queue* queue);
// Waits for the newest record. Never recorded: no wait.
CUresult wait_on_queue(EventObject& event, Engine& engine, Queue* queue);

// Behind everything that is enqueued on the streams of a context (of a primary: and of its green
// contexts) now; before everything that is enqueued on them later.
CUresult record_behind_context(Context& context, EventObject& event);
CUresult wait_before_context(Context& context, EventObject& event);
// `after` comes behind what `before` holds now. The two may be of different devices.
CUresult come_behind(Stream& after, Stream& before);

}  // namespace vitamin::soft::driver
