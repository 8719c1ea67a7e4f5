// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/park.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/protocol/paths.h"
#include "hal/process_stat.h"
#include "hal/result.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/node/checkpoints.h"
#include "tools/vitamin/node/device_memory.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {

const char* const kParkFooter = R"(
The device memory of an idle process goes to host memory, until `vitamin resume` brings it back to
the same addresses. Its GPU calls wait meanwhile. PROCESS is its number, JOB a job, pod or program
as `vitamin status` shows it: all its processes.

Examples:
  vitamin park 4711                make room: the memory of process 4711 goes to the host
  vitamin park --timeout 5 train   unless its outstanding work takes longer than 5 s
  vitamin resume 4711              its memory comes back, its calls go on
  vitamin resume --timeout 60 train
      Wait until there is room for it, at most 60 s.

What it needs: an NVIDIA driver of CUDA 12.8 (570) or later, host memory for what moves, and the
same user or root. Not carried, and refused: clients of MPS, instances of MIG, communicators of
NCCL, open network adapters for RDMA, managed memory, IPC handles (of the process that made one and
of those that opened it).

Exit codes:
  0    done
  75   not now: the work did not end in time, or there is no room; nothing changed
  125  refused or failed: a line says why, and in which state the process is
)";

const char* const kResumeFooter = R"(
After `vitamin drain` WHICH is a device: a UUID, an index as `nvidia-smi` and `vitamin doctor`
count, or all. After `vitamin park` it is a process or a job.

Examples:
  vitamin resume all                 admit new clients on every device again
  vitamin resume 0                   on device 0
  vitamin resume 4711                bring the memory of process 4711 back
  vitamin resume --timeout 60 train  wait until there is room for it, at most 60 s
)";

namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr long kMostDevices = 64;  // a number below is the index of a device

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

hal::Error problem_with(pid_t process, const std::string& text,
                        hal::Errc code = hal::Errc::kInvalidArgument) {
  return {code, 0, fmt::format("process {}: {}", process, text)};
}

// A signal between the steps would leave the process locked.
class NoSignals {
 public:
  NoSignals() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

// --- which process ---------------------------------------------------------------------------

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 10 &&
         word.find_first_not_of("0123456789") == std::string::npos;
}

bool is_alive(pid_t process) {
  return ::access(fmt::format("/proc/{}", process).c_str(), F_OK) == 0;
}

// As the record of a parked process keeps it; empty: the process cannot be seen.
std::string start_of(pid_t process) {
  const auto stat = hal::process_stat(process);
  return stat ? std::to_string(stat->start) : std::string();
}

// Those of clients of vitamind that have this job, pod or program.
hal::Result<std::vector<pid_t>> processes_named(const ParkOptions& options) {
  if (is_number(options.which)) return std::vector<pid_t>{std::atoi(options.which.c_str())};
  const auto status = ask_daemon(daemon_socket(options.socket), "status");
  if (!status)
    return hal::fail(status.error().code,
                     fmt::format("'{}' is no number of a process, and vitamind, which knows jobs, "
                                 "cannot be asked: {}",
                                 options.which, status.error().message));
  std::vector<pid_t> found;
  for (const json& client : status->value("clients", json::array())) {
    const std::string job = client.value("job", ""), pod = client.value("pod", "");
    const bool named =
        job == options.which || job.starts_with(options.which + ".") ||
        client.value("program", "") == options.which ||
        (!pod.empty() &&
         (pod == options.which || client.value("namespace", "") + "/" + pod == options.which));
    const auto process = client.value("process", pid_t{0});
    if (named && std::find(found.begin(), found.end(), process) == found.end())
      found.push_back(process);
  }
  if (found.empty())
    return hal::fail(hal::Errc::kInvalidArgument,
                     fmt::format("no client of vitamind has the job, pod or program '{}': `vitamin "
                                 "status` shows them; a process without vitamind is named by its "
                                 "number",
                                 options.which));
  return found;
}

