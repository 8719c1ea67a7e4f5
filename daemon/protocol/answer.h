// SPDX-License-Identifier: Apache-2.0
//
// What tools ask the daemon, and its answer: in the message, or, where it is longer than a message
// may be, in a memfd beside an empty one. So the daemon waits for nobody who reads slowly.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::protocol {

hal::Status send_answer(const Fd& socket, std::string_view text);
// A short text with files, for ask_for_files().
hal::Status send_answer(const Fd& socket, std::string_view text, std::span<const int> files);

// The text of the answer. The error is a sentence for the user.
hal::Result<std::string> ask(const std::string& path, std::string_view verb,
                             std::chrono::milliseconds patience);

struct Told {
  std::string text;
  std::vector<Fd> files;
};
// The same for what is answered in a message, with its files.
hal::Result<Told> ask_for_files(const std::string& path, std::string_view verb,
                                std::chrono::milliseconds patience);

}  // namespace vitamin::protocol
