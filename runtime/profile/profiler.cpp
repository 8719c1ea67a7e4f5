// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/profiler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "hal/fnv1a.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {
namespace {

constexpr std::size_t kStopwatches = 256;
// The host needs this long at most between the first event and the launch, as a rule.
constexpr double kHostDelayNs = 5'000;
constexpr double kNegligible = 0.05;
// Of timed launches: the first few have two empty events behind them, and one in so many later.
constexpr std::uint64_t kFirstBrackets = 8, kBetweenBrackets = 16;
// Launches that are looked at: a third of the usual 97.
constexpr std::uint32_t kLongestSearch = 32;
// In the width of a sample that a search found: it teaches of its kernel as any other does, but not
// what a stream's launches take together.
constexpr std::uint32_t kSearched = 1U << 31;
// Searches of one kernel and width that may find its queue dry.
constexpr std::uint32_t kMostDry = 2 * kFewSamples;

std::uint64_t pair_of(std::uint64_t kernel, std::uint32_t sms) {
  return kernel ^ sms * 0x9e3779b97f4a7c15ULL;
}

}  // namespace

struct Profiler::Stopwatch {
  hal::Event begin, end;
  bool dry = false;  // the queue had nothing to do when the work arrived
  bool calibrates = false, searched = false;
  std::uint64_t kernel = 0;
  std::uint32_t sms = 0;
  std::function<void(double)> told;
};

Profiler::Profiler(hal::Device& device, ProfilerOptions options)
    : device_(device),
      options_(std::move(options)),
      profile_(options_.known),
      countdown_(options_.every),
      longest_search_(std::min(kLongestSearch, options_.every / 3)),
      search_(longest_search_) {
  if (learns()) make_stopwatches();
}

void Profiler::make_stopwatches() {
  for (std::size_t i = 0; i < kStopwatches; ++i) {
    auto begin = device_.create_timed_event();
    if (!begin) break;
    auto end = device_.create_timed_event();
    if (!end) {
      device_.destroy_event(*begin);
      break;
    }
    free_.push_back(new Stopwatch{.begin = *begin, .end = *end, .told = {}});
  }
  running_.reserve(kStopwatches);
}

Profiler::~Profiler() {
  for (const auto* list : {&free_, &running_})
    for (Stopwatch* stopwatch : *list) {
      device_.destroy_event(stopwatch->begin);
      device_.destroy_event(stopwatch->end);
      delete stopwatch;
    }
}

Profiler::Stopwatch* Profiler::start(hal::Queue& queue) {
  // Who does not learn may still want to time a graph.
  if (free_.empty() && running_.capacity() == 0) make_stopwatches();
  if (free_.empty()) collect_ended_first();
  if (free_.empty()) return nullptr;
  Stopwatch* stopwatch = free_.back();
  const CaptureSafeScope safe(device_);
  if (queue.record(stopwatch->begin) != hal::kNativeOk) return nullptr;
  free_.pop_back();
  return stopwatch;
}

bool Profiler::worth_timing(std::uint64_t kernel, std::uint32_t sms) const {
  if (const auto dry = dry_.find(pair_of(kernel, sms));
      dry != dry_.end() && dry->second >= kMostDry)
    return false;
  const KernelProfile* known = profile_.find(kernel);
  return known == nullptr ||
         std::none_of(known->cells.begin(), known->cells.end(), [&](const ProfileCell& cell) {
           return cell.sms == sms && cell.count >= kFewSamples;
         });
}

void Profiler::abandon(Stopwatch* stopwatch) { free_.push_back(stopwatch); }

void Profiler::stop(Stopwatch* stopwatch, hal::Queue& queue, std::function<void(double)> told) {
  const CaptureSafeScope safe(device_);
  const hal::NativeStatus recorded = queue.record(stopwatch->end);
  const hal::NativeStatus began = device_.query(stopwatch->begin);
  if (recorded != hal::kNativeOk) return abandon(stopwatch);
  stopwatch->dry = device_.errors().classify(began) != hal::Outcome::kNotReady;
  stopwatch->calibrates = stopwatch->searched = false;
  stopwatch->kernel = 0;
  stopwatch->told = std::move(told);
  running_.push_back(stopwatch);
}

void Profiler::stop(Stopwatch* stopwatch, hal::Queue& queue, std::uint64_t kernel,
                    const std::string& name, const hal::KernelLaunch& launch, std::uint32_t sms,
                    bool searched, std::function<void(double)> told) {
  stop(stopwatch, queue, std::move(told));
  if (running_.empty() || running_.back() != stopwatch) return;
  stopwatch->searched = searched;
  found_ = found_ || searched;
  stopwatch->kernel = kernel;
  stopwatch->sms = sms;
  if (const KernelProfile* known = learnt_.find(kernel); known == nullptr || known->blocks == 0) {
    const std::uint32_t resident =
        launch.kernel != nullptr ? device_.inspector().resident_blocks(launch) : 0;
    for (Profile* profile : {&profile_, &learnt_})
      profile->describe(kernel, name, launch.grid.volume(), resident);
  }
  if (++timed_ > kFirstBrackets && timed_ % kBetweenBrackets != 0) return;
  Stopwatch* empty = start(queue);
  if (empty == nullptr) return;
  stop(empty, queue, {});
  if (running_.back() == empty) empty->calibrates = true;
}