hal::Status check_owner(pid_t process) {
  struct stat facts {};
  if (process <= 0 || ::stat(fmt::format("/proc/{}", process).c_str(), &facts) != 0)
    return hal::fail(hal::Errc::kInvalidArgument,
                     fmt::format("there is no process {}: `vitamin status` and nvidia-smi show "
                                 "those that use a GPU",
                                 process));
  if (::geteuid() == 0 || ::geteuid() == facts.st_uid) return {};
  return tl::unexpected(problem_with(
      process,
      fmt::format("it belongs to user {}: only that user and root may do this", facts.st_uid)));
}

// --- what cannot be carried ------------------------------------------------------------------

bool maps_file(pid_t process, std::string_view part) {
  std::ifstream maps(fmt::format("/proc/{}/maps", process));
  for (std::string line; std::getline(maps, line);)
    if (line.find(part) != std::string::npos) return true;
  return false;
}

// What the first descriptor is whose path has `part`; empty: none. The process may end meanwhile.
std::string open_file(pid_t process, std::string_view part) {
  std::error_code over, closed;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", process), over), end;
       !over && at != end; at.increment(over)) {
    const std::string path = std::filesystem::read_symlink(at->path(), closed).native();
    if (path.find(part) != std::string::npos) return path;
  }
  return {};
}

std::optional<std::uint64_t> host_memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (std::uint64_t kib = 0; file >> name >> kib; file.ignore(64, '\n'))
    if (name == "MemAvailable:") return kib << 10;
  return std::nullopt;
}

// By vitamind, where NVML does not say.
bool is_client_with_mps(pid_t process, const std::string& socket) {
  const auto status = ask_daemon(daemon_socket(socket), "status");
  if (!status) return false;
  const json mps = status->value("mps", json::object());
  const bool shared = mps.value("state", "off") != "off" && !mps.value("directory", "").empty();
  const json clients = status->value("clients", json::array());
  return std::any_of(clients.begin(), clients.end(), [&](const json& client) {
    const std::string domain = client.value("domain", "");  // "process NUMBER" is outside of MPS
    return client.value("process", pid_t{0}) == process &&
           (domain.empty() ? shared : domain.starts_with("class "));
  });
}

std::optional<std::uint64_t> total_of(const std::vector<ProcessMemory>& memory) {
  std::optional<std::uint64_t> total;
  for (const ProcessMemory& each : memory)
    if (each.bytes) total = total.value_or(0) + *each.bytes;
  return total;
}

// Nothing is locked yet.
hal::Status check_carried(pid_t process, const std::string& socket,
                          const std::vector<ProcessMemory>& memory) {
  const bool mps =
      is_client_with_mps(process, socket) ||
      std::any_of(memory.begin(), memory.end(), [](const ProcessMemory& each) { return each.mps; });
  if (mps)
    return tl::unexpected(
        problem_with(process,
                     "it is a client of MPS, which checkpoints do not carry: run it without MPS "
                     "(mps.mode = \"off\" in vitamin.toml) to park it"));
  for (const ProcessMemory& each : memory) {
    if (each.mig)
      return tl::unexpected(problem_with(
          process, "it uses an instance of MIG, which checkpoints do not carry: end it instead"));
  }
  if (maps_file(process, "/dev/shm/nccl-"))
    return tl::unexpected(
        problem_with(process,
                     "it has communicators of NCCL, which checkpoints do not carry: destroy them "
                     "(ncclCommDestroy) first, or end it instead"));
  // Through it a network adapter may reach device memory at any time.
  if (const std::string adapter = open_file(process, "/dev/infiniband/uverbs"); !adapter.empty())
    return tl::unexpected(problem_with(
        process, fmt::format("it has a network adapter for RDMA open ({}), whose access to device "
                             "memory checkpoints do not carry: close it first, or end the process "
                             "instead",
                             adapter)));
  const auto bytes_needed = total_of(memory), available = host_memory_available();
  if (bytes_needed && available && *bytes_needed > *available)
    return tl::unexpected(
        problem_with(process,
                     fmt::format("it has {} of device memory and the host {} available: free host "
                                 "memory first",
                                 bytes(*bytes_needed), bytes(*available)),
                     hal::Errc::kUnavailable));
  return {};
}

