// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/node_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "deploy/kubernetes/say_once.h"

namespace vitamin::kubernetes {
namespace {

// Below a directory of its own: the kubelet removes the files of its directory when it starts.
std::filesystem::path owner_file(const std::string& directory) {
  return std::filesystem::path(directory) / "vitamin" / "owner";
}

// Without it only the name of this process is missing in another one's line.
void write_owner(const std::string& directory) {
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  std::error_code none;
  std::filesystem::create_directory(owner_file(directory).parent_path(), none);
  std::ofstream(owner_file(directory)) << host << ", process " << ::getpid() << "\n";
}

std::string owner(const std::string& directory) {
  std::string line;
  std::ifstream file(owner_file(directory));
  std::getline(file, line);
  return line.empty() ? "" : " (" + line + ")";
}

}  // namespace

bool serve_alone(const std::string& program, const std::string& directory,
                 const std::atomic<bool>& stopping,
                 const std::function<void(const std::string&)>& say) {
  std::string told;
  for (bool first = true; !stopping; first = false) {
    // The directory itself is locked: a file in it might be removed by the kubelet.
    const int lock = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0) {
      say_once(say, told, directory + ": " + std::strerror(errno) + ". Waiting for it");
    } else if (::flock(lock, LOCK_EX | LOCK_NB) == 0) {
      write_owner(directory);
      return true;  // `lock` stays open
    } else if (errno != EWOULDBLOCK) {
      say("cannot lock " + directory + ": " + std::strerror(errno) + ". Another " + program +
          " here would go unnoticed");
      return true;
    } else if (!first) {  // the other one has written its name
      say_once(say, told,
               "another " + program + owner(directory) + " serves " + directory +
                   ", so this one waits until it ends. Remove one of the two from this node");
    }
    if (lock >= 0) ::close(lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

}  // namespace vitamin::kubernetes
