// SPDX-License-Identifier: Apache-2.0
//
// Copies on the legacy default stream between two contexts. They are operations of the legacy
// streams of both: behind what these and the blocking streams hold, before what follows there
// (bench/results/differential/two_devices_synchronous_copies.trace). The driver keeps that for its
// own streams; the edges from and to work on our queues are those of an operation of each legacy
// stream.
#include <algorithm>

#include "interpose/call_wrappers.h"
#include "interpose/libcuda/manual_overrides.h"
#include "interpose/libcuda/peers.h"

namespace vitamin::interpose {

constinit std::atomic<bool> contexts_created{false};

void Others::add(CUcontext handle) {
  const Context* current = known_current_context();
  bool managed = handle == nullptr || (current != nullptr && current->handle == handle);
  for_each_context([&](Context& context) {
    if (context.handle != handle || &context == current) return;
    managed = true;
    if (std::find(all_, all_ + count_, &context) == all_ + count_) all_[count_++] = &context;
  });
  foreign_ = foreign_ || !managed;
}

// Pinned memory of another context's is no part of that context here
// (bench/results/differential/two_contexts_copies_of_pinned_memory.trace).
void Others::add_owner(CUdeviceptr address) {
  unsigned type = 0;
  CUcontext context = nullptr;
  const auto& ask = VITAMIN_REAL(cuPointerGetAttribute);
  if (ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
      type != CU_MEMORYTYPE_HOST &&
      ask(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS)
    add(context);
}

void Others::touch(CallKind kind) const {
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, Keep::kNo);
  const ReentrancyGuard ours;
  for (std::size_t i = 0; i < count_; ++i)
    all_[i]->virtual_context->bridge(*all_[i]->legacy.stream, nothing, kind);
}

bool several_contexts() {
  if (contexts_created.load(std::memory_order_relaxed)) return true;
  int contexts = 0;
  for_each_context([&](Context&) { ++contexts; });
  return contexts > 1;
}

bool is_plain_device_memory(CUdeviceptr address) {
  unsigned type = 0, managed = 1;
  return VITAMIN_REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
             CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE &&
         VITAMIN_REAL(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
             CUDA_SUCCESS &&
         managed == 0;
}

CUresult copy_peer(EntryPoint<decltype(::cuMemcpyPeer)> entry, CUdeviceptr target,
                   CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                   std::size_t bytes) {
  Others others;
  if (!entry.per_thread) {
    others.add(target_context);
    others.add(source_context);
  }
  return between<NeverDeferred<>>(others, entry, target, target_context, source, source_context,
                                  bytes);
}

CUresult copy_peer_async(EntryPoint<decltype(::cuMemcpyPeerAsync)> entry, CUdeviceptr target,
                         CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                         std::size_t bytes, CUstream stream) {
  Others others;
  if (on_legacy(stream, entry.per_thread)) {
    others.add(target_context);
    others.add(source_context);
  }
  return others.any() ? between<NeverDeferred<>>(others, entry, target, target_context, source,
                                                 source_context, bytes, stream)
                      : Bridge<CallKind::kWork, Host::kReturns>::run(
                            entry, target, target_context, source, source_context, bytes, stream);
}

CUresult copy_3d_peer(EntryPoint<decltype(::cuMemcpy3DPeer)> entry, const CUDA_MEMCPY3D_PEER* box) {
  if (box == nullptr) return entry.real(box);
  Others others;
  if (!entry.per_thread) {
    others.add(box->dstContext);
    others.add(box->srcContext);
  }
  return between<NeverDeferred<>>(others, entry, box);
}

CUresult copy_3d_peer_async(EntryPoint<decltype(::cuMemcpy3DPeerAsync)> entry,
                            const CUDA_MEMCPY3D_PEER* box, CUstream stream) {
  if (box == nullptr) return entry.real(box, stream);
  Others others;
  if (on_legacy(stream, entry.per_thread)) {
    others.add(box->dstContext);
    others.add(box->srcContext);
  }
  return others.any() ? between<NeverDeferred<Host::kMayBlock>>(others, entry, box, stream)
                      : Bridge<CallKind::kWork, Host::kMayBlock>::run(entry, box, stream);
}

}  // namespace vitamin::interpose
