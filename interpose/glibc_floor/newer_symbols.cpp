// SPDX-License-Identifier: Apache-2.0
//
// What the C++ library and ours call that glibc 2.28 does not have yet, in terms of what it has.
// Linked into the preloaded libraries, which go into programs and containers of any age. Hidden:
// no call of another library ends here.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>

extern "C" {

// 2.29: the old ones report errors as SVID asked. Of long doubles there is but one each.
double exp(double x) noexcept { return static_cast<double>(::expl(x)); }
double exp2(double x) noexcept { return static_cast<double>(::exp2l(x)); }
double log(double x) noexcept { return static_cast<double>(::logl(x)); }

// 2.30
pid_t gettid() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// 2.30. Waits by the wall clock, which others may set: so never long at a time. Who is woken early
// looks at its own clock again, as after any spurious wake-up.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec now{}, wall{};
  ::clock_gettime(clock, &now);
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const std::int64_t seconds = std::clamp<std::int64_t>(until->tv_sec - now.tv_sec, -2, 2);
  const std::int64_t left = seconds * kSecond + until->tv_nsec - now.tv_nsec;
  const std::int64_t ends = wall.tv_nsec + std::clamp<std::int64_t>(left, 0, kSecond);
  const timespec at{wall.tv_sec + ends / kSecond, ends % kSecond};
  return ::pthread_cond_timedwait(condition, mutex, &at);
}

// 2.32. False is always right; it is only slower.
extern const char __libc_single_threaded;
const char __libc_single_threaded = 0;

// 2.33. The kernel's structure is glibc's on x86-64 and arm64; the latter has no other calls.
int stat(const char* path, struct stat* facts) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, facts, 0));
}
int lstat(const char* path, struct stat* facts) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, facts, AT_SYMLINK_NOFOLLOW));
}
int fstat(int fd, struct stat* facts) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, fd, facts));
}
int fstat64(int fd, struct stat64* facts) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, fd, facts));
}

// 2.36. For std::random_device; the kernel's answer to so few bytes is never short.
std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  while (::syscall(SYS_getrandom, &value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // extern "C"
