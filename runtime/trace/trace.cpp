// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "runtime/clock.h"

namespace vitamin::runtime::trace {
namespace {

void set(char* to, std::size_t room, const std::string& text) {
  const std::size_t length = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace

void describe(TraceHeader& header, const hal::DeviceInfo& info, const PoolLimits& limits) {
  header.sms = info.sms;
  header.units = std::min<std::uint32_t>(info.units(), kUnitsMax);
  for (std::uint32_t unit = 0; unit < header.units; ++unit)
    header.per_unit[unit] = info.sms_per_unit[unit];
  header.partitions_max = limits.partitions_max;
  header.leaf_units = limits.leaf_units;
  header.all_runs = limits.all_runs ? 1 : 0;
  set(header.uuid, sizeof header.uuid, info.uuid);
  set(header.device, sizeof header.device, info.name);
}

std::unique_ptr<Recorder> Recorder::create(const char* directory, TraceHeader header,
                                           std::size_t room) {
  char path[4096];
  const char* const writer = header.writer == Writer::kDaemon ? "daemon" : "program";
  int file = -1;
  for (unsigned image = 0; image < 1000 && file < 0; ++image) {
    const int length = std::snprintf(path, sizeof path, "%s/%s.%d.%u.trace", directory, writer,
                                     static_cast<int>(::getpid()), image);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) {
      errno = ENAMETOOLONG;
      return nullptr;
    }
    file = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 && errno != EEXIST) return nullptr;
  }
  if (file < 0) return nullptr;
  header.magic = kMagic;
  header.version = kVersion;
  header.record_bytes = sizeof(TraceEntry);
  header.process = static_cast<std::uint32_t>(::getpid());
  header.first_ticks = header.last_ticks = ticks();
  header.first_ns = header.last_ns = now_ns();
  return std::unique_ptr<Recorder>(new Recorder(file, header, room));
}

Recorder::Recorder(int file, const TraceHeader& header, std::size_t room)
    : file_(file), header_(header), ring_(room) {
  thread_ = std::thread([this] { run(); });
}

Recorder::~Recorder() {
  stop();
  ::close(file_);
}

void Recorder::stop() {
  if (::getpid() != owner_) {
    // A child that was forked: the thread is the parent's, and so is the file.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  stopping_.store(true, std::memory_order_release);
  if (thread_.joinable()) thread_.join();
}

void Recorder::name(std::uint64_t kernel, std::string_view text) {
  text = text.substr(0, 1024);
  const std::size_t slots = (text.size() + sizeof(TraceEntry) - 1) / sizeof(TraceEntry);
  if (take(1 + slots) == nullptr) return;
  TraceEntry head;
  head.kind = TraceKind::kName;
  head.a = kernel;
  head.serial = text.size();
  slot(0) = head;
  for (std::size_t i = 0; i < slots; ++i) {
    const std::string_view piece = text.substr(i * sizeof(TraceEntry), sizeof(TraceEntry));
    char bytes[sizeof(TraceEntry)] = {};
    std::memcpy(bytes, piece.data(), piece.size());
    std::memcpy(static_cast<void*>(&slot(1 + i)), bytes, sizeof bytes);
  }
  publish(1 + slots);
}

void Recorder::run() {
  // The program's signals are the program's threads'; and a file limit must be an error here.
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  write_header();
  using std::chrono::milliseconds;
  // Short naps while there is something, so that the ring holds 30 million records a second.
  milliseconds nap{1};
  while (!stopping_.load(std::memory_order_acquire)) {
    nap = flush() ? milliseconds(1) : std::min(2 * nap, milliseconds(16));
    std::this_thread::sleep_for(nap);
  }
  while (flush()) {
  }
  header_.closed = 1;
  write_header();
}

// True: there was something.
bool Recorder::flush() {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint64_t head = head_.load(std::memory_order_acquire);
  const std::uint64_t dropped = dropped_.load(std::memory_order_relaxed) + header_.dropped_disk;
  if (head == tail && dropped == header_.dropped) return false;
  // Up to the ring's end; what lies before its beginning comes next time.
  const std::uint64_t first = tail & (ring_.size() - 1);
  const std::uint64_t count = std::min<std::uint64_t>(head - tail, ring_.size() - first);
  const off_t end = static_cast<off_t>(kHeaderBytes + header_.records * sizeof(TraceEntry));
  // Whole records only: what a full disk took of one is overwritten by the next try.
  const ssize_t written =
      count == 0 ? 0 : ::pwrite(file_, &ring_[first], count * sizeof(TraceEntry), end);
  const std::uint64_t kept =
      written > 0 ? static_cast<std::uint64_t>(written) / sizeof(TraceEntry) : 0;
  if (kept < count) {
    header_.disk_error = written < 0 ? errno : ENOSPC;
    header_.dropped_disk += count - kept;
  }
  header_.records += kept;
  header_.dropped = dropped_.load(std::memory_order_relaxed) + header_.dropped_disk;
  tail_.store(tail + count, std::memory_order_release);
  write_header();
  return true;
}

void Recorder::write_header() {
  header_.last_ticks = ticks();
  header_.last_ns = now_ns();
  char page[kHeaderBytes] = {};
  std::memcpy(page, &header_, sizeof header_);
  if (::pwrite(file_, page, sizeof page, 0) < 0) header_.disk_error = errno;
}

}  // namespace vitamin::runtime::trace
