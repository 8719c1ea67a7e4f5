// SPDX-License-Identifier: Apache-2.0
//
// A trace of requests: CSV with the header t_s,prompt_tokens,output_tokens, times ascending; and,
// of requests to a recorded job, perhaps ,host_pace: how much slower than recorded its host was.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hal/result.h"

namespace vitamin::sim {

struct ServiceRequest {
  double at_s = 0;  // since the beginning of the window
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;
  double host_pace = 1;  // of recorded jobs
};

struct TraceWindow {
  double from_s = 0;
  double seconds = 0;                        // 0: to the end
  std::uint32_t most_prompt_tokens = 16384;  // longer ones are cut, and counted
  std::uint32_t most_output_tokens = 2048;
};

struct RequestTrace {
  std::vector<ServiceRequest> requests;
  std::uint64_t cut = 0;  // requests whose prompt or output was cut
  double span_s() const;
  // Times multiplied so that the mean rate becomes this many requests a second; the factor.
  double scale_to(double requests_per_s);
};

// Errors name the line and what is wrong with it: a field that is missing or no number, a negative
// time, a time before the line above, a request of no tokens.
hal::Result<RequestTrace> parse_trace(std::string_view text, const TraceWindow& window = {});
hal::Result<RequestTrace> read_trace(const std::string& path, const TraceWindow& window = {});

}  // namespace vitamin::sim
