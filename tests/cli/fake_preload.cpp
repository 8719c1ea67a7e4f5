// SPDX-License-Identifier: Apache-2.0
//
// A fake libvitamin_cuda.so in tests of the command line: writes the statistics page that
// the environment asks for, and catches nothing.
//
//   FAKE_PROGRAM   only in the process of this name; others report that they used no CUDA
//   FAKE_PAGE      words "name=number" (seen, bound, bridged, passed, whole, moved, narrow,
//                      graphs, graphs_bound, stage, init, unmanaged) and "message=text" as the last
//                      one
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/environment.h"
#include "runtime/stats.h"

namespace {

namespace stats = vitamin::runtime::stats;

void fill(stats::ProcessPage& page, std::string words) {
  if (const std::size_t at = words.find("message="); at != std::string::npos) {
    page.message.set(words.c_str() + at + std::strlen("message="));
    words.erase(at);
  }
  const auto number = [&](const char* name) -> std::uint64_t {
    const std::size_t at = (" " + words).find(std::string(" ") + name + "=");
    if (at == std::string::npos) return 0;
    return std::strtoull(words.c_str() + at + std::strlen(name) + 1, nullptr, 10);
  };
  page.policy.set(std::getenv(vitamin::runtime::environment::kPolicy));
  page.stage.store(static_cast<std::uint32_t>(number("stage")));
  page.init_status.store(static_cast<std::int32_t>(number("init")));
  page.passed_unmanaged.set(number("unmanaged"));
  if (number("seen") == 0 && number("graphs") == 0) return;
  stats::DevicePage* const part = page.device(0);
  if (part == nullptr) return;
  stats::DevicePage& device = *part;
  device.pool.device_name.set("fake device");
  device.pool.sms.set(132);
  device.pool.units.set(16);
  device.pool.partitions.set(59);
  device.launches.seen.set(number("seen"));
  device.launches.bound.set(number("bound"));
  device.launches.bridged.set(number("bridged"));
  device.launches.passed.set(number("passed"));
  device.launches.moved.set(number("moved"));
  device.launches.successors.set(number("seen") - (number("seen") > 0 ? 1 : 0));
  device.launches.narrow_eligible.set(number("seen"));
  device.launches.narrow.set(number("narrow"));
  device.whole[static_cast<unsigned>(stats::WholeReason::kCluster)].set(number("whole"));
  device.width(8).launches.set(number("narrow"));
  device.width(132).launches.set(number("whole"));
  stats::LibrarySlot& library = device.library("libfake.so");
  library.seen.set(number("seen"));
  library.bound.set(number("bound"));
  device.other.graph_launches.set(number("graphs"));
  device.graphs.bound.set(number("graphs_bound"));
  device.graph_whole[static_cast<unsigned>(stats::GraphReason::kNotMade)].set(
      number("graphs") - number("graphs_bound"));
  page.warn("a warning of the fake");
  device.used.store(1);
}

__attribute__((constructor)) void start() {
  const char* directory = std::getenv(vitamin::runtime::environment::kRunDirectory);
  if (directory == nullptr) return;
  stats::ProcessPage* page = stats::create(directory);
  if (page == nullptr) return;
  const char* program = std::getenv("FAKE_PROGRAM");
  const char* words = std::getenv("FAKE_PAGE");
  if (words != nullptr && (program == nullptr || std::strcmp(program, page->program.bytes) == 0))
    fill(*page, words);
}

}  // namespace
