// SPDX-License-Identifier: Apache-2.0
//
// Files and shared memory that cannot end the process.
//
// SIGBUS ends a process that writes to a page of a mapped file for which the file system has no
// room, or that reads a page behind the file's end; SIGXFSZ ends one that writes beyond
// RLIMIT_FSIZE. A file of Vitamin's must never end the user's program, so
//   * code that maps a file first allocates the pages that it touches, by make_room();
//   * code that reads a file that another process may shorten uses read_at() and maps nothing;
//   * files are made larger and written under a FileSignalGuard.
// tests/tidy lets no other code call mmap() on a file, mremap() or ftruncate().
//
// Functions return true or a pointer; false or null: the reason is in errno. Any thread.
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
    // A signal that is already pending is the program's.
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

// make_room() for kernels before 5.14: a system call that writes its result to a page allocates
// it, too, and returns an error where that fails. All of `memory` is 0, before and after.
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

// Allocates every page of [memory, memory + bytes) in its file and in memory. The range is mapped
// shared and writable, and was never written to. `memory` is aligned to a page.
inline bool make_room(void* memory, std::size_t bytes) noexcept {
  int result = 0;
  do result = ::madvise(memory, bytes, MADV_POPULATE_WRITE);
  while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  if (errno == EINVAL) return make_room_of_fresh(memory, bytes);
  if (errno == EFAULT) errno = ENOSPC;  // a write would have raised SIGBUS
  return false;
}

// Sets the size of a file. New bytes are 0, and not allocated yet.
inline bool set_file_size(int file, std::size_t bytes) noexcept {
  const FileSignalGuard guard;
  int result = 0;
  do result = ::ftruncate(file, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  return result == 0;
}

// Maps the first `bytes` of a file, shared. The caller ensures that the file is so long, that no
// process shortens it, and that pages that it writes to are allocated (make_room()).
inline void* map_file(int file, std::size_t bytes, int protection, int flags = 0) noexcept {
  void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED | flags, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Makes a file `bytes` long, of which `held` are mapped at `memory` (first 0 and null), allocates
// the new ones and maps all. Null: the old mapping is still valid; the file may have the new size.
inline void* grow_file(int file, void* memory, std::size_t held, std::size_t bytes) noexcept {
  if (!set_file_size(file, bytes)) return nullptr;
  // Allocates before mremap(), because moving the mapping back could fail.
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

// Reads exactly `bytes` bytes at `at`. False: the file has fewer (errno 0), or cannot be read.
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
