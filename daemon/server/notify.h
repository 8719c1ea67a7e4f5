// SPDX-License-Identifier: Apache-2.0
//
// The service manager's notification protocol (sd_notify(3)): a datagram to $NOTIFY_SOCKET.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace vitamin::daemon {

// Sends "READY=1", "STOPPING=1", "WATCHDOG=1" or "STATUS=..."; does nothing outside a service.
void notify(std::string_view state);
// How often the service manager expects WATCHDOG=1; empty: never.
std::optional<std::chrono::microseconds> watchdog_interval();

}  // namespace vitamin::daemon
