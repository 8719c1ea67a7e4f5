// SPDX-License-Identifier: Apache-2.0
//
// The device plugin: what the kubelet calls, and when it is called again.
//
// Threads: gRPC calls the service from threads of its own; run() is one thread. What they share is
// behind one mutex.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "deploy/kubernetes/shares.h"
#include "device_plugin.grpc.pb.h"

namespace vitamin::kubernetes {

struct Options {
  std::string folder = "/var/lib/kubelet/device-plugins";
  std::string resource = "vitamin.dev/share";
  std::uint32_t per_gpu = 4;
  std::vector<std::string> gpus;  // UUIDs; empty: NVIDIA's of this node
  std::string socket;             // of vitamind
  std::string libraries;          // folder of the preloaded libraries
  std::string mps;                // folder of MPS's pipes; empty: none
  // CDI names instead of mounts: "vitamin.dev/share=all" and this vendor's GPU, by UUID; empty:
  // off.
  std::string cdi_gpu;
  std::uint32_t every_ms = 1000;  // how often daemon and kubelet are looked at
};

class Plugin final : public v1beta1::DevicePlugin::Service {
 public:
  explicit Plugin(Options options);

  // Until stop(): listens, registers, watches; again whenever the kubelet was restarted.
  void run();
  // From a signal handler.
  void stop() { stopping_.store(true); }

 private:
  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions* answer) override;
  grpc::Status ListAndWatch(grpc::ServerContext* call, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override;
  grpc::Status GetPreferredAllocation(grpc::ServerContext*,
                                      const v1beta1::PreferredAllocationRequest* request,
                                      v1beta1::PreferredAllocationResponse* answer) override;
  grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* answer) override;

  void serve();
  bool register_once();
  void look();
  void fill(const Allocation& allocation, v1beta1::ContainerAllocateResponse& container) const;
  std::vector<Gpu> gpus();

  const Options options_;
  const std::string name_ = "vitamin.sock";
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Gpu> gpus_;
  bool serving_ = false;
  std::string told_;  // the last problem, said once
  std::atomic<bool> stopping_ = false;
};

}  // namespace vitamin::kubernetes
