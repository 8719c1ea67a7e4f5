// SPDX-License-Identifier: Apache-2.0
//
// Kernels: what fits where, which block goes to which SM in which order, and a block's life.
#include <algorithm>
#include <coroutine>
#include <cstdlib>

#include "backends/soft/engine_state.h"

namespace vitamin::soft {

namespace {

constexpr std::uint64_t kMaxGridYz = 65535;
constexpr std::uint64_t kMaxGridX = 0x7fffffff;
constexpr std::uint32_t kSharedAlignment = 128;

std::uint32_t aligned(std::uint32_t bytes) {
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

Index3 index_of(std::uint64_t linear, const Index3& grid) {
  return Index3{static_cast<std::uint32_t>(linear % grid.x),
                static_cast<std::uint32_t>(linear / grid.x % grid.y),
                static_cast<std::uint32_t>(linear / grid.x / grid.y)};
}

}  // namespace

// The engine's side of a BlockContext.
struct BlockAccess {
  static void fill(BlockContext& context, const Launch& launch, std::uint64_t linear,
                   std::uint32_t sm, std::uint32_t sm_count) {
    context.index_ = index_of(linear, launch.grid);
    context.grid_ = launch.grid;
    context.dim_ = launch.block;
    context.threads_ = static_cast<std::uint32_t>(launch.block.volume());
    context.linear_index_ = static_cast<std::uint32_t>(linear);
    context.sm_id_ = sm;
    context.sm_count_ = sm_count;
    context.cluster_rank_ = static_cast<std::uint32_t>(linear % launch.cluster_blocks);
    context.cluster_blocks_ = launch.cluster_blocks;
    context.static_shared_capacity_ = launch.kernel->traits.static_shared;
    context.dynamic_shared_bytes_ = launch.dynamic_shared;
  }
  static void give_shared(BlockContext& context, unsigned char* at) {
    context.shared_ = at;
    context.dynamic_shared_ = at + aligned(context.static_shared_capacity_);
  }
  static BlockFault fault(const BlockContext& context) { return context.fault_; }
  static BlockRequest request(const BlockContext& context) { return context.request_; }
  static std::uint64_t amount(const BlockContext& context) { return context.request_amount_; }
};

// --------------------------------------------------------------------------------------- occupancy

SmUsage Engine::Impl::footprint(const KernelDescriptor& kernel, std::uint64_t threads,
                                std::uint32_t dynamic_shared) const {
  SmUsage usage;
  usage.threads = static_cast<std::uint32_t>((threads + 31) / 32 * 32);  // whole warps
  usage.blocks = 1;
  usage.shared_bytes = aligned(kernel.traits.static_shared) + aligned(dynamic_shared) +
                       options.device.sm.reserved_shared_per_block;
  usage.registers = usage.threads * kernel.traits.registers;
  return usage;
}

std::uint32_t Engine::blocks_per_sm(const KernelDescriptor& kernel, std::uint64_t block_threads,
                                    std::uint32_t dynamic_shared) const {
  const SmLimits& limits = device().sm;
  if (block_threads == 0 || block_threads > limits.block_threads ||
      block_threads > kernel.traits.max_threads || dynamic_shared > limits.block_shared_bytes ||
      kernel.traits.static_shared + dynamic_shared > limits.block_shared_bytes)
    return 0;
  return SmUsage{}.room(impl_->footprint(kernel, block_threads, dynamic_shared), limits);
}

std::uint32_t Engine::max_active_clusters(const SmSet& sms, const ClusterRule& clusters,
                                          const Launch& launch) const {
  if (launch.cluster_blocks > clusters.max_blocks) return 0;
  const std::uint32_t each =
      blocks_per_sm(*launch.kernel, launch.block.volume(), launch.dynamic_shared);
  std::uint32_t sum = 0;
  for (const SmSet& group : clusters.groups) {
    const std::uint32_t count = (group & sms).count();
    // Measured on an H200: four blocks that two SMs could hold are no cluster there.
    if (count >= launch.cluster_blocks) sum += count * each / launch.cluster_blocks;
  }
  return sum;
}

Status Engine::check_launch(const SmSet& sms, const ClusterRule& clusters,
                            const Launch& launch) const {
  if (launch.kernel == nullptr || launch.cluster_blocks == 0) return kInvalidArgument;
  const Index3& grid = launch.grid;
  const std::uint64_t blocks = grid.volume();
  if (blocks == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYz || grid.z > kMaxGridYz ||
      blocks > 0xffffffff)
    return kInvalidLaunch;
  const std::uint32_t each =
      blocks_per_sm(*launch.kernel, launch.block.volume(), launch.dynamic_shared);
  if (each == 0) return kInvalidLaunch;
  const std::uint32_t required = launch.kernel->traits.required_cluster;
  if (required > 1 && launch.cluster_blocks != required) return kInvalidLaunch;
  std::uint64_t resident = std::uint64_t{each} * sms.count();
  if (launch.cluster_blocks > 1) {
    if (blocks % launch.cluster_blocks != 0) return kInvalidLaunch;
    const std::uint32_t active = max_active_clusters(sms, clusters, launch);
    if (active == 0) return kClusterTooLarge;
    resident = std::uint64_t{active} * launch.cluster_blocks;
  }
  if (launch.cooperative && blocks > resident) return kCooperativeTooLarge;
  return kOk;
}

Status Engine::check_launch(const Queue* queue, const Launch& launch) const {
  return check_launch(queue->options.sms, *queue->options.clusters, launch);
}

// --------------------------------------------------------------------------------------- placement

// Fills free SMs. A kernel that could not place all its blocks holds its SMs against the kernels
// behind it: no launch starves, and a gang gets its SMs in the end.
void Engine::Impl::dispatch(Lock& lock) {
  for (;;) {
    batch.clear();
    SmSet held;
    bool everywhere = std::exchange(place_everywhere, false);
    residency.lock();
    std::erase_if(dispatching, [&](KernelRun* run) {
      const std::size_t first = batch.size();
      const bool all_placed = place(*run, held, everywhere || !run->tried, batch);
      shuffle(*run, batch, first);
      if (all_placed)
        everywhere = true;  // what was held for it is free for those behind
      else
        held = held | run->queue->options.sms;
      return all_placed;
    });
    residency.unlock();
    freed = SmSet{};
    if (batch.empty()) return;
    run_blocks(lock, batch);
    if (freed.empty() || dispatching.empty()) return;
  }
}

bool Engine::Impl::place(KernelRun& run, const SmSet& held, bool everywhere,
                         std::vector<Block*>& placed) {
  if (!everywhere && !freed.overlaps(run.queue->options.sms)) return false;
  run.tried = true;
  const std::uint64_t before = run.placed;
  bool all_placed;
  if (run.launch.cooperative)
    all_placed = place_gang(run, held, placed);
  else if (run.launch.cluster_blocks > 1)
    all_placed = place_clusters(run, held, placed);
  else
    all_placed = place_spread(run, held, everywhere, placed);
  if (!run.started && run.placed != before) {
    run.started = true;
    something_moved = true;
    if (sink) trace(TraceRecord::Phase::kStart, *run.queue, *run.queue->head);
  }
  return all_placed;
}

// Breadth first over the SMs, beginning at one that the allocation chooses.
bool Engine::Impl::place_spread(KernelRun& run, const SmSet& held, bool everywhere,
                                std::vector<Block*>& placed) {
  const std::vector<std::uint32_t>& sms = run.queue->sms;
  std::size_t at = combine(run.order, run.placed) % sms.size();
  std::size_t misses = 0;
  while (run.placed < run.total && misses < sms.size()) {
    const std::uint32_t sm = sms[at];
    if (++at == sms.size()) at = 0;
    if ((everywhere || freed.has(sm)) && !held.has(sm) && residency.fits(sm, run.footprint)) {
      placed.push_back(put_block(run, sm));
      misses = 0;
    } else {
      ++misses;
    }
  }
  return run.placed == run.total;
}

// `blocks` consecutive blocks onto these SMs, all or none.
bool Engine::Impl::place_group(KernelRun& run, const std::vector<std::uint32_t>& sms,
                               const SmSet& held, std::uint64_t blocks_wanted,
                               std::vector<Block*>& placed) {
  std::uint64_t room = 0;
  for (const std::uint32_t sm : sms)
    if (!held.has(sm)) room += residency.room(sm, run.footprint);
  if (room < blocks_wanted) return false;
  std::size_t at = combine(run.order, run.placed) % sms.size();
  for (std::uint64_t left = blocks_wanted; left != 0;) {
    const std::uint32_t sm = sms[at];
    if (++at == sms.size()) at = 0;
    if (held.has(sm) || !residency.fits(sm, run.footprint)) continue;
    placed.push_back(put_block(run, sm));
    --left;
  }
  return true;
}

bool Engine::Impl::place_clusters(KernelRun& run, const SmSet& held, std::vector<Block*>& placed) {
  const auto& domains = run.queue->cluster_groups;
  std::size_t misses = 0;
  std::size_t at = combine(run.order, run.placed) % domains.size();
  while (run.placed < run.total && misses < domains.size()) {
    const auto& group = domains[at];
    if (++at == domains.size()) at = 0;
    if (group.size() >= run.launch.cluster_blocks &&
        place_group(run, group, held, run.launch.cluster_blocks, placed))
      misses = 0;
    else
      ++misses;
  }
  return run.placed == run.total;
}

bool Engine::Impl::place_gang(KernelRun& run, const SmSet& held, std::vector<Block*>& placed) {
  if (run.launch.cluster_blocks <= 1)
    return place_group(run, run.queue->sms, held, run.total, placed);
  std::uint64_t clusters = 0;
  for (const auto& group : run.queue->cluster_groups) {
    if (group.size() < run.launch.cluster_blocks) continue;
    std::uint64_t room = 0;
    for (const std::uint32_t sm : group)
      if (!held.has(sm)) room += residency.room(sm, run.footprint);
    clusters += room / run.launch.cluster_blocks;
  }
  if (clusters * run.launch.cluster_blocks < run.total) return false;
  return place_clusters(run, held, placed);
}

Block* Engine::Impl::put_block(KernelRun& run, std::uint32_t sm) {
  residency.take(sm, run.footprint);
  Block* const block = blocks.make();
  block->run = &run;
  block->sm = sm;
  BlockAccess::fill(block->context, run.launch, run.placed++, sm, options.device.sms());
  return block;
}

// Hardware hands blocks out in order and lets them race; here the race has one outcome for each
// allocation and seed.
void Engine::Impl::shuffle(const KernelRun& run, std::vector<Block*>& placed, std::size_t first) {
  Random choice(combine(run.order, placed.size() - first));
  for (std::size_t count = placed.size() - first; count > 1; --count)
    std::swap(placed[first + count - 1], placed[first + choice.below(count)]);
}

// -------------------------------------------------------------------------------- the life of a
// block

Nanoseconds Engine::Impl::stretched(Nanoseconds duration, std::uint64_t choice) const {
  if (options.jitter_percent == 0) return duration;
  return duration + duration * (mix(choice) % (options.jitter_percent + 1)) / 100;
}

// Runs each of these blocks as far as it goes now.
void Engine::Impl::run_blocks(Lock& lock, const std::vector<Block*>& going) {
  lock.unlock();
  for (Block* block : going) execute(*block);
  lock.lock();
  group_tail = nullptr;
  residency.lock();
  for (Block* block : going) settle(*block);
  residency.unlock();
  if (std::exchange(abort_pending, false)) abort_everything();
}

// A plain block has its shared memory to itself while it runs, a waiting one as long as it lives.
void Engine::Impl::give_shared(Block& block) {
  const Launch& launch = block.run->launch;
  const std::uint32_t bytes =
      aligned(launch.kernel->traits.static_shared) + aligned(launch.dynamic_shared);
  if (bytes == 0) return;
  const auto make = [bytes] {
    return static_cast<unsigned char*>(std::aligned_alloc(kSharedAlignment, bytes));
  };
  if (launch.kernel->waiting) {
    block.shared.reset(make());
  } else if (scratch_bytes < bytes) {
    scratch.reset(make());
    scratch_bytes = bytes;
  }
  BlockAccess::give_shared(block.context, block.shared ? block.shared.get() : scratch.get());
}

// Without the mutex: only the stepper touches what is used here.
void Engine::Impl::execute(Block& block) {
  KernelRun& run = *block.run;
  const KernelDescriptor& kernel = *run.launch.kernel;
  if (fault != kOk || block.stage == Block::Stage::kTimed) {
    block.stage = Block::Stage::kOver;
    return;
  }
  if (kernel.waiting) {
    if (block.stage == Block::Stage::kFresh) {
      give_shared(block);
      block.coroutine = kernel.start(block.context, run.parameters.data());
    }
    block.stage = Block::Stage::kSuspended;
    const auto handle = std::coroutine_handle<>::from_address(block.coroutine);
    handle.resume();
    if (handle.done()) block.stage = Block::Stage::kOver;
    return;
  }
  if (block.stage == Block::Stage::kFresh && run.late) {
    block.stage = Block::Stage::kLate;
    return;
  }
  give_shared(block);
  kernel.start(block.context, run.parameters.data());
  block.stage = block.stage == Block::Stage::kLate ? Block::Stage::kOver : Block::Stage::kTimed;
}

void Engine::Impl::settle(Block& block) {
  if (const BlockFault what = BlockAccess::fault(block.context);
      what != BlockFault::kNone && fault == kOk)
    raise(what);
  if (fault != kOk || block.stage == Block::Stage::kOver) return end_block(block);
  const std::uint64_t choice = combine(block.run->order, block.context.linear_index());
  if (block.stage != Block::Stage::kSuspended)
    return schedule_block(block, stretched(block.run->launch.kernel->traits.block_ns, choice));
  const std::uint64_t amount = BlockAccess::amount(block.context);
  if (BlockAccess::request(block.context) == BlockRequest::kBusy) {
    something_moved = true;
    return schedule_block(block, stretched(amount, choice));
  }
  if (amount == 0) something_moved = true;  // it came to a new condition
  spinning.push_back(&block);
}

// Blocks of one kernel that go on at the same time share one entry of the heap.
void Engine::Impl::schedule_block(Block& block, Nanoseconds after) {
  block.next = nullptr;
  const Nanoseconds at = now + after;
  if (group_tail != nullptr && group_at == at && group_tail->run == block.run) {
    group_tail->next = &block;
    group_tail = &block;
    return;
  }
  timed.push_back({at, combine(block.run->order, block.context.linear_index()), nullptr, &block});
  std::push_heap(timed.begin(), timed.end(), std::greater<>());
  group_tail = &block;
  group_at = at;
}

void Engine::Impl::end_block(Block& block) {
  KernelRun& run = *block.run;
  residency.release(block.sm, run.footprint);
  freed.add(block.sm);
  if (block.coroutine != nullptr) std::coroutine_handle<>::from_address(block.coroutine).destroy();
  blocks.destroy(&block);
  ++run.ended;
  something_moved = true;
  end_run_if_done(run);
}

void Engine::Impl::end_run_if_done(KernelRun& run) {
  if (run.ended != run.total) return;
  --kernels_running;
  run.queue->kernel_end = now;
  run.queue->had_kernel = true;
  complete(*run.queue);
}

void Engine::Impl::raise(BlockFault what) {
  fault = what == BlockFault::kIllegalAddress ? kIllegalAddress : kLaunchFailure;
  abort_pending = true;
  if (told_of_fault) told_of_fault(fault);
}

// After a fault everything in flight ends now, and the operations behind it end without being run.
void Engine::Impl::abort_everything() {
  residency.lock();
  for (Block* block : std::exchange(spinning, {})) end_block(*block);
  for (const TimedEvent& event : std::exchange(timed, {})) {
    if (event.queue != nullptr) make_ready(*event.queue);
    for (Block* block = event.blocks; block != nullptr;)
      end_block(*std::exchange(block, block->next));
  }
  residency.unlock();
  for (KernelRun* run : std::exchange(dispatching, {})) {
    run->total = run->placed;
    end_run_if_done(*run);
  }
  for (Queue* queue : std::exchange(polled, {})) make_ready(*queue);
  for (Gate* gate : gates) wake_waiters(gate->waiters);
  if (waiting_threads != 0) done_changed.notify_all();
}

}  // namespace vitamin::soft
