// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/preload.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tools/vitamin/interrupts.h"

namespace vitamin::tools {

namespace fs = std::filesystem;

Libraries preload_libraries() {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  // Private to Vitamin where it is installed, as no program links these libraries.
  fs::path directory = self.parent_path().parent_path() / "lib";
  if (fs::is_directory(directory / "vitamin" / "preload", ignored)) directory /= "vitamin/preload";
  Libraries found;
  for (const char* name : {"libvitamin_cuda.so", "libvitamin_hip.so"})
    if (fs::exists(directory / name, ignored)) found.push_back(directory / name);
  if (found.empty()) found.push_back(directory / "libvitamin_cuda.so");
  return found;
}

Libraries preloadable(Libraries libraries, const fs::path& directory) {
  for (fs::path& library : libraries) {
    if (library.native().find_first_of(" :") == std::string::npos) continue;
    const fs::path link = directory / library.filename();
    std::error_code error;
    fs::create_symlink(library, link, error);
    if (!error) library = link;
  }
  return libraries;
}

std::string preload_variable(const Libraries& libraries, const char* inherited) {
  std::vector<std::string> items;
#ifdef VITAMIN_SANITIZER_RUNTIME
  // A sanitized library needs its runtime ahead of everything, in programs built without it too.
  items.emplace_back(VITAMIN_SANITIZER_RUNTIME);
#endif
  for (const fs::path& library : libraries) items.push_back(library.native());
  std::string rest = inherited == nullptr ? "" : inherited;
  std::size_t at = 0;
  while ((at = rest.find_first_not_of(" :", at)) != std::string::npos) {
    const std::size_t end = std::min(rest.find_first_of(" :", at), rest.size());
    std::string item = rest.substr(at, end - at);
    bool known = false;
    for (const std::string& held : items) known = known || held == item;
    if (!known) items.push_back(std::move(item));
    at = end;
  }
  return fmt::format("{}", fmt::join(items, ":"));
}

namespace {

hal::Status check_one(const fs::path& library) {
  if (::access(library.c_str(), R_OK) != 0)
    return hal::fail(
        hal::Errc::kUnavailable,
        fmt::format("the library that catches launches is missing ({}): {}. Was this "
                    "vitamin built without the headers of CUDA and HIP, or moved without its lib "
                    "directory?",
                    library.native(), std::strerror(errno)));
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return hal::fail(hal::Errc::kInternal, "pipe failed.");
  const pid_t child = ::fork();
  if (child < 0) return hal::fail(hal::Errc::kInternal, "fork failed.");
  if (child == 0) {
    forget_interrupts();
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::setenv("LD_PRELOAD", preload_variable({library}, nullptr).c_str(), 1);
    ::unsetenv("VITAMIN_RUN_DIR");
    ::execl("/proc/self/exe", "vitamin", kPreloadCheckVerb, library.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string words;
  std::array<char, 1024> buffer{};
  for (ssize_t n = 1; n > 0 && interrupted() == 0;) {
    n = ::read(ends[0], buffer.data(), buffer.size());
    if (n > 0) words.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  if (interrupted() != 0) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (const std::size_t last = words.rfind('\n'); last != std::string::npos)
    words.erase(0, last + 1);  // the loader's own complaint comes first and says less
  if (words.empty()) words = WIFSIGNALED(status) ? "it crashes on start" : "no reason given";
  return hal::fail(hal::Errc::kUnavailable,
                   fmt::format("the loader does not accept {}: {}. Nothing was started; rebuild or "
                               "reinstall vitamin.",
                               library.native(), words));
}

struct Search {
  struct stat wanted;
  bool found = false;
};

int compare(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto* search = static_cast<Search*>(data);
  struct stat here {};
  if (info->dlpi_name != nullptr && ::stat(info->dlpi_name, &here) == 0 &&
      here.st_ino == search->wanted.st_ino && here.st_dev == search->wanted.st_dev)
    search->found = true;
  return search->found ? 1 : 0;
}

}  // namespace

hal::Status check_preload(const Libraries& libraries) {
  for (const fs::path& library : libraries)
    if (hal::Status usable = check_one(library); !usable) return usable;
  return {};
}

int answer_preload_check(const char* library) {
  Search search;
  if (::stat(library, &search.wanted) == 0) ::dl_iterate_phdr(compare, &search);
  if (search.found) return 0;
  const void* opened = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  std::puts(opened == nullptr ? ::dlerror() : "it loads, but not as a preloaded library");
  return 1;
}

}  // namespace vitamin::tools
