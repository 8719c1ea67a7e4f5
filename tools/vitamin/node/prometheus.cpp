// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/prometheus.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/protocol/fd.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;
using protocol::Fd;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kPrometheusTimeout{10};
constexpr std::size_t kAnswerMax = std::size_t{256} << 20;  // 1,000 nodes of 8 GPUs: 12 MiB

struct Address {
  std::string authority, host, port, path;  // authority: HOST[:PORT] as given
};

hal::Result<Address> address_of(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&](std::string_view why) {
    return hal::fail(hal::Errc::kInvalidArgument,
                     fmt::format("'{}' is no http://HOST:PORT of a Prometheus server{}", url, why));
  };
  if (url.starts_with("https://")) return wrong("; without TLS: name a proxy or a forwarded port");
  if (!url.starts_with(kScheme)) return wrong("");
  const std::size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  const std::string authority = url.substr(kScheme.size(), slash - kScheme.size());
  // A colon behind the brackets of an IPv6 address, if any.
  const std::size_t colon = authority.find(':', authority.rfind(']') + 1);
  std::string host = authority.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty() || colon + 1 == authority.size()) return wrong("");
  std::string path = url.substr(slash);
  while (path.ends_with('/')) path.pop_back();
  return Address{authority, host, colon == authority.npos ? "80" : authority.substr(colon + 1),
                 path};
}

std::string percent_encoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '_' || c == '-' || c == '.';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

// One HTTP exchange over one connection. The reason of a failure is the value of an error.
class Exchange {
 public:
  // What the peer sent until it closed the connection.
  tl::expected<std::string, std::string> run(const Address& address, const std::string& request) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
        error != 0)
      return tl::unexpected<std::string>(::gai_strerror(error));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
    until_ = steady_clock::now() + kPrometheusTimeout;
    int error = 0;
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      error = connect(*one);
      if (error == 0) break;
    }
    if (error == 0) error = send(request);
    if (error == 0) error = receive();
    if (error != 0) return tl::unexpected<std::string>(std::strerror(error));
    return std::move(answer_);
  }

 private:
  // 0 or ETIMEDOUT.
  int wait_for(short events) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - steady_clock::now());
    pollfd look{socket_.get(), events, 0};
    return left.count() > 0 && ::poll(&look, 1, static_cast<int>(left.count())) > 0 ? 0 : ETIMEDOUT;
  }
  int connect(const addrinfo& to) {
    socket_ = Fd(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_) return errno;
    if (::connect(socket_.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (const int late = wait_for(POLLOUT); late != 0) return late;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
  int send(std::string_view request) {
    while (!request.empty()) {
      if (const int late = wait_for(POLLOUT); late != 0) return late;
      const ssize_t sent = ::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL);
      if (sent >= 0)
        request.remove_prefix(static_cast<std::size_t>(sent));
      else if (errno != EAGAIN && errno != EINTR)
        return errno;
    }
    return 0;
  }
  int receive() {
    char piece[65536];
    while (answer_.size() < kAnswerMax) {
      if (const int late = wait_for(POLLIN); late != 0) return late;
      const ssize_t got = ::recv(socket_.get(), piece, sizeof piece, 0);
      if (got == 0) return 0;
      if (got > 0)
        answer_.append(piece, static_cast<std::size_t>(got));
      else if (errno != EAGAIN && errno != EINTR)
        return errno;
    }
    return EMSGSIZE;
  }

  steady_clock::time_point until_;
  Fd socket_;
  std::string answer_;
};

// Of an answer in the API's JSON; nothing where it is none.
std::optional<std::vector<PrometheusSample>> samples_of(const json& answer) {
  try {
    std::vector<PrometheusSample> samples;
    for (const json& one : answer.at("data").at("result")) {
      const std::string value = one.at("value").at(1);
      samples.push_back({one.at("metric").get<std::map<std::string, std::string>>(),
                         std::strtod(value.c_str(), nullptr)});
    }
    return samples;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

hal::Result<std::vector<PrometheusSample>> ask_prometheus(const std::string& url,
                                                          const std::string& expression) {
  const auto address = address_of(url);
  if (!address) return tl::unexpected(address.error());
  const auto failed = [&](std::string_view why) {
    return hal::fail(hal::Errc::kUnavailable, fmt::format("Prometheus at {} {}", url, why));
  };
  // Version 1.0: the answer comes in one piece and ends with the connection.
  const auto answer = Exchange().run(
      *address, fmt::format("GET {}/api/v1/query?query={} HTTP/1.0\r\nHost: {}\r\n\r\n",
                            address->path, percent_encoded(expression), address->authority));
  if (!answer) return failed(fmt::format("does not answer ({})", answer.error()));
  const std::size_t head = answer->find("\r\n\r\n");
  if (!answer->starts_with("HTTP/1.") || head == answer->npos)
    return failed("answers something that is no HTTP");
  const json body = json::parse(std::string_view(*answer).substr(head), nullptr, false);
  auto samples = samples_of(body);
  if (const std::string status = answer->substr(0, answer->find("\r\n"));
      status.find(" 200") == status.npos || !samples)
    return failed(fmt::format("answers {}, and no samples: {}", status,
                              body.is_discarded() ? "no JSON" : body.dump().substr(0, 200)));
  return std::move(*samples);
}

}  // namespace vitamin::tools