// What the driver's refusal of a checkpoint may mean.
std::string refusal(const Checkpoints& driver, int error, const char* step) {
  const std::string name = driver.name_of(error);
  if (error == kNotSupported)
    return fmt::format(
        "the driver does not {} it ({}): it uses what checkpoints do not carry, such as managed "
        "memory, IPC handles (the driver does not say of which process), NCCL or MPS",
        step, name);
  if (error == kIllegalState)
    return fmt::format(
        "the driver says that it is in another state ({}): another program parks or "
        "resumes it",
        name);
  return fmt::format("the driver does not {} it ({})", step, name);
}

// --- what was parked -------------------------------------------------------------------------

// Per device, so that resume can see whether it fits before it asks the driver. Best effort.
std::filesystem::path record_of(pid_t process) {
  const std::string socket = ::geteuid() == 0 ? protocol::kSystemSocket : protocol::user_socket();
  return std::filesystem::path(socket).parent_path() / fmt::format("parked-{}.json", process);
}

void keep_record(pid_t process, const std::vector<ProcessMemory>& memory) {
  json devices = json::object();
  for (const ProcessMemory& each : memory)
    if (each.bytes) devices[each.device] = *each.bytes;
  const auto path = record_of(process);
  ::mkdir(path.parent_path().c_str(), 0700);  // there already: fine
  std::ofstream(path) << json{{"start", start_of(process)}, {"devices", devices}}.dump() << '\n';
}

// Which device has no room, by NVML.
std::optional<std::string> lacks_room(pid_t process) {
  std::ifstream file(record_of(process));
  const json record = json::parse(file, nullptr, false);
  if (!record.is_object() || record.value("start", "") != start_of(process)) return std::nullopt;
  const json devices = record.value("devices", json::object());
  for (const auto& [device, needed] : devices.items())
    if (const auto available = free_device_memory(device);
        available && needed.is_number() && *available < needed.get<std::uint64_t>())
      return fmt::format("it needs {} of {} and {} is free", bytes(needed.get<std::uint64_t>()),
                         device, bytes(*available));
  return std::nullopt;
}

// How many operations vitamind's client made so far; nothing: the process is none. One that is
// parked between two operations would keep its SMs from others.
std::optional<std::uint64_t> operations_of(const std::string& socket, pid_t process) {
  const auto status = ask_daemon(daemon_socket(socket), "status");
  if (!status) return std::nullopt;
  std::optional<std::uint64_t> operations;
  for (const json& client : status->value("clients", json::array()))
    if (client.value("process", pid_t{0}) == process)
      operations = operations.value_or(0) +
                   client.value("usage", json::object()).value("operations", std::uint64_t{0});
  return operations;
}

// vitamind shows who is parked, and gives away no reservation of one who is not. A process that is
// no client of it, and a vitamind of an earlier release, do not mind.
void tell_daemon(const std::string& socket, const char* verb, pid_t process) {
  (void)ask_daemon(daemon_socket(socket), fmt::format("{} {}", verb, process));
}

// --- the steps -------------------------------------------------------------------------------

struct Moved {
  pid_t process = 0;
  double seconds = 0;       // of the copy
  double lock_seconds = 0;  // park: until its work had ended
  std::optional<std::uint64_t> bytes;
};

// Locks a process; a client of vitamind when it made no operation for a while. kNotReady: it was
// not idle, and runs.
int lock_when_idle(const Checkpoints& driver, pid_t process, const ParkOptions& options) {
  constexpr std::chrono::milliseconds kIdle{100};
  const auto begin = steady_clock::now();
  const auto left = [&] { return options.seconds - seconds_since(begin); };
  while (left() > 0) {
    const auto before = operations_of(options.socket, process);
    if (before) std::this_thread::sleep_for(kIdle);
    if (before && operations_of(options.socket, process) != before) continue;
    if (const int error = driver.lock(process, std::max(left(), 1e-3)); error != kOk) return error;
    if (!before || operations_of(options.socket, process) == before) return kOk;
    if (const int error = driver.unlock(process); error != kOk) return error;
  }
  return kNotReady;
}

