// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/connection.h"

namespace vitamin::client {

Link DaemonConnection::link() {
  Link link(*memory.client, *memory.daemon);
  link.fallback = static_cast<PartitionId>(welcome.fallback);
  link.answer_within_ns = welcome.answer_within_ns;
  link.daemon_minor = welcome.preamble.minor;
  return link;
}

hal::Result<std::unique_ptr<DaemonConnection>> connect(const std::string& path,
                                                       const hal::DeviceInfo& info,
                                                       const std::string& program,
                                                       const protocol::Claim& claim,
                                                       protocol::WaitLimit limit) {
  auto connection = std::make_unique<DaemonConnection>();
  auto socket = protocol::connect_to(path, limit);
  if (!socket) return tl::unexpected(socket.error());
  connection->socket = std::move(*socket);
  auto daemon = protocol::peer_of(connection->socket);
  if (!daemon) return tl::unexpected(daemon.error());
  connection->daemon = std::move(*daemon);
  const protocol::Hello hello = protocol::hello_of(info, program, claim);
  const auto parcel =
      protocol::exchange(connection->socket, protocol::bytes_of(hello), 4096, limit);
  if (!parcel) return tl::unexpected(parcel.error());
  if (parcel->bytes.empty())
    return hal::fail(hal::Errc::kUnavailable, "vitamind hung up during the handshake");
  const auto welcome = protocol::parse<protocol::Welcome>(parcel->bytes);
  if (!welcome) return tl::unexpected(welcome.error());
  connection->welcome = *welcome;
  if (parcel->fds.size() != 2)
    return hal::fail(hal::Errc::kInternal, "the daemon sent no memory for the session");
  auto memory = protocol::map_session_memory(parcel->fds[0], parcel->fds[1]);
  if (!memory) return tl::unexpected(memory.error());
  connection->memory = std::move(*memory);
  const auto layout = runtime::PoolLayout::build(info, protocol::limits_of(*welcome));
  if (protocol::hash_of(layout) != welcome->pool_hash || welcome->fallback >= layout.size())
    return hal::fail(hal::Errc::kUnsupported,
                     "the daemon divides the device into other partitions than this library: "
                     "install the same release of both");
  return connection;
}

}  // namespace vitamin::client
