// SPDX-License-Identifier: Apache-2.0
//
// vitamin status, explain, top, drain, resume: the daemon's view, for people and for machines.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/protocol/device_lock.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/node/device_memory.h"
#include "tools/vitamin/node/explain.h"
#include "tools/vitamin/node/probe.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;

std::uint64_t unsigned_of(const json& object, const char* name) {
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

// One cell a unit: the client that has it ('.': none; '+': several share it; '*': several have it
// for themselves, which only an overdue client causes). A grant that drains is marked by '-' in the
// line below.
std::string strip(const json& device) {
  const std::size_t units = device["processors_per_unit"].size();
  std::string cells(units, '.'), drains(units, ' ');
  std::vector<bool> shared(units, true);
  for (const json& hold : device["held"]) {
    const std::uint64_t set =
        hold.value("whole", false) ? ~std::uint64_t{0} : unsigned_of(hold, "units");
    const char who = letter(unsigned_of(hold, "client"));
    for (std::size_t unit = 0; unit < units; ++unit) {
      if ((set >> unit & 1) == 0) continue;
      shared[unit] = shared[unit] && hold.value("shared", false);
      cells[unit] = cells[unit] == '.' || cells[unit] == who ? who : shared[unit] ? '+' : '*';
      if (!hold.value("open", false)) drains[unit] = '-';
    }
  }
  return fmt::format("  [{}]\n   {}\n", cells, drains);
}

std::string seconds_text(const json& of, const char* name) {
  const auto seconds = of.find(name);
  if (seconds == of.end() || !seconds->is_number()) return "-";  // not measured
  return fmt::format("{:.1f}", seconds->get<double>());
}

// "25 % of user 1000" of the narrowest quota of SMs; "-": none.
std::string share_text(const json& client) {
  const auto shares = client.find("shares");
  if (shares == client.end() || shares->empty()) return "-";
  const auto least =
      std::min_element(shares->begin(), shares->end(), [](const auto& a, const auto& b) {
        return unsigned_of(a, "share") < unsigned_of(b, "share");
      });
  return fmt::format("{} % {}", unsigned_of(*least, "share"), least->value("whose", ""));
}

std::string device_text(const json& device) {
  std::string text = fmt::format("{}  {}  {} SMs, policy {}{}{}\n", device.value("uuid", ""),
                                 device.value("name", ""), unsigned_of(device, "processors"),
                                 device.value("policy", ""), domain_text(device),
                                 device.value("drained", false) ? ", takes no new client" : "");
  text += strip(device);
  text += fmt::format("  grants {}, moves {}, gates closed {}, waiting {}, overdue {}, stale {}\n",
                      grouped(unsigned_of(device, "grants")), grouped(unsigned_of(device, "moves")),
                      grouped(unsigned_of(device, "gates_closed")), unsigned_of(device, "waiting"),
                      unsigned_of(device, "overdue"), unsigned_of(device, "stale"));
  if (const auto others = device.find("not_clients"); others != device.end())
    for (const json& process : *others)
      text += fmt::format("  {} uses these SMs without vitamind\n",
                          protocol::name_of_process(process.get<pid_t>()));
  return text;
}

// Quotas of device memory: whose, how much of how much.
std::string memory_text(const json& status) {
  std::string text;
  const auto memory = status.find("memory");
  if (memory == status.end()) return text;
  for (const json& each : *memory) {
    const std::uint64_t processes = unsigned_of(each, "processes");
    const std::string workload_class = each.value("class", "");  // none: of a step or claim
    text += fmt::format("memory {}{} on {}: {} of {}, {} process{}\n", each.value("whose", ""),
                        workload_class.empty() ? "" : fmt::format(" (class {})", workload_class),
                        each.value("device", ""), bytes(unsigned_of(each, "used")),
                        bytes(unsigned_of(each, "quota")), processes, processes == 1 ? "" : "es");
  }
  return text.empty() ? text : text + "\n";
}

// The MPS servers of classes: one line each, and what a reader should act on.
std::string domains_text(const json& status) {
  std::string text;
  for (const json& domain : status.value("domains", json::array())) {
    const std::string begin = fmt::format("MPS of {}", domain.value("domain", ""));
    const std::uint64_t starts = unsigned_of(domain, "starts");
    text +=
        fmt::format("{}: {}, {} client{}{}\n", begin, domain.value("state", ""),
                    unsigned_of(domain, "clients"), unsigned_of(domain, "clients") == 1 ? "" : "s",
                    starts > 1 ? fmt::format(", restarted {} time{}, the last one {} ago",
                                             starts - 1, starts == 2 ? "" : "s",
                                             duration(unsigned_of(domain, "since_start_ns")))
                               : "");
    if (const std::string problem = domain.value("problem", ""); !problem.empty())
      text += fmt::format("{}: {}\n", begin, problem);
    if (const std::string fault = mps_fault_text(domain); !fault.empty())
      text += fmt::format("{}: {}\n", begin, fault);
  }
  return text;
}

// Only what a reader should act on.
std::string mps_text(const json& status) {
  const auto mps = status.find("mps");
  if (mps == status.end()) return {};
  std::string text;
  if (const std::string problem = mps->value("problem", ""); !problem.empty())
    text += fmt::format("MPS: {}\n", problem);
  if (const std::string fault = mps_fault_text(*mps); !fault.empty())
    text += fmt::format("MPS: {}\n", fault);
  text += domains_text(status);
  return text.empty() ? text : text + "\n";
}

// Which files are in force, and why a newer content of them is not. Empty: vitamind does not say.
std::string configuration_text(const json& status) {
  const json configuration = status.value("configuration", json::object());
  if (!configuration.contains("files")) return {};
  const auto files = configuration.value("files", std::vector<std::string>{});
  std::string text = fmt::format(
      "configuration  {}, read {} ago\n",
      files.empty() ? "of no file (what is built in)" : fmt::format("{}", fmt::join(files, ", ")),
      duration(unsigned_of(configuration, "since_read_ns")));
  std::string problem = configuration.value("problem", "");
  if (problem.empty()) return text;
  text += fmt::format(
      "               the reload {} ago failed, and the former content stays in force. Correct it "
      "and reload:\n",
      duration(unsigned_of(configuration, "since_problem_ns")));
  if (problem.back() == '\n') problem.pop_back();
  for (std::size_t at = 0; at != problem.npos; at = problem.find('\n', at + 1))
    problem.insert(problem[at] == '\n' ? at + 1 : at, "               ");
  return text + problem + "\n";
}

std::string status_text(const json& status) {
  const json& daemon = status["daemon"];
  std::string text =
      fmt::format("vitamind  process {}, up {}, at {}\n", unsigned_of(daemon, "process"),
                  duration(unsigned_of(daemon, "up_ns")), daemon.value("socket", ""));
  text += configuration_text(status) + "\n";
  for (const json& device : status["devices"]) text += device_text(device) + "\n";
  if (status["devices"].empty()) text += "No client has used a device yet.\n\n";
  text += memory_text(status);
  text += device_memory_text(status.value("device_memory", json::array()));
  text += mps_text(status);
  for (const std::string& user : eviction_texts(status)) text += user + "\n\n";
  // One format for the heading and the lines.
  constexpr std::string_view kLine =
      "  {}  {:>8} {:>8} {:>5} {:>8} {:>11} {:>11} {:>9} {:>9}  {:<11}  {:<19}  {}\n";
  text += fmt::format(kLine, " ", "client", "process", "user", "SMs now", "SM-seconds", "busy",
                      "waited", "memory", "class", "share", "program");
  for (const json& client : status["clients"]) {
    const json used = client.value("usage", json::object());
    const std::string workload = client.value("class", "");
    const auto memory = client.find("memory_bytes");
    const bool known = memory != client.end() && memory->is_number();
    text += fmt::format(
        kLine, letter(unsigned_of(client, "client")), unsigned_of(client, "client"),
        unsigned_of(client, "process"), unsigned_of(client, "user"),
        client.value("parked", false) ? "parked"
                                      : std::to_string(unsigned_of(client, "processors_now")),
        seconds_text(used, "sm_seconds"), seconds_text(used, "busy_sm_seconds"),
        seconds_text(used, "wait_seconds"),
        known ? bytes(unsigned_of(client, "memory_bytes")) : "-", workload.empty() ? "-" : workload,
        share_text(client), client.value("program", "") + container_text(client));
  }
  return text;
}

int failed(const hal::Error& error) {
  const char* const next =
      error.code == hal::Errc::kUnavailable
          ? " `vitamin run --daemon -- COMMAND` starts one of your own, `systemctl start vitamind` "
            "the machine's; --socket says where another one listens."
          : "";
  say(Problem::kDaemonUnreachable, fmt::format("{}.{}", error.message, next));
  return kExitFailed;
}

// On a screen a line is cleared to its end: a shorter one leaves nothing of what stood there.
std::string for_screen(const std::string& text) {
  std::string shown = "\033[H";
  for (const char c : text) {
    if (c == '\n') shown += "\033[K";
    shown += c;
  }
  return shown + "\033[J";
}

// The UUID of the device of this index, in the order of the PCI bus, as nvidia-smi counts.
hal::Result<std::string> uuid_of_index(const std::string& index) {
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const DriverFacts facts = probe_driver();
  if (facts.devices.empty())
    return hal::fail(hal::Errc::kInvalidArgument,
                     "an index names a device of the NVIDIA driver, and there is none here: give "
                     "the UUID that `vitamin status` shows");
  const std::size_t number = index.size() < 6 ? std::stoul(index) : facts.devices.size();
  if (number < facts.devices.size() && !facts.devices[number].uuid.empty())
    return facts.devices[number].uuid;
  return hal::fail(
      hal::Errc::kInvalidArgument,
      fmt::format("there is no device {}: the {} here count from 0", index, facts.devices.size()));
}

}  // namespace

