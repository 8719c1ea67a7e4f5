// SPDX-License-Identifier: Apache-2.0
//
// How wide a kernel must run (runtime/kernel_table.h).
#include "runtime/kernel_table.h"

#include <doctest/doctest.h>

#include "backends/soft/device.h"
#include "runtime/kernel_names.h"
#include "tests/hal/call.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

TEST_CASE("Kernels that wait for other processes are known by their names") {
  for (const char* name :
       {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
        "nvshmemi_init_array_kernel",
        "_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvv",
        "_ZN45_GLOBAL__N__9f1d26multimem_all_reduce_kernelIN3c108BFloat16ELi16EEEvPT_",
        "_ZN45_GLOBAL__N__9f1d26one_shot_all_reduce_kernelIfLi16ELi8EEEvPPT_",
        "_ZN12tensorrt_llm7kernels22oneShotAllReduceKernelI6__halfLi8EEEv",
        "_ZN10flashinfer39allreduce_fusion_kernel_oneshot_lamportILi1EEEv",
        "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEv",
        "_ZN4c10d16symmetric_memoryL14barrier_kernelEPPjiiim", "all_to_all_single",
        "ReduceScatter"}) {
    CAPTURE(name);
    CHECK(runtime::names_collective(name));
  }
  for (const char* name :
       {"", "_", "_Z9vectorAddPKfS0_Pfi", "_Z20small_gather_elementPf", "overall_reduce",
        "_ZN2at6native24vectorized_gather_kernelILi16ElEEvPcS2_PT0_illllb",
        "_ZN2at6native13reduce_kernelILi512ELi1EEEv", "cutlass_80_tensorop_s16816gemm_bf16",
        "_ZN2at6native29scatter_gather_elementwise_kernel", "nccccl", "all_", "barrier",
        "barrier_kernel"}) {
    CAPTURE(name);
    CHECK_FALSE(runtime::names_collective(name));
  }
}

TEST_CASE("kernels whose blocks wait for each other are known by their names") {
  for (const char* name :
       {"_ZN8cusparse14spsm_v2_kernelIifLi2ELi32ELi1ELi16ELi1EEEvT_S1_llliPT0_PKS2_PKS1_",
        "void cusparse::spsm_v2_kernel<int, float, 2, 32, 1, 16, 1>(int, int, long)"}) {
    CAPTURE(name);
    CHECK(runtime::names_resident(name));
  }
  for (const char* name :
       {"", "_Z14spsm_v2_kernelv", "_ZN8cusparse12csrmv_kernelIifEEv", "_Z9vectorAddPKfS0_Pfi"}) {
    CAPTURE(name);
    CHECK_FALSE(runtime::names_resident(name));
  }
}

TEST_CASE("a kernel assumed resident needs SMs for a whole grid that fits, a known one for any") {
  EngineOptions options;
  options.device = DeviceDescription::uniform(8, 2);
  auto opened = open_device(options);
  REQUIRE(opened.has_value());
  hal::Device& device = **opened;
  const std::uint32_t whole = device.info().sms;
  std::uint32_t counter = 0;
  const auto needed = [&](runtime::Kernel& kernel, std::uint32_t blocks) {
    HalCall call(VITAMIN_SOFT_KERNEL(count_blocks), {blocks, 1, 1}, {1024, 1, 1}, &counter);
    const std::uint32_t sms = kernel.sms_needed(device, call.launch);
    CHECK(kernel.sms_needed(device, call.launch) == sms);
    return sms;
  };
  HalCall one(VITAMIN_SOFT_KERNEL(count_blocks), {1, 1, 1}, {1024, 1, 1}, &counter);
  const std::uint32_t each = device.inspector().resident_blocks(one.launch);
  REQUIRE(each > 0);

  runtime::Kernel trusted, assumed;
  assumed.assumed_resident = true;
  CHECK(needed(trusted, whole * each) == 1);
  CHECK(needed(assumed, 1) == 1);
  CHECK(needed(assumed, 3 * each) == 3);
  CHECK(needed(assumed, whole * each) == whole);
  CHECK(needed(assumed, whole * each + 1) == 1);
  // The watchdog caught it: what was found before does not count any more.
  assumed.resident = true;
  CHECK(needed(assumed, 3 * each) == 3);
  CHECK(needed(assumed, whole * each + 1) == whole + 1);
}

}  // namespace
}  // namespace vitamin::soft
