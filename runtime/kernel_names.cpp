// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace vitamin::runtime {
namespace {

// Words of names, in lower case and without '_'.
constexpr std::array<std::string_view, 12> kWords = {
    "nccl",     // ncclDevKernel_*, ncclKernel_*: NCCL and RCCL
    "nvshmem",  // NVSHMEM's own kernels and those of PyTorch over it
    "rocshmem", "mscclpp",
    "deepep",  // DeepEP: deep_ep::intranode::dispatch, ::combine
    // PyTorch's symmetric memory (one_shot_all_reduce_kernel, multimem_all_gather_kernel),
    // TensorRT-LLM (oneShotAllReduceKernel), FlashInfer (allreduce_fusion_kernel_*)
    "allreduce", "allgather", "reducescatter", "alltoall", "multimem",
    "crossdevicereduce",  // vLLM, SGLang and AITER: cross_device_reduce_1stage
    "symmetricmemory",    // c10d::symmetric_memory::barrier_kernel, put_signal_kernel: PyTorch
};

bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Whether `word` begins at `at`; any '_' of the name inside it is passed over.
bool begins(std::string_view name, std::size_t at, std::string_view word) {
  for (std::size_t i = 0; i < word.size(); ++at) {
    if (at == name.size()) return false;
    if (name[at] == '_' && i > 0) continue;
    if (lower(name[at]) != word[i++]) return false;
  }
  return true;
}

}  // namespace

bool names_collective(std::string_view name) {
  for (std::size_t at = 0; at < name.size(); ++at) {
    // A word begins behind what is no letter, or with a capital: small_gather is no all_gather.
    const bool inside =
        at > 0 && is_letter(name[at - 1]) && (!is_upper(name[at]) || is_upper(name[at - 1]));
    if (!is_letter(name[at]) || inside) continue;
    if (std::any_of(kWords.begin(), kWords.end(),
                    [&](std::string_view word) { return begins(name, at, word); }))
      return true;
  }
  return false;
}

bool names_resident(std::string_view name) {
  // cusparseSpSV and cusparseSpSM of CUDA 13: hung on 8 SMs of an H100, where NVIDIA's sample
  // conjugateGradientPrecond solves triangular systems.
  return name.find("cusparse") != std::string_view::npos &&
         name.find("spsm_v2_kernel") != std::string_view::npos;
}

}  // namespace vitamin::runtime
