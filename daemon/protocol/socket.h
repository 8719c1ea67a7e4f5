// SPDX-License-Identifier: Apache-2.0
//
// The Unix socket between clients and the daemon: SOCK_SEQPACKET, never blocking, closed at exec.
//
// Only the daemon sends descriptors. Those that a client attaches to a message are refused by the
// kernel (before Linux 6.16: discarded, because the daemon receives without room for them; there a
// socket with SO_LINGER can make the daemon wait).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::protocol {

// The process at the other end, as the kernel reports it.
struct Peer {
  uid_t uid = static_cast<uid_t>(-1);
  pid_t pid = 0;  // 0: of another pid namespace; for messages only
  Fd pidfd;       // readable when the process has ended
};
hal::Result<Peer> peer_of(const Fd& socket);

// The socket file that this process has created in a daemon's directory.
class PlacedFile {
 public:
  PlacedFile() = default;  // none
  PlacedFile(std::string path, dev_t device, ino_t inode)
      : path_(std::move(path)), device_(device), inode_(inode) {}
  // Does nothing if another file has taken its place. Close the socket first: a daemon that is
  // starting holds the directory's lock and waits for the answer of the old one.
  void remove() const;

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Listens at `path`. Replaces a stale socket (no process listens, or the one that did is ending). A
// live daemon there is an error that says so, after 2 s if it does not answer. `mode`: permissions
// of the socket file. `file`, if not null, is set to that file.
//
// The socket is bound to `path`.new, listens, and is then renamed, so that a client that finds it
// at `path` can connect. `ss -xl` shows the name that it was bound to.
hal::Result<Fd> listen_at(const std::string& path, mode_t mode, PlacedFile* file = nullptr);
// How long a call may wait, and what ends the wait early.
struct WaitLimit {
  // NOLINTNEXTLINE(google-explicit-constructor): a duration is a limit
  WaitLimit(std::chrono::milliseconds time = {}, int descriptor = -1)
      : at_most(time), cancel(descriptor) {}
  std::chrono::milliseconds at_most;
  int cancel;  // a descriptor that ends the wait when it becomes readable, or -1
};

hal::Result<Fd> accept_from(const Fd& listener);  // kUnavailable: no connection is pending
// Retries until the limit while the accept queue of the daemon is full.
hal::Result<Fd> connect_to(const std::string& path, WaitLimit limit = {});

hal::Status send_message(const Fd& socket, std::span<const std::byte> bytes,
                         std::span<const int> fds = {});
// One message of at most `most` bytes; descriptors are discarded. kUnavailable: there is none. An
// empty one: the peer has closed.
hal::Result<std::vector<std::byte>> receive_message(const Fd& socket, std::size_t most);
struct Parcel {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;
};
// Waits until the limit; at most 4 descriptors.
hal::Result<Parcel> receive_parcel(const Fd& socket, std::size_t most, WaitLimit limit);

// Sends, and waits for the answer until the limit. A daemon that refuses a connection may hang up
// before it has read the message: the refusal that it sent is the answer then.
hal::Result<Parcel> exchange(const Fd& socket, std::span<const std::byte> bytes, std::size_t most,
                             WaitLimit limit);

// The doorbell (sleep_flag.h): one byte. A peer that reads none has been rung already.
void ring_doorbell(const Fd& socket);

}  // namespace vitamin::protocol
