// SPDX-License-Identifier: Apache-2.0
//
// Serves the metrics to Prometheus: HTTP/1.1, GET /metrics, one request for each connection.
//
// A thread of its own asks the daemon through its socket, like every tool: slow, many or broken
// scrapers keep this thread busy and delay no launch.
#pragma once

#include <string>
#include <thread>

#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::daemon {

class MetricsEndpoint {
 public:
  // `address`: the path of a Unix socket (it has a '/'), PORT on the loopback address, HOST:PORT,
  // or "systemd": the socket that the service manager passed. Port 0: any free one.
  // `daemon`: the path of vitamind's socket. The error is a sentence for the user.
  static hal::Result<std::unique_ptr<MetricsEndpoint>> start(const std::string& address,
                                                             const std::string& daemon);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // Where it listens, for people.
  const std::string& where() const { return where_; }

 private:
  MetricsEndpoint(protocol::Fd listener, std::string where, std::string daemon);
  void run();

  protocol::Fd listener_, stop_;
  std::string where_, daemon_;
  std::thread thread_;
};

}  // namespace vitamin::daemon
