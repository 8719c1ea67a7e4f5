// SPDX-License-Identifier: Apache-2.0
//
// vitamin doctor: what was found on this machine, and what to do about what was not.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/node/bundle.h"
#include "tools/vitamin/node/checks.h"
#include "tools/vitamin/node/probe.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

Check check_library() {
  const RunDirectory directory;
  const Libraries libraries = preload_libraries();
  if (const auto usable = check_preload(preloadable(libraries, directory.path())); !usable)
    return {"preload", Verdict::kBad, usable.error().message};
  std::string found;
  for (const fs::path& library : libraries) found += (found.empty() ? "" : ", ") + library.native();
  return {"preload", Verdict::kGood, found};
}

// A machine needs one vendor: what the other lacks is a note then.
Check check_driver(const DriverFacts& facts, bool needed) {
  if (const auto wrong = problem(facts))
    return {"driver", needed ? Verdict::kBad : Verdict::kNote, *wrong};
  return {"driver", Verdict::kGood,
          fmt::format("{}, CUDA {}, green contexts", facts.path, version_text(facts.version))};
}

Check check_hip(const HipFacts& facts, bool needed) {
  if (const auto wrong = problem(facts))
    return {"hip", needed && !facts.path.empty() ? Verdict::kBad : Verdict::kNote, *wrong};
  return {"hip", Verdict::kGood,
          fmt::format("{}, HIP {}", facts.path, hip_version_text(facts.version))};
}

std::vector<Check> check_hip_devices(const HipFacts& facts) {
  std::vector<Check> checks;
  for (const std::string& name : facts.devices)
    checks.push_back({"hip_device", Verdict::kGood,
                      facts.software ? name + " (software: there is no /dev/kfd)" : name});
  return checks;
}

std::vector<Check> check_devices(const DriverFacts& facts) {
  std::vector<Check> checks;
  for (const DeviceFacts& device : facts.devices)
    checks.push_back({"device", Verdict::kGood,
                      fmt::format("{}, {} SMs, compute capability {}.{}, {}", device.name,
                                  device.processors, device.major, device.minor, device.uuid)});
  return checks;
}

// Whether the control daemon there was started to have one server for all users.
bool mps_is_of_all_users(const std::string& directory) {
  std::ifstream file(directory + "/nvidia-cuda-mps-control.pid");
  long process = 0;
  if (!(file >> process)) return false;
  std::ifstream command(fmt::format("/proc/{}/cmdline", process));
  for (std::string word; std::getline(command, word, '\0');)
    if (word.ends_with("-multiuser-server")) return true;
  return false;
}

// MPS lets processes overlap on an NVIDIA device; without it they take turns.
Check check_mps() {
  // The program's own choice, vitamin-mps.service, NVIDIA's default.
  std::vector<std::string> directories = {"/run/vitamin-mps", "/tmp/nvidia-mps"};
  if (const char* const variable = std::getenv("CUDA_MPS_PIPE_DIRECTORY")) directories = {variable};
  for (const std::string& directory : directories)
    if (::access((directory + "/control").c_str(), F_OK) == 0)
      return {"mps", Verdict::kGood,
              fmt::format("a control daemon's pipe is in {}; {}", directory,
                          mps_is_of_all_users(directory)
                              ? "its server is of all users"
                              : "its server is of one user at a time (jobs of several users need "
                                "-multiuser-server)")};
  return {"mps", Verdict::kNote,
          fmt::format("no control daemon in {}: several processes take turns on an NVIDIA device "
                      "instead of sharing it. `vitamin run --daemon` starts one for your programs "
                      "(mps.mode = \"auto\"); for all users: systemctl enable --now vitamin-mps.",
                      fmt::join(directories, " or "))};
}

Check check_toolkit() {
  std::vector<std::string> roots = {"/usr/local/cuda"};
  if (const char* home = std::getenv("CUDA_HOME")) roots.insert(roots.begin(), home);
  for (const std::string& root : roots)
    if (::access((root + "/bin/nvcc").c_str(), X_OK) == 0) return {"toolkit", Verdict::kGood, root};
  return {"toolkit", Verdict::kNote, "none (needed to build vitamin's GPU tests, not to run it)"};
}

Check check_run_directory() {
  for (const std::string& parent : run_directory_parents())
    if (::access(parent.c_str(), W_OK | X_OK) == 0)
      return {"run_directory", Verdict::kGood, parent};
  return {"run_directory", Verdict::kBad,
          "none of $XDG_RUNTIME_DIR, /dev/shm, $TMPDIR, /tmp can be written."};
}

}  // namespace

int doctor(bool json, const std::string& bundle) {
  const DriverFacts facts = probe_driver();
  const HipFacts hip = probe_hip();
  std::vector<Check> checks = {check_library(), check_driver(facts, problem(hip).has_value())};
  for (Check& check : check_devices(facts)) checks.push_back(std::move(check));
  if (facts.path.empty() && !hip.devices.empty())
    checks.push_back({"mps", Verdict::kNote, "not needed: there is no NVIDIA driver"});
  else
    checks.push_back(check_mps());
  checks.push_back(check_hip(hip, problem(facts).has_value() && facts.path.empty()));
  for (Check& check : check_hip_devices(hip)) checks.push_back(std::move(check));
  for (Check& check : node_checks()) checks.push_back(std::move(check));
  checks.push_back(check_run_directory());
  checks.push_back(check_toolkit());
  const bool healthy = std::none_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.verdict == Verdict::kBad;
  });
  constexpr const char* kWords[] = {"ok", "note", "problem"};
  ordered_json result = {{"schema", 1}, {"healthy", healthy}, {"checks", ordered_json::array()}};
  for (const Check& check : checks)
    result["checks"].push_back({{"check", check.key},
                                {"verdict", kWords[static_cast<int>(check.verdict)]},
                                {"text", check.text}});
  if (json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    for (const Check& check : checks)
      fmt::print("{:<8} {:<11} {}\n", kWords[static_cast<int>(check.verdict)], check.key,
                 check.text);
    fmt::print("\n{}\n", healthy ? "Ready: vitamin run -- <your program>"
                                 : "Not ready: fix what is marked as a problem.");
  }
  if (!bundle.empty() && !write_bundle(bundle, result)) return kExitFailed;
  return healthy ? 0 : kExitUnhealthy;
}

}  // namespace vitamin::tools
