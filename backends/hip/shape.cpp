// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/shape.h"

#include <hsa/hsa_ext_amd.h>

#include <algorithm>
#include <cstdio>

namespace vitamin::hip {
namespace {

// HSA_AMD_AGENT_INFO_NUM_XCC of ROCR 1.13 (ROCm 6); an older runtime refuses the number.
constexpr unsigned kXccs = 0xA111;

std::uint32_t ask(const Api& api, hsa_agent_t agent, unsigned what, std::uint32_t otherwise) {
  std::uint32_t value = 0;
  if (api.hsa_agent_get_info(agent, hsa_agent_info_t(what), &value) != HSA_STATUS_SUCCESS)
    return otherwise;
  return value;
}

struct Search {
  const Api& api;
  std::uint32_t domain = 0, function_id = 0;  // bus, device and function in one number
  std::optional<hsa_agent_t> agent;
};

hsa_status_t look(hsa_agent_t agent, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (ask(search.api, agent, HSA_AGENT_INFO_DEVICE, 0) != HSA_DEVICE_TYPE_GPU)
    return HSA_STATUS_SUCCESS;
  if (ask(search.api, agent, HSA_AMD_AGENT_INFO_BDFID, ~0U) == search.function_id &&
      ask(search.api, agent, HSA_AMD_AGENT_INFO_DOMAIN, 0) == search.domain)
    search.agent = agent;
  return HSA_STATUS_SUCCESS;
}

}  // namespace

std::optional<DeviceShape> shape_of(const Api& api, int ordinal) {
  if (api.hsa_init == nullptr || api.hsa_shut_down == nullptr ||
      api.hsa_iterate_agents == nullptr || api.hsa_agent_get_info == nullptr)
    return std::nullopt;
  char address[32] = "";
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (api.hipDeviceGetPCIBusId(address, sizeof address, ordinal) != hipSuccess ||
      std::sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
    return std::nullopt;
  if (api.hsa_init() != HSA_STATUS_SUCCESS) return std::nullopt;  // counted by HSA
  Search search{api, domain, bus << 8 | device << 3 | function, {}};
  api.hsa_iterate_agents(&look, &search);
  std::optional<DeviceShape> shape;
  if (search.agent) {
    const hsa_agent_t agent = *search.agent;
    int major = 0;
    static_cast<void>(
        api.hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, ordinal));
    const std::uint32_t xccs = std::max(1U, ask(api, agent, kXccs, 1));
    const std::uint32_t arrays = ask(api, agent, HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE, 0);
    // HSA counts the engines of all XCCs together and, up to a version that is not known here,
    // arrays for engines (5.2 does; rocminfo of later ones does not). Too many engines only make
    // wider units, too few would leave engines out.
    std::uint32_t engines = ask(api, agent, HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES, 0) / xccs;
    if (api.version < hip_version(5, 3)) engines /= std::max(1U, arrays);
    const std::uint32_t cus = ask(api, agent, HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT, 0);
    if (engines > 0 && arrays > 0 && cus > 0)
      shape = DeviceShape::even(xccs, engines, arrays, cus, major >= 10);
  }
  api.hsa_shut_down();
  return shape;
}

}  // namespace vitamin::hip
