// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcudart/treatments.h"

namespace vitamin::interpose {
namespace {

// 0 for memory that the driver does not know: pageable.
unsigned memory_type(CUdeviceptr pointer) {
  unsigned type = 0;
  const CUresult answer =
      VITAMIN_REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  return answer == CUDA_SUCCESS ? type : 0;
}

CUresult drained_from(int ordinal, Drain how, const runtime::VendorCall& call) {
  for (; ordinal < kMaxContexts; ++ordinal) {
    Context* context = context_of_device[ordinal].load(std::memory_order_acquire);
    if (context == nullptr) continue;
    return result(context->virtual_context->drain(
        how, [&] { return hal::NativeStatus(drained_from(ordinal + 1, how, call)); }));
  }
  return result(call());
}

}  // namespace

bool is_host_address(CUdeviceptr address) {
  const Inside ours;
  const unsigned type = memory_type(address);
  return type == 0 || type == CU_MEMORYTYPE_HOST;
}

void HostSide::pointer(CUdeviceptr address) {
  const unsigned type = memory_type(address);
  if (type == 0) pageable = true;
  if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY) device = true;
}

CUresult drained(Drain how, const runtime::VendorCall& call) {
  const Inside ours;
  return drained_from(0, how, call);
}

void CurrentContext::enter(CUcontext wanted) {
  CUcontext current = nullptr;
  VITAMIN_REAL(cuCtxGetCurrent)(&current);
  pushed_ = current != wanted && VITAMIN_REAL(cuCtxPushCurrent_v2)(wanted) == CUDA_SUCCESS;
}

void CurrentContext::leave() {
  CUcontext popped = nullptr;
  VITAMIN_REAL(cuCtxPopCurrent_v2)(&popped);
}

}  // namespace vitamin::interpose
