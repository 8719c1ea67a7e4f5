// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/lease_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "daemon/protocol/fd.h"
#include "hal/file_memory.h"
#include "hal/fnv1a.h"
#include "hal/process_stat.h"

namespace vitamin::daemon {
namespace {

constexpr std::array<char, 16> kMagic{'v', 'i', 't', 'a', 'm', 'i', 'n', ' ',
                                      'l', 'e', 'a', 's', 'e', 's', '1', '\0'};
constexpr std::size_t kMostSlots = 1 << 16;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

// The contents of a file of this user. Empty: there is none, or another user may have written it.
std::vector<std::byte> contents(const std::string& path, std::size_t most) {
  const protocol::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
      facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0 ||
      facts.st_size > static_cast<off_t>(most))
    return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(facts.st_size));
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = ::pread(file.get(), &bytes[at], bytes.size() - at, static_cast<off_t>(at));
    if (got <= 0) return {};
    at += static_cast<std::size_t>(got);
  }
  return bytes;
}

template <class T>
T copy_at(std::span<const std::byte> bytes, std::size_t at) {
  T copy;
  std::memcpy(&copy, bytes.data() + at, sizeof copy);
  return copy;
}

}  // namespace

ProcessIdentity identity_of(pid_t process) {
  if (process <= 0) return {};
  const auto stat = hal::process_stat(process);
  return stat ? ProcessIdentity{static_cast<std::uint64_t>(process), stat->start}
              : ProcessIdentity{};
}

std::uint64_t key_of_device(const std::string& uuid, const std::string& domain,
                            std::uint64_t pool_hash) {
  return hal::fnv1a_add(hal::fnv1a(domain.empty() ? uuid : uuid + '\n' + domain), pool_hash);
}

void LeaseRecord::Unmap::operator()(std::byte* memory) const {
  if (size != 0)
    ::munmap(memory, size);
  else
    ::operator delete[](memory, std::align_val_t{64});
}

LeaseRecord::LeaseRecord(std::size_t sessions, std::uint64_t now_ns, std::uint64_t believed_ns,
                         const LeaseRecord* before) {
  if (before != nullptr) past_ = past_of(before->bytes(), now_ns);
  const std::size_t slots = past_.size() + sessions;
  auto* const memory =
      static_cast<std::byte*>(::operator new[](bytes_for(slots), std::align_val_t{64}));
  memory_ = std::unique_ptr<std::byte, Unmap>(memory);
  fill(memory, slots, now_ns, believed_ns);
}