hal::Result<Moved> park_process(const Checkpoints& driver, pid_t process,
                                const ParkOptions& options) {
  if (const auto allowed = check_owner(process); !allowed) return tl::unexpected(allowed.error());
  const auto memory = memory_of_process(process);
  if (const auto carried = check_carried(process, options.socket, memory); !carried)
    return tl::unexpected(carried.error());
  const auto state = driver.state(process);
  if (!state)
    return tl::unexpected(problem_with(
        process,
        "the driver does not know it: it uses no GPU of this machine, or runs in another "
        "container"));
  if (*state == ProcessState::kParked) {
    tell_daemon(options.socket, "park-begin", process);  // it may have been started anew
    return tl::unexpected(
        problem_with(process, "it is parked already: `vitamin resume` ends that"));
  }
  if (*state != ProcessState::kRunning)
    return tl::unexpected(problem_with(process, text_of(*state)));
  const NoSignals blocked;
  Moved moved{process, 0, 0, total_of(memory)};
  const auto begin = steady_clock::now();
  if (const int error = lock_when_idle(driver, process, options); error != kOk) {
    const std::string why =
        error == kNotReady
            ? fmt::format(
                  "it was not idle within {:g} s: try again when it is, or with a longer "
                  "--timeout",
                  options.seconds)
            : refusal(driver, error, "lock");
    return tl::unexpected(
        problem_with(process, fmt::format("{}; {}", why, driver.now(process)),
                     error == kNotReady ? hal::Errc::kUnavailable : hal::Errc::kInternal));
  }
  moved.lock_seconds = seconds_since(begin);
  const auto locked = steady_clock::now();
  if (const int error = driver.checkpoint(process); error != kOk) {
    driver.unlock(process);
    return tl::unexpected(problem_with(
        process, fmt::format("{}; {}", refusal(driver, error, "checkpoint"), driver.now(process)),
        hal::Errc::kInternal));
  }
  moved.seconds = seconds_since(locked);
  keep_record(process, memory);
  tell_daemon(options.socket, "park-begin", process);
  if (driver.state(process) != ProcessState::kParked)  // resumed meanwhile
    tell_daemon(options.socket, "park-end", process);
  return moved;
}

