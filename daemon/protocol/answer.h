// SPDX-License-Identifier: Apache-2.0
//
// Requests of tools to the daemon, and its answers. An answer longer than a message may be is sent
// as a memfd beside an empty message, so that the daemon never waits for a slow reader.
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
// A text that fits into one message, with files: for ask_for_files().
hal::Status send_answer(const Fd& socket, std::string_view text, std::span<const int> files);

// Connects to `path`, sends the request `verb` and returns the text of the answer. `time_limit`
// bounds the connection and the answer, each. The error is a sentence for the user.
hal::Result<std::string> ask(const std::string& path, std::string_view verb,
                             std::chrono::milliseconds time_limit);

struct Told {
  std::string text;
  std::vector<Fd> files;
};
// As ask(), where the answer is one message and may carry files.
hal::Result<Told> ask_for_files(const std::string& path, std::string_view verb,
                                std::chrono::milliseconds time_limit);

}  // namespace vitamin::protocol
