// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/protocol/handshake.h"

#ifndef SO_PEERPIDFD  // Linux 6.5; newer than the headers of Debian 12
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS  // Linux 6.16
#define SO_PASSRIGHTS 83
#endif

namespace vitamin::protocol {
namespace {

constexpr std::size_t kFdsMax = 4;

tl::unexpected<hal::Error> failed(const std::string& what, int error = errno) {
  return hal::fail(hal::Errc::kInternal, what + " (" + std::strerror(error) + ")", error);
}
tl::unexpected<hal::Error> unavailable(const std::string& what, int error = errno) {
  return hal::fail(hal::Errc::kUnavailable, what + " (" + std::strerror(error) + ")", error);
}

hal::Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return hal::fail(hal::Errc::kInvalidArgument,
                     "the path of the socket is empty or too long (" + path + ")");
  path.copy(address.sun_path, path.size());
  return address;
}

// poll() for one descriptor to become readable, however many signals the application handles
// meanwhile. False: the limit was reached, or the caller does not wait any longer.
bool wait_readable(int fd, const WaitLimit& limit) {
  using std::chrono::steady_clock;
  const auto until = steady_clock::now() + limit.at_most;
  pollfd wanted[] = {{fd, POLLIN, 0}, {limit.cancel, POLLIN, 0}};  // poll() ignores -1
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
    const int ready = ::poll(wanted, std::size(wanted),
                             static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0 && wanted[0].revents != 0;
  }
}

// Again when a signal came before anything was done.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Fd make_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

}  // namespace

hal::Result<Peer> peer_of(const Fd& socket) {
  Peer peer;
  ucred identity{};
  socklen_t size = sizeof identity;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &identity, &size) != 0)
    return failed("the kernel does not say who connected");
  peer.uid = identity.uid;
  peer.pid = identity.pid;
  int pidfd = -1;
  size = sizeof pidfd;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
    peer.pidfd.reset(pidfd);
  else if (identity.pid > 0)
    peer.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, identity.pid, 0)));
  if (!peer.pidfd) return failed("the end of the process that connected cannot be watched");
  return peer;
}

namespace {

constexpr std::chrono::milliseconds kServedWithin{2000};

// Whether a live daemon has this listening socket. One that was just killed still listens until the
// kernel has ended it, but hangs up instead of answering. A stopped one does not answer in time,
// and counts as live.
bool is_served(const Fd& connection) {
  Control ping;
  ping.preamble.kind = MessageKind::kControl;
  ping.verb.set("ping");
  const auto answer = exchange(connection, bytes_of(ping), kGreetingMax, kServedWithin);
  return answer ? !answer->bytes.empty() : answer.error().native == ETIMEDOUT;
}

// Daemons that start at the same time check and take the path one after another: otherwise each of
// them would find no other, and the last one would replace the others' sockets. The lock is on the
// directory, so no file remains. No daemon holds it for as long as it is tried for: then the caller
// goes on without it.
Fd lock_directory_of(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  Fd lock(::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto until = std::chrono::steady_clock::now() + 3 * kServedWithin;
  while (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
         std::chrono::steady_clock::now() < until)
    ::usleep(1000);
  return lock;
}

// Bound to `path`, and listens.
hal::Result<Fd> listening(const std::string& path, mode_t mode) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Fd socket = make_socket();
  if (!socket) return failed("no socket can be made");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return failed("the socket " + path + " cannot be made");
  if (::chmod(path.c_str(), mode) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) return socket;
  const int error = errno;
  ::unlink(path.c_str());
  return failed("nothing can listen at " + path, error);
}

// Removes the file only if it is a socket. The caller has found that no daemon listens there.
void remove_stale(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode)) ::unlink(path.c_str());
}

}  // namespace

hal::Result<Fd> listen_at(const std::string& path, mode_t mode, PlacedFile* file) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  const Fd lock = lock_directory_of(path);
  // EAGAIN: its accept queue stayed full, so a process is listening.
  const auto other = connect_to(path, kServedWithin);
  if (other ? is_served(*other) : other.error().native == EAGAIN)
    return hal::fail(hal::Errc::kUnavailable, "another vitamind listens at " + path, EADDRINUSE);
  struct stat facts {};
  const std::string before = path + ".new";
  const bool fits = address_of(before).has_value();
  const bool free = ::lstat(path.c_str(), &facts) != 0 || S_ISSOCK(facts.st_mode);
  if (!free) return failed("the socket " + path + " cannot be made", EADDRINUSE);
  // Left by a daemon that was killed before its rename; or, where `path`.new is too long for a
  // socket address, the stale socket itself.
  remove_stale(fits ? before : path);
  auto socket = listening(fits ? before : path, mode);
  if (!socket) return socket;
  // The kernel refuses descriptors that a client sends; accepted sockets inherit this. Without it
  // the daemon would close them as it receives, and block on a socket with SO_LINGER.
  constexpr int kNone = 0;
  static_cast<void>(::setsockopt(socket->get(), SOL_SOCKET, SO_PASSRIGHTS, &kNone, sizeof kNone));
  if (fits && ::rename(before.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(before.c_str());
    return failed("the socket " + path + " cannot be made", error);
  }
  if (file != nullptr && ::lstat(path.c_str(), &facts) == 0)
    *file = PlacedFile(path, facts.st_dev, facts.st_ino);
  return socket;
}