// `moved.seconds`: of the try that succeeds.
int restore_within(const Checkpoints& driver, Moved& moved, double seconds, std::string& lacks) {
  const pid_t process = moved.process;
  const auto begin = steady_clock::now();
  for (;;) {
    const auto room = lacks_room(process);
    lacks = room.value_or("");
    const auto tried = steady_clock::now();
    const int error = room ? kOutOfMemory : driver.restore(process);
    moved.seconds = seconds_since(tried);
    if (error != kOutOfMemory || seconds_since(begin) >= seconds ||
        driver.state(process) != ProcessState::kParked)
      return error;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

hal::Result<Moved> resume_process(const Checkpoints& driver, pid_t process,
                                  const std::string& socket, double seconds) {
  if (const auto allowed = check_owner(process); !allowed) return tl::unexpected(allowed.error());
  const auto state = driver.state(process);
  const bool parked = state == ProcessState::kParked;
  if (!parked && state != ProcessState::kLocked) {
    // vitamind may not know: who resumed it may have ended before saying so.
    if (state != ProcessState::kFailed) tell_daemon(socket, "park-end", process);
    return tl::unexpected(
        problem_with(process, state == ProcessState::kFailed
                                  ? text_of(ProcessState::kFailed)
                                  : "it is not parked, so there is nothing to resume"));
  }
  const NoSignals blocked;
  Moved moved{process, 0, 0, std::nullopt};
  if (parked) {
    std::string lacks;
    if (const int error = restore_within(driver, moved, seconds, lacks); error != kOk) {
      if (lacks.empty()) lacks = "the device has no room for it";
      const std::string why =
          error == kOutOfMemory ? fmt::format(
                                      "{}: its memory is taken meanwhile; end or park what has it "
                                      "(nvidia-smi), then resume again",
                                      lacks)
                                : refusal(driver, error, "restore");
      if (driver.state(process) == ProcessState::kLocked) driver.unlock(process);
      return tl::unexpected(
          problem_with(process, fmt::format("{}; {}", why, driver.now(process)),
                       error == kOutOfMemory ? hal::Errc::kUnavailable : hal::Errc::kInternal));
    }
  }
  if (const int error = driver.unlock(process); error != kOk)
    return tl::unexpected(problem_with(
        process, fmt::format("{}; {}", refusal(driver, error, "unlock"), driver.now(process)),
        hal::Errc::kInternal));
  tell_daemon(socket, "park-end", process);
  std::error_code absent;
  std::filesystem::remove(record_of(process), absent);
  moved.bytes = parked ? total_of(memory_of_process(process)) : std::nullopt;
  return moved;
}

// --- the verbs -------------------------------------------------------------------------------

int refused(const hal::Error& error) {
  say(Problem::kPark, error.message);
  return error.code == hal::Errc::kUnavailable ? kExitLater : kExitFailed;
}

void show(const std::vector<Moved>& all, const char* state, bool as_json) {
  json list = json::array();
  for (const Moved& each : all) {
    const std::string program = program_of(each.process);
    const bool known = each.bytes && each.seconds > 0;
    const double rate = known ? static_cast<double>(*each.bytes) / each.seconds : 0;
    list.push_back({{"process", each.process},
                    {"program", program},
                    {"state", state},
                    {"bytes", each.bytes ? json(*each.bytes) : json()},
                    {"seconds", each.seconds},
                    {"lock_seconds", each.lock_seconds},
                    {"bytes_per_second", known ? json(rate) : json()}});
    if (as_json) continue;
    const std::string how_much =
        each.bytes ? fmt::format(": {} MiB", grouped(*each.bytes >> 20)) : "";
    const std::string how_fast = known        ? fmt::format(", {:.1f} GB/s", rate * 1e-9)
                                 : each.bytes ? ""
                                              : " (NVML does not say how much memory it has)";
    fmt::print("process {} ({}) {}{} in {:.2f} s{}\n", each.process, program, state, how_much,
               each.seconds, how_fast);
  }
  if (as_json) fmt::print("{}\n", json{{"schema", 1}, {"processes", list}}.dump(2));
}

// Each in turn; `undo` puts back those before one that fails.
template <class Step, class Undo>
int for_each_process(const ParkOptions& options, const char* state, Step step, Undo undo) {
  const auto processes = processes_named(options);
  if (!processes) {
    const bool unreachable = processes.error().code == hal::Errc::kUnavailable;
    say(unreachable ? Problem::kDaemonUnreachable : Problem::kPark, processes.error().message);
    return kExitFailed;
  }
  for (const pid_t process : *processes)  // before a driver is loaded
    if (const auto allowed = check_owner(process); !allowed) return refused(allowed.error());
  const auto driver = Checkpoints::load();
  if (!driver) {
    say(Problem::kPark, driver.error().message);
    return kExitFailed;
  }
  std::vector<Moved> done;
  for (const pid_t process : *processes) {
    const auto moved = step(*driver, process);
    if (!moved) {
      for (const Moved& each : done) undo(*driver, each.process);
      return refused(moved.error());
    }
    done.push_back(*moved);
  }
  show(done, state, options.json);
  return 0;
}

}  // namespace

int park(const ParkOptions& options) {
  return for_each_process(
      options, "parked",
      [&](const Checkpoints& driver, pid_t process) {
        return park_process(driver, process, options);
      },
      [&](const Checkpoints& driver, pid_t process) {
        (void)resume_process(driver, process, options.socket, 0);
      });
}

// Those that are resumed run: they are not parked again.
int unpark(const ParkOptions& options) {
  return for_each_process(
      options, "resumed",
      [&](const Checkpoints& driver, pid_t process) {
        return resume_process(driver, process, options.socket, options.seconds);
      },
      [](const Checkpoints&, pid_t) {});
}

bool names_device(const ParkOptions& options) {
  const std::string& which = options.which;
  if (which == "all" || which.starts_with("GPU-") || which.starts_with("MIG-")) return true;
  if (!is_number(which)) {
    const auto status = ask_daemon(daemon_socket(options.socket), "status");
    if (!status) return false;
    const json devices = status->value("devices", json::array());
    return std::any_of(devices.begin(), devices.end(),
                       [&](const json& device) { return device.value("uuid", "") == which; });
  }
  const int number = std::atoi(which.c_str());
  if (number >= kMostDevices) return false;
  if (!is_alive(number)) return true;
  const auto driver = Checkpoints::load();
  if (!driver) return true;
  const auto state = driver->state(number);
  return state != ProcessState::kParked && state != ProcessState::kLocked;
}

}  // namespace vitamin::tools