// True, and it is free again, when its work has ended.
bool Profiler::read(Stopwatch* stopwatch) {
  double ns = 0;
  bool timed = false;
  {
    const CaptureSafeScope safe(device_);
    const hal::NativeStatus status = device_.query(stopwatch->end);
    if (device_.errors().classify(status) == hal::Outcome::kNotReady) return false;
    timed = status == hal::kNativeOk &&
            device_.elapsed(stopwatch->begin, stopwatch->end, ns) == hal::kNativeOk;
  }
  if (timed) ended(*stopwatch, ns);
  stopwatch->told = {};
  free_.push_back(stopwatch);
  return true;
}

// On the launch path: one question as a rule, however many are running.
void Profiler::collect_ended_first() {
  const auto first_running =
      std::find_if(running_.begin(), running_.end(), [&](Stopwatch* s) { return !read(s); });
  running_.erase(running_.begin(), first_running);
}

bool Profiler::collect() {
  std::erase_if(running_, [&](Stopwatch* stopwatch) { return read(stopwatch); });
  Profile fresh;
  learner_.harvest(fresh, brackets_.undisturbed_ns());
  std::map<std::uint32_t, TimedLaunches> together;  // all kernels as one
  for (const auto& [kernel, what] : fresh.kernels())
    for (ProfileCell cell : what.cells) {
      const bool searched = (cell.sms & kSearched) != 0;
      cell.sms &= ~kSearched;
      profile_.merge(kernel, cell);
      learnt_.merge(kernel, cell);
      if (searched || !told_) continue;
      TimedLaunches& all = together[cell.sms];
      all.sms = cell.sms;
      all.launches += cell.count;
      const double share = static_cast<double>(cell.count) / static_cast<double>(all.launches);
      all.mean_ns += share * (cell.mean_ns - all.mean_ns);
      all.whole_ns += share * (at_first(kernel, cell) - all.whole_ns);
    }
  for (const auto& [sms, timed] : together) told_(timed);
  return awaits();
}

// By the first launches alone, wherever they were: another estimate later on, though a better one,
// would look as if the kernel had changed.
double Profiler::at_first(std::uint64_t kernel, const ProfileCell& cell) {
  constexpr std::uint64_t kFew = 8;
  First& first = first_[kernel];
  if (first.launches >= kFew) return first.whole_ns;
  KernelProfile alone;
  if (const KernelProfile* known = profile_.find(kernel); known != nullptr)
    alone.blocks = known->blocks, alone.resident = known->resident;
  // By means, as what it is compared with.
  alone.cells.push_back({cell.sms, cell.count, cell.mean_ns, cell.m2});
  const double whole_ns = std::max(1.0, fit(alone).at(alone, device_.info().sms));
  first.launches += cell.count;
  first.whole_ns += static_cast<double>(cell.count) / static_cast<double>(first.launches) *
                    (whole_ns - first.whole_ns);
  return first.whole_ns;
}

void Profiler::ended(Stopwatch& stopwatch, double ns) {
  if (stopwatch.told) stopwatch.told(ns);
  if (stopwatch.calibrates) {
    if (stopwatch.dry) return;
    brackets_.some[brackets_.count++ % ProfileCell::kMostKept] = static_cast<float>(ns);
    brackets_.kept = std::min(brackets_.kept + 1, ProfileCell::kMostKept);
    profile_.add_bracket(ns);
    learnt_.add_bracket(ns);
    return;
  }
  if (stopwatch.kernel == 0) return;
  if (stopwatch.dry && ns * kNegligible < kHostDelayNs) {
    if (stopwatch.searched) ++dry_[pair_of(stopwatch.kernel, stopwatch.sms)];
    return;
  }
  learner_.add(stopwatch.kernel, stopwatch.sms | (stopwatch.searched ? kSearched : 0), ns);
}

std::uint64_t name_hash(const std::string& name) { return hal::fnv1a(name); }

std::uint64_t launch_key(std::uint64_t kernel_name_hash, const hal::KernelLaunch& launch) {
  std::uint64_t key = kernel_name_hash;
  auto mix = [&](std::uint64_t value) {
    key = (key ^ value) * 0xff51afd7ed558ccdULL;
    key ^= key >> 32;
  };
  mix(launch.grid.x | std::uint64_t{launch.grid.y} << 32);
  mix(launch.grid.z | std::uint64_t{launch.shared_bytes} << 32);
  mix(launch.block.x | std::uint64_t{launch.block.y} << 20 | std::uint64_t{launch.block.z} << 40);
  return key == 0 ? 1 : key;
}

}  // namespace vitamin::runtime
