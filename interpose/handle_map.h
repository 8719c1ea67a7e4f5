// SPDX-License-Identifier: Apache-2.0
//
// HandleMap: from a vendor handle to what we know about it. Reads are wait-free (they are on the
// launch path of every thread); writes take a lock.
//
// A reader may race with a writer of *another* handle. Looking a handle up while another thread
// destroys that very handle is a bug of the application, natively too.
//
// Handles are pointers; null and the value 1 are not handles. Values are not owned. No destructor
// that does anything: an application may call us after our statics are gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
      if (held == key) return table->slots[i].value.load(std::memory_order_acquire);
      if (held == kEmpty) return nullptr;
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
    return slot == nullptr ? nullptr : remove(*slot);
  }

  // Calls `take` for every entry that `which` names, after it was removed.
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
  }

  // Calls `function` for every value.
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

 private:
  static constexpr std::uintptr_t kEmpty = 0;
  static constexpr std::uintptr_t kErased = 1;
  struct Slot {
    std::atomic<std::uintptr_t> key;
    std::atomic<Value*> value;
  };
  // Never freed: a reader may still be inside.
  struct Table {
    std::size_t mask;
    Slot slots[1];
  };

  static std::size_t home(std::uintptr_t key, std::size_t mask) {
    return static_cast<std::size_t>((key >> 4) * 0x9e3779b97f4a7c15ULL >> 29) & mask;
  }
  Slot* slot_of(std::uintptr_t key) {
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
    // No search goes on from a slot whose successor is empty, so it and the erased ones before it
    // can be empty too. Without this, programs that make and destroy handles for ever would fill
    // the table with erased slots.
    auto i = static_cast<std::size_t>(&slot - table.slots);
    if (table.slots[(i + 1) & table.mask].key.load(std::memory_order_relaxed) != kEmpty)
      return value;
    while (table.slots[i].key.load(std::memory_order_relaxed) == kErased) {
      table.slots[i].key.store(kEmpty, std::memory_order_release);
      --used_;
      i = (i - 1) & table.mask;
    }
    return value;
  }
  Table* rebuild() {
    std::size_t slots = 64;
    while (slots < 4 * (size_ + 1)) slots *= 2;
    auto* table = static_cast<Table*>(std::calloc(1, sizeof(Table) + (slots - 1) * sizeof(Slot)));
    if (table == nullptr) return nullptr;
    table->mask = slots - 1;
    used_ = 0;
    if (const Table* old = table_.load(std::memory_order_relaxed)) {
      for (std::size_t i = 0; i <= old->mask; ++i) {
        const std::uintptr_t key = old->slots[i].key.load(std::memory_order_relaxed);
        if (key > kErased) place(*table, key, old->slots[i].value.load(std::memory_order_relaxed));
      }
    }
    table_.store(table, std::memory_order_release);
    return table;
  }

  std::atomic<Table*> table_{nullptr};
  std::size_t size_ = 0;  // handles
  std::size_t used_ = 0;  // slots that are not empty
  std::mutex mutex_;
};

}  // namespace vitamin::interpose
