// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/session_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include "hal/file_memory.h"

namespace vitamin::protocol {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kDaemonWrites = kFixedSize | F_SEAL_FUTURE_WRITE;

tl::unexpected<hal::Error> no_memory(const char* what) {
  return hal::fail(hal::Errc::kOutOfMemory, std::string(what) + " (" + std::strerror(errno) + ")",
                   errno);
}

template <class Segment>
hal::Result<Mapped<Segment>> map(int fd, int access) {
  void* const memory = hal::map_file(fd, sizeof(Segment), access, MAP_POPULATE);
  if (memory == nullptr) return no_memory("the shared memory of a session cannot be mapped");
  Mapped<Segment> mapped(static_cast<Segment*>(memory));
  if (::madvise(memory, sizeof(Segment), MADV_DONTFORK) != 0)
    return no_memory("the shared memory of a session cannot be kept from children");
  return mapped;
}

// The words of the segments begin as zero, which is what a memfd holds; their constructors are
// trivial for that matter, so mapping is all that begins their life. Every page has memory from
// here on: MAP_POPULATE would not say that there is none.
hal::Result<Fd> make(const char* name, std::size_t size) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* const memory = fd ? hal::grow_file(fd.get(), nullptr, 0, size) : nullptr;
  if (memory == nullptr) return no_memory("the shared memory of a session cannot be made");
  ::munmap(memory, size);
  return fd;
}

hal::Status check(const Fd& fd, std::size_t size, int seals) {
  struct stat facts {};
  const int have = ::fcntl(fd.get(), F_GET_SEALS);
  if (have < 0 || (have & seals) != seals || ::fstat(fd.get(), &facts) != 0 ||
      facts.st_size != static_cast<off_t>(size))
    return hal::fail(hal::Errc::kUnsupported,
                     "the daemon sent memory that is not sealed or of another size than agreed");
  return {};
}

}  // namespace

template <class Segment>
void Unmap<Segment>::operator()(Segment* segment) const {
  ::munmap(const_cast<std::remove_const_t<Segment>*>(segment), sizeof(Segment));
}
template struct Unmap<ClientSegment>;
template struct Unmap<const ClientSegment>;
template struct Unmap<DaemonSegment>;
template struct Unmap<const DaemonSegment>;

hal::Result<SessionMemory> make_session_memory() {
  SessionMemory memory;
  auto client_fd = make("vitamin-client", sizeof(ClientSegment));
  if (!client_fd) return tl::unexpected(client_fd.error());
  auto daemon_fd = make("vitamin-daemon", sizeof(DaemonSegment));
  if (!daemon_fd) return tl::unexpected(daemon_fd.error());
  auto client = map<const ClientSegment>(client_fd->get(), PROT_READ);
  if (!client) return tl::unexpected(client.error());
  auto daemon = map<DaemonSegment>(daemon_fd->get(), PROT_READ | PROT_WRITE);
  if (!daemon) return tl::unexpected(daemon.error());
  // Only mappings made from now on are read-only, so ours came first.
  if (::fcntl(client_fd->get(), F_ADD_SEALS, kFixedSize) != 0 ||
      ::fcntl(daemon_fd->get(), F_ADD_SEALS, kDaemonWrites) != 0)
    return no_memory("the shared memory of a session cannot be sealed");
  memory.client = std::move(*client);
  memory.daemon = std::move(*daemon);
  memory.client_fd = std::move(*client_fd);
  memory.daemon_fd = std::move(*daemon_fd);
  return memory;
}

hal::Result<ClientMemory> map_session_memory(const Fd& client_fd, const Fd& daemon_fd) {
  if (auto good = check(client_fd, sizeof(ClientSegment), kFixedSize); !good)
    return tl::unexpected(good.error());
  if (auto good = check(daemon_fd, sizeof(DaemonSegment), kDaemonWrites); !good)
    return tl::unexpected(good.error());
  auto client = map<ClientSegment>(client_fd.get(), PROT_READ | PROT_WRITE);
  if (!client) return tl::unexpected(client.error());
  auto daemon = map<const DaemonSegment>(daemon_fd.get(), PROT_READ);
  if (!daemon) return tl::unexpected(daemon.error());
  return ClientMemory{std::move(*client), std::move(*daemon)};
}

}  // namespace vitamin::protocol
