// SPDX-License-Identifier: Apache-2.0
//
// The Unix socket between clients and the daemon: SOCK_SEQPACKET, never blocking, closed at exec.
//
// Descriptors travel from the daemon to the client only. Whatever descriptors a client attaches to
// a message are refused by the kernel (before Linux 6.16: discarded, because the daemon receives
// without room for them; a socket that lingers makes the daemon wait then).
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

// The kernel's word on who is at the other end.
struct Peer {
  uid_t uid = static_cast<uid_t>(-1);
  pid_t pid = 0;  // 0: not visible from here (another pid namespace); for people only
  Fd pidfd;       // readable when the process has ended
};
hal::Result<Peer> peer_of(const Fd& socket);

// A file that this process has put at a path of a daemon's folder.
class PlacedFile {
 public:
  PlacedFile() = default;  // none
  PlacedFile(std::string path, dev_t device, ino_t inode)
      : path_(std::move(path)), device_(device), inode_(inode) {}
  // Unless another file has taken its place. A socket is closed before: a daemon that starts
  // meanwhile may be waiting for that, with the folder locked.
  void remove() const;

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A stale socket (nobody listens, or whoever did is ending) is replaced; a live one is an error
// that says so, after 2 s where it does not answer. `mode`: of the socket file. `file`: which it is
// (null: not asked).
//
// The socket is bound to `path`.new, listens, and is renamed: whoever finds it at its path is
// heard. `ss -xl` shows the name that it was bound to.
hal::Result<Fd> listen_at(const std::string& path, mode_t mode, PlacedFile* file = nullptr);
// How long a call may wait, and what ends the wait early.
struct WaitLimit {
  WaitLimit(std::chrono::milliseconds time = {}, int descriptor = -1)
      : at_most(time), cancel(descriptor) {}
  std::chrono::milliseconds at_most;
  int cancel;  // a descriptor, or -1; readable: the caller does not wait any longer
};

hal::Result<Fd> accept_from(const Fd& listener);  // kUnavailable: nobody is waiting
// While its queue of those who connect is full, tried again until the limit.
hal::Result<Fd> connect_to(const std::string& path, WaitLimit limit = {});

hal::Status send_message(const Fd& socket, std::span<const std::byte> bytes,
                         std::span<const int> fds = {});
// One message, descriptors discarded. Nothing: none has come. An empty one: the peer has closed.
hal::Result<std::vector<std::byte>> receive_message(const Fd& socket, std::size_t most);
struct Parcel {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;
};
// Waits until the limit; at most 4 descriptors.
hal::Result<Parcel> receive_parcel(const Fd& socket, std::size_t most, WaitLimit limit);

// Sends, and waits for the answer until the limit. A daemon that refuses a connection may
// have hung up before it was asked: its refusal is the answer then.
hal::Result<Parcel> exchange(const Fd& socket, std::span<const std::byte> bytes, std::size_t most,
                             WaitLimit limit);

// The doorbell (park.h): one byte. A peer that reads none has been rung already.
void ring_doorbell(const Fd& socket);

}  // namespace vitamin::protocol
