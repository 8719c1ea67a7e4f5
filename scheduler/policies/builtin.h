// SPDX-License-Identifier: Apache-2.0
//
// The makers of the built-in policies that need nothing but their options. `exclusive`, `temporal`
// and `salus` share turns.cpp, `random` and `extremes` placements.cpp; `fifo`, `static` and `orion`
// have a file each. `throughput`, `slo` and `tpot-first` take the estimator: throughput.h, slo.h.
//
// Units: as scheduler/types.h.
#pragma once

#include <cstdint>

#include "scheduler/policy.h"

namespace vitamin::scheduler {

// Every client shares the whole device: a job that is alone loses nothing. The policy that takes
// the place of one that failed.
Policy make_fifo();

// One fixed partition for each client.
struct StaticOptions {
  hal::ComputeSet units;  // all clients share the widest partition inside; empty: `parts`
  // Of an equal number of units, to clients in the order in which they come; as many as the device
  // has at most.
  std::uint32_t parts = 2;
};
Policy make_static(const StaticOptions& options = {});

// The whole device to one client at a time: baselines that make others wait.
struct TurnOptions {
  std::uint64_t quiet_ns = 20'000'000;  // exclusive, salus: an idle client keeps its turn so long
  std::uint64_t slice_ns = 2'000'000;   // temporal: of a turn while others wait
};
Policy make_exclusive(const TurnOptions& options = {});  // hands over when the client is idle
Policy make_temporal(const TurnOptions& options = {});   // after a slice
Policy make_salus(const TurnOptions& options = {});      // when a step ends, or when idle

// Orion's rules (EuroSys '24, section 5).
struct OrionOptions {
  std::uint32_t sms = 66;               // best effort that needs more waits
  std::uint64_t duration_ns = 250'000;  // best effort in flight beside others
};
Policy make_orion(const OrionOptions& options = {});

// Another partition for every launch: the verifier's policies. A seed repeats what is drawn; which
// launches are drawn for is up to who asks (a launch that is flushed keeps the last partition).
struct RandomOptions {
  std::uint64_t seed = 1;
  std::uint32_t every = 1;       // draw anew after this many launches of a stream
  std::uint32_t min_sms = 1;     // narrowest partition
  std::uint32_t max_sms = ~0U;   // widest; the narrowest one from min_sms on always counts
  bool whole = false;            // partitions as wide as the whole device count, too
  bool isolate_streams = false;  // streams of one client never overlap
};
Policy make_random(const RandomOptions& options = {});

struct ExtremesOptions {
  bool narrow = false;  // always the narrowest partition that runs the launch
  bool wide = false;    // always the widest part; neither, or both: in turn
};
Policy make_extremes(const ExtremesOptions& options = {});

}  // namespace vitamin::scheduler
