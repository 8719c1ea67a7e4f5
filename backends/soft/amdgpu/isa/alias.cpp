// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/alias.h"

#include <algorithm>
#include <array>
#include <mutex>

namespace vitamin::soft::amdgpu::isa {

constinit AliasRange alias_range;

namespace {

// A kernel uses only addresses whose aliases were there when it was launched, so a look-up that
// meets a change of another entry needs no more than whole words.
struct Alias {
  std::atomic<std::uint64_t> begin{0}, bytes{0}, host{0};
};
constexpr std::size_t kAliases = 1024;
constinit std::array<Alias, kAliases> aliases;
constinit std::atomic<std::size_t> used{0};  // entries beyond were never used
constinit std::mutex changes;

// Wants the lock.
void set_range() {
  std::uint64_t begin = ~0ull, end = 0;
  for (std::size_t at = 0; at < used; ++at) {
    if (aliases[at].bytes == 0) continue;
    begin = std::min(begin, aliases[at].begin.load());
    end = std::max(end, aliases[at].begin + aliases[at].bytes);
  }
  // Either alone leaves out no alias that is there before and after.
  alias_range.begin = begin;
  alias_range.end = end;
}

}  // namespace

std::uint64_t find_alias(std::uint64_t address) {
  const std::size_t count = used.load(std::memory_order_acquire);
  for (std::size_t at = 0; at < count; ++at) {
    const std::uint64_t into = address - aliases[at].begin.load(std::memory_order_relaxed);
    if (into < aliases[at].bytes.load(std::memory_order_acquire))
      return aliases[at].host.load(std::memory_order_relaxed) + into;
  }
  return address;
}

bool add_alias(std::uint64_t address, std::uint64_t bytes, std::uint64_t host) {
  const std::lock_guard lock(changes);
  const auto free = std::find_if(aliases.begin(), aliases.end(),
                                 [](const Alias& alias) { return alias.bytes == 0; });
  if (free == aliases.end()) return false;
  free->begin = address;
  free->host = host;
  free->bytes.store(bytes, std::memory_order_release);
  used = std::max(used.load(), static_cast<std::size_t>(free - aliases.begin()) + 1);
  set_range();
  return true;
}

void remove_alias(std::uint64_t address) {
  const std::lock_guard lock(changes);
  for (std::size_t at = 0; at < used; ++at)
    if (aliases[at].begin == address) aliases[at].bytes = 0;
  set_range();
}

}  // namespace vitamin::soft::amdgpu::isa
