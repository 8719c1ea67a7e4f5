// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/mps_client.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

namespace vitamin::soft::driver {
namespace {

struct Server {
  long number = 0;
  int fault = kOk;
  std::vector<long> clients;
};

// Its clients change the file one at a time.
class Lock {
 public:
  explicit Lock(const std::string& directory)
      : file_(
            ::open((directory + "/soft-server.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (file_ >= 0) ::flock(file_, LOCK_EX);
  }
  ~Lock() {
    if (file_ >= 0) ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

std::optional<Server> read_server(const std::string& directory) {
  std::ifstream file(directory + "/soft-server");
  Server server;
  if (!(file >> server.number >> server.fault)) return std::nullopt;
  for (long client = 0; file >> client;) server.clients.push_back(client);
  return server;
}

void write_server(const std::string& directory, const Server& server) {
  const std::string path = directory + "/soft-server", made = path + ".new";
  {
    std::ofstream file(made, std::ios::trunc);
    file << server.number << ' ' << server.fault << '\n';
    for (const long client : server.clients) file << client << '\n';
  }
  ::rename(made.c_str(), path.c_str());
}

// A process that has ended and was not waited for is no client any more.
bool runs(long process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");
  return end != text.npos && end + 2 < text.size() && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

bool control_answers(const std::string& directory) {
  const std::string path = directory + "/control";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const int connection = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool answers =
      connection >= 0 &&
      ::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (connection >= 0) ::close(connection);
  return answers;
}

// What MPS writes (daemon/mps/log.h).
void write_log(const std::string& directory, const Server& server) {
  const std::string begin =
      "[2026-11-22 17:50:31.901 Server " + std::to_string(server.number) + "] ";
  std::ostringstream text;
  text << begin << "Client {PID: " << ::getpid() << ", Context: 1} encountered a fatal GPU error.\n"
       << begin << "Server is handling a fatal GPU error.\n"
       << begin << "The following client process have a sticky error set:\n";
  for (const long client : server.clients) text << begin << client << '\n';
  text << begin << "Server has handled the error\n";
  std::ofstream(directory + "/server.log", std::ios::app) << text.str();
}

}  // namespace

bool MpsClient::join(const std::string& directory, std::vector<Engine*> engines,
                     std::unique_ptr<MpsClient>& client) {
  if (!control_answers(directory)) return true;
  const Lock lock(directory);
  Server server = read_server(directory).value_or(Server{});
  std::erase_if(server.clients, [](long process) { return !runs(process); });
  if (server.fault != kOk && !server.clients.empty()) return false;
  if (server.clients.empty()) server = {::getpid(), kOk, {}};
  server.clients.push_back(::getpid());
  write_server(directory, server);
  client.reset(new MpsClient(directory, std::move(engines), server.number));
  return true;
}

MpsClient::MpsClient(std::string directory, std::vector<Engine*> engines, long server)
    : directory_(std::move(directory)), engines_(std::move(engines)), server_(server) {
  for (Engine* const engine : engines_) engine->on_fault([this](Status status) { report(status); });
  watcher_ = std::thread([this] { watch(); });
}

MpsClient::~MpsClient() {
  for (Engine* const engine : engines_) engine->on_fault({});
  over_ = true;
  watcher_.join();
}

void MpsClient::watch() {
  while (!over_) {
    const auto server = read_server(directory_);
    Status lost = kOk;
    if (!server || server->number != server_)
      lost = kLaunchFailure;
    else if (server->fault != kOk)
      lost = static_cast<Status>(server->fault);
    if (lost != kOk) {
      for (Engine* const engine : engines_) engine->lose_context(lost);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void MpsClient::report(Status status) {
  const Lock lock(directory_);
  auto server = read_server(directory_);
  if (!server || server->number != server_ || server->fault != kOk) return;
  std::erase_if(server->clients, [](long process) { return !runs(process); });
  server->fault = status;
  write_log(directory_, *server);
  write_server(directory_, *server);
}

}  // namespace vitamin::soft::driver
