// SPDX-License-Identifier: Apache-2.0
//
// Hook: what every override does before its treatment.
#pragma once

#include <type_traits>

#include "interpose/call_times.h"
#include "interpose/entry_points.h"
#include "interpose/process_state.h"

namespace vitamin::interpose {

// How a call came in: the driver's function for exactly this variant, and whether NULL means the
// thread's own default stream in it. Where it goes is its Destination (call_wrappers.h).
template <class Function>
struct EntryPoint {
  Function* real;
  bool per_thread;
};

template <Symbol kSymbol, class Treatment, class Function>
struct Hook;

template <Symbol kSymbol, class Treatment, class Result, class... Args>
struct Hook<kSymbol, Treatment, Result(Args...)> {
  static Result call(Args... args) {
    [[maybe_unused]] const CallTimer timer(kSymbol);
    auto* function = real<Result(Args...)>(kSymbol);
    if (function == nullptr) [[unlikely]] {
      if (void* const own = function_of_caller(kSymbol, __builtin_return_address(0)))
        return reinterpret_cast<Result (*)(Args...)>(own)(args...);
      if (find_driver(true)) function = real<Result(Args...)>(kSymbol);
      if (function == nullptr) return missing();
    }
    if (passes_natively()) [[unlikely]] {
      if constexpr (kServesForks) say_if_forked();
      return function(args...);
    }
    // A runtime that calls its own exported functions comes by here again.
    [[maybe_unused]] const std::conditional_t<kCallsItself, ReentrancyGuard, Outside> ours;
    const EntryPoint<Result(Args...)> entry{function, info(kSymbol).per_thread};
    if constexpr (std::is_same_v<Result, ApiStatus> && !requires { Treatment::kAsksOnly; }) {
      const Result answer = Treatment::run(entry, args...);
      finished(answer);
      return answer;
    } else {
      return Treatment::run(entry, args...);
    }
  }

 private:
  struct Outside {
    Outside() {}
  };
  static Result missing() {
    if constexpr (std::is_same_v<Result, ApiStatus>)
      return kNoSuchFunction;
    else
      return Result();
  }
};

}  // namespace vitamin::interpose
