// SPDX-License-Identifier: Apache-2.0
//
// Hook: what every override does before its treatment.
#pragma once

#include "interpose/client.h"
#include "interpose/libcudart/driver.h"

namespace vitamin::interpose {

// How a call came in: the driver's function for exactly this variant, and what NULL means in it.
template <class Function>
struct Via {
  Function* real;
  bool per_thread;
};

template <Symbol kSymbol, class Treatment, class Function>
struct Hook;

template <Symbol kSymbol, class Treatment, class... Args>
struct Hook<kSymbol, Treatment, CUresult(Args...)> {
  static CUresult call(Args... args) {
    auto* function = real<CUresult(Args...)>(kSymbol);
    // Only a program that was linked without the driver, or with a newer one, gets here.
    if (function == nullptr) [[unlikely]]
      return CUDA_ERROR_STUB_LIBRARY;
    if (passes_natively()) [[unlikely]]
      return function(args...);
    return Treatment::run(Via<CUresult(Args...)>{function, info(kSymbol).per_thread}, args...);
  }
};

}  // namespace vitamin::interpose
