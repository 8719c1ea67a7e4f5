// SPDX-License-Identifier: Apache-2.0
//
// The DRA driver of one node: publishes its GPUs as a ResourceSlice, prepares the claims of pods
// (a CDI specification, and a word to vitamind about share, memory and class), and forgets them.
//
// What was prepared is kept in a file for each claim, so that another life of this process answers
// the same, and is told to vitamind again whenever that one was restarted. A claim whose file is
// damaged is read from the API server again when the kubelet says that a pod has it: for pods that
// run the kubelet prepares nothing again.
//
// Threads: gRPC calls from threads of its own; run() is one thread. One mutex is held for the whole
// of a prepare or unprepare: two of one claim never run at the same time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "deploy/kubernetes/container.h"
#include "deploy/kubernetes/dra/api_server.h"
#include "deploy/kubernetes/dra/claim.h"
#include "deploy/kubernetes/dra/claim_files.h"
#include "deploy/kubernetes/dra/read_times.h"
#include "deploy/kubernetes/others.h"
#include "deploy/kubernetes/shares.h"
#include "dra_plugin.grpc.pb.h"
#include "plugin_registration.grpc.pb.h"

namespace vitamin::kubernetes {

namespace dra_api = k8s::io::kubelet::pkg::apis::dra::v1;

struct DriverOptions {
  std::string node;
  std::vector<ClaimableGpu> gpus;         // empty: NVIDIA's of this node, as they come
  std::string nvidia_gpus = kNvidiaGpus;  // where NVIDIA's driver lists those
  std::uint64_t gpu_memory = 0;           // bytes of each GPU whose own are not said; 0: not said
  std::string registry = "/var/lib/kubelet/plugins_registry";
  std::string directory = "/var/lib/kubelet/plugins/vitamin.dev";  // sockets and what is prepared
  std::string cdi_directory = "/var/run/cdi";
  std::string gpu_kind = "nvidia.com/gpu";  // CDI kind of the vendor's GPUs; empty: none
  std::string config;                       // vitamin.toml; empty: the usual one
  ContainerSettings container;
  // Socket where the kubelet says what device plugins offer and pods have of them; empty, or
  // nothing there: not asked.
  std::string pod_resources;
  ApiServer::Options api;
  std::uint32_t every_ms = 5000;  // between two checks of GPUs, vitamind and the kubelet
  // Between two reads of slices and of a claim while nothing changes on the node: the API server
  // answers the drivers of all nodes.
  std::uint32_t api_every_ms = 60'000;
};

class DraDriver final : public dra_api::DRAPlugin::Service,
                        public pluginregistration::Registration::Service {
 public:
  // Reads what an earlier life of the driver prepared.
  explicit DraDriver(DriverOptions options);

  // Until stop(): serves the kubelet, publishes the GPUs. Error: it cannot listen.
  hal::Status run();
  // May be called from a signal handler.
  void stop() { stopping_.store(true); }

 private:
  using Clock = ReadTimes::Clock;
  struct Prepared {
    AllocatedClaim claim;
    std::string told = {};     // to which life of vitamind; empty: none, or not all of it
    bool kept = true;          // its file has all of it
    std::string problem = {};  // why one of these failed, said once
    ReadTimes reads = {};
  };

  grpc::Status NodePrepareResources(grpc::ServerContext*,
                                    const dra_api::NodePrepareResourcesRequest* request,
                                    dra_api::NodePrepareResourcesResponse* answer) override;
  grpc::Status NodeUnprepareResources(grpc::ServerContext*,
                                      const dra_api::NodeUnprepareResourcesRequest* request,
                                      dra_api::NodeUnprepareResourcesResponse* answer) override;
  grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                       pluginregistration::PluginInfo* answer) override;
  grpc::Status NotifyRegistrationStatus(grpc::ServerContext*,
                                        const pluginregistration::RegistrationStatus* status,
                                        pluginregistration::RegistrationStatusResponse*) override;

  // The mutex is held.
  hal::Status prepare(const dra_api::Claim& wanted);
  hal::Status unprepare(const std::string& uid);
  hal::Result<nlohmann::json> claim_object(const ClaimName& claim) const;
  hal::Result<AllocatedClaim> allocated_here(const nlohmann::json& object) const;
  hal::Result<AllocatedClaim> read_claim(const ClaimName& name, const std::string& uid) const;
  hal::Status write_cdi(const AllocatedClaim& claim) const;
  hal::Status tell(Prepared& prepared);
  hal::Status tell_and_keep(Prepared& prepared);

  void look();
  hal::Status check_memory(const AllocatedClaim& claim) const;
  void recover_damaged();
  static std::set<std::string> pods_of_clients(const nlohmann::json& status);
  void was_refused(ReadTimes& reads, const PodSigns& seen) const;
  bool read_again(Prepared& prepared, const PodSigns& seen);
  void tell_again(const nlohmann::json& status);
  std::vector<ClaimableGpu> only_here(const std::vector<ClaimableGpu>& gpus);
  hal::Status publish(const std::vector<ClaimableGpu>& gpus);
  hal::Status update_slice(const nlohmann::json& now, const std::vector<ClaimableGpu>& gpus);
  hal::Status write_slice(nlohmann::ordered_json wanted, bool is_new);
  std::vector<ClaimableGpu> gpus_here() const;
  void say_absent();
  std::string cdi_file(const std::string& uid) const;

  const DriverOptions options_;
  const ApiServer api_;
  const ClaimFiles files_;
  std::mutex mutex_;
  std::map<std::string, Prepared> prepared_;      // by UID
  std::string daemon_;                            // which life of vitamind answers; empty: none
  std::string absence_;                           // tools::absence_code() of vitamind's last status
  std::set<std::string> absent_;                  // of options_.gpus, each said once
  std::set<std::string> damaged_;                 // UIDs of claims whose file cannot be read
  std::set<ClaimName> not_damaged_;               // names of other claims that pods have
  std::map<ClaimName, ReadTimes> damaged_reads_;  // of claims that may be damaged ones
  PodResources kubelet_;                          // what it said last
  std::map<std::string, std::string> others_;     // GPUs that are not published, with the reason
  std::map<std::string, std::string> slices_;     // GPUs in slices of others, with their driver
  std::vector<ClaimableGpu> in_slice_;            // GPUs that the slice has
  Clock::time_point next_list_, often_until_;
  std::atomic<bool> registered_ = false;  // since the last look
  nlohmann::json written_, answered_;   // spec of the slice, as sent and as the API server keeps it
  std::string told_daemon_, told_api_;  // the last problems, each said once
  std::atomic<bool> stopping_ = false;
};

}  // namespace vitamin::kubernetes
