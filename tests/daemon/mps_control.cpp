// SPDX-License-Identifier: Apache-2.0
//
// A fake of nvidia-cuda-mps-control, which behaves as its manual describes.
//
// -d starts a control daemon in $CUDA_MPS_PIPE_DIRECTORY (pid file, a socket named control). Else
// each line of standard input is a command for that daemon, with its answer on standard output,
// exit code 1 when there is none. The test writes to the file `world` there which servers and
// clients exist: {"servers": {"PID": {"status": "ACTIVE", "clients": [1]}}}. Programs over the
// software driver are clients, too (backends/soft/libcuda/mps_client.h). vitamind starts it for
// every question.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "hal/process_stat.h"

namespace {

struct Server {
  std::string status;
  std::vector<int> clients;
};

// Of a file in the pipe directory.
std::string path(const std::string& name) {
  const char* const directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return std::string(directory != nullptr ? directory : ".") + "/" + name;
}

bool runs(int process) {
  const auto stat = vitamin::hal::process_stat(process);
  return stat && stat->state != 'Z' && stat->state != 'X';
}

nlohmann::json world() {
  std::ifstream file(path("world"));
  auto told = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return told.is_object() ? told : nlohmann::json::object();
}

std::map<std::string, Server> servers() {
  std::map<std::string, Server> all;
  const auto told = world().value("servers", nlohmann::json::object());
  for (const auto& [number, server] : told.items())
    all[number] = {server.at("status"), server.at("clients")};
  std::ifstream file(path("soft-server"));
  std::string number, fault;
  Server soft;
  if (file >> number >> fault)
    for (int client = 0; file >> client;)
      if (runs(client)) soft.clients.push_back(client);
  soft.status = fault == "0" ? "ACTIVE" : "FAULT";
  if (!soft.clients.empty()) all[number] = soft;  // it ends with its last client, after a fault too
  return all;
}

std::string answer(const std::string& command) {
  std::ofstream(path("commands"), std::ios::app) << command << "\n";
  std::istringstream words(command);
  std::string verb, number, process, said;
  words >> verb >> number >> process;
  const auto all = servers();
  const auto found = all.find(number);
  const Server server = found == all.end() ? Server() : found->second;
  if (verb == "get_server_list") {
    for (const auto& [each, _] : all) said += each + "\n";
  } else if (verb == "get_server_status") {
    said = (found == all.end() ? "Server not found" : server.status) + "\n";
  } else if (verb == "get_client_list") {
    for (const int client : server.clients) said += std::to_string(client) + "\n";
  } else if (verb == "terminate_client") {
    const bool known = std::any_of(server.clients.begin(), server.clients.end(),
                                   [&](int client) { return std::to_string(client) == process; });
    if (!known) said = "Client not found\n";
  } else if (verb == "get_default_active_thread_percentage") {
    said = world().value("share", "100.0") + "\n";
  } else if (!verb.empty() && verb != "quit") {
    said = "Unrecognized command: " + verb + "\n";
  }
  return said;
}

sockaddr_un control() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path("control").c_str(), sizeof address.sun_path - 1);
  return address;
}

int connected() {
  const sockaddr_un address = control();
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return file;
  ::close(file);
  return -1;
}

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

int listener() {
  const sockaddr_un address = control();
  ::unlink(address.sun_path);
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(file, 64) != 0)
    fail("Cannot listen");
  return file;
}

void serve() {
  if (world().contains("refuse")) fail("Cannot find MPS control daemon's device");
  if (connected() >= 0) fail("An instance of this daemon is already running");
  const int file = listener();
  if (::daemon(/*nochdir=*/1, /*noclose=*/0) != 0) std::_Exit(1);
  std::ofstream(path("nvidia-cuda-mps-control.pid")) << ::getpid();
  ::unlink(path("world").c_str());  // a new daemon has no servers yet
  ::signal(SIGPIPE, SIG_IGN);
  for (;;) {
    const int connection = ::accept4(file, nullptr, nullptr, SOCK_CLOEXEC);
    char command[4096] = {};
    if (connection < 0 || ::read(connection, command, sizeof command - 1) <= 0) {
      ::close(connection);
      continue;
    }
    std::string said = answer(std::string(command, std::strcspn(command, "\n")));
    if (said.empty()) said = " ";
    if (::write(connection, said.data(), said.size()) < 0) std::perror("write");
    ::close(connection);
    if (std::strncmp(command, "quit", 4) == 0) {
      ::unlink(path("soft-server").c_str());
      ::unlink(path("control").c_str());
      std::_Exit(0);
    }
  }
}

void ask() {
  for (std::string line; std::getline(std::cin, line);) {
    const int file = connected();
    line += "\n";
    char said[4096];
    if (file < 0 || ::write(file, line.data(), line.size()) < 0)
      fail("Cannot find MPS control daemon process");
    const ssize_t size = ::read(file, said, sizeof said);
    if (size < 0) fail("Cannot find MPS control daemon process");
    if (size > 0 && said[0] != ' ') std::cout.write(said, size);
    ::close(file);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  if (count == 2 && std::strcmp(arguments[1], "-d") == 0)
    serve();
  else
    ask();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "mps_control: %s\n", error.what());
  return 1;
}
