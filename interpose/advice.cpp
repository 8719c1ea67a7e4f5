// SPDX-License-Identifier: Apache-2.0
#include "interpose/advice.h"

#include <array>
#include <chrono>
#include <cstring>

#include "interpose/advice/vitamin_advice.h"
#include "interpose/context.h"
#include "interpose/nvtx.h"
#include "runtime/clock.h"

namespace vitamin::interpose {
namespace {

using runtime::Advice;
using runtime::now_ns;
using runtime::WorkKind;

// The open ranges of one thread, of both kinds, innermost last. One that says nothing counts, so
// that ends match, and lets what is around it show.
struct Range {
  Advice advice;
  bool says = false;
};
constexpr std::size_t kDepth = 64;
struct Ranges {
  std::array<Range, kDepth> open;
  std::size_t depth = 0;  // may exceed kDepth: those are counted and not used
  const Advice* innermost = nullptr;

  void look() {
    innermost = nullptr;
    for (std::size_t i = std::min(depth, kDepth); i > 0 && innermost == nullptr; --i)
      if (open[i - 1].says) innermost = &open[i - 1].advice;
  }
};
constinit thread_local Ranges ranges [[gnu::tls_model("initial-exec")]];

// What is further away than the clock reaches is never.
std::uint64_t at(std::uint64_t in_ns) {
  if (in_ns == 0) return 0;
  const std::uint64_t now = now_ns();
  return in_ns > ~std::uint64_t{0} - now ? ~std::uint64_t{0} : now + in_ns;
}

bool valid(const vitamin_work* work) {
  return work != nullptr && work->size >= sizeof(vitamin_work) &&
         work->kind <= VITAMIN_WORK_BEST_EFFORT;
}

Advice advice_of(const vitamin_work& work) {
  return {static_cast<WorkKind>(work.kind), work.processors, at(work.ready_in_ns),
          at(work.deadline_in_ns), work.queued_ns};
}

bool managed() {
  bool any = false;
  for_each_context([&](Context&) { any = true; });
  return any;
}

// Runs `call` with the virtual context and the stream of a handle, if they are managed. Of a
// process that does not use this vendor nothing is asked: its runtime is not even loaded.
template <class Call>
int on_stream(void* handle, Call call) {
  if (!managed() && !find_driver(false)) return VITAMIN_INACTIVE;
  const StreamRecord* record = find_stream(static_cast<NativeStream>(handle), false);
  if (record == nullptr || record->stream == nullptr) return VITAMIN_INACTIVE;
  const ReentrancyGuard ours;
  return call(*record->context->virtual_context, *record->stream);
}

const vitamin_advice_functions functions = {
    .size = sizeof(vitamin_advice_functions),
    .abi = VITAMIN_ADVICE_ABI,
    .active = [] { return managed() ? int(VITAMIN_OK) : int(VITAMIN_INACTIVE); },
    .work_begin =
        [](const vitamin_work* work) {
          if (!valid(work)) return int(VITAMIN_INVALID);
          return open_range(advice_of(*work), true) ? int(VITAMIN_OK) : int(VITAMIN_TOO_DEEP);
        },
    .work_end = [] { return close_range() ? int(VITAMIN_OK) : int(VITAMIN_INVALID); },
    .work_deadline =
        [](std::uint64_t in_ns) {
          if (ranges.depth == 0) return int(VITAMIN_INVALID);
          if (ranges.depth > kDepth) return int(VITAMIN_TOO_DEEP);
          Range& innermost = ranges.open[ranges.depth - 1];
          innermost.advice.deadline_ns = at(in_ns);
          innermost.says = true;
          ranges.look();
          return int(VITAMIN_OK);
        },
    .stream_begin =
        [](void* stream, const vitamin_work* work) {
          if (!valid(work)) return int(VITAMIN_INVALID);
          return on_stream(stream, [&](runtime::VirtualContext& context, runtime::Stream& of) {
            context.advise(of, advice_of(*work));
            return int(VITAMIN_OK);
          });
        },
    .stream_end =
        [](void* stream) {
          return on_stream(stream, [](runtime::VirtualContext& context, runtime::Stream& of) {
            context.advise(of, std::nullopt);
            return int(VITAMIN_OK);
          });
        },
    .expect =
        [](void* stream, const vitamin_work* work) {
          if (!valid(work)) return int(VITAMIN_INVALID);
          return on_stream(stream, [&](runtime::VirtualContext& context, runtime::Stream& of) {
            context.expect(of, advice_of(*work), false);
            return int(VITAMIN_OK);
          });
        },
    .cancel =
        [](void* stream) {
          return on_stream(stream, [](runtime::VirtualContext& context, runtime::Stream& of) {
            context.expect(of, {}, true);
            return int(VITAMIN_OK);
          });
        },
    .iteration_end =
        [](void* stream) {
          return on_stream(stream, [](runtime::VirtualContext& context, runtime::Stream& of) {
            context.iteration_ends(of);
            return int(VITAMIN_OK);
          });
        },
};

}  // namespace

bool open_range(const Advice& advice, bool says) {
  Ranges& mine = ranges;
  if (mine.depth++ >= kDepth) {
    VITAMIN_WARN_ONCE(
        runtime::Problem::kAdvice,
        "more than %zu ranges are open on one thread, so some are never closed; what is opened "
        "further in is no advice",
        kDepth);
    return false;
  }
  mine.open[mine.depth - 1] = {advice, says};
  if (says) mine.innermost = &mine.open[mine.depth - 1].advice;
  return true;
}

bool close_range() {
  Ranges& mine = ranges;
  if (mine.depth == 0) return false;
  const std::size_t closed = --mine.depth;
  if (closed < kDepth && mine.open[closed].says) mine.look();
  return true;
}

std::size_t open_ranges() { return ranges.depth; }

const Advice* current_advice() { return ranges.innermost; }

}  // namespace vitamin::interpose

extern "C" [[gnu::visibility("default")]] const vitamin_advice_functions* VITAMIN_ADVICE_SYMBOL() {
  return &vitamin::interpose::functions;
}
