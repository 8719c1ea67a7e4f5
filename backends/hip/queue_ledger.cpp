// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/queue_ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>

namespace vitamin::hip {
namespace {

constexpr unsigned kProcesses = 0, kPlain = 256, kPool = 512, kPieces = 256;

// The runtime's own queue, and the real default stream's.
constexpr unsigned kOfRuntime = 1, kOfDefaultStream = 1;
// Left free for the next process, which has these before any process can give one back.
constexpr unsigned kOfNewcomer = kOfRuntime + kOfDefaultStream;

// Locks belong to the open file, not to the process: a library of the application's that opens and
// closes the file cannot drop them.
bool change(int file, short type, unsigned piece) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = piece;
  lock.l_len = 1;
  return ::fcntl(file, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

hal::Result<std::shared_ptr<QueueLedger>> QueueLedger::open(const std::string& directory,
                                                            const std::string& gpu, unsigned queues,
                                                            unsigned plain_max) {
  std::string path = directory + "/vitamin-queues-";
  for (const char c : gpu)
    path += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  // Another user's file must be opened without O_CREAT (fs.protected_regular).
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  int file = ::open(path.c_str(), kFlags);
  if (file < 0) {
    file = ::open(path.c_str(), kFlags | O_CREAT, 0666);
    if (file >= 0) static_cast<void>(::fchmod(file, 0666));  // whatever the umask: for all users
  }
  if (file < 0)
    return hal::fail(
        hal::Errc::kUnavailable,
        "the GPU's queues cannot be shared out (" + path + ": " + std::strerror(errno) + ")",
        errno);
  std::shared_ptr<QueueLedger> ledger(new QueueLedger(file, queues, plain_max));
  bool counted = false;
  for (unsigned piece = kProcesses; piece < kProcesses + kPieces && !counted; ++piece)
    counted = ledger->lock(piece);
  if (!counted && errno != EAGAIN && errno != EACCES)  // not because others have all of them
    return hal::fail(hal::Errc::kUnavailable,
                     "the GPU's queues cannot be shared out (" + path +
                         " cannot be locked: " + std::strerror(errno) + ")",
                     errno);
  ledger->count_plain();
  return ledger;
}

QueueLedger::~QueueLedger() { ::close(file_); }  // and with it every lock

bool QueueLedger::lock(unsigned piece) { return change(file_, F_WRLCK, piece); }
void QueueLedger::unlock(unsigned piece) { static_cast<void>(change(file_, F_UNLCK, piece)); }

// Pieces of a range that other processes have. The kernel tells some lock of a range, not all.
unsigned QueueLedger::of_others(unsigned first, unsigned count) const {
  struct flock found {};
  found.l_type = F_WRLCK;
  found.l_whence = SEEK_SET;
  found.l_start = first;
  found.l_len = count;
  if (::fcntl(file_, F_OFD_GETLK, &found) != 0 || found.l_type == F_UNLCK) return 0;
  if (count == 1) return 1;
  return of_others(first, count / 2) + of_others(first + count / 2, count - count / 2);
}

// Queues of the GPU that no application's stream has, nor will have at once.
unsigned QueueLedger::left() const {
  const auto plain = static_cast<unsigned>(plain_.size()) + of_others(kPlain, kPieces);
  return queues_ - std::min(queues_, plain + kOfNewcomer);
}

void QueueLedger::count_plain() {
  const unsigned wanted = kOfRuntime + std::min(plain_max_, kOfDefaultStream + streams_);
  for (unsigned piece = kPlain; piece < kPlain + kPieces && plain_.size() < wanted; ++piece)
    if (std::find(plain_.begin(), plain_.end(), piece) == plain_.end() && lock(piece))
      plain_.push_back(piece);
  while (plain_.size() > wanted) {
    unlock(plain_.back());
    plain_.pop_back();
  }
}

QueueLedger::Ticket QueueLedger::stream() {
  const std::lock_guard guard(mutex_);
  ++streams_;
  count_plain();
  return Ticket(this, [ledger = shared_from_this()](void*) { ledger->end_stream(); });
}

void QueueLedger::end_stream() {
  const std::lock_guard guard(mutex_);
  --streams_;
  count_plain();
}

QueueLedger::Ticket QueueLedger::pool_queue() {
  const std::lock_guard guard(mutex_);
  const unsigned left = this->left();
  for (unsigned piece = kPool; piece < kPool + left; ++piece) {
    if (std::find(pool_.begin(), pool_.end(), piece) != pool_.end() || !lock(piece)) continue;
    pool_.push_back(piece);
    return Ticket(this,
                  [ledger = shared_from_this(), piece](void*) { ledger->end_pool_queue(piece); });
  }
  return nullptr;
}

void QueueLedger::end_pool_queue(unsigned piece) {
  const std::lock_guard guard(mutex_);
  std::erase(pool_, piece);
  unlock(piece);
}

unsigned QueueLedger::limit() {
  const std::lock_guard guard(mutex_);
  const unsigned processes = 1 + of_others(kProcesses, kPieces), left = this->left();
  if (left >= processes) return left / processes;
  // Not one for each: those who have one keep it, unless there are even fewer by now.
  const bool beyond = std::any_of(pool_.begin(), pool_.end(),
                                  [&](unsigned piece) { return piece >= kPool + left; });
  return beyond ? 0 : std::min(1U, left);
}

}  // namespace vitamin::hip
