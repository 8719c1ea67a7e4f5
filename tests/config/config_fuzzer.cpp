// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over the path from text to Configuration: whatever is in the file, every problem has a
// place in it, and what is valid can be used.
#include <cstdlib>
#include <string_view>

#include "config/classes.h"
#include "config/load.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  namespace config = vitamin::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const config::Loaded loaded = config::load_text(text, "f.toml", "gpu7.cluster");
  for (const config::Problem& problem : loaded.problems)
    if (config::text_of(problem, true).empty()) std::abort();
  if (!loaded.valid()) return 0;
  const config::Configuration here = loaded.configuration.for_device("GPU-1", "NVIDIA H200");
  if (here.pool.leaf_units < 1 || here.policy.quantum_ns == 0) std::abort();
  const auto* match = config::class_of(here, {"/usr/bin/python3", {"1000", "user"}, [](auto& name) {
                                                return std::optional<std::string>(name);
                                              }});
  if (match != nullptr && match->name.empty()) std::abort();
  return 0;
}
