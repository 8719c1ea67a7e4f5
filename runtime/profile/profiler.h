// SPDX-License-Identifier: Apache-2.0
//
// Times live work: what policies and the window know of T(kernel and configuration, SMs).
//
// Every so many launches, one gets two timed events of ours around it, on its own queue, and a
// later look reads the difference. Bits do not depend on any of it.
//
// What the difference means. Device-side waits are issued ahead of the first event, so nothing but
// the launch lies between the two. Still an event costs the device some time, and more of it while
// others keep the device's front end busy: of every so many timed launches the next thing on the
// same queue is two events with nothing between them, and what the last of these took is taken off,
// by the same estimate as a launch's own time (ProfileCell::undisturbed_ns). And on a queue that
// has run dry the first event fires before the launch arrives: such a sample holds the host's delay
// and is left out, unless the launch lasts so long that this is nothing.
//
// The same stopwatches measure what runs without a grant (graphs on the whole device): the first
// launches, then a sample.
//
// Threads: every function wants the device lock. Nothing allocates on the launch path but the first
// sample of a kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hal/device.h"
#include "runtime/profile/profile.h"

namespace vitamin::runtime {

struct ProfilerOptions {
  // One launch in so many is timed; 0: none. A prime, so that no step of a program hides behind its
  // period. Two events cost the host 1-2 us and the device about as much: 1 % of a launch at 97,
  // and a sixteenth of that for the empty ones.
  static constexpr std::uint32_t kUsual = 97;
  std::uint32_t every = 0;
  Profile known;  // from earlier runs
};

class Profiler {
 public:
  Profiler(hal::Device& device, ProfilerOptions options);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // `told` of what was learnt since the last time, by collect(), once a width.
  using Sample = std::function<void(const TimedLaunches& timed)>;
  void on_sample(Sample told) { told_ = std::move(told); }
  bool learns() const { return options_.every > 0; }
  // Whether this launch is to be timed. Counts the launches that ask.
  //   kRegular  one launch in `every`, whatever it is: what launches take together is learnt from
  //             these alone.
  //   kSearch   one of the last `search_` launches before a regular one, until one of them was
  //             timed: the caller times it if its kernel and width are little known
  //             (worth_timing()). So rare kernels are soon known.
  // After kPatience rounds in which none was, `search_` halves, down to 1; a find restores it.
  enum class Turn { kNo, kSearch, kRegular };
  Turn turn() {
    if (countdown_ == 0 || --countdown_ > search_) return Turn::kNo;
    if (countdown_ > 0) return found_ ? Turn::kNo : Turn::kSearch;
    if (found_)
      search_ = longest_search_, in_vain_ = 0;
    else if (search_ > 1 && ++in_vain_ % kPatience == 0)
      search_ /= 2;
    found_ = false;
    countdown_ = options_.every;
    return Turn::kRegular;
  }
  // turn() may say so the next time.
  bool next_is_due() const {
    return countdown_ == 1 || (!found_ && countdown_ > 0 && countdown_ <= search_ + 1);
  }
  // Whether this launch of a graph is to be timed; `launches`: those before it of its kind. The
  // first ones are, then one in kUsual: two events cost as much as the whole launch of a short
  // graph.
  static bool times_graph(std::uint64_t launches) {
    constexpr std::uint64_t kFirst = 8;
    return launches < kFirst || launches % ProfilerOptions::kUsual == 0;
  }
  // Not what was looked for several times and always found its queue dry: others have their turn.
  bool worth_timing(std::uint64_t kernel, std::uint32_t sms) const;
  // Around the work that is timed, on the queue where it is submitted. start() answers null when no
  // stopwatch is free or the event was refused: then the work goes untimed.
  struct Stopwatch;
  Stopwatch* start(hal::Queue& queue);
  // Of a launch on so many SMs; of a kernel's first sample `launch` tells what it is, and
  // the device is not asked about one without a handle. `searched`: see turn(). `told`, if set,
  // gets the nanoseconds as well.
  void stop(Stopwatch* stopwatch, hal::Queue& queue, std::uint64_t kernel, const std::string& name,
            const hal::KernelLaunch& launch, std::uint32_t sms, bool searched = false,
            std::function<void(double ns)> told = {});
  // Of anything else: `told` gets the nanoseconds.
  void stop(Stopwatch* stopwatch, hal::Queue& queue, std::function<void(double ns)> told);
  void abandon(Stopwatch* stopwatch);  // the work was refused

  // Reads what has ended since. True when something is still awaited.
  bool collect();
  bool awaits() const { return !running_.empty(); }

  const Profile& profile() const { return profile_; }  // known and learnt
  const Profile& learnt() const { return learnt_; }    // in this process alone

 private:
  static constexpr std::uint32_t kPatience =
      8;  // searches in vain, then half as many are looked at
  void make_stopwatches();
  bool read(Stopwatch* stopwatch);
  void collect_ended_first();
  void ended(Stopwatch& stopwatch, double ns);
  double at_first(std::uint64_t kernel, const ProfileCell& cell);

  hal::Device& device_;
  ProfilerOptions options_;
  Profile profile_, learnt_;
  // By kernel: what it would last on the whole device, by its first launches alone.
  struct First {
    double whole_ns = 0;
    std::uint64_t launches = 0;
  };
  std::unordered_map<std::uint64_t, First> first_;
  std::unordered_map<std::uint64_t, std::uint32_t> dry_;  // searched in vain; by kernel and width
  ProfileLearner learner_;
  Sample told_;
  std::uint32_t countdown_ = 0;
  std::uint32_t longest_search_ = 0, search_ = 0, in_vain_ = 0;
  bool found_ = false;  // by the search before the next regular one
  std::uint64_t timed_ = 0;
  // The last few times of two events with nothing between them, and how many there were.
  ProfileCell brackets_;
  std::vector<Stopwatch*> free_, running_;  // running: in the order of their starts
};

// Equal for equal (kernel, grid, block, shared memory), in every process and run.
std::uint64_t launch_key(std::uint64_t kernel_name_hash, const hal::KernelLaunch& launch);
std::uint64_t name_hash(const std::string& name);

}  // namespace vitamin::runtime
