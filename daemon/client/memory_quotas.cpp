// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/memory_quotas.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <string_view>

#include "daemon/protocol/answer.h"
#include "daemon/protocol/socket.h"

namespace vitamin::client {
namespace {

using std::chrono::milliseconds;

// A daemon that has too many pending requests refuses further ones: retry. One that does not answer
// (stopped) holds the program for 10 s at most.
hal::Result<protocol::Told> ask(const std::string& socket, const std::string& verb) {
  constexpr int kTries = 20;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(8);
  for (int left = kTries;; --left) {
    auto told = protocol::ask_for_files(socket, verb, milliseconds(2000));
    if (told || left == 0 || std::chrono::steady_clock::now() >= until) return told;
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

std::string_view next_word(std::string_view& text, char end) {
  const std::size_t length = std::min(text.find(end), text.size());
  const std::string_view word = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return word;
}

std::uint64_t number(std::string_view word) {
  std::uint64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

}  // namespace

hal::Result<std::vector<MemoryQuota>> memory_quotas(const MemoryQuestion& question) {
  const std::string said = question.workload_class.empty() ? "-" : question.workload_class;
  auto told =
      ask(question.socket, "memory-quotas " + question.uuid + " " + std::to_string(question.total) +
                               " " + said + " " + question.program);
  if (!told) return tl::unexpected(told.error());
  std::vector<MemoryQuota> quotas;
  std::string_view rest = told->text;
  if (next_word(rest, ' ') != "owner") return quotas;  // an older daemon without quotas
  const std::uint64_t owner = number(next_word(rest, '\n'));
  for (const protocol::Fd& file : told->files) {
    const std::uint64_t bytes = number(next_word(rest, ' '));
    const std::string whose(next_word(rest, '\n'));
    auto ledger = protocol::map_ledger(file);
    if (!ledger) return tl::unexpected(ledger.error());
    quotas.push_back({std::move(*ledger), bytes, whose, owner});
  }
  return quotas;
}

bool any_memory_quota(const std::string& socket) {
  const auto told = protocol::ask_for_files(socket, "memory-quotas", milliseconds(2000));
  if (told) return told->text == "some";
  // A daemon that does not answer now is asked again for each device. EAGAIN: its accept queue is
  // full.
  const auto listens = protocol::connect_to(socket);
  return listens || listens.error().native == EAGAIN;
}

}  // namespace vitamin::client
