// SPDX-License-Identifier: Apache-2.0
//
// One connection of a client to a daemon, for one device: the socket, the shared memory and the
// daemon's Welcome.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "daemon/client/lease_client.h"
#include "daemon/protocol/handshake.h"
#include "daemon/protocol/session_memory.h"
#include "daemon/protocol/socket.h"

namespace vitamin::client {

struct DaemonConnection {
  protocol::Fd socket;
  protocol::Peer daemon;
  protocol::ClientMemory memory;
  protocol::Welcome welcome;
  std::atomic<bool> lost{false};  // its daemon is gone; set before LeaseClient::lose()

  // Refers to this object, which must outlive it.
  Link link();
};

// Connects and does the handshake; blocks until `limit` at most. The error is a sentence for the
// user: no daemon, another version, or a refusal.
hal::Result<std::unique_ptr<DaemonConnection>> connect(const std::string& socket,
                                                       const hal::DeviceInfo& info,
                                                       const std::string& program,
                                                       const protocol::Claim& claim,
                                                       protocol::WaitLimit limit);

}  // namespace vitamin::client
