// SPDX-License-Identifier: Apache-2.0
//
// Profiles on disk: one file for each GPU model, text, one line a measured width.
//
//     vitamin-profile 2
//     model NVIDIA H200
//     bracket count 40 mean 1250.5 m2 88.5 some 1180 1203.5 ...
//     kernel 9f3c2a11 blocks 448 resident 1 name ampere_bf16_gemm
//     width 8 count 120 mean 5012.5 m2 91.25 some 4988 5010.5 ...
//     ...
//     end 2 checksum 0123456789abcdef
//
// `some`: launches as they were timed, eight at most. `bracket`: of empty timings, which are taken
// off already. Version 1 has neither, only means: it is read, and a width of it is told by its mean
// until it is timed again.
//
// The last line counts the kernels and carries FNV-1a of everything above it, so that a file cut
// short or edited is noticed. Errors are one sentence that says what to do.
#pragma once

#include <string>
#include <string_view>

#include "hal/result.h"
#include "runtime/profile/profile.h"

namespace vitamin::runtime {

inline constexpr unsigned kProfileVersion = 2;

std::string format_profile(const Profile& profile, std::string_view model);
// `model`: of the device that the profile is wanted for; empty: any. `*found`, if not null, gets
// the file's model.
hal::Result<Profile> parse_profile(std::string_view text, std::string_view model,
                                   std::string* found = nullptr);

// The file of a model below a directory: "NVIDIA H200" -> DIRECTORY/nvidia-h200.profile.
std::string profile_path(std::string_view directory, std::string_view model);
hal::Result<Profile> read_profile(const std::string& path, std::string_view model,
                                  std::string* found = nullptr);
// Through a temporary file beside it: a reader sees the old one or the new one.
hal::Status write_profile(const std::string& path, const Profile& profile, std::string_view model);

}  // namespace vitamin::runtime
