// SPDX-License-Identifier: Apache-2.0
//
// HandleMap: from a vendor handle to what we know about it. Reads of known handles are wait-free
// (they are on the launch path of every thread); writes take a lock, and so does a read that finds
// nothing.
//
// A reader may race with a writer of *another* handle. Looking a handle up while another thread
// destroys that very handle is a bug of the application, natively too.
//
// Memory follows the number of handles, down as well as up. A table that was replaced keeps its
// addresses, because a reader may still be inside, and gives its pages back: they read as zero, so
// such a reader finds nothing and looks again under the lock.
//
// Handles are pointers; null and the value 1 are not handles. Values are not owned. No destructor
// that does anything: an application may call us after our statics are gone.
#pragma once

#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

namespace vitamin::interpose {

template <class Value>
class HandleMap {
 public:
  constexpr HandleMap() = default;
  HandleMap(const HandleMap&) = delete;
  HandleMap& operator=(const HandleMap&) = delete;

  // Null when the handle is not known.
  Value* find(const void* handle) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return nullptr;
    const auto key = reinterpret_cast<std::uintptr_t>(handle);
    for (std::size_t i = home(key, table->mask);; i = (i + 1) & table->mask) {
      const std::uintptr_t held = table->slots[i].key.load(std::memory_order_acquire);
      if (held == key) {
        Value* const value = table->slots[i].value.load(std::memory_order_acquire);
        return value != nullptr ? value : find_locked(key);
      }
      if (held == kEmpty) return find_locked(key);
    }
  }

