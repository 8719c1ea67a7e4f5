// SPDX-License-Identifier: Apache-2.0
//
// What the processes of a `vitamin run` have counted so far, while they run: launch_counts
// DIRECTORY, where DIRECTORY is what it told them in VITAMIN_RUN_DIR. One JSON line, the sums of
// all of them: launches seen, bound, moved to another partition than the one before in their
// stream, submitted later by the runtime, device-side waits, how many ran on each number of
// processors, and why those on the whole device did.
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

#include "runtime/stats.h"

namespace stats = vitamin::runtime::stats;

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: launch_counts DIRECTORY\n");
    return 2;
  }
  std::uint64_t processes = 0, seen = 0, bound = 0, moved = 0, deferred = 0, edges = 0;
  std::map<std::uint32_t, std::uint64_t> widths;
  std::uint64_t whole[stats::kWholeReasons] = {};
  const auto page = std::make_unique<stats::ProcessPage>();
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], problem)) {
    if (entry.path().extension() != ".stats" ||
        stats::read(entry.path().c_str(), *page) != stats::Read::kGood)
      continue;
    ++processes;
    for (const stats::DevicePage& device : page->devices) {
      if (device.used.load(std::memory_order_acquire) == 0) continue;
      seen += device.launches.seen.get();
      bound += device.launches.bound.get();
      moved += device.launches.moved.get();
      deferred += device.launches.deferred.get();
      edges += device.other.edges.get();
      for (const stats::WidthSlot& slot : device.widths)
        if (const std::uint32_t width = slot.sms.load(std::memory_order_relaxed); width != 0)
          widths[width] += slot.launches.get();
      for (unsigned reason = 0; reason < stats::kWholeReasons; ++reason)
        whole[reason] += device.whole[reason].get();
    }
  }
  if (problem) {
    std::fprintf(stderr, "launch_counts: %s: %s\n", argv[1], problem.message().c_str());
    return 1;
  }
  std::printf("{\"processes\": %" PRIu64 ", \"seen\": %" PRIu64 ", \"bound\": %" PRIu64
              ", \"moved\": %" PRIu64 ", \"deferred\": %" PRIu64 ", \"edges\": %" PRIu64
              ", \"widths\": {",
              processes, seen, bound, moved, deferred, edges);
  const char* comma = "";
  for (const auto& [width, launches] : widths) {
    std::printf("%s\"%" PRIu32 "\": %" PRIu64, comma, width, launches);
    comma = ", ";
  }
  std::printf("}, \"whole\": {");
  for (unsigned reason = 0; reason < stats::kWholeReasons; ++reason)
    std::printf("%s\"%s\": %" PRIu64, reason > 0 ? ", " : "", stats::kWholeReasonKey[reason],
                whole[reason]);
  std::printf("}}\n");
}
