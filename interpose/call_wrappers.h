// SPDX-License-Identifier: Apache-2.0
//
// The treatments that driver.def names, generic over the type of the entry point: the stream is the
// one argument of type NativeStream, and everything else is a value or, in copies, a host pointer.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "interpose/context.h"
#include "interpose/hook.h"
#include "interpose/manual_overrides.h"
#include "runtime/capture_safe_scope.h"
#include "runtime/operation.h"
#include "runtime/virtual_context.h"

namespace vitamin::interpose {

using runtime::CallKind;
using runtime::Deferred;
using runtime::Host;
using runtime::Keep;

// Off in one library that only tests load: their negative controls show that each bridge is needed.
#if defined(VITAMIN_TEST_UNBRIDGED)
inline constexpr bool kBridged = false;
#else
inline constexpr bool kBridged = true;
#endif

inline ApiStatus result(hal::NativeStatus status) { return static_cast<ApiStatus>(status); }

template <class... Args>
inline constexpr int kStreamArguments = (0 + ... + std::is_same_v<Args, NativeStream>);

template <class... Args>
NativeStream stream_of(Args... args) {
  static_assert(kStreamArguments<Args...> == 1);
  NativeStream stream = nullptr;
  auto take = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), NativeStream>) stream = argument;
  };
  (take(args), ...);
  return stream;
}

// `argument`, or `native` in the place of the stream.
template <class T>
T with_stream(T argument, [[maybe_unused]] void* native) {
  if constexpr (std::is_same_v<T, NativeStream>)
    return static_cast<NativeStream>(native);
  else
    return argument;
}

// Where a call on a stream goes; a Destination names the stream, too.
enum class Route : std::uint8_t {
  kManaged,
  kCaptured,  // into a graph: straight to the driver, on the stream that stands for it
  kForeign,   // straight to the driver, as it came
};
struct Destination {
  Route route;
  StreamRecord* record;  // null when foreign
  runtime::VirtualContext& context() const { return *record->context->virtual_context; }
  runtime::Stream& stream() const { return *record->stream; }
  NativeStream native() const { return record->context->native(*record); }
  runtime::stats::DevicePage& page() const { return context().page(); }
};

inline Destination destination_of(NativeStream stream, bool per_thread) {
  StreamRecord* record = find_stream(stream, per_thread);
  if (record == nullptr) return {Route::kForeign, nullptr};
  if (captures_open() && is_capturing(*record)) [[unlikely]]
    return {Route::kCaptured, record};
  return {Route::kManaged, record};
}

