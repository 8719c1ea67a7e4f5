// SPDX-License-Identifier: Apache-2.0
//
// NVTX ranges as advice. A program's NVTX (version 3, headers only) loads the library that
// NVTX_INJECTION64_PATH names and calls its InitializeInjectionNvtx2; `vitamin run` names ours.
//
// What a range says is its message:
//     vitamin:decode deadline_us=30000 processors=64     class and facts, in any order
//     ... decode ..., ... prefill ...                    the word anywhere, in any case
// A class alone is also read from engines' own marks, hence no code change there. Facts: ready_us,
// deadline_us, queued_us, processors. A mark with the message "vitamin:cancel" cancels what was
// expected on the default stream; "vitamin:iteration_end" ends an iteration there. A range with
// another message says nothing.
//
// Sources: nvtxTypes.h and nvToolsExt.h of the CUDA toolkit (names there, numbers here, so that a
// build without a toolkit has the same).
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/advice.h"

namespace vitamin::interpose {

struct Said {
  runtime::Advice advice;
  bool says = false;
  const char* wrong = nullptr;  // a fact that cannot be: what is wrong with it
};
Said parse_message(std::string_view message);

// Of the calling thread; kept by advice.cpp. False: too deep, or none open.
bool open_range(const runtime::Advice& advice, bool says);
bool close_range();
std::size_t open_ranges();

}  // namespace vitamin::interpose
