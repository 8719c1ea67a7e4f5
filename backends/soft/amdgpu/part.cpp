// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/part.h"

namespace vitamin::soft::amdgpu {

const std::vector<Part>& known_parts() {
  // Never destroyed: queues read their part until the process has ended.
  static const auto& parts = *new const std::vector<Part>{
      // Counts of CUs: rocm.docs.amd.com, "AMD GPU specifications". Numbers of devices:
      // amdgpu_drv.c, pciidlist. Linux reads from each card which CUs it has (amdgpu_gfx.c); of a
      // part that has fewer than its engines have room for, this model chooses them.
      //
      // MI210, and a die of an MI250: 104 of 112 CUs, here 13 of the 14 of each engine. A die of an
      // MI250X has 110. Its five copy engines: kfd_device.c; two are for PCI Express
      // (kfd_get_num_sdma_engines).
      {.name = "gfx90a",
       .processor = "gfx90a",
       .major = 9,
       .minor = 0,
       .stepping = 10,
       .xccs = 1,
       .engines = 8,
       .arrays_per_engine = 1,
       .cus_per_array = 13,
       .engines_with_fewer = 0,
       .wave_width = 64,
       .cu_pairs = false,
       .packed_ids = true,
       .preserves_halves = false,
       .architected_scratch = false,
       .family = "aldebaran",
       .device_id = 0x740f,
       .hardware_queues = 24,
       .xgmi_copy_engines = 3},
      // MI100, with 15 of the 16 CUs of each engine. Its number: kfd_device.c.
      {.name = "gfx908",
       .processor = "gfx908",
       .major = 9,
       .minor = 0,
       .stepping = 8,
       .xccs = 1,
       .engines = 8,
       .arrays_per_engine = 1,
       .cus_per_array = 15,
       .engines_with_fewer = 0,
       .wave_width = 64,
       .cu_pairs = false,
       .packed_ids = false,
       .preserves_halves = false,
       .architected_scratch = false,
       .family = "arcturus",
       .device_id = 0x738c,
       .hardware_queues = 24,
       .xgmi_copy_engines = 0},
      // MI300X: 38 of the 40 CUs of each XCC, here one less in two of the four engines, and 16
      // copy engines. LLVM 15 knows gfx940, whose instructions are those of gfx942.
      {.name = "gfx942",
       .processor = "gfx940",
       .major = 9,
       .minor = 4,
       .stepping = 2,
       .xccs = 8,
       .engines = 4,
       .arrays_per_engine = 1,
       .cus_per_array = 10,
       .engines_with_fewer = 2,
       .wave_width = 64,
       .cu_pairs = false,
       .packed_ids = true,
       .preserves_halves = false,
       .architected_scratch = true,
       .family = "ip discovery",
       .device_id = 0x74a1,
       .hardware_queues = 24,
       .xgmi_copy_engines = 14},
      // Radeon RX 6900 XT. Linux reads the counts of engines and arrays from the card.
      {.name = "gfx1030",
       .processor = "gfx1030",
       .major = 10,
       .minor = 3,
       .stepping = 0,
       .xccs = 1,
       .engines = 4,
       .arrays_per_engine = 2,
       .cus_per_array = 10,
       .engines_with_fewer = 0,
       .wave_width = 32,
       .cu_pairs = true,
       .packed_ids = false,
       .preserves_halves = true,
       .architected_scratch = false,
       .family = "sienna_cichlid",
       .device_id = 0x73bf,
       .hardware_queues = 8,
       .xgmi_copy_engines = 0},
      // Radeon RX 7900 XTX. Linux reads the counts from the card (amdgpu_discovery.c, of
      // GC 11.0.0); they and the device's number are what rocminfo prints there
      // (github.com/ollama/ollama, issue 3158). The version: kfd_device.c.
      // MES has two queues of each pipe (amdgpu_mes.c, compute_hqd_mask).
      {.name = "gfx1100",
       .processor = "gfx1100",
       .major = 11,
       .minor = 0,
       .stepping = 0,
       .xccs = 1,
       .engines = 6,
       .arrays_per_engine = 2,
       .cus_per_array = 8,
       .engines_with_fewer = 0,
       .wave_width = 32,
       .cu_pairs = true,
       .packed_ids = true,
       .preserves_halves = true,
       .architected_scratch = true,
       .family = "ip discovery",
       .device_id = 0x744c,
       .hardware_queues = 8,
       .xgmi_copy_engines = 0},
  };
  return parts;
}

const Part* find_part(std::string_view name) {
  for (const Part& part : known_parts())
    if (part.name == name) return &part;
  return nullptr;
}

std::vector<isa::WorkgroupPlace> mask_order(const Part& part) {
  std::vector<isa::WorkgroupPlace> order;
  const std::uint32_t together = part.cu_pairs ? 2 : 1;
  for (std::uint32_t cu = 0; cu < part.cus_per_array; cu += together)
    for (std::uint32_t array = 0; array < part.arrays_per_engine; ++array)
      for (std::uint32_t engine = 0; engine < part.engines; ++engine)
        for (std::uint32_t xcc = 0; xcc < part.xccs && cu < part.cus_of_array(engine); ++xcc)
          for (std::uint32_t each = 0; each < together; ++each)
            order.push_back({.index = static_cast<unsigned>(order.size()),
                             .xcc = xcc,
                             .engine = engine,
                             .array = array,
                             .cu = cu + each});
  return order;
}

}  // namespace vitamin::soft::amdgpu
