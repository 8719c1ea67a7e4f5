// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/trials.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace vitamin::determinism {
namespace {

constexpr unsigned kPoison = 0xffffffff;

unsigned input_seed(const TrialOptions& options, unsigned trial) {
  return options.seed * 0x9e3779b9u + 16 * trial;
}

Extent blocks_over(unsigned words) { return {std::min((words + kBlock - 1) / kBlock, 256u)}; }

// An output that was not written reads as a NaN, never as the right answer of an earlier trial.
void compute(Launcher& launch, Subject& subject, std::uint64_t out, unsigned setting) {
  launch("set_words", blocks_over(subject.outputs()), {kBlock}, out, subject.outputs(), kPoison);
  subject.run(launch, out, setting);
}

std::uint64_t zeroed(Launcher& launch, std::size_t bytes) {
  const std::uint64_t address = launch.machine().allocate(bytes);
  const auto words = static_cast<unsigned>(bytes / 4);
  launch("set_words", blocks_over(words), {kBlock}, address, words, 0u);
  return address;
}

// The exact result of each trial, and how far others are from it. Room is made on first use: exact
// results are twice as large as what they judge.
class Exact {
 public:
  Exact(Launcher& launch, Subject& subject, unsigned trials)
      : launch_(launch), subject_(subject), trials_(trials) {
    if (trials == 0) return;
    exact_ = launch.machine().allocate(std::size_t{8} * subject.outputs());
    errors_ = zeroed(launch, trials * sizeof(Error));
  }
  // Of the inputs drawn last.
  void compute() { subject_.exact(launch_, exact_); }
  void measure(std::uint64_t out, unsigned trial) {
    launch_("measure_error", blocks_over(subject_.outputs()), {kBlock}, out, exact_,
            subject_.outputs(), errors_ + trial * sizeof(Error));
  }
  // For each trial; the machine is read once.
  std::vector<double> read() {
    std::vector<Error> raw(trials_);
    if (trials_ > 0) launch_.machine().read(raw.data(), errors_, raw.size() * sizeof(Error));
    std::vector<double> errors;
    for (const Error& error : raw)
      errors.push_back(std::bit_cast<double>(error.apart_bits) /
                       std::bit_cast<double>(error.largest_bits));
    return errors;
  }

 private:
  Launcher& launch_;
  Subject& subject_;
  unsigned trials_;
  std::uint64_t exact_ = 0, errors_ = 0;
};

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// What the treatment was told, and the setting that it chose for it.
using Changed =
    std::function<std::pair<unsigned, unsigned>(Launcher&, std::uint64_t out, unsigned trial)>;

Drift compared(Machine& machine, Subject& subject, const TrialOptions& options,
               const Changed& changed) {
  Launcher launch(machine);
  subject.prepare(launch, options.scale);
  const unsigned own = subject.setting(machine.sms());
  const std::uint64_t a = launch.machine().allocate(std::size_t{4} * subject.outputs());
  const std::uint64_t b = launch.machine().allocate(std::size_t{4} * subject.outputs());
  const std::uint64_t differences = zeroed(launch, options.trials * sizeof(Difference));
  const unsigned exact_trials = std::min(options.errors, options.trials);
  Exact own_error(launch, subject, exact_trials), error(launch, subject, exact_trials);
  Drift drift;
  for (unsigned trial = 0; trial < options.trials; ++trial) {
    subject.draw(launch, input_seed(options, trial));
    compute(launch, subject, a, own);
    const auto [free, setting] = changed(launch, b, trial);
    drift.samples.push_back({.free = free, .setting = setting});
    if (trial < exact_trials) {
      own_error.compute();
      own_error.measure(a, trial);
      error.compute();
      error.measure(b, trial);
    }
    launch("compare_floats", blocks_over(subject.outputs()), {kBlock}, a, b, subject.outputs(),
           differences + trial * sizeof(Difference));
  }
  std::vector<Difference> read(options.trials);
  machine.read(read.data(), differences, read.size() * sizeof(Difference));
  drift.trials = options.trials;
  drift.own_error = largest(own_error.read());
  drift.error = largest(error.read());
  drift.elements = std::uint64_t{subject.outputs()} * options.trials;
  double ulps = 0;
  for (std::size_t trial = 0; trial < read.size(); ++trial) {
    const Difference& difference = read[trial];
    TrialDrift& sample = drift.samples[trial];
    sample.elements = difference.elements;
    sample.max_ulps = difference.ulp_max;
    sample.max_abs = std::bit_cast<float>(difference.abs_max_bits);
    drift.differing += difference.elements > 0 ? 1 : 0;
    drift.differing_elements += difference.elements;
    ulps += static_cast<double>(difference.ulp_sum);
    drift.max_ulps = std::max(drift.max_ulps, sample.max_ulps);
    drift.max_abs = std::max(drift.max_abs, sample.max_abs);
  }
  drift.mean_ulps = ulps / static_cast<double>(drift.elements);
  return drift;
}

}  // namespace

