// SPDX-License-Identifier: Apache-2.0
//
// The device plugin of one extended resource: answers the kubelet's calls, and registers again
// whenever the kubelet was restarted.
//
// Threads: gRPC calls the service from threads of its own; run() is one thread. What they share is
// behind one mutex.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "deploy/kubernetes/container.h"
#include "deploy/kubernetes/others.h"
#include "deploy/kubernetes/shares.h"
#include "device_plugin.grpc.pb.h"

namespace vitamin::kubernetes {

struct Options {
  std::string directory = "/var/lib/kubelet/device-plugins";  // of the kubelet's socket
  std::string resource = "vitamin.dev/share";
  std::vector<NodeGpu> gpus;               // empty: NVIDIA's of this node, as they come
  std::string nvidia_gpus = kNvidiaGpus;   // where NVIDIA's driver lists those
  std::uint32_t shares = 4;                // of each of those
  std::vector<std::string> own_resources;  // of this node's plugins of Vitamin, this one's too
  ContainerSettings container;
  // CDI names instead of mounts: "vitamin.dev/share=all" and this vendor's GPU, by UUID; empty:
  // off.
  std::string cdi_gpu;
  // Socket where the kubelet says what other plugins offer and pods have of them; empty, or nothing
  // there: not asked.
  std::string pod_resources;
  std::uint32_t every_ms = 1000;  // between two checks of vitamind and of the kubelet
};

class Plugin final : public v1beta1::DevicePlugin::Service {
 public:
  explicit Plugin(Options options);

  // Until stop(): listens, registers, watches; again whenever the kubelet was restarted.
  void run();
  // May be called from a signal handler.
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
  std::vector<NodeGpu> gpus_here();
  void say_offered(const NodeGpu& gpu) const;
  void ask_what_others_offer();
  void fill(const ContainerShare& allocation, v1beta1::ContainerAllocateResponse& container) const;
  std::vector<NodeGpu> gpus();
  std::string absence() const;

  const Options options_;
  const std::string name_;  // of this plugin's socket
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<NodeGpu> gpus_;
  std::set<std::string> absent_;  // of options_.gpus, each said once
  std::string absence_;           // tools::absence_code() of vitamind's last status
  OtherDevices others_;
  bool serving_ = false;
  std::string told_;  // the last problem of vitamind, said once
  std::atomic<bool> stopping_ = false;
};

}  // namespace vitamin::kubernetes
