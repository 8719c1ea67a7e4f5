// SPDX-License-Identifier: Apache-2.0
//
// vitamin status, top, drain, resume: the daemon's view, for people and for machines.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "protocol/device_lock.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;

std::uint64_t number(const json& object, const char* name) {
  return object.value(name, std::uint64_t{0});
}

// " (namespace/pod/container)" of a client in a container; empty: in none.
std::string container_text(const json& client) {
  const std::string id = client.value("container_id", ""), pod = client.value("pod", "");
  if (id.empty()) return "";
  if (pod.empty()) return " (container " + id.substr(0, 12) + ")";
  return " (" + client.value("namespace", "") + "/" + pod + "/" + client.value("container", "") +
         ")";
}

// One letter for each client, by its number: a, b, ... z, A, ... Z, then again.
char letter(std::uint64_t client) {
  const auto index = static_cast<int>((client - 1) % 52);
  return static_cast<char>(index < 26 ? 'a' + index : 'A' + index - 26);
}

// One cell a unit: who holds it ('.': nobody, '*': several, which only an overdue client causes).
// A lease that drains is marked by '-' in the line below.
std::string strip(const json& device) {
  const std::size_t units = device["processors_per_unit"].size();
  std::string cells(units, '.'), drains(units, ' ');
  for (const json& hold : device["held"]) {
    if (hold.value("whole", false)) continue;
    const std::uint64_t set = number(hold, "units");
    const char who = letter(number(hold, "client"));
    for (std::size_t unit = 0; unit < units; ++unit) {
      if ((set >> unit & 1) == 0) continue;
      cells[unit] = cells[unit] == '.' || cells[unit] == who ? who : '*';
      if (!hold.value("open", false)) drains[unit] = '-';
    }
  }
  return fmt::format("  [{}]\n   {}\n", cells, drains);
}

std::string device_text(const json& device) {
  std::string text = fmt::format("{}  {}  {} processors, policy {}{}\n", device.value("uuid", ""),
                                 device.value("name", ""), number(device, "processors"),
                                 device.value("policy", ""),
                                 device.value("drained", false) ? ", takes no new client" : "");
  text += strip(device);
  text += fmt::format("  grants {}, moves {}, gates closed {}, waiting {}, overdue {}, stale {}\n",
                      grouped(number(device, "grants")), grouped(number(device, "moves")),
                      grouped(number(device, "gates_closed")), number(device, "waiting"),
                      number(device, "overdue"), number(device, "stale"));
  if (const auto others = device.find("not_clients"); others != device.end())
    for (const json& process : *others)
      text += fmt::format("  {} decides for itself alone and takes these processors, too\n",
                          protocol::name_of_process(process.get<pid_t>()));
  return text;
}

// Only what somebody should know.
std::string mps_text(const json& status) {
  const auto mps = status.find("mps");
  if (mps == status.end()) return {};
  std::string text;
  if (const std::string problem = mps->value("problem", ""); !problem.empty())
    text += fmt::format("MPS: {}\n", problem);
  if (const std::string fault = mps_fault_text(*mps); !fault.empty())
    text += fmt::format("MPS: {}\n", fault);
  return text.empty() ? text : text + "\n";
}

std::string status_text(const json& status) {
  const json& daemon = status["daemon"];
  std::string text =
      fmt::format("vitamind  process {}, up {}, at {}\n\n", number(daemon, "process"),
                  duration(number(daemon, "up_ns")), daemon.value("socket", ""));
  for (const json& device : status["devices"]) text += device_text(device) + "\n";
  if (status["devices"].empty()) text += "No client has used a device yet.\n\n";
  text += mps_text(status);
  for (const std::string& user : let_go_texts(status)) text += user + "\n\n";
  text += "       client  process  user    on parts  whole  program\n";
  for (const json& client : status["clients"]) {
    std::size_t narrow = 0, whole = 0;
    for (const json& device : status["devices"])
      for (const json& hold : device["held"])
        if (number(hold, "client") == number(client, "client"))
          ++(hold.value("whole", false) ? whole : narrow);
    text +=
        fmt::format("  {}  {:>8} {:>8} {:>5} {:>11} {:>6}  {}\n", letter(number(client, "client")),
                    number(client, "client"), number(client, "process"), number(client, "user"),
                    narrow, whole, client.value("program", "") + container_text(client));
  }
  return text;
}

int failed(const hal::Error& error) {
  say(Problem::kDaemonUnreachable, fmt::format("{}.", error.message));
  return kExitFailed;
}

}  // namespace

int show_status(const std::string& socket, bool as_json) {
  const auto status = ask_daemon(daemon_socket(socket), "status");
  if (!status) return failed(status.error());
  fmt::print("{}", as_json ? status->dump(2) + "\n" : status_text(*status));
  return 0;
}

int top(const std::string& socket, double seconds, int rounds) {
  watch_interrupts();
  const bool screen = ::isatty(STDOUT_FILENO) != 0;
  for (int round = 0; interrupted() == 0 && (rounds == 0 || round < rounds); ++round) {
    if (round > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const auto status = ask_daemon(daemon_socket(socket), "status");
    if (!status) return failed(status.error());
    // Home, the text, clear to the end: no flicker.
    fmt::print("{}{}{}", screen ? "\033[H" : "", status_text(*status), screen ? "\033[J" : "\n");
    std::fflush(stdout);
  }
  return 0;
}

int set_drained(const std::string& socket, const std::string& device, bool drained) {
  const std::string verb = fmt::format("{} {}", drained ? "drain" : "resume", device);
  const auto answer = ask_daemon(daemon_socket(socket), verb);
  if (!answer) return failed(answer.error());
  fmt::print("{} devices {}\n", number(*answer, "devices"),
             drained ? "take no new client; those that run go on" : "take clients");
  return 0;
}

}  // namespace vitamin::tools
