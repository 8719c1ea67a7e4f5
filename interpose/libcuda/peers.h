// SPDX-License-Identifier: Apache-2.0
//
// What copies on the legacy default stream between two contexts are ordered with (peers.cpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>

#include "interpose/call_wrappers.h"
#include "interpose/libcuda/vendor_traits.h"

namespace vitamin::interpose {

// The managed contexts among some, but for the current one: its legacy stream makes the copy.
class Others {
 public:
  void add(CUcontext handle);
  void add_owner(CUdeviceptr address);
  // An operation of each legacy stream that does nothing.
  void touch(CallKind kind) const;
  // Also a foreign one: the driver alone orders the copy with its streams.
  bool any() const { return count_ != 0 || foreign_; }

 private:
  Context* all_[2] = {};
  std::size_t count_ = 0;
  bool foreign_ = false;
};

// Whether the process has made a context, or uses several devices.
bool several_contexts();
extern constinit std::atomic<bool> contexts_created;

struct CreatesContext {
  template <class... Args>
  static CUresult run(EntryPoint<CUresult(Args...)> entry, Args... args) {
    const CUresult answer = entry.real(args...);
    if (answer == CUDA_SUCCESS) contexts_created.store(true, std::memory_order_relaxed);
    return answer;
  }
};

inline bool on_legacy(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

// A copy that is made at once, on the program's own stream.
template <Host kHost = Host::kReturns>
struct NeverDeferred {
  template <class... Args>
  static CUresult run(EntryPoint<CUresult(Args...)> entry, Args... args) {
    if constexpr (kStreamArguments<Args...> == 0) {
      return DefaultStream<Host::kMayBlock>::run(entry, args...);
    } else {
      const Destination destination = destination_of(stream_of(args...), entry.per_thread);
      if (destination.route != Route::kManaged) return entry.real(args...);
      auto operation = runtime::call(
          [&](void* native) { return hal::NativeStatus(entry.real(with_stream(args, native)...)); },
          Keep::kNo);
      const ReentrancyGuard ours;
      return result(
          destination.context().bridge(destination.stream(), operation, CallKind::kWork, kHost));
    }
  }
};

// Makes a copy that several contexts have part in, `Made`, which is never deferred: the driver
// orders it with what the others' real streams hold when it is made. Behind the copy the others'
// legacy streams wait for a stream whose progress they do not see.
template <class Made, class Real, class... Args>
CUresult between(const Others& others, EntryPoint<Real> entry, Args... args) {
  others.touch(CallKind::kWork);
  const CUresult answer = Made::run(entry, args...);
  others.touch(CallKind::kPlacelessHostWait);
  return answer;
}

// A copy that does not name the contexts: the addresses do. With one context there is nothing to
// ask.
template <class Treatment>
struct Between {
  template <class... Args>
  static CUresult run(EntryPoint<CUresult(Args...)> entry, Args... args) {
    CUstream stream = nullptr;
    if constexpr (kStreamArguments<Args...> == 1) stream = stream_of(args...);
    if (!on_legacy(stream, entry.per_thread) || !several_contexts()) [[likely]]
      return Treatment::run(entry, args...);
    Others others;
    (look(others, args), ...);
    if (!others.any()) return Treatment::run(entry, args...);
    const CopySides sides = CopySides::of<Addresses::kUnified>(args...);
    return sides.pageable || !sides.device
               ? between<NeverDeferred<Host::kMayBlock>>(others, entry, args...)
               : between<NeverDeferred<Host::kReturns>>(others, entry, args...);
  }

 private:
  template <class T>
  static void look([[maybe_unused]] Others& others, [[maybe_unused]] T argument) {
    if constexpr (std::is_same_v<T, CUdeviceptr>) others.add_owner(argument);
  }
  template <Descriptor T>
  static void look(Others& others, const T* box) {
    if (box == nullptr) return;  // the driver's to refuse
    const auto is_address = [](CUmemorytype type) {
      return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
    };
    if (is_address(box->srcMemoryType)) others.add_owner(box->srcDevice);
    if (is_address(box->dstMemoryType)) others.add_owner(box->dstDevice);
  }
};

// Plain device memory: where nothing else is involved the calls below return at once.
bool is_plain_device_memory(CUdeviceptr address);

// A call on the default stream that returns at once where all its memory is the device's
// (bench/results/differential/copies_and_fills_behind_a_gate.trace): then made as its twin with a
// stream, which may be deferred.
template <class Real, class Treatment>
struct OfDevice {
  template <class... Args>
  static CUresult run(EntryPoint<CUresult(Args...)> entry, Args... args) {
    auto* twin = reinterpret_cast<CUresult (*)(Args..., CUstream)>(Real::address());
    if (twin == nullptr || captures_open() || several_contexts() || !(... && is_plain(args)) ||
        destination_of(nullptr, entry.per_thread).route != Route::kManaged)
      return DefaultStream<Host::kMayBlock>::run(entry, args...);
    const EntryPoint<CUresult(Args..., CUstream)> there{twin, entry.per_thread};
    return Treatment::run(there, args..., entry.per_thread ? kThreadStream : CUstream{});
  }

 private:
  template <class T>
  static bool is_plain(T argument) {
    if constexpr (std::is_same_v<T, CUdeviceptr>)
      return is_plain_device_memory(argument);
    else
      return true;
  }
};

template <class Real>
using FillOfDevice = OfDevice<Real, Fill>;
template <class Real>
using CopyOfDevice = Between<OfDevice<Real, Copy<Addresses::kUnified>>>;

}  // namespace vitamin::interpose
