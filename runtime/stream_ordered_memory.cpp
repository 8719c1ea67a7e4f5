// SPDX-License-Identifier: Apache-2.0
//
// Memory that is allocated and freed in the order of a stream.
#include <algorithm>
#include <utility>

#include "runtime/virtual_context.h"

namespace vitamin::runtime {

using hal::NativeStatus;

namespace {
// Rounds of waiting (Backoff) for room in a queue of the driver, more than 0.1 s, and how many of
// them a round counts for in which something is known to wait for the host.
constexpr unsigned kRounds = 960, kWeightOfHost = 4;
}  // namespace

NativeStatus VirtualContext::allocate(Stream& stream, MemoryBlock& block, Operation& call) {
  {
    Lock lock(pipeline_->mutex());
    if (stream.deferral.freed_bytes > 0 && !give_out_again(stream, block)) make_frees(lock, stream);
  }
  const bool again = block.address != 0;
  // Without the lock: an allocation may wait for other work of the device (seen on an H200).
  hal::LockRule::waits("a stream-ordered allocation");
  const NativeStatus status = again ? hal::kNativeOk : call.submit(*stream.app_stream.queue);
  if (status != hal::kNativeOk) return status;
  const Lock lock(pipeline_->mutex());
  blocks_[block.address] = block;
  // Recorded when the stream's next operation comes, so that any number of allocations costs one
  // record; and an allocation on the legacy stream is no barrier there, but a record is one
  // (measured: legacy_calls_that_are_barriers.trace).
  if (!again) stream.order.allocated = true;
  // The legacy stream's next operation comes behind it.
  if (stream.kind == StreamKind::kBlocking)
    pipeline_->ordering().default_streams().end_late(stream);
  return status;
}

// Behind the operation that frees it, the memory may belong to any later operation of the stream.
// The newest such operation is not made then.
bool VirtualContext::give_out_again(Stream& stream, MemoryBlock& block) {
  const auto freed = std::find_if(stream.deferral.operations.rbegin(),
                                  stream.deferral.operations.rend(), [&](const Submission& one) {
                                    return one.frees.address != 0 &&
                                           one.frees.bytes == block.bytes &&
                                           one.frees.pool == block.pool;
                                  });
  if (freed == stream.deferral.operations.rend()) return false;
  block.address = std::exchange(freed->frees, {}).address;
  stream.deferral.freed_bytes -= block.bytes;
  freed->operation = nullptr;
  freed->kept.reset();
  freed->kind = OperationKind::kFollow;
  return true;
}

// Where the driver's queue has no room for all that is ahead of the frees, the caller waits for
// room, as natively it would soon, but not for ever: what runs may wait for the host, who is here.
void VirtualContext::make_frees(Lock& lock, Stream& stream) {
  std::size_t left = stream.deferral.operations.size();
  unsigned idle_rounds = 0;
  pipeline_->wait_until(lock, [&] {
    if (pipeline_->deferred().flush(stream)) return true;
    if (std::exchange(left, stream.deferral.operations.size()) != stream.deferral.operations.size())
      idle_rounds = 0;
    idle_rounds += pipeline_->deferred().waits_for_host() ? kWeightOfHost : 1;
    return idle_rounds > kRounds;
  });
}

MemoryBlock VirtualContext::take_block(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return {};
  const MemoryBlock block = found->second;
  blocks_.erase(found);
  return block;
}

NativeStatus VirtualContext::free(Stream& stream, std::uint64_t address, Operation& call) {
  Lock lock(pipeline_->mutex());
  Submission submission(OperationKind::kBridge, &call);
  submission.frees = take_block(address);
  return pipeline_->submit(lock, stream, submission);
}

void VirtualContext::forget_block(std::uint64_t address) {
  const Lock lock(pipeline_->mutex());
  take_block(address);
}

}  // namespace vitamin::runtime