  // Returns what the handle stood for until now, null when it was new. Without memory the handle
  // stays unknown.
  Value* insert(const void* handle, Value* value) {
    const std::lock_guard lock(mutex_);
    const auto key = reinterpret_cast<std::uintptr_t>(handle);
    if (Slot* slot = slot_of(key)) return slot->value.exchange(value);
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr || 2 * (used_ + 1) > table->mask + 1) table = rebuild();
    if (table == nullptr) return nullptr;
    place(*table, key, value);
    ++size_;
    return nullptr;
  }

  Value* erase(const void* handle) {
    const std::lock_guard lock(mutex_);
    Slot* slot = slot_of(reinterpret_cast<std::uintptr_t>(handle));
    if (slot == nullptr) return nullptr;
    Value* value = remove(*slot);
    shrink();
    return value;
  }

  // Calls `take` for every entry that `which` names, after it was removed. Both run under the lock
  // and must not use this map; insert(), erase() and find() of an unknown handle wait meanwhile.
  template <class Which, class Take>
  void erase_if(Which which, Take take) {
    const std::lock_guard lock(mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) return;
    for (std::size_t i = 0; i <= table->mask; ++i) {
      Slot& slot = table->slots[i];
      if (slot.key.load(std::memory_order_relaxed) <= kErased) continue;
      if (which(*slot.value.load(std::memory_order_relaxed))) take(remove(slot));
    }
    shrink();
  }

  // Calls `function` for every value, under the lock: as for erase_if().
  template <class Function>
  void for_each(Function function) {
    const std::lock_guard lock(mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) return;
    for (std::size_t i = 0; i <= table->mask; ++i)
      if (table->slots[i].key.load(std::memory_order_relaxed) > kErased)
        function(*table->slots[i].value.load(std::memory_order_relaxed));
  }

  std::size_t size() const { return size_; }
  // Tables made so far, and slots of the newest; for tests.
  std::size_t tables() const { return tables_; }
  std::size_t slots() const {
    const Table* table = table_.load(std::memory_order_relaxed);
    return table != nullptr ? table->mask + 1 : 0;
  }

 private:
  static constexpr std::uintptr_t kEmpty = 0;
  static constexpr std::uintptr_t kErased = 1;
  struct Slot {
    std::atomic<std::uintptr_t> key;
    std::atomic<Value*> value;
  };
  struct Table {
    std::size_t mask;
    Slot slots[1];
  };
  static constexpr std::size_t kPage = 4096;
  static std::size_t bytes_of(std::size_t slots) {
    return (sizeof(Table) + (slots - 1) * sizeof(Slot) + kPage - 1) / kPage * kPage;
  }

  static std::size_t home(std::uintptr_t key, std::size_t mask) {
    return static_cast<std::size_t>((key >> 4) * 0x9e3779b97f4a7c15ULL >> 29) & mask;
  }
  [[gnu::noinline]] Value* find_locked(std::uintptr_t key) const {
    const std::lock_guard lock(mutex_);
    const Slot* slot = slot_of(key);
    return slot != nullptr ? slot->value.load(std::memory_order_relaxed) : nullptr;
  }
  Slot* slot_of(std::uintptr_t key) const {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) return nullptr;
    for (std::size_t i = home(key, table->mask);; i = (i + 1) & table->mask) {
      const std::uintptr_t held = table->slots[i].key.load(std::memory_order_relaxed);
      if (held == key) return &table->slots[i];
      if (held == kEmpty) return nullptr;
    }
  }
  // An erased slot may be given to another handle at once: a reader that looks for a handle which
  // exists never takes the value of a slot that held another one.
  void place(Table& table, std::uintptr_t key, Value* value) {
    std::size_t i = home(key, table.mask);
    while (table.slots[i].key.load(std::memory_order_relaxed) > kErased) i = (i + 1) & table.mask;
    if (table.slots[i].key.load(std::memory_order_relaxed) == kEmpty) ++used_;
    table.slots[i].value.store(value, std::memory_order_relaxed);
    table.slots[i].key.store(key, std::memory_order_release);
  }
  Value* remove(Slot& slot) {
    Table& table = *table_.load(std::memory_order_relaxed);
    Value* value = slot.value.exchange(nullptr);
    slot.key.store(kErased, std::memory_order_release);
    --size_;
    empty_unpassed_slots(table, static_cast<std::size_t>(&slot - table.slots));
    return value;
  }
  // An erased slot is needed where the search for a handle passes it. All others in the run of
  // slots around `erased` become empty: programs that make and destroy handles for ever would fill
  // the table with erased slots otherwise.
  void empty_unpassed_slots(Table& table, std::size_t erased) {
    const auto key_at = [&](std::size_t i) {
      return table.slots[i].key.load(std::memory_order_relaxed);
    };
    std::size_t end = erased;
    while (key_at(end) != kEmpty) end = (end + 1) & table.mask;
    // From the end of the run to its beginning. `passed`: so many slots ahead of this one are
    // passed by searches for the handles seen so far.
    std::size_t passed = 0;
    for (std::size_t i = (end - 1) & table.mask; key_at(i) != kEmpty; i = (i - 1) & table.mask) {
      const bool needed = passed > 0;
      if (needed) --passed;
      if (const std::uintptr_t key = key_at(i); key != kErased) {
        passed = std::max(passed, (i - home(key, table.mask)) & table.mask);
      } else if (!needed) {
        table.slots[i].key.store(kEmpty, std::memory_order_release);
        --used_;
      }
    }
  }
  void shrink() {
    const Table* table = table_.load(std::memory_order_relaxed);
    if (table != nullptr && table->mask >= kSlotsKept && 16 * size_ <= table->mask) rebuild();
  }
  // LeakSanitizer looks for pointers in the heap, not in mappings.
  static void scanned([[maybe_unused]] Table* table, [[maybe_unused]] bool on) {
#if defined(__SANITIZE_ADDRESS__)
    const auto change = on ? __lsan_register_root_region : __lsan_unregister_root_region;
    change(table, bytes_of(table->mask + 1));
#endif
  }
  Table* rebuild() {
    std::size_t slots = 64;
    while (slots < 4 * (size_ + 1)) slots *= 2;
    void* const memory = ::mmap(nullptr, bytes_of(slots), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // zeroes
    if (memory == MAP_FAILED) return nullptr;
    auto* table = static_cast<Table*>(memory);
    table->mask = slots - 1;
    ++tables_;
    used_ = 0;
    Table* old = table_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; old != nullptr && i <= old->mask; ++i) {
      const std::uintptr_t key = old->slots[i].key.load(std::memory_order_relaxed);
      if (key > kErased) place(*table, key, old->slots[i].value.load(std::memory_order_relaxed));
    }
    table_.store(table, std::memory_order_release);
    scanned(table, true);
    if (old == nullptr) return table;
    scanned(old, false);
    ::madvise(old, bytes_of(old->mask + 1), MADV_DONTNEED);
    return table;
  }

  // A table with so many slots or fewer stays: each replaced one costs its addresses.
  static constexpr std::size_t kSlotsKept = 4096;
  std::atomic<Table*> table_{nullptr};
  std::size_t size_ = 0;  // handles
  std::size_t used_ = 0;  // slots that are not empty
  std::size_t tables_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace vitamin::interpose