// The thread that submits a deferred operation may have another context current, or none: copies
// and fills want one, and the legacy stream's handle means the stream of the current one.
class CurrentContext {
 public:
  explicit CurrentContext(NativeContext wanted) { enter(wanted); }
  ~CurrentContext() {
    if (entered_) leave();
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  void enter(NativeContext wanted);  // by the vendor
  void leave();                      // by the vendor
  NativeContext before_{};
  bool entered_ = false;
};
ApiStatus synchronize_natively(NativeStream stream);  // by the vendor
// By the vendors whose captures may forbid it.
ApiStatus query_natively(NativeStream stream);
ApiStatus query_natively(NativeEvent event);

// What a call that waits for the stream or the event answers because of a capture, which it breaks;
// else success. The call itself cannot be made to know: what is deferred would be waited for first.
template <class Handle>
ApiStatus forbidden_by_capture(Handle handle) {
  if constexpr (kCaptureForbidsQuestions) {
    if (!captures_open()) [[likely]]
      return kSuccess;
    const ApiStatus answer = query_natively(handle);
    return answer == kNotReady ? kSuccess : answer;
  }
  return kSuccess;
}

// A copy to the host that was made: the audit looks at its bytes when the host has waited for them.
template <class... Args>
ApiStatus copied(const Destination& destination, ApiStatus answer, Args... args) {
  runtime::Audit* audit = destination.context().audit();
  if (audit == nullptr || answer != kSuccess) [[likely]]
    return answer;
  for_each_host_copy([&](const runtime::HostBox& box) { audit->copied(destination.stream(), box); },
                     args...);
  // Without a stream the host has waited already.
  if constexpr (kStreamArguments<Args...> == 0) audit->reached(destination.stream(), ~0ULL);
  return answer;
}

// A call that runs on the real default stream, in the place of `native`, which stands for it.
template <class Call>
ApiStatus on_default_stream(runtime::VirtualContext& context, NativeStream native, Call call) {
  if constexpr (kLegacyIsReal) return call();
  const auto wait_for = [&](NativeStream stream) {
    // A capture forbids the program to wait, not us.
    const runtime::CaptureSafeScope safe(context.device());
    return synchronize_natively(stream);
  };
  // The real one knows nothing of what `native` is behind, nor the other way round.
  if (const ApiStatus answer = wait_for(native); answer != kSuccess) return answer;
  if (const ApiStatus answer = call(); answer != kSuccess) return answer;
  return wait_for(nullptr);
}

// --- on the program's own stream -------------------------------------------------------------

// A call whose arguments are all values (a stream aside) can wait its turn as it is.
template <class... Args>
inline constexpr bool kAllValues =
    (... && (!std::is_pointer_v<Args> || std::is_same_v<Args, NativeStream>));

template <CallKind kKind, Host kHost>
struct Bridge {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    const Destination destination = destination_of(stream_of(args...), entry.per_thread);
    if (destination.route == Route::kForeign) return entry.real(args...);
    if (destination.route == Route::kCaptured || !kBridged)
      return entry.real(with_stream(args, destination.native())...);
    auto operation = runtime::call_kept_if(
        [=, context = destination.record->context->handle](void* native) {
          const CurrentContext current(context);
          return hal::NativeStatus(entry.real(with_stream(args, native)...));
        },
        [=] { return kAllValues<Args...> && surely_accepted(args...); });
    const ReentrancyGuard ours;
    return copied(
        destination,
        result(destination.context().bridge(destination.stream(), operation, kKind, kHost)),
        args...);
  }
};

template <Host kHost>
struct DefaultStream {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    const Destination destination = destination_of(nullptr, entry.per_thread);
    // Only a thread's own stream can be part of a capture. There the call is refused and breaks the
    // capture, as any call is that waits for a captured stream; where a stand-in captures, the
    // vendor answers for the thread's own one.
    if (destination.route == Route::kCaptured)
      return kLegacyIsReal ? synchronize_natively(destination.native()) : entry.real(args...);
    if (destination.route == Route::kForeign) return entry.real(args...);
    auto operation = runtime::call(
        [&](void* native) {
          return hal::NativeStatus(on_default_stream(destination.context(),
                                                     static_cast<NativeStream>(native),
                                                     [&] { return entry.real(args...); }));
        },
        Keep::kNo);
    const ReentrancyGuard ours;
    if (entry.per_thread)
      return copied(
          destination,
          result(destination.context().bridge_per_thread(destination.stream(), operation)),
          args...);
    return copied(destination,
                  result(destination.context().bridge(destination.stream(), operation,
                                                      CallKind::kWork, kHost)),
                  args...);
  }
};

// --- wherever the stream's newest work lies ------------------------------------------------------

