// SPDX-License-Identifier: Apache-2.0
//
// Copies on the legacy default stream between two contexts. They are operations of the legacy
// streams of both: behind what these and the blocking streams hold, before what follows there
// (bench/results/differential/two_devices_synchronous_copies.trace). The driver keeps that for its
// own streams; the edges from and to work on our queues are those of an operation of each legacy
// stream.
#include <algorithm>

#include "interpose/libcudart/handlers.h"
#include "interpose/treatments.h"

namespace vitamin::interpose {
namespace {

// The managed contexts among some, but for the current one: its legacy stream makes the copy.
class Others {
 public:
  void add(CUcontext handle) {
    const Context* current = known_current_context();
    for_each_context([&](Context& context) {
      if (context.handle != handle || &context == current) return;
      if (std::find(all_, all_ + count_, &context) == all_ + count_) all_[count_++] = &context;
    });
  }
  // An operation of each legacy stream that does nothing.
  void touch(Behind behind) const {
    auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, Keep::kNo);
    const Inside ours;
    for (std::size_t i = 0; i < count_; ++i)
      all_[i]->virtual_context->bridge(*all_[i]->legacy.stream, nothing, behind);
  }
  bool empty() const { return count_ == 0; }

 private:
  Context* all_[2] = {};
  std::size_t count_ = 0;
};

// Behind the copy the others' legacy streams wait for a stream whose progress they do not see.
template <class Treatment, class Real, class... Args>
CUresult between(const Others& others, Via<Real> via, Args... args) {
  if (others.empty()) return Treatment::run(via, args...);
  others.touch(Behind::kWork);
  const CUresult answer = Treatment::run(via, args...);
  others.touch(Behind::kMarkerGate);
  return answer;
}
using OnDefault = DefaultStream<Host::kMayBlock>;

bool on_legacy(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

// Whether a context that is not the current one may have deferred work.
bool others_are_managed() {
  const Context* current = known_current_context();
  bool found = false;
  for_each_context([&](Context& context) { found = found || &context != current; });
  return found;
}

}  // namespace

CUresult copy_peer(Via<decltype(::cuMemcpyPeer)> via, CUdeviceptr target, CUcontext target_context,
                   CUdeviceptr source, CUcontext source_context, std::size_t bytes) {
  Others others;
  if (!via.per_thread) {
    others.add(target_context);
    others.add(source_context);
  }
  return between<OnDefault>(others, via, target, target_context, source, source_context, bytes);
}

CUresult copy_peer_async(Via<decltype(::cuMemcpyPeerAsync)> via, CUdeviceptr target,
                         CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                         std::size_t bytes, CUstream stream) {
  Others others;
  if (on_legacy(stream, via.per_thread)) {
    others.add(target_context);
    others.add(source_context);
  }
  return between<Bridge<Behind::kWork, Host::kReturns>>(others, via, target, target_context, source,
                                                        source_context, bytes, stream);
}

CUresult copy_3d_peer(Via<decltype(::cuMemcpy3DPeer)> via, const CUDA_MEMCPY3D_PEER* box) {
  if (box == nullptr) return via.real(box);
  Others others;
  if (!via.per_thread) {
    others.add(box->dstContext);
    others.add(box->srcContext);
  }
  return between<OnDefault>(others, via, box);
}

CUresult copy_3d_peer_async(Via<decltype(::cuMemcpy3DPeerAsync)> via, const CUDA_MEMCPY3D_PEER* box,
                            CUstream stream) {
  if (box == nullptr) return via.real(box, stream);
  Others others;
  if (on_legacy(stream, via.per_thread)) {
    others.add(box->dstContext);
    others.add(box->srcContext);
  }
  return between<Bridge<Behind::kWork, Host::kMayBlock>>(others, via, box, stream);
}

// A copy between contexts that does not say so: the addresses do. With one context there is nothing
// to ask.
CUresult copy_unified(Via<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)> via, CUdeviceptr target,
                      CUdeviceptr source, std::size_t bytes) {
  Others others;
  if (!via.per_thread && others_are_managed()) {
    for (const CUdeviceptr address : {target, source}) {
      CUcontext context = nullptr;
      if (VITAMIN_REAL(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
          CUDA_SUCCESS)
        others.add(context);
    }
  }
  return between<OnDefault>(others, via, target, source, bytes);
}

}  // namespace vitamin::interpose
