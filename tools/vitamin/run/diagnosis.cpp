// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/diagnosis.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tools/vitamin/node/probe.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

std::string find_in_path(const std::string& command) {
  if (command.find('/') != std::string::npos) return command;
  const char* variable = std::getenv("PATH");
  std::string path = variable != nullptr ? variable : "/usr/local/bin:/bin:/usr/bin";
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    std::string candidate = path.substr(at, end - at) + "/" + command;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    at = end + 1;
  }
  return "";
}

// The interpreter that a "#!" line names, or the file itself.
std::string interpreter_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return path;
  const std::size_t begin = line.find_first_not_of(" \t", 2);
  if (begin == std::string::npos) return path;
  return line.substr(begin, line.find_first_of(" \t", begin) - begin);
}

std::string elf_obstacle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return "";
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "";
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "it is a 32-bit program";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + std::uint64_t{i} * header.e_phentsize));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return "";
    if (segment.p_type == PT_INTERP) return "";
  }
  return "it is statically linked";
}

std::string without_pages(const std::vector<std::string>& command, const ChildEnd& end) {
  const std::string obstacle = preload_obstacle(command.front());
  if (!obstacle.empty())
    return fmt::format("no launch was seen: '{}' cannot be watched, because {}.", command.front(),
                       obstacle);
  // A program that links a GPU library ends in the loader when there is none, before anything else.
  if (!end.succeeded())
    if (const auto missing = no_device(false))
      return fmt::format("no launch was seen: {}", *missing);
  return fmt::format(
      "no launch was seen: '{}' did not load vitamin's library. Does it clear "
      "LD_PRELOAD or start its work in a container or over ssh? Put `vitamin run` "
      "there.",
      command.front());
}

std::string without_launches(const Report& report) {
  for (const ProcessReport& process : report.processes)
    if (process.stage == stats::Stage::kDegraded)
      return fmt::format("no launch was seen: {} ({}) is not managed: {}", process.program,
                         process.pid, process.message);
  if (report.furthest() >= stats::Stage::kReady)
    return "no launch was seen: the GPU runtime was started, but no kernel was launched.";
  if (const auto missing = no_device(report.furthest() >= stats::Stage::kDriver))
    return fmt::format("no launch was seen: {}", *missing);
  return fmt::format("no launch was seen: none of the {} process{} of this run used CUDA or HIP.",
                     report.processes.size(), report.processes.size() == 1 ? "" : "es");
}

}  // namespace

std::string preload_obstacle(const std::string& command) {
  const std::string path = find_in_path(command);
  if (path.empty()) return "";
  const std::string program = interpreter_of(path);
  struct stat facts {};
  if (::stat(program.c_str(), &facts) == 0 && (facts.st_mode & (S_ISUID | S_ISGID)) != 0 &&
      facts.st_uid != ::geteuid())
    return "it changes its user (set-user-ID), and the loader ignores LD_PRELOAD there";
  return elf_obstacle(program);
}

std::string coverage_problem(const Report& report, const std::vector<std::string>& command,
                             const ChildEnd& end) {
  if (report.unwritten > 0)
    return fmt::format(
        "{} of {} processes could not be counted: there was no room for their statistics in the "
        "directory of this run ($XDG_RUNTIME_DIR, /dev/shm, $TMPDIR or /tmp). They ran all the "
        "same.",
        report.unwritten, report.unwritten + report.processes.size());
  if (report.complete()) return "";
  if (!report.launched()) {
    if (report.processes.empty()) {
      if (report.unreadable > 0)
        return "no launch was seen: the statistics pages were written by another version of "
               "vitamin; reinstall it.";
      return without_pages(command, end);
    }
    return without_launches(report);
  }
  const std::uint64_t missing = report.launches() - report.bound();
  std::string why;
  for (const ProcessReport& process : report.processes)
    if (process.stage == stats::Stage::kDegraded && why.empty())
      why = fmt::format(" {} ({}): {}", process.program, process.pid, process.message);
  return fmt::format("{} of {} launches were not bound (row 'not bound' says why).{}",
                     grouped(missing), grouped(report.launches()), why);
}

}  // namespace vitamin::tools
