// SPDX-License-Identifier: Apache-2.0
//
// Questions to a Prometheus server, by its HTTP API.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::tools {

struct PrometheusSample {
  std::map<std::string, std::string> labels;  // "__name__" is the metric's
  double value;                               // NaN and infinities as Prometheus has them
};

// The samples that `expression` (PromQL, an instant vector) has now. `url`:
// http://HOST[:PORT][/PATH] of the server; it is asked without TLS. Blocks for at most 10 s after
// the name is resolved. Fails with kInvalidArgument where `url` is none, else with kUnavailable and
// what the server answered.
hal::Result<std::vector<PrometheusSample>> ask_prometheus(const std::string& url,
                                                          const std::string& expression);

}  // namespace vitamin::tools
