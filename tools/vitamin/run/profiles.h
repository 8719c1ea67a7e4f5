// SPDX-License-Identifier: Apache-2.0
//
// Where the profiles of a user's GPUs lie, and how what a run learnt gets there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vitamin::tools {

// $XDG_STATE_HOME/vitamin or ~/.local/state/vitamin, made if need be; empty: there is no such
// place.
std::filesystem::path state_directory();

// `asked`: a directory, "none", or empty for `profiles` in the state directory. Empty: none.
std::filesystem::path profiles_directory(const std::string& asked);

struct Learnt {
  std::string model;           // of the GPU
  std::filesystem::path file;  // where it is kept
  std::uint64_t kernels = 0;   // different launches (kernel, grid, block, shared memory)
  std::uint64_t samples = 0;   // launches timed
  std::string problem;         // one sentence: it could not be kept
};

// Adds what the processes of a run learnt to the files of `directory`, one for each model. A file
// that cannot be read is left as it is. Runs that end at the same time wait for each other.
std::vector<Learnt> keep_learnt(const std::filesystem::path& run_directory,
                                const std::filesystem::path& directory);

}  // namespace vitamin::tools
