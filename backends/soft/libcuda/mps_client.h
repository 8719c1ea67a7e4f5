// SPDX-License-Identifier: Apache-2.0
//
// Faults under MPS: when a kernel of one client of a server faults, all of its clients get the
// error, and no new one is admitted before they have ended. A client is a process whose
// CUDA_MPS_PIPE_DIRECTORY has a control daemon that answers; tests run
// tests/daemon/mps_control.cpp. An H200 answered the faulting client's own error to all clients
// (bench/results/daemon/mps_fault).
//
// The server is a file there, `soft-server`: its number and state, then its clients' process ids,
// one a line. Without the file, or when it is of another server, the clients have lost theirs.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/soft/engine.h"

namespace vitamin::soft::driver {

class MpsClient {
 public:
  // False: the server is in fault and still has clients. `client`: null if there is no server.
  static bool join(const std::string& directory, std::vector<Engine*> engines,
                   std::unique_ptr<MpsClient>& client);
  ~MpsClient();
  MpsClient(const MpsClient&) = delete;
  MpsClient& operator=(const MpsClient&) = delete;

 private:
  MpsClient(std::string directory, std::vector<Engine*> engines, long server);
  void watch();
  void report(Status status);

  const std::string directory_;
  const std::vector<Engine*> engines_;
  const long server_;
  std::atomic<bool> over_{false};
  std::thread watcher_;
};

}  // namespace vitamin::soft::driver
