// SPDX-License-Identifier: Apache-2.0
//
// The lock rule: a thread that holds a lock of Vitamin's makes no call that can block the host, and
// the thread that submits deferred work makes none at all. Vendors' functions are annotated in the
// tables by which backends call them (TableEntry); a breach aborts where VITAMIN_LOCK_RULE is set,
// as it is in tests.
//
// A launch pays nothing: only calls that can block check, by asking each lock for its owner.
// Without VITAMIN_LOCK_RULE no lock is registered.
#pragma once

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace vitamin::hal {

// Whether a call of the vendor can block the host until work of a device has ended.
enum class Blocks : std::uint8_t {
  kNever,
  kWhenFull,  // only while a hardware queue is full, which the runtime prevents: not checked
  kWaits,
};

class LockRule {
  struct Slot {
    std::mutex* mutex;
    const char* name;
  };
  static inline constinit std::array<Slot, 256> slots_{};
  static inline constinit std::mutex slots_mutex_{};  // of slots_; no other lock is taken under it

 public:
  // Puts a lock under the rule for as long as this object lives. Locks beyond the 256 that the
  // table holds are not checked.
  class Watched {
   public:
    Watched(std::mutex& mutex, const char* name) {
      if (!enforced()) return;
      const std::lock_guard lock(slots_mutex_);
      for (Slot& slot : slots_) {
        if (slot.mutex != nullptr) continue;
        slot = Slot{&mutex, name};
        slot_ = &slot;
        return;
      }
    }
    // Afterwards no thread reads the mutex, so it may be destroyed.
    ~Watched() {
      if (slot_ == nullptr) return;
      const std::lock_guard lock(slots_mutex_);
      *slot_ = Slot{nullptr, nullptr};
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Slot* slot_ = nullptr;
  };

  // The calling thread submits deferred work from now on.
  static void moves_deferred_work() { moves_deferred_work_ = true; }

  // Called before a call that can block the host.
  static void waits(const char* call) {
    if (enforced()) [[unlikely]]
      look(call);
  }

 private:
  static bool enforced() {
    static const bool is = std::getenv("VITAMIN_LOCK_RULE") != nullptr && survives_fork();
    return is;
  }
  // A forked child finds slots_mutex_ free, whatever other threads of its parent did.
  static bool survives_fork() {
    return ::pthread_atfork([] { slots_mutex_.lock(); }, [] { slots_mutex_.unlock(); },
                            [] { slots_mutex_.unlock(); }) == 0;
  }
  [[gnu::noinline]] static void look(const char* call) {
    if (moves_deferred_work_) breach(call, "is made by the thread that moves deferred work");
    const auto self = static_cast<int>(::syscall(SYS_gettid));
    const std::lock_guard lock(slots_mutex_);
    for (const Slot& slot : slots_)
      if (slot.mutex != nullptr && owner(*slot.mutex) == self) breach(call, slot.name);
  }
  static int owner(std::mutex& mutex) {
    return __atomic_load_n(&mutex.native_handle()->__data.__owner, __ATOMIC_RELAXED);
  }
  [[noreturn]] static void breach(const char* call, const char* why) {
    std::fprintf(stderr, "vitamin: the lock rule is broken: %s can wait: %s\n", call, why);
    std::abort();
  }
  // alignas: where thread-local storage needs less alignment than what follows it, mold 1.10 (in
  // Debian 12) can put it into a page that no segment maps; the loader then refuses the program.
  alignas(8) static inline constinit thread_local bool moves_deferred_work_ = false;
};

// A vendor's function in a table; called and compared with null like a function pointer.
template <class Function, Blocks kBlocks>
class TableEntry;
template <class Result, class... Args, Blocks kBlocks>
class TableEntry<Result (*)(Args...), kBlocks> {
 public:
  TableEntry() = default;
  TableEntry(const char* name, void* address)
      : function_(reinterpret_cast<Result (*)(Args...)>(address)), name_(name) {}
  Result operator()(Args... args) const {
    if constexpr (kBlocks == Blocks::kWaits) LockRule::waits(name_);
    return function_(args...);
  }
  explicit operator bool() const { return function_ != nullptr; }
  friend bool operator==(const TableEntry& entry, std::nullptr_t) {
    return entry.function_ == nullptr;
  }

 private:
  Result (*function_)(Args...) = nullptr;
  const char* name_ = nullptr;
};

}  // namespace vitamin::hal
