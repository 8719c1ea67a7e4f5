// SPDX-License-Identifier: Apache-2.0
//
// One connection of a client to a daemon, for one device: the socket, the shared memory and what
// was agreed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "daemon/client/lease_client.h"
#include "daemon/protocol/handshake.h"
#include "daemon/protocol/memory.h"
#include "daemon/protocol/socket.h"

namespace vitamin::client {

struct Connection {
  protocol::Fd socket;
  protocol::Peer daemon;
  protocol::ClientMemory memory;
  protocol::Welcome welcome;

  // Valid while this object is.
  Link link();
};

// Blocks until the limit. The error is a sentence for the user: no daemon, another version,
// a refusal.
hal::Result<std::unique_ptr<Connection>> connect(const std::string& socket,
                                                 const hal::DeviceInfo& info,
                                                 const std::string& program,
                                                 const protocol::Claim& claim,
                                                 protocol::WaitLimit limit);

}  // namespace vitamin::client
