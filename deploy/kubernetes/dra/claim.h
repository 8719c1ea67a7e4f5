// SPDX-License-Identifier: Apache-2.0
//
// The objects of resource.k8s.io/v1 as far as this driver reads and writes them: one GPU is one
// device that many claims share, with two consumable capacities, "share" (percent of its SMs) and,
// where the operator says how much there is, "memory". No I/O. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::kubernetes {

inline constexpr const char* kDriver = "vitamin.dev";
inline constexpr const char* kResourceApi = "/apis/resource.k8s.io/v1";

struct ClaimableGpu {
  std::string uuid;
  std::uint64_t memory = 0;  // bytes; 0: not said, and no capacity
  bool operator==(const ClaimableGpu&) const = default;
};

// "UUID" or "UUID=BYTES", the bytes as a quantity: "141Gi". Error: a text that is neither.
hal::Result<ClaimableGpu> claimable_gpu(const std::string& text);

// The memory of a GPU as bytes, of a quantity. Error: malformed, or less than 1 MiB, as "141" is.
hal::Result<std::uint64_t> gpu_memory(const std::string& text);

// A quantity of Kubernetes as a whole number: "25", "25k", "16Gi", "0.5Gi", "2e3". Error:
// malformed, negative, not whole or 2^63 and more.
hal::Result<std::uint64_t> quantity(const std::string& text);

// Name of a device: a DNS label, made of the UUID.
std::string device_name(const std::string& uuid);

// The ResourceSlice of a node.
nlohmann::ordered_json resource_slice(const std::string& node, std::span<const ClaimableGpu> gpus,
                                      std::uint64_t generation);

// UUIDs in slices of other drivers ("items" of a list), with the driver's name.
std::map<std::string, std::string> published_by_others(const nlohmann::json& slices);

// One device of a claim's allocation that is of this driver and this node.
struct AllocatedShare {
  std::string request;  // of the claim; "main/sub" for one of a list of alternatives
  std::string pool, device, uuid;
  std::string id;  // that the scheduler gave it, one of several of a device; empty: none
  std::uint32_t percent = 100;
  std::uint64_t memory = 0;    // bytes; 0: no bound
  std::string workload_class;  // of vitamin.toml; empty: none
};

struct AllocatedClaim {
  std::string uid, name, of_namespace;
  std::vector<std::string> pods;  // UIDs of those that the claim is reserved for
  bool of_one_pod = false;        // made from a template: no other pod ever uses it
  std::vector<AllocatedShare> shares;
};

// A class of vitamin.toml, as far as claims choose one.
struct ClaimableClass {
  std::string name;
  std::uint64_t tpot_ns = 0;  // what it promises; 0: nothing
};

// Reads a ResourceClaim that is allocated. Parameters (opaque, of this driver) are checked
// strictly:
//   {"apiVersion": "vitamin.dev/v1alpha1", "kind": "ShareParameters",
//    "class": NAME, "slo": "30ms", "isolation": "shared" | "exclusive"}
// `slo` chooses, where no class is named, the class with the longest target that still meets it.
// "exclusive" is an error unless the whole GPU was allocated. Error: a sentence that names the
// claim's field.
hal::Result<AllocatedClaim> allocated_claim(const nlohmann::json& claim, const std::string& node,
                                            std::span<const ClaimableGpu> gpus,
                                            std::span<const ClaimableClass> classes);

}  // namespace vitamin::kubernetes
