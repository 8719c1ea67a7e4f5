// SPDX-License-Identifier: Apache-2.0
//
// What --vitamin means, by itself: nothing here talks to Slurm or to vitamind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hal/result.h"

namespace vitamin::slurm {

struct Request {
  std::uint32_t share = 0;     // percent of each device; 0: not said
  std::string workload_class;  // of vitamin.toml; empty: not said
};

// What stands behind "--vitamin=": nothing, 1 to 100, or the name of a class. The error is a
// sentence for the user.
hal::Result<Request> read_option(std::string_view text);

// gres/shard as a share: how much of each of its GPUs a job has that was given `shards` of this
// node on `gpus` GPUs, each of which has `shards_per_gpu`. 0: nothing that makes sense.
std::uint32_t share_of_shards(std::uint32_t shards, std::uint32_t gpus,
                              std::uint32_t shards_per_gpu);

// "12.0"; the steps that Slurm numbers from the end have names.
std::string step_name(std::uint32_t job, std::uint32_t step);

// Words of plugstack.conf behind the plugin's path.
struct Arguments {
  std::string socket;     // %n: the node's name
  std::string libraries;  // directory of the preloaded libraries
  std::string file;       // vitamin.toml; empty: where it always is
  std::uint32_t shards_per_gpu = 0;
};
hal::Result<Arguments> read_arguments(int count, char* const* words);

// `path` with the node's name in place of %n.
std::string for_node(std::string_view path, std::string_view node);

}  // namespace vitamin::slurm
