// SPDX-License-Identifier: Apache-2.0
#include "deploy/slurm/request.h"

#include <slurm/slurm.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "daemon/config/value.h"
#include "daemon/protocol/paths.h"

namespace vitamin::slurm {
namespace {

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_class(std::string_view text) {
  const auto is = [](char c, char low, char high) { return c >= low && c <= high; };
  return !text.empty() && (is(text[0], 'a', 'z') || is(text[0], 'A', 'Z')) && text.size() <= 48 &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return is(c, 'a', 'z') || is(c, 'A', 'Z') || is(c, '0', '9') || c == '_' || c == '-';
         });
}

// Splits off what stands before the first comma.
std::string_view next_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(','));
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  return word;
}

// False: it is no such word, or the second of its kind.
bool read_word(std::string_view word, JobRequest& request) {
  const std::size_t at = word.find('=');
  const std::string_view name = at == word.npos ? "" : word.substr(0, at),
                         value = at == word.npos ? word : word.substr(at + 1);
  if (const auto share = number(value); share && (name == "share" || name.empty())) {
    if (request.share != 0) return false;
    request.share = *share;
    return *share >= 1 && *share <= 100;
  }
  if (name == "memory" && request.memory.empty()) {
    request.memory = value;
    return config::memory_bound(value).has_value();
  }
  if ((name == "class" || name.empty()) && request.workload_class.empty()) {
    request.workload_class = value;
    return is_class(value);
  }
  return false;
}

std::optional<std::vector<std::uint32_t>> numbers(std::string_view text) {
  std::vector<std::uint32_t> all;
  while (!text.empty()) {
    const auto value = number(next_word(text));
    if (!value) return std::nullopt;
    all.push_back(*value);
  }
  return all;
}

}  // namespace

hal::Result<JobRequest> read_option(std::string_view text) {
  JobRequest request;
  while (!text.empty()) {
    const std::string_view word = next_word(text);
    if (!read_word(word, request))
      return hal::fail(
          hal::Errc::kInvalidArgument,
          "--vitamin: '" + std::string(word.substr(0, 64)) +
              "' is none of share=PERCENT (1 to 100), memory=SIZE (20GiB, 20GB, 25%) and "
              "class=NAME, each once");
  }
  return request;
}

std::uint32_t share_of_shards(std::uint32_t shards, std::string_view gpus,
                              const std::vector<std::uint32_t>& shards_per_gpu) {
  const auto numbered = numbers(gpus);
  if (!numbered || shards_per_gpu.empty()) return 0;
  const std::size_t last = shards_per_gpu.size() - 1;
  std::uint64_t all = numbered->empty() ? shards_per_gpu.front() : 0;
  for (const std::uint32_t gpu : *numbered) all += shards_per_gpu[std::min<std::size_t>(gpu, last)];
  if (shards == 0 || shards > all) return 0;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(100 * std::uint64_t{shards} / all, 1));
}

std::string step_name(std::uint32_t job, std::uint32_t step) {
  const std::string of_job = std::to_string(job) + ".";
  if (step == SLURM_BATCH_SCRIPT) return of_job + "batch";
  if (step == SLURM_EXTERN_CONT) return of_job + "extern";
  if (step == SLURM_INTERACTIVE_STEP) return of_job + "interactive";
  return of_job + std::to_string(step);
}

hal::Result<Arguments> read_arguments(int count, char* const* words) {
  Arguments arguments;
  arguments.socket = protocol::kSystemSocket;
  arguments.libraries = VITAMIN_PRELOAD_DIRECTORY;
  for (int i = 0; i < count; ++i) {
    const std::string_view word = words[i];
    const std::size_t at = std::min(word.find('='), word.size());
    const std::string_view value = word.substr(std::min(at + 1, word.size()));
    const std::string_view name = value.empty() ? value : word.substr(0, at);
    if (name == "socket")
      arguments.socket = value;
    else if (name == "libraries")
      arguments.libraries = value;
    else if (name == "config")
      arguments.file = value;
    else if (const auto shards = numbers(value);
             name == "shards_per_gpu" && shards && std::ranges::count(*shards, 0U) == 0)
      arguments.shards_per_gpu = *shards;
    else
      return hal::fail(hal::Errc::kInvalidArgument,
                       "plugstack.conf: '" + std::string(word) +
                           "' is none of socket=PATH, libraries=DIRECTORY, config=FILE, "
                           "shards_per_gpu=NUMBER[,NUMBER...]");
  }
  return arguments;
}

std::string for_node(std::string_view path, std::string_view node) {
  std::string result(path);
  for (std::size_t at = 0; (at = result.find("%n", at)) != std::string::npos; at += node.size())
    result.replace(at, 2, node);
  return result;
}

}  // namespace vitamin::slurm