// kElement: bytes of an element where the types of the entry point do not say it; else 0.
template <std::size_t kElement>
struct FillOf {
  static constexpr Addresses kSides{};  // as the types say
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    const Destination destination = destination_of(stream_of(args...), entry.per_thread);
    if (destination.route == Route::kForeign) return entry.real(args...);
    if (destination.route == Route::kCaptured)
      return entry.real(with_stream(args, destination.native())...);
    runtime::stats::Counter& fills = destination.page().other.fills_queued;
    auto operation = runtime::call_kept_if(
        [=, &fills, context = destination.record->context->handle](void* native) {
          const CurrentContext current(context);
          fills.add();
          return hal::NativeStatus(entry.real(with_stream(args, native)...));
        },
        [=] {
          if constexpr (kElement == 0)
            return surely_accepted(args...);
          else
            return surely_accepted(std::integral_constant<std::size_t, kElement>{}, args...);
        });
    const ReentrancyGuard ours;
    // A legacy operation goes to the program's own stream while any thread captures: the driver
    // decides there whether it is allowed.
    if (destination.record->confined || (captures_open() && destination.record->legacy))
      return result(destination.context().bridge(destination.stream(), operation));
    return result(kFillsAreKernels
                      ? destination.context().compute(destination.stream(), operation)
                      : destination.context().enqueue(destination.stream(), operation));
  }
};
using Fill = FillOf<0>;

// A call's pointed-to argument, copied; anything else as it is.
template <class T>
struct Kept {
  T value;
  T get() const { return value; }
};
template <Descriptor T>
struct Kept<const T*> {
  KeptAs<T> value;
  explicit Kept(const T* pointer) { std::memcpy(&value, pointer, bytes_of(*pointer)); }
  const T* get() const { return reinterpret_cast<const T*>(&value); }
};

template <class T>
bool is_null_descriptor(T argument) {
  if constexpr (std::is_pointer_v<T>)
    if constexpr (Descriptor<std::remove_cv_t<std::remove_pointer_t<T>>>)
      return argument == nullptr;
  return false;
}

// kAddresses: how the vendor reads the arguments of this entry point (CopySides).
template <Addresses kAddresses>
struct Copy {
  static constexpr Addresses kSides = kAddresses;
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    // A missing descriptor is the driver's to refuse.
    if ((... || is_null_descriptor(args))) return entry.real(args...);
    const Destination destination = destination_of(stream_of(args...), entry.per_thread);
    if (destination.route == Route::kForeign) return entry.real(args...);
    if (destination.route == Route::kCaptured)
      return entry.real(with_stream(args, destination.native())...);
    const CopySides sides = CopySides::of<kAddresses>(args...);
    // It may block, or must be made while the caller's memory is as it is now. Host to host is
    // synchronous, page-locked or not.
    const bool may_block = sides.pageable || !sides.device;
    const bool bridge = may_block || destination.record->confined ||
                        (captures_open() && destination.record->legacy);
    const ReentrancyGuard ours;
    if (bridge && kBridged) {
      auto operation = runtime::call(
          [&](void* native) { return hal::NativeStatus(entry.real(with_stream(args, native)...)); },
          Keep::kNo);
      return copied(
          destination,
          result(destination.context().bridge(destination.stream(), operation, CallKind::kWork,
                                              may_block ? Host::kMayBlock : Host::kReturns)),
          args...);
    }
    runtime::stats::Counter& copies = destination.page().other.copies_queued;
    auto operation = runtime::call_kept_if(
        [entry, &copies, context = destination.record->context->handle,
         ... kept = Kept<Args>{args}](void* native) {
          const CurrentContext current(context);
          copies.add();
          return hal::NativeStatus(entry.real(with_stream(kept.get(), native)...));
        },
        [=] { return !kBridged || surely_accepted(args...); });
    const ApiStatus answer =
        result(sides.kernel ? destination.context().compute(destination.stream(), operation)
                            : destination.context().enqueue(destination.stream(), operation));
    return copied(destination, answer, args...);
  }
};

// --- memory in stream order ----------------------------------------------------------------------

// The pool that an allocation names; by the vendor: the one that an allocation without a name comes
// from.
inline MemoryPool pool_of(const Context&, MemoryPool pool, NativeStream) { return pool; }
MemoryPool pool_of(const Context& context, NativeStream);
// Memory was freed, or is given out, by a call that the runtime does not see.
void forget_block(std::uint64_t address);

