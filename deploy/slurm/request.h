// SPDX-License-Identifier: Apache-2.0
//
// What --vitamin means, by itself: nothing here talks to Slurm or to vitamind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hal/result.h"

namespace vitamin::slurm {

struct JobRequest {
  std::uint32_t share = 0;     // percent of each device; 0: not said
  std::string memory;          // of each device, as vitamin.toml has it; empty: not said
  std::string workload_class;  // of vitamin.toml; empty: not said
};

// What stands behind "--vitamin=": words with commas between them, each once, of share=1..100,
// memory=SIZE and class=NAME; share= and class= may be left out. The error is a sentence for the
// user.
hal::Result<JobRequest> read_option(std::string_view text);

// gres/shard as a share: how much of each of its GPUs a job has that was given `shards` of this
// node on `gpus`, as Slurm numbers them ("0,1"; none: on one GPU, it is not known which).
// `shards_per_gpu`: of GPU 0, 1 and so on, the last for all that follow; empty: not known.
// 0: nothing that makes sense.
std::uint32_t share_of_shards(std::uint32_t shards, std::string_view gpus,
                              const std::vector<std::uint32_t>& shards_per_gpu);

// "12.0"; the steps that Slurm numbers from the end have names.
std::string step_name(std::uint32_t job, std::uint32_t step);

// Words of plugstack.conf behind the plugin's path.
struct Arguments {
  std::string socket;                         // %n: the node's name
  std::string libraries;                      // directory of the preloaded libraries
  std::string file;                           // vitamin.toml; empty: where it always is
  std::vector<std::uint32_t> shards_per_gpu;  // of GPU 0, 1 and so on
};
hal::Result<Arguments> read_arguments(int count, char* const* words);

// `path` with the node's name in place of %n.
std::string for_node(std::string_view path, std::string_view node);

}  // namespace vitamin::slurm