int show_status(const std::string& socket, bool as_json) {
  auto status = ask_daemon(daemon_socket(socket), "status");
  if (!status) return failed(status.error());
  (*status)["device_memory"] = device_memory(*status);
  fmt::print("{}", as_json ? status->dump(2) + "\n" : status_text(*status));
  return 0;
}

int show_accounting(const std::string& socket, bool as_json) {
  const auto answer = ask_daemon(daemon_socket(socket), "accounting");
  if (!answer) return failed(answer.error());
  if (as_json) {
    fmt::print("{}\n", answer->dump(2));
    return 0;
  }
  // One format for the heading and the lines.
  constexpr std::string_view kLine =
      "{:<20}  {:>9} {:>8} {:>5} {:>11} {:>11} {:>9} {:>9} {:>10} {:>10} {:>11}  {:<11}  {:<19}  "
      "{:<12}  {}\n";
  fmt::print(kLine, "ended", "seconds", "process", "user", "SM-seconds", "busy", "held", "waited",
             "grants", "operations", "most memory", "class", "share", "job", "program");
  for (const json& client : (*answer)["clients"]) {
    const auto ended = static_cast<std::time_t>(client.value("ended", std::int64_t{0}));
    const auto text_of = [&](const char* name) {
      const std::string text = client.value(name, "");
      return text.empty() ? std::string("-") : text;
    };
    const auto memory = client.find("memory_peak_bytes");
    const bool known = memory != client.end() && memory->is_number();
    fmt::print(kLine, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(ended)),
               seconds_text(client, "seconds"), unsigned_of(client, "process"),
               unsigned_of(client, "user"), seconds_text(client, "sm_seconds"),
               seconds_text(client, "busy_sm_seconds"), seconds_text(client, "held_seconds"),
               seconds_text(client, "wait_seconds"), unsigned_of(client, "grants"),
               unsigned_of(client, "operations"),
               known ? bytes(unsigned_of(client, "memory_peak_bytes")) : "-", text_of("class"),
               share_text(client), text_of("job"),
               client.value("program", "") + container_text(client));
  }
  return 0;
}

