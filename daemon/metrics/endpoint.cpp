// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/endpoint.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "daemon/protocol/answer.h"

namespace vitamin::daemon {
namespace {

using protocol::Fd;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kRequestMax = 8192;
// For each of reading a request, asking vitamind, and sending the answer.
constexpr milliseconds kScrapeTimeout{2000};

struct Listener {
  Fd fd;
  std::string where;
};

tl::unexpected<hal::Error> cannot(const std::string& address, const char* why) {
  return hal::fail(hal::Errc::kInvalidArgument,
                   fmt::format("the metrics cannot be served at {} ({})", address, why));
}

hal::Result<Listener> listen_unix(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) return cannot(path, "the path is too long");
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  // Remove a stale socket, at which no process listens; keep anything else.
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode)) {
    const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(probe.get(), address, sizeof name) != 0 && errno == ECONNREFUSED)
      ::unlink(path.c_str());
  }
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), address, sizeof name) != 0 || ::listen(fd.get(), 16) != 0)
    return cannot(path, std::strerror(errno));
  return Listener{std::move(fd), path};
}

hal::Result<Listener> listen_tcp(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = colon == address.npos ? "127.0.0.1" : address.substr(0, colon);
  const std::string port = colon == address.npos ? address : address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoi(port) > 65535)
    return cannot(address, "use PORT, HOST:PORT or the path of a socket");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return cannot(address, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), 16) != 0)
    return cannot(address, std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  char text[16] = "";
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0)
    ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, text, sizeof text,
                  NI_NUMERICSERV);
  return Listener{std::move(fd), fmt::format("http://{}:{}/metrics", host, text)};
}

// sd_listen_fds(3): the first passed descriptor is 3.
hal::Result<Listener> listen_inherited() {
  const char* const pid = std::getenv("LISTEN_PID");
  const char* const count = std::getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::atoi(pid) != ::getpid() || std::atoi(count) < 1)
    return cannot("systemd", "the service manager passed no socket");
  return Listener{Fd(3), "the service manager's socket"};
}

// False: closed, too slow or too long.
bool read_request(int fd, std::string& request) {
  const auto until = steady_clock::now() + kScrapeTimeout;
  while (request.find("\r\n\r\n") == request.npos && request.find("\n\n") == request.npos) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    pollfd waits{fd, POLLIN, 0};
    if (left.count() <= 0 || request.size() > kRequestMax ||
        ::poll(&waits, 1, static_cast<int>(left.count())) <= 0)
      return false;
    char bytes[2048];
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    request.append(bytes, static_cast<std::size_t>(n));
  }
  return true;
}

void write_all(int fd, std::string_view text) {
  const auto until = steady_clock::now() + kScrapeTimeout;
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    pollfd waits{fd, POLLOUT, 0};
    if (n == 0 || (errno != EAGAIN && errno != EINTR) || left.count() <= 0 ||
        ::poll(&waits, 1, static_cast<int>(left.count())) <= 0)
      return;
  }
}

// Empty: the daemon did not answer.
std::string metrics_of(const std::string& daemon) {
  const auto text = protocol::ask(daemon, "metrics", kScrapeTimeout);
  if (!text) return "";
  const auto answer = nlohmann::json::parse(*text, nullptr, false);
  return answer.is_object() ? answer.value("text", "") : "";
}

std::string response(std::string_view status, std::string_view body, bool head) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), head ? std::string_view() : body);
}

std::string answer(const std::string& request, const std::string& daemon) {
  const std::string line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' ');
  const std::string method = line.substr(0, first);
  const std::size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos) return response("400 Bad Request", "not HTTP\n", false);
  std::string path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  const bool head = method == "HEAD";
  if (method != "GET" && !head) return response("405 Method Not Allowed", "GET only\n", head);
  if (path == "/") return response("200 OK", "vitamind: see /metrics\n", head);
  if (path != "/metrics") return response("404 Not Found", "see /metrics\n", head);
  const std::string text = metrics_of(daemon);
  if (text.empty()) return response("503 Service Unavailable", "vitamind does not answer\n", head);
  return response("200 OK", text, head);
}

}  // namespace

hal::Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::start(const std::string& address,
                                                                     const std::string& daemon) {
  auto listener = address == "systemd"                     ? listen_inherited()
                  : address.find('/') != std::string::npos ? listen_unix(address)
                                                           : listen_tcp(address);
  if (!listener) return tl::unexpected(listener.error());
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::move(listener->fd), std::move(listener->where), daemon));
}

MetricsEndpoint::MetricsEndpoint(Fd listener, std::string where, std::string daemon)
    : listener_(std::move(listener)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      where_(std::move(where)),
      daemon_(std::move(daemon)),
      thread_([this] { run(); }) {}

MetricsEndpoint::~MetricsEndpoint() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
  if (where_.front() == '/') ::unlink(where_.c_str());
}

void MetricsEndpoint::run() {
  for (;;) {
    pollfd waits[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[1].revents != 0) return;
    if (waits[0].revents == 0) continue;
    const Fd scraper(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!scraper) continue;
    std::string request;
    if (read_request(scraper.get(), request)) write_all(scraper.get(), answer(request, daemon_));
  }
}

}  // namespace vitamin::daemon
