// SPDX-License-Identifier: Apache-2.0
//
// Serves the figures to Prometheus: HTTP/1.1, GET /metrics, one request a connection.
//
// A thread of its own, which asks the daemon as every tool does, through its socket: a scraper that
// is slow, many or broken keeps this thread busy and delays no launch.
#pragma once

#include <string>
#include <thread>

#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::daemon {

class MetricsServer {
 public:
  // `address`: the path of a Unix socket (it has a '/'), PORT on the loopback address, HOST:PORT,
  // or "systemd": the socket that the service manager passed. Port 0: any free one.
  // `daemon`: the socket to ask. The error is a sentence for the user.
  static hal::Result<std::unique_ptr<MetricsServer>> start(const std::string& address,
                                                           const std::string& daemon);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Where it listens, as a person writes it.
  const std::string& where() const { return where_; }

 private:
  MetricsServer(protocol::Fd listener, std::string where, std::string daemon);
  void run();

  protocol::Fd listener_, stop_;
  std::string where_, daemon_;
  std::thread thread_;
};

}  // namespace vitamin::daemon
