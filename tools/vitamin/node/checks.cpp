// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/config/load.h"
#include "daemon/config/mps_hazards.h"
#include "daemon/protocol/device_lock.h"
#include "daemon/protocol/paths.h"
#include "hal/device.h"
#include "runtime/pool/layout.h"
#include "tools/vitamin/daemon_client.h"

namespace vitamin::tools {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

Check check_configuration(const config::Loaded& loaded) {
  if (!loaded.valid())
    return {"config", Verdict::kBad,
            fmt::format("{} problem(s), the first: {}. Nothing of it is used; see `vitamin config "
                        "check`.",
                        loaded.problems.size(), config::text_of(loaded.problems.front(), false))};
  if (loaded.files.empty())
    return {"config", Verdict::kGood, "no vitamin.toml: the built-in values hold"};
  return {"config", Verdict::kGood, fmt::format("{}", fmt::join(loaded.files, ", "))};
}

// A device's pool as vitamind has cut it.
Check check_pool(const nlohmann::json& device) {
  hal::DeviceInfo info;
  info.uuid = device.value("uuid", "");
  info.name = device.value("name", "");
  info.sms = device.value("processors", 0U);
  info.sms_per_unit = device.value("processors_per_unit", std::vector<std::uint32_t>{});
  const auto limits =
      config::load(config::sources("", {})).configuration.for_device(info.uuid, info.name).pool;
  const auto layout = runtime::PoolLayout::build(info, limits);
  if (layout.size() <= 1)
    return {"pool", Verdict::kBad,
            fmt::format("{} has no partition but the whole device: pool.leaf_units is {}, and the "
                        "device has {} units. Lower it and restart vitamind.",
                        info.uuid, limits.leaf_units, info.units())};
  std::size_t fallbacks = 0;
  hal::ComputeSet taken;
  for (const runtime::Partition& entry : layout.partitions().subspan(1)) {
    if (entry.compute.overlaps(taken)) continue;
    taken |= entry.compute;
    ++fallbacks;
  }
  return {
      "pool", Verdict::kGood,
      fmt::format("{}: {} partitions of {} to {} SMs; number of clients with a fallback partition "
                  "of their own when vitamind is lost: {}",
                  info.uuid, layout.size() - 1, layout.at(1).sms, layout.partitions().back().sms,
                  fallbacks)};
}

// What vitamind says of itself and of MPS.
void check_daemon(std::vector<Check>& checks) {
  const std::string socket = daemon_socket("");
  const auto status = ask_daemon(socket, "status");
  if (!status) {
    if (status.error().code == hal::Errc::kUnavailable)
      checks.push_back({"daemon", Verdict::kNote,
                        fmt::format("none answers at {}: `vitamin run --daemon` starts one of "
                                    "your own",
                                    socket)});
    else
      checks.push_back(
          {"daemon", Verdict::kBad, fmt::format("{}: {}.", socket, status.error().message)});
    return;
  }
  checks.push_back({"daemon", Verdict::kGood,
                    fmt::format("answers at {}, {} clients", socket, (*status)["clients"].size())});
  for (const auto& device : (*status)["devices"])
    if (device.contains("processors_per_unit") && !device["processors_per_unit"].empty())
      checks.push_back(check_pool(device));
  const auto configured = status->find("configuration");
  if (configured != status->end() && !configured->value("valid", true))
    checks.push_back({"daemon", Verdict::kBad,
                      "it goes on with its old configuration, because the new one is invalid: "
                      "correct it (`vitamin config check`), then send it SIGHUP"});
  for (const std::string& user : eviction_texts(*status))
    checks.push_back({"daemon", Verdict::kBad, user + "."});
  const auto mps = status->find("mps");
  if (mps == status->end()) return;
  if (const std::string problem = mps->value("problem", ""); !problem.empty())
    checks.push_back({"mps", Verdict::kBad, problem + "."});
  if (const std::string fault = mps_fault_text(*mps); !fault.empty())
    checks.push_back({"mps", Verdict::kNote, fault});
  for (const auto& domain : status->value("domains", nlohmann::json::array())) {
    const std::string whose = "of " + domain.value("domain", "") + ": ";
    if (const std::string problem = domain.value("problem", ""); !problem.empty())
      checks.push_back({"mps", Verdict::kBad, whose + problem + "."});
    if (const std::string fault = mps_fault_text(domain); !fault.empty())
      checks.push_back({"mps", Verdict::kNote, whose + fault});
  }
}

void check_environment(std::vector<Check>& checks) {
  for (const std::string& hazard : config::mps_hazards([](auto name) { return std::getenv(name); }))
    checks.push_back({"mps", Verdict::kBad, hazard});
  if (const char* const limit = std::getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
      limit != nullptr && *limit != '\0')
    checks.push_back({"mps", Verdict::kNote,
                      fmt::format("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={}: MPS bounds the memory of "
                                  "each process by itself. Compare bits between runs of one limit "
                                  "only: libraries may choose algorithms by free memory.",
                                  limit)});
}

// The directory of the daemon's socket must be ours, that of the locks must be writable.
void check_permissions(const config::Configuration& configuration, std::vector<Check>& checks) {
  const std::size_t before = checks.size();
  const fs::path directory = fs::path(protocol::user_socket()).parent_path();
  struct stat facts {};
  if (::lstat(directory.c_str(), &facts) == 0) {
    if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::getuid())
      checks.push_back({"permission", Verdict::kBad,
                        fmt::format("{} is not a directory of yours, and your vitamind would have "
                                    "its socket there: remove it, or set XDG_RUNTIME_DIR.",
                                    directory.native())});
    else if ((facts.st_mode & 0022) != 0)
      checks.push_back({"permission", Verdict::kBad,
                        fmt::format("others may write to {}: chmod 700 {}", directory.native(),
                                    directory.native())});
  } else if (::access(directory.parent_path().c_str(), W_OK | X_OK) != 0) {
    checks.push_back({"permission", Verdict::kBad,
                      fmt::format("{} cannot be made ({}): set XDG_RUNTIME_DIR to a directory of "
                                  "yours.",
                                  directory.native(), std::strerror(errno))});
  }
  const std::string& locks = configuration.daemon.lock_directory;
  if (::access(locks.c_str(), W_OK | X_OK) != 0)
    checks.push_back(
        {"permission", Verdict::kNote,
         fmt::format(
             "{} cannot be used ({}), where the devices' locks lie, one directory for all users: "
             "vitamind refuses its clients, and processes that decide for themselves do not "
             "notice each other. Make it writable, or set daemon.lock_directory.",
             locks, std::strerror(errno))});
  if (checks.size() == before)
    checks.push_back({"permission", Verdict::kGood, "socket and locks can be made"});
}