std::vector<Digest> digests(Machine& machine, Subject& subject, const TrialOptions& options) {
  Launcher launch(machine);
  subject.prepare(launch, options.scale);
  const unsigned own = subject.setting(machine.sms());
  const std::uint64_t out = machine.allocate(std::size_t{4} * subject.outputs());
  const std::uint64_t results = zeroed(launch, options.trials * sizeof(Digest));
  for (unsigned trial = 0; trial < options.trials; ++trial) {
    subject.draw(launch, input_seed(options, trial));
    compute(launch, subject, out, own);
    launch("digest_words", blocks_over(subject.outputs()), {kBlock}, out, subject.outputs(),
           results + trial * sizeof(Digest));
  }
  std::vector<Digest> read(options.trials);
  machine.read(read.data(), results, read.size() * sizeof(Digest));
  return read;
}

std::vector<double> errors(Machine& machine, Subject& subject, const TrialOptions& options) {
  Launcher launch(machine);
  subject.prepare(launch, options.scale);
  const std::uint64_t out = machine.allocate(std::size_t{4} * subject.outputs());
  const unsigned trials = std::min(options.errors, options.trials);
  Exact exact(launch, subject, trials);
  for (unsigned trial = 0; trial < trials; ++trial) {
    subject.draw(launch, input_seed(options, trial));
    compute(launch, subject, out, subject.setting(machine.sms()));
    exact.compute();
    exact.measure(out, trial);
  }
  return exact.read();
}

Drift reshaped(Machine& machine, Subject& subject, const TrialOptions& options,
               const std::function<unsigned(unsigned)>& free_sms) {
  const unsigned own = subject.setting(machine.sms());
  unsigned turned = 0;
  Drift drift =
      compared(machine, subject, options, [&](Launcher& launch, std::uint64_t out, unsigned trial) {
        const unsigned free = free_sms(trial);
        const unsigned other = subject.setting(free);
        turned += other != own ? 1 : 0;
        compute(launch, subject, out, other);
        return std::pair(free, other);
      });
  drift.turned = turned;
  return drift;
}

Drift in_atoms(Machine& machine, Subject& subject, const TrialOptions& options,
               const std::function<unsigned(unsigned)>& free_sms) {
  const unsigned own = subject.setting(machine.sms());
  const unsigned all = machine.sms();
  unsigned turned = 0;
  Drift drift =
      compared(machine, subject, options, [&](Launcher& launch, std::uint64_t out, unsigned trial) {
        // One atom where everything is free; at most 8, as many launches cost.
        const unsigned free = std::max(free_sms(trial), 1u);
        const unsigned atoms = std::clamp((all + free - 1) / free, 1u, 8u);
        turned += atoms > 1 ? 1 : 0;
        Launcher cut(launch.machine());
        cut.set_atoms(atoms);
        compute(cut, subject, out, own);
        return std::pair(free, atoms);
      });
  drift.turned = turned;
  return drift;
}

unsigned differing(const std::vector<Digest>& a, const std::vector<Digest>& b) {
  unsigned count =
      static_cast<unsigned>(a.size() > b.size() ? a.size() - b.size() : b.size() - a.size());
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    count += a[i].low != b[i].low || a[i].high != b[i].high ? 1 : 0;
  return count;
}

}  // namespace vitamin::determinism
