// SPDX-License-Identifier: Apache-2.0
//
// Says what the processes of a run counted: one line for each statistics page of a directory.
//
//   pages DIRECTORY  program stage seen bound bridged passed captured narrow moved deferred
//                    warnings graphs: launched bound narrow moved made updated evicted
//                    reason=whole...
#include <filesystem>
#include <fstream>
#include <memory>

#include <cstdio>
#include <cstring>

#include "runtime/stats.h"

namespace stats = vitamin::runtime::stats;

int main(int count, char** words) {
  if (count != 2) return 64;
  for (const auto& file : std::filesystem::directory_iterator(words[1])) {
    auto page = std::make_unique<stats::ProcessPage>();
    std::ifstream stream(file.path(), std::ios::binary);
    stream.read(reinterpret_cast<char*>(page.get()), sizeof *page);
    if (page->magic != stats::kMagic) continue;
    unsigned long long sums[8] = {};
    for (const stats::DevicePage& device : page->devices) {
      const stats::Launches& l = device.launches;
      const stats::Counter* counters[] = {&l.seen,     &l.bound,  &l.bridged, &l.passed,
                                          &l.captured, &l.narrow, &l.moved,   &l.deferred};
      for (int i = 0; i < 8; ++i) sums[i] += counters[i]->get();
    }
    std::printf("%s %u", page->program.bytes, page->stage.load());
    for (const unsigned long long sum : sums) std::printf(" %llu", sum);
    std::printf(" %llu unmanaged=%llu\n",
                static_cast<unsigned long long>(page->warnings_seen.get()),
                static_cast<unsigned long long>(page->passed_unmanaged.get()));
    unsigned long long graphs[7] = {};
    unsigned long long reasons[stats::kGraphReasons] = {};
    for (const stats::DevicePage& device : page->devices) {
      const stats::Graphs& g = device.graphs;
      const stats::Counter* counters[] = {&device.other.graph_launches,
                                          &g.bound,
                                          &g.narrow,
                                          &g.moved,
                                          &g.made,
                                          &g.updated,
                                          &g.evicted};
      for (int i = 0; i < 7; ++i) graphs[i] += counters[i]->get();
      for (unsigned i = 0; i < stats::kGraphReasons; ++i) reasons[i] += device.graph_whole[i].get();
    }
    std::printf("  graphs:");
    for (const unsigned long long sum : graphs) std::printf(" %llu", sum);
    for (unsigned i = 0; i < stats::kGraphReasons; ++i)
      if (reasons[i] > 0) std::printf(" %s=%llu", stats::kGraphReasonKey[i], reasons[i]);
    std::printf("\n");
    for (const stats::Warning& warning : page->warnings)
      if (warning.ready.load() == 2) std::printf("  warning: %s\n", warning.text.bytes);
    if (page->message.bytes[0] != '\0') std::printf("  message: %s\n", page->message.bytes);
  }
  return 0;
}