// Under the directory's lock, so that no other daemon takes the path between check and removal.
void PlacedFile::remove() const {
  if (path_.empty()) return;
  const Fd lock = lock_directory_of(path_);
  struct stat facts {};
  if (::lstat(path_.c_str(), &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_)
    ::unlink(path_.c_str());
}

hal::Result<Fd> accept_from(const Fd& listener) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) return socket;
  if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)
    return unavailable("no connection is pending");
  return failed("a connection cannot be accepted");
}

hal::Result<Fd> connect_to(const std::string& path, WaitLimit limit) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Fd socket = make_socket();
  if (!socket) return failed("no socket can be made");
  const auto* name = reinterpret_cast<const sockaddr*>(&*address);
  const auto until = std::chrono::steady_clock::now() + limit.at_most;
  while (uninterrupted([&] { return ::connect(socket.get(), name, sizeof *address); }) != 0) {
    if (errno != EAGAIN) return unavailable("no vitamind answers at " + path);
    // EAGAIN: the accept queue is full. No event tells when it has room, so poll.
    pollfd cancelled{limit.cancel, POLLIN, 0};
    const timespec pause{0, 200'000};
    if (std::chrono::steady_clock::now() >= until || ::ppoll(&cancelled, 1, &pause, nullptr) > 0)
      return unavailable("too many connect at once to the vitamind at " + path, EAGAIN);
  }
  return socket;
}

hal::Status send_message(const Fd& socket, std::span<const std::byte> bytes,
                         std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty() && fds.size() <= kFdsMax) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  if (uninterrupted([&] { return ::sendmsg(socket.get(), &message, kFlags); }) < 0)
    return failed("a message cannot be sent");
  return {};
}

hal::Result<std::vector<std::byte>> receive_message(const Fd& socket, std::size_t most) {
  std::vector<std::byte> bytes(most);
  const ssize_t length =
      uninterrupted([&] { return ::recv(socket.get(), bytes.data(), most, MSG_DONTWAIT); });
  if (length < 0 && errno == EAGAIN) return unavailable("no message");
  if (length < 0) return failed("a message cannot be received");
  bytes.resize(static_cast<std::size_t>(length));
  return bytes;
}

hal::Result<Parcel> receive_parcel(const Fd& socket, std::size_t most, WaitLimit limit) {
  if (!wait_readable(socket.get(), limit))
    return unavailable("the daemon does not answer", ETIMEDOUT);
  Parcel parcel;
  parcel.bytes.resize(most);
  iovec part{parcel.bytes.data(), most};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  constexpr int kFlags = MSG_CMSG_CLOEXEC | MSG_DONTWAIT;
  const auto receive = [&] { return ::recvmsg(socket.get(), &message, kFlags); };
  ssize_t length = uninterrupted(receive);
  // The daemon closed the socket without reading our message: the kernel reports that once, and the
  // next call returns what the daemon had sent.
  if (length < 0 && errno == ECONNRESET) length = uninterrupted(receive);
  if (length < 0) return failed("the daemon's answer cannot be received");
  parcel.bytes.resize(static_cast<std::size_t>(length));
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= head->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + at, sizeof fd);
      parcel.fds.emplace_back(fd);
    }
  }
  return parcel;
}

hal::Result<Parcel> exchange(const Fd& socket, std::span<const std::byte> bytes, std::size_t most,
                             WaitLimit limit) {
  const auto sent = send_message(socket, bytes);
  if (!sent && sent.error().native != EPIPE && sent.error().native != ECONNRESET)
    return tl::unexpected(sent.error());
  auto answer = receive_parcel(socket, most, limit);
  if (!answer && !sent) return tl::unexpected(sent.error());
  return answer;
}

void ring_doorbell(const Fd& socket) {
  const char byte = 0;
  const ssize_t sent = ::send(socket.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)sent;  // full: rung already; closed: the caller sees the hang-up on its poll set
}

}  // namespace vitamin::protocol