// Who decides about a device without the others that do.
void check_arbiters(const config::Configuration& configuration, std::vector<Check>& checks) {
  for (const auto& [device, users] : protocol::device_use(configuration.daemon.lock_directory)) {
    std::vector<std::string> alone;
    for (const pid_t process : users.alone) alone.push_back(protocol::name_of_process(process));
    if (alone.size() + (users.between_processes ? 1 : 0) < 2) continue;
    const std::string vitamind =
        users.between_processes ? fmt::format(" beside vitamind ({})",
                                              protocol::name_of_process(*users.between_processes))
                                : "";
    checks.push_back(
        {"sharing", Verdict::kNote,
         fmt::format("{}: decided about{} without each other by {}: they take the same "
                     "SMs. Start them with `vitamin run --daemon`.",
                     device, vitamind, fmt::join(alone, ", "))});
  }
}

void check_clock(const NodePaths& paths, std::vector<Check>& checks) {
  const std::string source = first_line(paths.clock_source);
  // Read without a system call by these; every launch reads the clock.
  const bool fast = source == "tsc" || source == "kvm-clock" || source == "arch_sys_counter" ||
                    source == "hyperv_clocksource_tsc_page";
  if (!source.empty() && !fast)
    checks.push_back({"clock", Verdict::kNote,
                      fmt::format("the kernel reads the time from '{}', which takes a system "
                                  "call: launches cost more. Boot with clocksource=tsc where the "
                                  "processor's is reliable.",
                                  source)});
  else
    checks.push_back({"clock", Verdict::kGood, source.empty() ? "unknown source" : source});
  std::ifstream offsets(paths.time_offsets);
  std::string clock;
  long long seconds = 0, nanoseconds = 0;
  while (offsets >> clock >> seconds >> nanoseconds)
    if (seconds != 0 || nanoseconds != 0) {
      checks.push_back({"clock", Verdict::kNote,
                        "this is a time namespace with a clock of its own: harmless, no time is "
                        "compared between processes"});
      return;
    }
}

Check check_kernel() {
  const long pidfd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  if (pidfd < 0)
    return {"kernel", Verdict::kBad,
            fmt::format("pidfd_open() does not work ({}): vitamind cannot see its clients end. "
                        "Linux 5.3 or newer is needed, and a sandbox that allows it.",
                        std::strerror(errno))};
  ::close(static_cast<int>(pidfd));
  constexpr long kFutexWaitv = 449;  // Linux 5.16
  const bool waitv = ::syscall(kFutexWaitv, nullptr, 0, 0, nullptr, 0) != 0 && errno != ENOSYS;
  if (!waitv)
    return {"kernel", Verdict::kNote,
            "futex_waitv() is missing (Linux 5.16): the leases of a large process that is killed "
            "are closed up to 60 ms per GiB later"};
  return {"kernel", Verdict::kGood, "pidfd, futex_waitv"};
}

}  // namespace

std::vector<Check> node_checks(const NodePaths& paths) {
  std::vector<Check> checks;
  const config::Loaded loaded = config::load(config::sources("", {}));
  checks.push_back(check_configuration(loaded));
  check_daemon(checks);
  check_environment(checks);
  check_permissions(loaded.configuration, checks);
  check_arbiters(loaded.configuration, checks);
  check_clock(paths, checks);
  checks.push_back(check_kernel());
  return checks;
}

}  // namespace vitamin::tools
