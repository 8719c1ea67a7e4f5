// SPDX-License-Identifier: Apache-2.0
//
// The driver's own front door, and what happens when the library is loaded.
#include <cstdlib>
#include <cstring>

#include "interpose/libcudart/context.h"
#include "interpose/libcudart/drift.h"
#include "interpose/libcudart/handlers.h"
#include "runtime/environment.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

namespace {

// LD_PRELOAD is inherited by compilers, shells and workers that never see a GPU: nothing happens
// here but that the process says it was reached, and that only under `vitamin run`.
[[gnu::constructor]] void loaded() {
  if (std::getenv(runtime::environment::kRunDirectory) != nullptr)
    page().reach(stats::Stage::kLoaded);
}

// cudart asks for the lookup function itself by its plain name, with several versions.
void* own_lookup(const char* name, int version) {
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0)
    return hook_addresses[static_cast<std::size_t>(Symbol::cuGetProcAddress_v2)];
  if (std::strcmp(name, "cuGetProcAddress") != 0) return nullptr;
  const Symbol variant = version >= info(Symbol::cuGetProcAddress_v2).since
                             ? Symbol::cuGetProcAddress_v2
                             : Symbol::cuGetProcAddress;
  return hook_addresses[static_cast<std::size_t>(variant)];
}

void replace(const char* name, void** address, int version, cuuint64_t flags) {
  page().reach(stats::Stage::kDriver);
  if (name == nullptr || address == nullptr || *address == nullptr) return;
  void* own = own_lookup(name, version);
  *address = own != nullptr ? own : override_for(name, version, flags, *address);
}

}  // namespace

CUresult init(Via<CUresult(unsigned)> via, unsigned flags) {
  const CUresult answer = via.real(flags);
  stats::ProcessPage& process = page();
  process.reach(stats::Stage::kDriver);
  process.init_status.store(answer, std::memory_order_relaxed);
  if (answer != CUDA_SUCCESS) return answer;
  process.reach(stats::Stage::kReady);
  report_drift();
  return answer;
}

CUresult get_proc_address(Via<decltype(::cuGetProcAddress)> via, const char* name, void** address,
                          int version, cuuint64_t flags) {
  const CUresult answer = via.real(name, address, version, flags);
  if (answer == CUDA_SUCCESS) replace(name, address, version, flags);
  return answer;
}

CUresult get_proc_address_v2(Via<decltype(::cuGetProcAddress_v2)> via, const char* name,
                             void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found) {
  const CUresult answer = via.real(name, address, version, flags, found);
  if (answer == CUDA_SUCCESS) replace(name, address, version, flags);
  return answer;
}

}  // namespace vitamin::interpose
