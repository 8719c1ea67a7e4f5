// SPDX-License-Identifier: Apache-2.0
//
// A job as it was recorded on a GPU, alone: the kernels, copies and waits of its steps in the order
// in which the host asks for them, the host's pace, and each kernel's time at several widths.
// bench/evaluation/streams.py makes such files; PlayedJob says what becomes of them in virtual
// time.
//
//     vitamin-job 1
//     name RN
//     processors 132             of the device that the times are of
//     launch 4100                       ns from the host's call to the start, where nothing waits
//     return 5200                       ns from an end to the host's going on that waited for it
//     gap 1300                          ns between two kernels that depend on each other
//     kernel 0 1568 4 0.8 2.1 32:30500 64:15400 132:7900 cutlass_gemm
//            number, blocks (0: it needs no SMs), blocks a processor holds, share of the
//            memory's bandwidth on the whole device, times as long beside a program on the other
//            half of the device that does nothing but move memory, width:ns ..., name
//     part step                         step | prefill | decode; operations count from 0 in each
//     k 0 5300 7850 -1                  kernel 0: ns of the host before its call, ns on the whole
//                                       device, the operation that it waits for (-1: only the
//                                       kernel before it)
//     c 2 4000 310000 -1                copy on another stream: stream, host, ns, waits for
//     w 2100 0                          the host waits: ns before, for which operation
//     end 15000                         ns of the host behind the last call
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hal/result.h"
#include "runtime/profile/profile.h"
#include "scheduler/types.h"

namespace vitamin::sim {

struct RecordedJob {
  enum class Call : std::uint8_t { kKernel, kCopy, kWait };
  struct Operation {
    Call call = Call::kKernel;
    std::uint32_t of = 0;  // kernel, or stream of a copy
    std::int32_t after = -1;
    double host_ns = 0, ns = 0;
  };
  struct Part {
    std::string name;
    std::uint64_t key = 0;  // in profiles
    scheduler::StepKind kind = scheduler::StepKind::kUnknown;
    std::vector<Operation> operations;
    double end_ns = 0;
    std::size_t last_kernel = 0;  // of the operations
  };
  struct Kernel {
    std::string name;
    double waves = 0;            // times that its blocks fill the whole device; 0: it needs no SMs
    double memory = 0;           // of the bandwidth, on the whole device
    double beside = 1;           // times as long where others take all of the bandwidth
    std::vector<float> stretch;  // by SMs: time against the whole device's
    // On this part of the device's SMs: of its time, while blocks of it still wait for
    // places, it takes them all; afterwards, so many of the places there.
    double full(double part) const;
    double share(double part) const;
  };

  std::string name;
  std::uint32_t sms = 0;
  double launch_ns = 0, return_ns = 0, gap_ns = 0;
  std::vector<Kernel> kernels;
  std::vector<Part> parts;

  // It answers requests (prefill, then decodes); else it repeats its step for ever.
  bool serves() const { return parts.size() > 1; }
};

// Errors name the line and what is wrong with it.
hal::Result<RecordedJob> parse_job(std::string_view text);
hal::Result<RecordedJob> read_job(const std::string& path);

}  // namespace vitamin::sim
