// SPDX-License-Identifier: Apache-2.0
//
// The parts that the software GPU can stand for, and the order in which the kernel driver maps the
// bits of a CU mask to them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu {

struct Part {
  const char* name;       // as the runtime calls it
  const char* processor;  // as LLVM 15 calls a processor with the same instructions
  std::uint32_t major, minor, stepping;
  std::uint32_t xccs;                                       // compute dies, which are alike
  std::uint32_t engines, arrays_per_engine, cus_per_array;  // of each XCC; the most of an array
  std::uint32_t engines_with_fewer;                         // last ones, one CU an array less
  std::uint32_t wave_width;                                 // native
  bool cu_pairs;             // workgroup processors: masks are made of pairs of CUs
  bool packed_ids;           // work-item ids arrive packed in one register
  bool preserves_halves;     // 16-bit results and loads leave the other half of a register alone;
                             // else registers and memory have ECC, too
  bool architected_scratch;  // see isa::Dispatch
  const char* family;
  std::uint16_t device_id;  // on the PCI bus
  // For compute (HQDs), of all processes: those of the four pipes of the first MEC, eight each
  // (gfx_v9_0.c) or four (gfx_v10_0.c of GC 10.3, gfx_v11_0.c), less one for each of the eight
  // rings of amdgpu. amdgpu_amdkfd.c, amdgpu_amdkfd_device_init; amdgpu_gfx.c.
  std::uint32_t hardware_queues;
  // For links between GPUs (XGMI), which all GPUs of a process then have with each other. 0: they
  // have PCI Express only.
  std::uint32_t xgmi_copy_engines;

  std::uint32_t cus_of_array(std::uint32_t engine) const {
    return cus_per_array - (engine + engines_with_fewer >= engines ? 1 : 0);
  }
  std::uint32_t cus() const {
    return xccs * arrays_per_engine * (engines * cus_per_array - engines_with_fewer);
  }
  std::uint32_t simds_per_cu() const { return cu_pairs ? 2 : 4; }
};

// Null when the name is unknown.
const Part* find_part(std::string_view name);
const std::vector<Part>& known_parts();

// Element i is the CU that bit i of a mask enables: XCC fastest, then shader engine, then array,
// then CU (pairs stay together). Linux, kfd_mqd_manager.c, mqd_symmetrically_map_cu_mask.
std::vector<isa::WorkgroupPlace> mask_order(const Part& part);

}  // namespace vitamin::soft::amdgpu