// Deferred work of every managed context is flushed before the call. It waits for no device, but
// for room in the driver's queues.
ApiStatus flush_deferred_then(const runtime::VendorCall& call);
void flush_deferred();

// (address, bytes, [pool,] stream). Memory that deferred work frees, on whatever stream, is there
// for an allocation natively: one that is refused is made again behind that work.
struct Allocate {
  template <class Address, class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(Address*, std::size_t, Rest...)> entry,
                       Address* address, std::size_t bytes, Rest... rest) {
    const Destination destination = destination_of(stream_of(rest...), entry.per_thread);
    if (destination.route == Route::kCaptured)
      return taken(address, entry.real(address, bytes, with_stream(rest, destination.native())...));
    // What a capture forbids the driver refuses; memory that waits for its free is not given out.
    if (captures_open()) flush_deferred();
    if (address == nullptr || destination.route == Route::kForeign) {
      const auto made = [&] { return entry.real(address, bytes, rest...); };
      return taken(address, made_again(made(), made));
    }
    runtime::MemoryBlock block{0, bytes, pool_of(*destination.record->context, rest...)};
    auto operation = runtime::call(
        [&](void* native) {
          const ApiStatus answer = entry.real(address, bytes, with_stream(rest, native)...);
          if (answer == kSuccess) block.address = std::bit_cast<std::uint64_t>(*address);
          return hal::NativeStatus(answer);
        },
        Keep::kNo);
    const ReentrancyGuard ours;
    const auto made = [&] {
      return result(destination.context().allocate(destination.stream(), block, operation));
    };
    const ApiStatus answer = made_again(made(), made);
    if (answer == kSuccess) *address = std::bit_cast<Address>(block.address);
    return answer;
  }

 private:
  template <class Made>
  static ApiStatus made_again(ApiStatus answer, const Made& made) {
    if (answer != kOutOfMemory) [[likely]]
      return answer;
    flush_deferred();
    return made();
  }
  template <class Address>
  static ApiStatus taken(Address* address, ApiStatus answer) {
    if (answer == kSuccess) forget_block(std::bit_cast<std::uint64_t>(*address));
    return answer;
  }
};

// A free that waits for its turn. Natively the call takes the memory from the application at once:
// that call refuses to free it again meanwhile.
class DeferredFree {
 public:
  explicit DeferredFree(std::uint64_t address);
  DeferredFree(DeferredFree&& other) noexcept : address_(std::exchange(other.address_, 0)) {}
  DeferredFree(const DeferredFree&) = delete;
  DeferredFree& operator=(const DeferredFree&) = delete;
  DeferredFree& operator=(DeferredFree&&) = delete;
  ~DeferredFree();
  static bool is_of(std::uint64_t address) {
    return count_.load(std::memory_order_relaxed) != 0 && is_listed(address);
  }

 private:
  static bool is_listed(std::uint64_t address);
  static constinit std::atomic<std::size_t> count_;
  std::uint64_t address_;
};

template <class Address>
class FreeOperation final : public runtime::Operation {
 public:
  FreeOperation(EntryPoint<ApiStatus(Address, NativeStream)> entry, Address address,
                NativeContext context)
      : entry_(entry), address_(address), context_(context) {}
  hal::NativeStatus submit(hal::Queue& queue) noexcept override {
    const CurrentContext current(context_);
    return hal::NativeStatus(entry_.real(address_, static_cast<NativeStream>(queue.native())));
  }
  std::unique_ptr<runtime::Operation> keep() const override {
    const auto address = std::bit_cast<std::uint64_t>(address_);
    // A capture may refuse it.
    if (captures_open() || DeferredFree::is_of(address) ||
        !surely_accepted(address_, NativeStream{}))
      return nullptr;
    auto kept = std::make_unique<FreeOperation>(entry_, address_, context_);
    kept->deferred_.emplace(address);
    return kept;
  }

 private:
  EntryPoint<ApiStatus(Address, NativeStream)> entry_;
  Address address_;
  NativeContext context_;
  std::optional<DeferredFree> deferred_;
};