LeaseRecord LeaseRecord::at(const std::string& path, std::size_t sessions, std::uint64_t now_ns,
                            std::uint64_t believed_ns, std::string& problem) {
  LeaseRecord record;
  record.past_ = past_of(contents(path, bytes_for(kMostSlots)), now_ns);
  const std::size_t slots = record.past_.size() + std::min(sessions, kMostSlots / 2);
  const std::size_t size = bytes_for(slots);
  const std::string before = path + ".new";
  ::unlink(before.c_str());
  const protocol::Fd file(
      ::open(before.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  void* const memory = file ? hal::grow_file(file.get(), nullptr, 0, size) : nullptr;
  int error = memory == nullptr ? errno : 0;
  if (error == 0) {
    record.memory_ = {static_cast<std::byte*>(memory), Unmap(size)};
    record.fill(record.memory_.get(), slots, now_ns, believed_ns);
    struct stat facts {};
    if (::fstat(file.get(), &facts) == 0 && ::rename(before.c_str(), path.c_str()) == 0) {
      record.file_ = protocol::PlacedFile(path, facts.st_dev, facts.st_ino);
      return record;
    }
    error = errno;
  }
  ::unlink(before.c_str());
  ::unlink(path.c_str());  // it would not be updated from now on
  problem = path + ": " + std::strerror(error);
  record.memory_ = nullptr;
  record.slots_ = {};
  record.free_.clear();
  record.believed_until_ = now_ns + believed_ns;
  return record;
}

// What a daemon that starts now accepts of a former daemon's record. Empty: the bytes are no
// record.
std::vector<LeaseRecord::Past> LeaseRecord::past_of(std::span<const std::byte> bytes,
                                                    std::uint64_t now_ns) {
  if (bytes.size() < sizeof(Header)) return {};
  const auto header = copy_at<Header>(bytes, 0);
  // A clock behind the record's: the machine was restarted, and no process is the same.
  if (header.magic != kMagic || header.slots > kMostSlots ||
      bytes.size() != bytes_for(header.slots) || header.started_ns > now_ns)
    return {};
  const bool still = now_ns - header.started_ns < header.believed_ns;
  std::vector<Past> past;
  for (std::size_t i = 0; i < header.slots; ++i) {
    std::array<std::uint64_t, sizeof(Slot) / 8> words;
    std::memcpy(words.data(), bytes.data() + bytes_for(i), sizeof words);
    if (words[0] == 0 || (words[4] != 0 && !still)) continue;
    Past one{{words[0], words[1]}, words[2], words[3], {}};
    std::copy_n(words.begin() + 5, kWords, one.held.begin());
    past.push_back(one);
  }
  // A process that reconnected to many daemons has many slots: keep the newest.
  if (past.size() > kMostSlots / 2) past.erase(past.begin(), past.end() - kMostSlots / 2);
  return past;
}

void LeaseRecord::fill(std::byte* memory, std::size_t slots, std::uint64_t now_ns,
                       std::uint64_t believed_ns) {
  believed_until_ = now_ns + believed_ns;
  new (memory) Header{kMagic, slots, now_ns, believed_ns, {}};
  slots_ = {new (memory + sizeof(Header)) Slot[slots](), slots};
  for (std::size_t i = 0; i < past_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.started.store(past_[i].process.started, kRelaxed);
    slot.device.store(past_[i].device, kRelaxed);
    slot.fallback.store(past_[i].fallback, kRelaxed);
    slot.former.store(1, kRelaxed);
    for (std::size_t word = 0; word < kWords; ++word)
      slot.held[word].store(past_[i].held[word], kRelaxed);
    slot.process.store(past_[i].process.process, kRelease);
  }
  for (std::size_t i = slots; i > past_.size(); --i) free_.push_back(i - 1);
}

std::span<const std::byte> LeaseRecord::bytes() const {
  if (memory_ == nullptr) return {};
  return {memory_.get(), bytes_for(slots_.size())};
}

std::size_t LeaseRecord::begin(const ProcessIdentity& process, std::uint64_t device,
                               runtime::PartitionId fallback) {
  if (!process) return kNoSlot;
  for (Past& past : past_)
    if (past.process == process && past.device == device) past.back = true;
  if (free_.empty()) return kNoSlot;
  const std::size_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.started.store(process.started, kRelaxed);
  slot.device.store(device, kRelaxed);
  slot.fallback.store(fallback, kRelaxed);
  for (Word& word : slot.held) word.store(0, kRelaxed);
  slot.process.store(process.process, kRelease);
  return index;
}

void LeaseRecord::end(std::size_t index) {
  if (index == kNoSlot) return;
  slots_[index].process.store(0, kRelease);
  free_.push_back(index);
}

void LeaseRecord::holds(std::size_t index, runtime::PartitionId partition, bool held) {
  if (index == kNoSlot || partition >= runtime::kPartitionsMax) return;
  Word& word = slots_[index].held[partition / 64];
  const std::uint64_t bit = std::uint64_t{1} << partition % 64;
  const std::uint64_t before = word.load(kRelaxed);  // this is the only writer
  word.store(held ? before | bit : before & ~bit, kRelease);
}

std::vector<runtime::PartitionId> LeaseRecord::before(const ProcessIdentity& process,
                                                      std::uint64_t device) const {
  std::vector<runtime::PartitionId> partitions;
  if (!process) return partitions;
  for (const Past& past : past_) {
    if (past.process != process || past.device != device || past.reported) continue;
    for (std::size_t partition = 0; partition < runtime::kPartitionsMax; ++partition)
      if ((partition == past.fallback && partition != runtime::kWholeDevice) ||
          (past.held[partition / 64] >> partition % 64 & 1) != 0)
        partitions.push_back(static_cast<runtime::PartitionId>(partition));
  }
  std::sort(partitions.begin(), partitions.end());
  partitions.erase(std::unique(partitions.begin(), partitions.end()), partitions.end());
  return partitions;
}

void LeaseRecord::reported(const ProcessIdentity& process, std::uint64_t device) {
  for (std::size_t i = 0; i < past_.size(); ++i) {
    if (past_[i].process != process || past_[i].device != device) continue;
    past_[i].reported = true;
    if (i < slots_.size()) slots_[i].process.store(0, kRelease);  // fill() has put it there
  }
}

std::vector<ProcessIdentity> LeaseRecord::absent(std::uint64_t device) const {
  std::vector<ProcessIdentity> processes;
  for (const Past& past : past_)
    if (past.device == device && !past.back &&
        std::find(processes.begin(), processes.end(), past.process) == processes.end())
      processes.push_back(past.process);
  return processes;
}

void LeaseRecord::close(std::uint64_t now_ns) {
  const std::vector<Past> left = past_of(bytes(), now_ns);
  if (std::none_of(left.begin(), left.end(), [](const Past& past) {
        return identity_of(static_cast<pid_t>(past.process.process)) == past.process;
      }))
    file_.remove();
  memory_ = nullptr;
  slots_ = {};
  free_.clear();
}

}  // namespace vitamin::daemon
