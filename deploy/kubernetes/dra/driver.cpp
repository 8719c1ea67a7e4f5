// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/driver.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "daemon/config/load.h"
#include "deploy/kubernetes/say_once.h"
#include "runtime/environment.h"
#include "tools/vitamin/daemon_client.h"

namespace vitamin::kubernetes {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
using std::chrono::milliseconds;

namespace {

constexpr const char* kClaimKind = "vitamin.dev/claim";
// A kubelet that starts deletes the slices of its node while drivers register with it.
constexpr std::chrono::minutes kAfterRegistration(1);

void say(const std::string& line) {
  std::fprintf(stderr, "vitamin-dra-driver: %s\n", line.c_str());
}

// Of a call of the API server: there was no answer.
bool is_silent(const hal::Error& error) {
  return error.code == hal::Errc::kUnavailable && error.native == 0;
}

constexpr int kNotFound = 404;

// Name of a device of the claim's CDI file, and of the claim's part for vitamind.
std::string cdi_device(const std::string& uid, std::size_t index) {
  return fmt::format("claim-{}-{}", uid, index);
}
std::string part_name(const std::string& uid, std::size_t index) {
  return fmt::format("{}.{}", uid, index);
}

// Of the spec that the API server keeps.
hal::Status check_sharing(const json& spec) {
  for (const json& device : spec.value("devices", json::array()))
    if (!device.value("allowMultipleAllocations", false))
      return hal::fail(hal::Errc::kUnavailable,
                       "the API server keeps no allowMultipleAllocations, so each GPU is for one "
                       "claim only. Enable the feature gate DRAConsumableCapacity");
  return {};
}

}  // namespace

DraDriver::DraDriver(DriverOptions options)
    : options_(std::move(options)), api_(options_.api), files_(options_.directory) {
  ClaimFiles::Kept kept = files_.read(&say);
  for (AllocatedClaim& claim : kept.claims) {
    const std::string uid = claim.uid;
    prepared_.emplace(uid, Prepared{.claim = std::move(claim)});
  }
  damaged_ = std::move(kept.damaged);
  if (!prepared_.empty()) say(fmt::format("{} claims were prepared before", prepared_.size()));
}

std::string DraDriver::cdi_file(const std::string& uid) const {
  return options_.cdi_directory + "/vitamin.dev-claim-" + uid + ".json";
}

// --- what the kubelet calls ------------------------------------------------------------------

grpc::Status DraDriver::GetInfo(grpc::ServerContext* /*call*/,
                                const pluginregistration::InfoRequest* /*request*/,
                                pluginregistration::PluginInfo* answer) {
  answer->set_type("DRAPlugin");
  answer->set_name(kDriver);
  answer->set_endpoint(options_.directory + "/dra.sock");
  answer->add_supported_versions("v1.DRAPlugin");
  return grpc::Status::OK;
}

grpc::Status DraDriver::NotifyRegistrationStatus(
    grpc::ServerContext* /*call*/, const pluginregistration::RegistrationStatus* status,
    pluginregistration::RegistrationStatusResponse* /*answer*/) {
  registered_ = true;
  say(status->plugin_registered() ? "registered with the kubelet"
                                  : "the kubelet does not register it: " + status->error());
  return grpc::Status::OK;
}

grpc::Status DraDriver::NodePrepareResources(grpc::ServerContext* /*call*/,
                                             const dra_api::NodePrepareResourcesRequest* request,
                                             dra_api::NodePrepareResourcesResponse* answer) {
  const std::lock_guard lock(mutex_);
  for (const dra_api::Claim& wanted : request->claims()) {
    auto& of_claim = (*answer->mutable_claims())[wanted.uid()];
    if (const auto done = prepare(wanted); !done) {
      const std::string why =
          fmt::format("claim {}/{}: {}", wanted.namespace_(), wanted.name(), done.error().message);
      say(why);
      of_claim.set_error(why);
      continue;
    }
    const AllocatedClaim& claim = prepared_.at(wanted.uid()).claim;
    for (std::size_t i = 0; i < claim.shares.size(); ++i) {
      const AllocatedShare& share = claim.shares[i];
      dra_api::Device& device = *of_claim.add_devices();
      device.add_request_names(share.request);
      device.set_pool_name(share.pool);
      device.set_device_name(share.device);
      if (!share.id.empty()) device.set_share_id(share.id);
      device.add_cdi_device_ids(std::string(kClaimKind) + "=" + cdi_device(claim.uid, i));
      if (!options_.gpu_kind.empty())
        device.add_cdi_device_ids(options_.gpu_kind + "=" + share.uuid);
    }
  }
  return grpc::Status::OK;
}

grpc::Status DraDriver::NodeUnprepareResources(
    grpc::ServerContext* /*call*/, const dra_api::NodeUnprepareResourcesRequest* request,
    dra_api::NodeUnprepareResourcesResponse* answer) {
  const std::lock_guard lock(mutex_);
  for (const dra_api::Claim& wanted : request->claims()) {
    auto& of_claim = (*answer->mutable_claims())[wanted.uid()];
    if (const auto done = unprepare(wanted.uid()); !done) {
      say(fmt::format("claim {}/{}: {}", wanted.namespace_(), wanted.name(), done.error().message));
      of_claim.set_error(done.error().message);
    }
  }
  return grpc::Status::OK;
}

// --- claims ----------------------------------------------------------------------------------

// As the API server has it.
hal::Result<json> DraDriver::claim_object(const ClaimName& claim) const {
  return api_.get(
      fmt::format("{}/namespaces/{}/resourceclaims/{}", kResourceApi, claim.first, claim.second));
}

hal::Result<AllocatedClaim> DraDriver::allocated_here(const json& object) const {
  const config::Loaded loaded = config::load(config::sources(options_.config, {}));
  std::vector<ClaimableClass> classes;
  for (const config::WorkloadClass& each : loaded.configuration.classes)
    classes.push_back({each.name, each.tpot_ns});
  return allocated_claim(object, options_.node, gpus_here(), classes);
}

// `uid`: which one it must be.
hal::Result<AllocatedClaim> DraDriver::read_claim(const ClaimName& name,
                                                  const std::string& uid) const {
  const auto object = claim_object(name);
  if (!object) return tl::unexpected(object.error());
  auto claim = allocated_here(*object);
  if (claim && claim->uid != uid)
    return hal::fail(hal::Errc::kUnavailable, "it was deleted, and another one has its name");
  return claim;
}

hal::Status DraDriver::prepare(const dra_api::Claim& wanted) {
  if (!is_uid(wanted.uid())) return hal::fail(hal::Errc::kInvalidArgument, "its UID is malformed");
  const auto known = prepared_.find(wanted.uid());
  if (known != prepared_.end()) {
    if (const auto written = write_cdi(known->second.claim); !written) return written;
    return tell(known->second);
  }
  if (const auto mps = check_mps(options_.container); !mps) return mps;
  auto claim = read_claim({wanted.namespace_(), wanted.name()}, wanted.uid());
  if (!claim) return tl::unexpected(claim.error());
  if (const auto fits = check_memory(*claim); !fits) return fits;
  Prepared prepared{.claim = std::move(*claim)};
  auto written = tell(prepared);
  if (written) written = write_cdi(prepared.claim);
  if (written) written = files_.keep(prepared.claim);
  if (!written) {
    (void)unprepare(prepared.claim.uid);  // what of it was told
    return written;
  }
  damaged_.erase(prepared.claim.uid);
  prepared_[prepared.claim.uid] = std::move(prepared);
  return {};
}

// vitamind, which does not know how much memory a GPU has, adds up shares only.
hal::Status DraDriver::check_memory(const AllocatedClaim& claim) const {
  const auto memory_of = [](const AllocatedClaim& each, const std::string& uuid) {
    std::uint64_t bytes = 0;
    for (const AllocatedShare& share : each.shares) bytes += share.uuid == uuid ? share.memory : 0;
    return bytes;
  };
  for (const ClaimableGpu& gpu : gpus_here()) {
    const std::uint64_t wanted = memory_of(claim, gpu.uuid);
    std::uint64_t held = 0;
    for (const auto& [uid, other] : prepared_) held += memory_of(other.claim, gpu.uuid);
    if (gpu.memory != 0 && wanted != 0 && held + wanted > gpu.memory)
      return hal::fail(
          hal::Errc::kUnavailable,
          fmt::format("device {} is over-committed: other claims have {} MiB of its {} MiB of "
                      "memory, and this one asks for {} MiB",
                      gpu.uuid, held >> 20, gpu.memory >> 20, wanted >> 20));
  }
  return {};
}

hal::Status DraDriver::unprepare(const std::string& uid) {
  if (!is_uid(uid)) return hal::fail(hal::Errc::kInvalidArgument, "its UID is malformed");
  // A vitamind that does not answer has forgotten it, or is told nothing of it when it comes.
  (void)tools::ask_daemon(options_.container.socket, "claim-end " + uid);
  for (const std::string& file : {cdi_file(uid), files_.file_of(uid)}) {
    std::error_code error;
    fs::remove(file, error);
    if (error)
      return hal::fail(hal::Errc::kUnavailable, "cannot remove " + file + ": " + error.message());
  }
  prepared_.erase(uid);
  damaged_.erase(uid);
  return {};
}

hal::Status DraDriver::write_cdi(const AllocatedClaim& claim) const {
  namespace names = runtime::environment;
  ordered_json devices = ordered_json::array();
  for (std::size_t i = 0; i < claim.shares.size(); ++i) {
    const AllocatedShare& share = claim.shares[i];
    ContainerNeeds needs = container_needs(options_.container);
    needs.environment[names::kShare] = std::to_string(share.percent);
    needs.environment[names::kJob] = part_name(claim.uid, i);
    if (!share.workload_class.empty()) needs.environment[names::kClass] = share.workload_class;
    if (!absence_.empty()) needs.environment[names::kAbsent] = absence_;
    devices.push_back({{"name", cdi_device(claim.uid, i)}, {"containerEdits", cdi_edits(needs)}});
  }
  const ordered_json specification = {
      {"cdiVersion", "0.3.0"}, {"kind", kClaimKind}, {"devices", devices}};
  return write_file(cdi_file(claim.uid), specification.dump(2) + "\n");
}

// Told again, a claim is replaced by the same one.
hal::Status DraDriver::tell(Prepared& prepared) {
  const AllocatedClaim& claim = prepared.claim;
  const std::vector<std::string> any = {"-"};
  for (std::size_t i = 0; i < claim.shares.size(); ++i) {
    const AllocatedShare& share = claim.shares[i];
    for (const std::string& pod : claim.pods.empty() ? any : claim.pods) {
      const auto answer = tools::ask_daemon(
          options_.container.socket,
          fmt::format("claim-begin {} {} {} {} {} {}", part_name(claim.uid, i), pod, share.percent,
                      share.workload_class.empty() ? "-" : share.workload_class,
                      share.memory == 0 ? "-" : std::to_string(share.memory), share.uuid));
      if (!answer) return tl::unexpected(answer.error());
    }
  }
  prepared.told = daemon_;
  return {};
}

// What vitamind does not know yet, and what the file does not have.
hal::Status DraDriver::tell_and_keep(Prepared& prepared) {
  hal::Status told, kept;
  if (prepared.told != daemon_) told = tell(prepared);
  if (!prepared.kept) kept = files_.keep(prepared.claim);
  prepared.kept = kept.has_value();
  return told ? kept : told;
}

// --- the node --------------------------------------------------------------------------------

std::vector<ClaimableGpu> DraDriver::gpus_here() const {
  const NvidiaGpus present = nvidia_gpus(options_.nvidia_gpus);
  std::vector<ClaimableGpu> gpus;
  if (options_.gpus.empty())
    for (const std::string& uuid : present.uuids) gpus.push_back({uuid, 0});
  for (const ClaimableGpu& gpu : options_.gpus)  // a pool's nodes name their GPUs in one list
    if (is_here(gpu.uuid, present)) gpus.push_back(gpu);
  for (ClaimableGpu& gpu : gpus)
    if (gpu.memory == 0) gpu.memory = options_.gpu_memory;
  return gpus;
}

void DraDriver::say_absent() {
  const NvidiaGpus present = nvidia_gpus(options_.nvidia_gpus);
  for (const ClaimableGpu& gpu : options_.gpus)
    if (!is_here(gpu.uuid, present) && absent_.insert(gpu.uuid).second)
      say(fmt::format("{} is not published: this node has no such GPU in {}", gpu.uuid,
                      options_.nvidia_gpus));
}

void DraDriver::was_refused(ReadTimes& reads, const PodSigns& seen) const {
  reads.was_refused(seen, Clock::now(), milliseconds(options_.every_ms),
                    milliseconds(options_.api_every_ms));
}

// Of the claims that pods have, those whose file is damaged: tell_again() tells them then.
void DraDriver::recover_damaged() {
  const std::lock_guard lock(mutex_);
  if (damaged_.empty()) {
    not_damaged_.clear();
    damaged_reads_.clear();
    return;
  }
  std::set<ClaimName> known = not_damaged_;
  for (const auto& [uid, prepared] : prepared_)
    known.insert({prepared.claim.of_namespace, prepared.claim.name});
  for (const auto& [name, pods] : kubelet_.claims) {
    if (damaged_.empty()) return;
    if (known.contains(name)) continue;
    ReadTimes& reads = damaged_reads_[name];
    const PodSigns seen{.named = pods, .others = {}};
    if (!reads.is_due(seen, Clock::now())) continue;
    const auto object = claim_object(name);
    if (!object && is_silent(object.error())) return;
    was_refused(reads, seen);  // no longer so if it is known below
    if (!object && object.error().native != kNotFound) continue;  // 429, 503: it will be answered
    if (!object || !damaged_.contains(object->value(json::json_pointer("/metadata/uid"), ""))) {
      not_damaged_.insert(name);
      continue;
    }
    auto claim = allocated_here(*object);
    if (!claim) continue;
    if (!files_.keep(*claim)) return;
    const std::string uid = claim->uid;
    say(fmt::format("claim {}/{} was read again", name.first, name.second));
    prepared_.emplace(uid, Prepared{.claim = std::move(*claim)});
    damaged_.erase(uid);
  }
}

// UIDs of pods that have clients, of a status of vitamind.
std::set<std::string> DraDriver::pods_of_clients(const json& status) {
  std::set<std::string> pods;
  for (const json& client : status.value("clients", json::array()))
    pods.insert(client.value("pod_uid", ""));
  pods.erase("");
  return pods;
}

// Whether the API server answers.
bool DraDriver::read_again(Prepared& prepared, const PodSigns& seen) {
  AllocatedClaim& known = prepared.claim;
  const ClaimName name = {known.of_namespace, known.name};
  const auto now = read_claim(name, known.uid);
  if (!now) {
    if (!is_silent(now.error())) was_refused(prepared.reads, seen);
    return !is_silent(now.error());
  }
  // A kubelet that says nothing of claims leaves only the time.
  const milliseconds wait(kubelet_.claims.contains(name) ? options_.api_every_ms : 0);
  prepared.reads.was_read(seen, Clock::now(), wait);
  if (now->pods == known.pods) return true;
  known.pods = now->pods;
  prepared.told.clear();
  prepared.kept = false;
  return true;
}

// After a restart of vitamind every claim; else pods that a claim was reserved for later, of which
// the kubelet says nothing. `status`: of vitamind.
void DraDriver::tell_again(const json& status) {
  const std::lock_guard lock(mutex_);
  const std::set<std::string> pods = pods_of_clients(status);
  bool answers = true;  // the API server
  for (auto& [uid, prepared] : prepared_) {
    const AllocatedClaim& claim = prepared.claim;
    PodSigns seen{.named = {}, .others = pods};
    for (const std::string& pod : claim.pods) seen.others.erase(pod);
    if (const auto named = kubelet_.claims.find({claim.of_namespace, claim.name});
        named != kubelet_.claims.end())
      seen.named = named->second;
    const bool may_change = !claim.of_one_pod || claim.pods.empty();
    if (answers && may_change && prepared.reads.is_due(seen, Clock::now()))
      answers = read_again(prepared, seen);
    if (prepared.told == daemon_ && prepared.kept) continue;
    const std::string name = fmt::format("claim {}/{}", claim.of_namespace, claim.name);
    const auto done = tell_and_keep(prepared);
    say_once(&say, prepared.problem, done ? "" : name + ": " + done.error().message,
             name + ": vitamind knows it now");
  }
}

void DraDriver::look() {
  const auto status = tools::ask_daemon(options_.container.socket, "status");
  say_once(&say, told_daemon_, status ? "" : status.error().message + ": no GPU is published",
           "vitamind answers");
  {
    const std::lock_guard lock(mutex_);
    if (status) absence_ = tools::absence_code(*status);
    daemon_ = status ? fmt::format("{}", (*status)["daemon"]["epoch"].dump()) : "";
  }
  if (auto known = pod_resources(options_.pod_resources, {})) kubelet_ = std::move(*known);
  recover_damaged();
  if (status) tell_again(*status);
  say_absent();
  std::vector<ClaimableGpu> gpus;
  if (status) {
    for (const ClaimableGpu& gpu : gpus_here()) {
      const auto& devices = (*status)["devices"];
      const bool drained = std::any_of(devices.begin(), devices.end(), [&](const json& device) {
        return device["uuid"] == gpu.uuid && device["drained"] == true;
      });
      if (!drained) gpus.push_back(gpu);
    }
  }
  const auto now = Clock::now();
  if (registered_.exchange(false)) often_until_ = now + kAfterRegistration;
  if (now < next_list_ && now >= often_until_ && only_here(gpus) == in_slice_) return;
  const auto published = publish(gpus);
  say_once(&say, told_api_, published ? "" : published.error().message, "the GPUs are published");
}

// Those that neither a device plugin nor another driver offers.
std::vector<ClaimableGpu> DraDriver::only_here(const std::vector<ClaimableGpu>& gpus) {
  std::map<std::string, std::string> others;
  std::vector<ClaimableGpu> free;
  for (const ClaimableGpu& gpu : gpus) {
    const auto slice = slices_.find(gpu.uuid);
    std::string why = offered_as(kubelet_.others, gpu.uuid);
    if (!why.empty()) why = "offered as " + why;
    if (slice != slices_.end()) why = "published by " + slice->second;
    if (why.empty()) {
      free.push_back(gpu);
      continue;
    }
    if (others_[gpu.uuid] != why)
      say(fmt::format("{} is also {}, so not published by {}. Take it away from one of the two",
                      gpu.uuid, why, kDriver));
    others[gpu.uuid] = why;
  }
  others_ = std::move(others);
  return free;
}

hal::Status DraDriver::publish(const std::vector<ClaimableGpu>& gpus) {
  const std::string slices = std::string(kResourceApi) + "/resourceslices";
  const auto list = api_.get(slices + "?fieldSelector=spec.nodeName%3D" + options_.node);
  if (!list) return tl::unexpected(list.error());
  slices_ = published_by_others(*list);
  std::vector<ClaimableGpu> free = only_here(gpus);
  const std::string name = options_.node + "-" + kDriver;
  const json* now = nullptr;
  if (const auto items = list->find("items"); items != list->end())
    for (const json& slice : *items)
      if (slice["metadata"]["name"] == name) now = &slice;
  const auto written = now == nullptr ? write_slice(resource_slice(options_.node, free, 1), true)
                                      : update_slice(*now, free);
  if (!written) return written;
  in_slice_ = std::move(free);
  next_list_ = Clock::now() + milliseconds(options_.api_every_ms);
  return check_sharing(answered_);
}

hal::Status DraDriver::update_slice(const json& now, const std::vector<ClaimableGpu>& gpus) {
  const json& spec = now["spec"];
  const auto generation = spec["pool"].value("generation", std::uint64_t{0});
  ordered_json wanted = resource_slice(options_.node, gpus, generation);
  const json wanted_spec = wanted["spec"];
  // The API server writes quantities in its own way, and drops fields of features that are off.
  if (wanted_spec == spec || (spec == answered_ && wanted_spec == written_)) {
    answered_ = spec;
    written_ = wanted_spec;
    return {};
  }
  wanted["spec"]["pool"]["generation"] = generation + 1;
  wanted["metadata"]["resourceVersion"] = now["metadata"].value("resourceVersion", "");
  return write_slice(std::move(wanted), false);
}

hal::Status DraDriver::write_slice(ordered_json wanted, bool is_new) {
  const std::string slices = std::string(kResourceApi) + "/resourceslices";
  // A slice ends with its node.
  if (const auto node = api_.get("/api/v1/nodes/" + options_.node))
    wanted["metadata"]["ownerReferences"] =
        ordered_json::array({ordered_json{{"apiVersion", "v1"},
                                          {"kind", "Node"},
                                          {"name", options_.node},
                                          {"uid", (*node)["metadata"].value("uid", "")},
                                          {"controller", true}}});
  const auto answer =
      is_new ? api_.post(slices, wanted)
             : api_.put(slices + "/" + wanted["metadata"]["name"].get<std::string>(), wanted);
  if (!answer) return tl::unexpected(answer.error());
  written_ = wanted["spec"];
  answered_ = answer->value("spec", json());
  return {};
}

hal::Status DraDriver::run() {
  const std::string sockets[] = {options_.directory + "/dra.sock",
                                 options_.registry + "/" + kDriver + "-reg.sock"};
  look();
  while (!stopping_) {
    grpc::ServerBuilder builder;
    for (const std::string& socket : sockets) {
      ::unlink(socket.c_str());
      builder.AddListeningPort("unix://" + socket, grpc::InsecureServerCredentials());
    }
    builder.RegisterService(static_cast<dra_api::DRAPlugin::Service*>(this));
    builder.RegisterService(static_cast<pluginregistration::Registration::Service*>(this));
    const auto server = builder.BuildAndStart();
    if (server == nullptr)
      return hal::fail(hal::Errc::kUnavailable,
                       "cannot listen at " + sockets[0] + " and " + sockets[1]);
    // A kubelet that was set up anew may have emptied its directories.
    const auto there = [&] {
      return std::all_of(std::begin(sockets), std::end(sockets),
                         [](const std::string& socket) { return fs::exists(socket); });
    };
    do {
      for (std::uint32_t slept = 0; slept < options_.every_ms && !stopping_; slept += 20)
        std::this_thread::sleep_for(milliseconds(20));
      if (!stopping_) look();
    } while (!stopping_ && there());
    server->Shutdown(std::chrono::system_clock::now() + milliseconds(500));
  }
  return {};
}

}  // namespace vitamin::kubernetes
