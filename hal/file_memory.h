// SPDX-License-Identifier: Apache-2.0
//
// Files and shared memory that cannot end the process.
//
// A write to a page of a mapped file asks the file system for room, and reading a page behind the
// end of a file asks for what is not there: both end a process by SIGBUS, and a file beyond
// RLIMIT_FSIZE ends it by SIGXFSZ. Our files are no reason for a user's program to end, so
//   * code that maps a file makes room for what it touches, by make_room();
//   * code that reads a file that another process may cut uses read_at() and maps nothing;
//   * files are made larger and written under a FileSignalGuard.
// tests/tidy lets no other code call mmap() on a file, mremap() or ftruncate().
//
// All answers are 0 / true / a pointer, or leave the reason in errno. Any thread.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <initializer_list>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace vitamin::hal {

// While it lives, a write of this thread that meets RLIMIT_FSIZE, or a pipe without a reader, is
// an error (EFBIG, EPIPE) and no signal.
class FileSignalGuard {
 public:
  FileSignalGuard() noexcept {
    sigemptyset(&held_);
    sigaddset(&held_, SIGXFSZ);
    sigaddset(&held_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    // One that came before belongs to the program.
    for (const int signal : {SIGXFSZ, SIGPIPE})
      if (sigismember(&pending, signal) == 1) sigdelset(&held_, signal);
    ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~FileSignalGuard() {
    const int error = errno;
    const timespec now{};
    while (::sigtimedwait(&held_, nullptr, &now) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  FileSignalGuard(const FileSignalGuard&) = delete;
  FileSignalGuard& operator=(const FileSignalGuard&) = delete;

 private:
  sigset_t held_, before_;
};

inline constexpr std::size_t kMemoryPage = 4096;

// For kernels before 5.14. A system call that answers into a page asks for its room, too, and has
// an error for it. `memory` is fresh: all of it is 0, before and after.
inline bool make_room_of_fresh(void* memory, std::size_t bytes) noexcept {
  auto* const first = static_cast<unsigned char*>(memory);
  for (std::size_t at = 0; at < bytes; at += kMemoryPage) {
    if (::syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, first + at, sizeof(long)) != 0) {
      errno = ENOSPC;
      return false;
    }
    std::memset(first + at, 0, sizeof(long));
  }
  return true;
}

// Room in its file, and in memory, for every page of [memory, memory + bytes), which is mapped
// shared and writable and holds nothing yet. `memory` lies at the beginning of a page.
inline bool make_room(void* memory, std::size_t bytes) noexcept {
  int result = 0;
  do result = ::madvise(memory, bytes, MADV_POPULATE_WRITE);
  while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  if (errno == EINVAL) return make_room_of_fresh(memory, bytes);
  if (errno == EFAULT) errno = ENOSPC;  // what a write would have ended by
  return false;
}

// Sets the size of a file; what is new of it is 0, and has no room yet.
inline bool set_file_size(int file, std::size_t bytes) noexcept {
  const FileSignalGuard guard;
  int result = 0;
  do result = ::ftruncate(file, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  return result == 0;
}

// The first `bytes` of a file, shared. The caller knows that the file has them, and that no process
// makes it shorter; room has what make_room() made.
inline void* map_file(int file, std::size_t bytes, int protection, int flags = 0) noexcept {
  void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED | flags, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Makes a file larger, of which `held` bytes are mapped at `memory` (none at first: null), and has
// all of it mapped, with room for what is new. Null: as before, but for the file's size.
inline void* grow_file(int file, void* memory, std::size_t held, std::size_t bytes) noexcept {
  if (!set_file_size(file, bytes)) return nullptr;
  // Room first: what moves cannot be moved back with certainty.
  void* const tail = ::mmap(nullptr, bytes - held, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                            static_cast<off_t>(held));
  if (tail == MAP_FAILED) return nullptr;
  const bool room = make_room(tail, bytes - held);
  const int error = errno;
  if (room && memory == nullptr) return tail;
  ::munmap(tail, bytes - held);
  errno = error;
  if (!room) return nullptr;
  void* const grown = ::mremap(memory, held, bytes, MREMAP_MAYMOVE);
  return grown == MAP_FAILED ? nullptr : grown;
}

// Exactly these bytes of a file. False: it has fewer (errno 0), or cannot be read.
inline bool read_at(int file, void* to, std::size_t bytes, off_t at = 0) noexcept {
  auto* const first = static_cast<unsigned char*>(to);
  for (std::size_t done = 0; done < bytes;) {
    errno = 0;
    const ssize_t n = ::pread(file, first + done, bytes - done, at + static_cast<off_t>(done));
    if (n <= 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace vitamin::hal
