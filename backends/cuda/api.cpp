// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/api.h"

namespace vitamin::cuda {

hal::Result<Api> Api::load(Lookup lookup) {
  Api api;
  const char* missing = nullptr;
#define VITAMIN_CUDA_OPTIONAL(name, blocks) api.name = {#name, lookup(#name)};
#define VITAMIN_CUDA_REQUIRED(name, blocks) \
  VITAMIN_CUDA_OPTIONAL(name, blocks)       \
  if (api.name == nullptr && missing == nullptr) missing = #name;
#include "backends/cuda/api.def"
#undef VITAMIN_CUDA_REQUIRED
#undef VITAMIN_CUDA_OPTIONAL
  if (missing != nullptr)
    return hal::fail(hal::Errc::kUnavailable,
                     "the NVIDIA driver has no " + std::string(missing) +
                         "; green contexts need a driver of CUDA 12.4 or later");
  return api;
}

}  // namespace vitamin::cuda
