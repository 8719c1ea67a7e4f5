// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/claim_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deploy/kubernetes/container.h"

namespace vitamin::kubernetes {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kPrefix = "claim-";

ordered_json to_json(const AllocatedClaim& claim) {
  ordered_json shares = ordered_json::array();
  for (const AllocatedShare& share : claim.shares)
    shares.push_back({{"request", share.request},
                      {"pool", share.pool},
                      {"device", share.device},
                      {"uuid", share.uuid},
                      {"id", share.id},
                      {"percent", share.percent},
                      {"memory", share.memory},
                      {"class", share.workload_class}});
  return {{"uid", claim.uid},   {"namespace", claim.of_namespace}, {"name", claim.name},
          {"pods", claim.pods}, {"of_one_pod", claim.of_one_pod},  {"shares", shares}};
}

// Throws what nlohmann throws.
AllocatedClaim from_json(const json& object) {
  AllocatedClaim claim{.uid = object.at("uid"),
                       .name = object.at("name"),
                       .of_namespace = object.at("namespace"),
                       .pods = object.at("pods"),
                       .of_one_pod = object.value("of_one_pod", false),
                       .shares = {}};
  for (const json& share : object.at("shares"))
    claim.shares.push_back({.request = share.at("request"),
                            .pool = share.at("pool"),
                            .device = share.at("device"),
                            .uuid = share.at("uuid"),
                            .id = share.value("id", ""),  // a driver before 0.2 kept none
                            .percent = share.at("percent"),
                            .memory = share.at("memory"),
                            .workload_class = share.at("class")});
  return claim;
}

}  // namespace

bool is_uid(const std::string& text) {
  return !text.empty() && text.size() <= 40 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
}

std::string ClaimFiles::file_of(const std::string& uid) const {
  return directory_ + "/" + kPrefix + uid + ".json";
}

ClaimFiles::Kept ClaimFiles::read(const std::function<void(const std::string&)>& say) const {
  Kept kept;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory_, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix) || entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    try {
      AllocatedClaim claim = from_json(json::parse(file));
      if (is_uid(claim.uid)) kept.claims.push_back(std::move(claim));
    } catch (const json::exception&) {
      const std::string stem = entry.path().stem();
      if (const std::string uid = stem.substr(std::strlen(kPrefix)); is_uid(uid))
        kept.damaged.insert(uid);
      say(entry.path().native() +
          " is damaged: its claim is read from the API server again if a pod has it");
    }
  }
  return kept;
}

hal::Status ClaimFiles::keep(const AllocatedClaim& claim) const {
  return write_file(file_of(claim.uid), to_json(claim).dump(2) + "\n");
}

}  // namespace vitamin::kubernetes
