// SPDX-License-Identifier: Apache-2.0
//
// The few calls of the Kubernetes API that the DRA driver makes: JSON over HTTP, one connection a
// call. Thread-safe: const after construction.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "hal/result.h"

namespace vitamin::kubernetes {

class ApiServer {
 public:
  struct Options {
    std::string url;         // "https://10.96.0.1:443"
    std::string token_file;  // of the service account; read for each call, since it changes
    std::string ca_file;     // empty: the system's
  };
  explicit ApiServer(Options options) : options_(std::move(options)) {}

  // As a pod of the cluster finds it; an empty URL outside of any.
  static Options in_cluster();

  // The object that the server answered. Error: a sentence with the status, which is the
  // error's native value too; that is 0 where there was no answer.
  hal::Result<nlohmann::json> get(const std::string& path) const;
  hal::Result<nlohmann::json> post(const std::string& path,
                                   const nlohmann::ordered_json& object) const;
  hal::Result<nlohmann::json> put(const std::string& path,
                                  const nlohmann::ordered_json& object) const;

 private:
  hal::Result<nlohmann::json> call(const std::string& method, const std::string& path,
                                   const std::string& body) const;
  const Options options_;
};

}  // namespace vitamin::kubernetes