// (address, stream)
struct Free {
  template <class Address>
  static ApiStatus run(EntryPoint<ApiStatus(Address, NativeStream)> entry, Address address,
                       NativeStream stream) {
    const Destination destination = destination_of(stream, entry.per_thread);
    const auto freed = std::bit_cast<std::uint64_t>(address);
    if (DeferredFree::is_of(freed)) flush_deferred();
    if (destination.route != Route::kManaged || !kBridged) {
      forget_block(freed);
      return entry.real(address,
                        destination.route == Route::kForeign ? stream : destination.native());
    }
    FreeOperation operation(entry, address, destination.record->context->handle);
    const ReentrancyGuard ours;
    return result(destination.context().free(destination.stream(), freed, operation));
  }
};

// A call that concerns a whole context. While one is made no capture of ours is open: the vendor
// would refuse the call (bench/results/differential/capture_relaxed_same_thread.trace).
class ContextCall {
 public:
  ContextCall();
  ~ContextCall() { made_.fetch_sub(1); }
  ContextCall(const ContextCall&) = delete;
  ContextCall& operator=(const ContextCall&) = delete;

  // Before a capture of ours; admit() behind it. One at a time, and while no such call is made.
  // `waits`: on a thread that no other waits for, until the flag is set. False: not now; and when
  // the process ends (ending()), no more.
  static bool keep_away(hal::WaitsUntil waits);
  static bool ending() { return ending_.load(); }
  static void admit() { away_.store(false); }
  static void end() { ending_.store(true); }

 private:
  static constinit std::atomic<int> made_;
  static constinit std::atomic<bool> away_, ending_;
};

// The call waits for the device of the context, as what is deferred there does first. It waits for
// no other device, and neither do we (two_device_rules.cpp): work there may need the host, who may
// be this thread. Null: foreign, the call is just made.
ApiStatus await_deferred_then(Context* context, const runtime::VendorCall& call);
// The same for a call that the vendor may refuse, which it does without waiting. Unless it is
// surely `accepted`, and no capture may forbid it, what is deferred is flushed, and the call is
// made at once.
ApiStatus await_if_accepted_then(Context* context, bool accepted, const runtime::VendorCall& call);
// The code is gone when `answer` says so: its handles may be given out again.
ApiStatus unloaded(const void* code, ApiStatus answer);

// The managed context of the device that the memory belongs to; null: foreign, or not known.
Context* owner_of(const void* address);  // by the vendor

inline const void* first_address(const void* address) { return address; }
inline const void* first_address(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

// The call waits for no device, but what is deferred anywhere may use what it takes away.
struct Flushed {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    return flush_deferred_then([&] { return hal::NativeStatus(entry.real(args...)); });
  }
};

// (address): frees memory of a device, or what it has of the host's.
struct FreesMemory {
  template <class Address>
  static ApiStatus run(EntryPoint<ApiStatus(Address)> entry, Address address) {
    forget_block(reinterpret_cast<std::uintptr_t>(first_address(address)));
    return await_deferred_then(owner_of(first_address(address)),
                               [&] { return hal::NativeStatus(entry.real(address)); });
  }
};

// Frees what belongs to the current context.
struct FreesHere {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    return await_deferred_then(known_current_context(),
                               [&] { return hal::NativeStatus(entry.real(args...)); });
  }
};

struct Redirect {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    const StreamRecord* record = known_stream(stream_of(args...), entry.per_thread);
    if (record == nullptr || record->legacy) return entry.real(args...);
    return entry.real(with_stream(args, record->context->native(*record))...);
  }
};

// A hand-written override: in manual_overrides.h, the shared ones or the vendor's.
template <auto kFunction>
struct Manual {
  template <class Result, class... Args>
  static Result run(EntryPoint<Result(Args...)> entry, Args... args) {
    return kFunction(entry, args...);
  }
};

}  // namespace vitamin::interpose
