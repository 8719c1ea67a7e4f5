// SPDX-License-Identifier: Apache-2.0
#include "deploy/slurm/request.h"

#include <slurm/slurm.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "daemon/protocol/paths.h"

namespace vitamin::slurm {
namespace {

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

hal::Result<Request> read_option(std::string_view text) {
  Request request;
  if (text.empty()) return request;
  const auto is = [](char c, char low, char high) { return c >= low && c <= high; };
  const bool is_class =
      (is(text[0], 'a', 'z') || is(text[0], 'A', 'Z')) && text.size() <= 48 &&
      std::all_of(text.begin(), text.end(), [&](char c) {
        return is(c, 'a', 'z') || is(c, 'A', 'Z') || is(c, '0', '9') || c == '_' || c == '-';
      });
  if (is_class) {
    request.workload_class = text;
    return request;
  }
  const auto share = number(text);
  if (!share || *share < 1 || *share > 100)
    return hal::fail(hal::Errc::kInvalidArgument,
                     "--vitamin: '" + std::string(text.substr(0, 64)) +
                         "' is neither a share in percent (1 to 100) nor the name of a class");
  request.share = *share;
  return request;
}

std::uint32_t share_of_shards(std::uint32_t shards, std::uint32_t gpus,
                              std::uint32_t shards_per_gpu) {
  const std::uint64_t all = std::uint64_t{std::max(gpus, 1U)} * shards_per_gpu;
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
    else if (const auto shards = number(value); name == "shards_per_gpu" && shards && *shards > 0)
      arguments.shards_per_gpu = *shards;
    else
      return hal::fail(hal::Errc::kInvalidArgument,
                       "plugstack.conf: '" + std::string(word) +
                           "' is none of socket=PATH, libraries=DIRECTORY, config=FILE, "
                           "shards_per_gpu=NUMBER");
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