int show_explanation(const std::string& socket, const std::string& which, bool as_json) {
  const auto status = ask_daemon(daemon_socket(socket), "status");
  if (!status) return failed(status.error());
  const auto explained = explain(*status, which);
  if (!explained) {
    say(explained.error().code == hal::Errc::kUnavailable ? Problem::kNoDecision : Problem::kUsage,
        explained.error().message + ".");
    return kExitFailed;
  }
  fmt::print("{}", as_json ? explained->dump(2) + "\n" : explanation_text(*explained));
  return 0;
}

int top(const std::string& socket, double seconds, int rounds) {
  watch_interrupts();
  const bool screen = ::isatty(STDOUT_FILENO) != 0;
  for (int round = 0; interrupted() == 0 && (rounds == 0 || round < rounds); ++round) {
    if (round > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const auto status = ask_daemon(daemon_socket(socket), "status");
    // One that answered before may be in the middle of being started again.
    if (!status && round == 0) return failed(status.error());
    const std::string text =
        status ? status_text(*status) : fmt::format("{}: waiting for it\n", status.error().message);
    fmt::print("{}", screen ? for_screen(text) : text + "\n");
    std::fflush(stdout);
  }
  return 0;
}

int set_drained(const std::string& socket, const std::string& device, bool drained, bool as_json) {
  std::string which = device;
  if (!device.empty() && device.find_first_not_of("0123456789") == std::string::npos) {
    const auto uuid = uuid_of_index(device);
    if (!uuid) {
      say(Problem::kUsage, uuid.error().message + ".");
      return kExitFailed;
    }
    which = *uuid;
  }
  const std::string verb = fmt::format("{} {}", drained ? "drain" : "resume", which);
  const auto answer = ask_daemon(daemon_socket(socket), verb);
  if (!answer) return failed(answer.error());
  const std::uint64_t devices = unsigned_of(*answer, "devices");
  const bool one = devices == 1;
  if (as_json) {
    fmt::print("{}\n", answer->dump(2));
    return 0;
  }
  fmt::print("{} device{} take{} {}\n", devices, one ? "" : "s", one ? "s" : "",
             drained ? "no new client; those that run go on" : "clients");
  return 0;
}

}  // namespace vitamin::tools
