// SPDX-License-Identifier: Apache-2.0
#include "tests/scheduler/allocations.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> allocated{0};

void* take(std::size_t size) noexcept {
  allocated.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(std::max<std::size_t>(size, 1));
}

void* take(std::size_t size, std::align_val_t alignment) noexcept {
  allocated.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (std::max<std::size_t>(size, 1) + unit - 1) / unit * unit);
}

void* checked(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace vitamin::test {

std::uint64_t allocations() { return allocated.load(std::memory_order_relaxed); }

}  // namespace vitamin::test

using Size = std::size_t;
using Alignment = std::align_val_t;
using NoThrow = const std::nothrow_t&;

void* operator new(Size size) { return checked(take(size)); }
void* operator new[](Size size) { return checked(take(size)); }
void* operator new(Size size, NoThrow) noexcept { return take(size); }
void* operator new[](Size size, NoThrow) noexcept { return take(size); }
void* operator new(Size size, Alignment unit) { return checked(take(size, unit)); }
void* operator new[](Size size, Alignment unit) { return checked(take(size, unit)); }
void* operator new(Size size, Alignment unit, NoThrow) noexcept { return take(size, unit); }
void* operator new[](Size size, Alignment unit, NoThrow) noexcept { return take(size, unit); }

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, Size) noexcept { std::free(memory); }
void operator delete[](void* memory, Size) noexcept { std::free(memory); }
void operator delete(void* memory, NoThrow) noexcept { std::free(memory); }
void operator delete[](void* memory, NoThrow) noexcept { std::free(memory); }
void operator delete(void* memory, Alignment) noexcept { std::free(memory); }
void operator delete[](void* memory, Alignment) noexcept { std::free(memory); }
void operator delete(void* memory, Size, Alignment) noexcept { std::free(memory); }
void operator delete[](void* memory, Size, Alignment) noexcept { std::free(memory); }
void operator delete(void* memory, Alignment, NoThrow) noexcept { std::free(memory); }
void operator delete[](void* memory, Alignment, NoThrow) noexcept { std::free(memory); }
