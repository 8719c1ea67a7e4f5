// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/api_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <cstdlib>
#include <fstream>

namespace vitamin::kubernetes {

using nlohmann::json;

ApiServer::Options ApiServer::in_cluster() {
  // Mounted into every pod that has a service account's token.
  const std::string directory = "/var/run/secrets/kubernetes.io/serviceaccount";
  const char *const host = std::getenv("KUBERNETES_SERVICE_HOST"), *const port = std::getenv(
                                                                       "KUBERNETES_SERVICE_PORT");
  Options options;
  if (host == nullptr || port == nullptr) return options;
  const std::string address = host;
  const bool six = address.find(':') != address.npos;
  options.url = "https://" + (six ? "[" + address + "]" : address) + ":" + port;
  options.token_file = directory + "/token";
  options.ca_file = directory + "/ca.crt";
  return options;
}

hal::Result<json> ApiServer::get(const std::string& path) const { return call("GET", path, ""); }

hal::Result<json> ApiServer::post(const std::string& path,
                                  const nlohmann::ordered_json& object) const {
  return call("POST", path, object.dump());
}

hal::Result<json> ApiServer::put(const std::string& path,
                                 const nlohmann::ordered_json& object) const {
  return call("PUT", path, object.dump());
}

hal::Result<json> ApiServer::call(const std::string& method, const std::string& path,
                                  const std::string& body) const {
  httplib::Client client(options_.url);
  client.set_connection_timeout(5);
  client.set_read_timeout(10);
  if (!options_.ca_file.empty()) client.set_ca_cert_path(options_.ca_file.c_str());
  httplib::Request request;
  request.method = method;
  request.path = path;
  request.set_header("Accept", "application/json");
  if (!options_.token_file.empty()) {
    std::ifstream file(options_.token_file);
    std::string token;
    std::getline(file, token);
    request.set_header("Authorization", "Bearer " + token);
  }
  if (!body.empty()) {
    request.set_header("Content-Type", "application/json");
    request.body = body;
  }
  const httplib::Result answer = client.send(request);
  if (!answer)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("the API server at {} does not answer: {}", options_.url,
                                 httplib::to_string(answer.error())));
  json object = json::parse(answer->body, nullptr, false);
  if (answer->status / 100 != 2) {
    const std::string why = object.is_object() ? object.value("message", "") : "";
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("the API server answers {} to {} {}{}{}", answer->status, method,
                                 path.substr(0, path.find('?')), why.empty() ? "" : ": ", why),
                     answer->status);
  }
  if (!object.is_object())
    return hal::fail(hal::Errc::kUnavailable, "the API server answers something that is no JSON");
  return object;
}

}  // namespace vitamin::kubernetes
