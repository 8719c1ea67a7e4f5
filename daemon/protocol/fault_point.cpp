// SPDX-License-Identifier: Apache-2.0
//
// Linked into test builds only (see shared.h). VITAMIN_KILL_AT=n: the process sends itself SIGKILL
// before its n-th write. VITAMIN_FAULT_COUNT=file: how many there were, written at a normal end.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "daemon/protocol/shared.h"

#ifdef VITAMIN_FAULT_POINTS

namespace vitamin::protocol {
namespace {

std::atomic<std::uint64_t> writes{0};

void write_count() {
  const char* file = std::getenv("VITAMIN_FAULT_COUNT");
  if (file == nullptr) return;
  const int out = ::open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (out < 0) return;
  ::dprintf(out, "%llu\n", static_cast<unsigned long long>(writes.load()));
  ::close(out);
}

std::uint64_t kill_at() {
  std::atexit(&write_count);
  const char* text = std::getenv("VITAMIN_KILL_AT");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

}  // namespace

void fault_point() {
  static const std::uint64_t at = kill_at();
  if (writes.fetch_add(1, std::memory_order_relaxed) + 1 == at) ::kill(::getpid(), SIGKILL);
}

}  // namespace vitamin::protocol

#endif
