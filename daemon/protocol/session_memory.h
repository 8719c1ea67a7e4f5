// SPDX-License-Identifier: Apache-2.0
//
// Sealed anonymous memory for the two segments of a session (segment.h).
#pragma once

#include <memory>

#include "daemon/protocol/fd.h"
#include "daemon/protocol/segment.h"
#include "hal/result.h"

namespace vitamin::protocol {

// A mapping of one segment; unmapped with its owner. Not inherited by a forked child: a child that
// touches it gets SIGSEGV, so it cannot write in its parent's name.
template <class Segment>
struct Unmap {
  void operator()(Segment* segment) const;
};
template <class Segment>
using Mapped = std::unique_ptr<Segment, Unmap<Segment>>;

// The daemon's half. Every page is allocated when it is made (hal/file_memory.h), so that a lack of
// memory is an error now and not a signal later.
struct SessionMemory {
  Mapped<const ClientSegment> client;
  Mapped<DaemonSegment> daemon;
  Fd client_fd, daemon_fd;  // for the client; not needed once they are sent
};
hal::Result<SessionMemory> make_session_memory();

// The client's half, of the two descriptors that it received. Refuses memory that is not sealed or
// of another size.
struct ClientMemory {
  Mapped<ClientSegment> client;
  Mapped<const DaemonSegment> daemon;
};
hal::Result<ClientMemory> map_session_memory(const Fd& client_fd, const Fd& daemon_fd);

}  // namespace vitamin::protocol
