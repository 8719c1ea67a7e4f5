// SPDX-License-Identifier: Apache-2.0
//
// determinism: the suite as a CUDA program. One JSON object a subject on stdout.
#include <sys/prctl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/determinism/driver_machine.h"
#include "tests/determinism/trials.h"

namespace vitamin::determinism {
namespace {

constexpr const char* kUsage =
    "usage: determinism [--treatment own|reshape|atoms] [--trials N] [--seed N]\n"
    "                   [--scale small|full] [--only WORD] [--green PROCESSORS] [--errors N]\n"
    "                   [--digests FILE] [--against FILE] [--widths FILE]\n"
    "       determinism --interfere SECONDS [--seed N] [--scale small|full]\n"
    "own: the digest of every trial's output, written to FILE, compared with those in a FILE.\n"
    "reshape, atoms: each trial twice, as the program launches and changed as a controller would\n"
    "that sees as many free processors as the widths FILE says, one a trial. Its lines: a number,\n"
    "and the kernel of kernels.cpp whose trials it is for.\n"
    "--errors: in so many trials the distance from the result in double precision is measured.\n";

struct Options {
  std::string treatment = "own", only, digests, against, widths;
  TrialOptions trials;
  DriverOptions driver;
  unsigned interfere_seconds = 0;
};

unsigned number(const std::string& option, const char* text) {
  unsigned value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || stop == text)
    throw std::runtime_error(option + " wants a number, not '" + text + "'");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw std::runtime_error(option + " wants a value\n" + kUsage);
    const char* value = argv[i + 1];
    if (option == "--treatment")
      options.treatment = value;
    else if (option == "--trials")
      options.trials.trials = number(option, value);
    else if (option == "--errors")
      options.trials.errors = number(option, value);
    else if (option == "--seed")
      options.trials.seed = number(option, value);
    else if (option == "--scale")
      options.trials.scale = std::strcmp(value, "full") == 0 ? Scale::kFull : Scale::kSmall;
    else if (option == "--only")
      options.only = value;
    else if (option == "--green")
      options.driver.green_sms = number(option, value);
    else if (option == "--digests")
      options.digests = value;
    else if (option == "--against")
      options.against = value;
    else if (option == "--widths")
      options.widths = value;
    else if (option == "--interfere")
      options.interfere_seconds = number(option, value);
    else
      throw std::runtime_error("unknown option " + option + "\n" + kUsage);
  }
  return options;
}

// --- digests in files: "<trial> <low> <high> <subject>" -----------------------------------------

using DigestFile = std::map<std::string, std::vector<Digest>>;

DigestFile read_digests(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  DigestFile file;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    unsigned trial = 0;
    Digest digest{};
    std::string subject;
    words >> trial >> std::hex >> digest.low >> digest.high >> std::ws;
    std::getline(words, subject);
    file[subject].push_back(digest);
  }
  return file;
}

void append_digests(const std::string& path, const std::string& subject,
                    const std::vector<Digest>& digests) {
  std::ofstream out(path, std::ios::app);
  for (std::size_t i = 0; i < digests.size(); ++i)
    out << std::dec << i << ' ' << std::hex << digests[i].low << ' ' << digests[i].high << ' '
        << subject << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

// For each kernel the SMs at which its launches ran, in their order.
using Widths = std::map<std::string, std::vector<unsigned>>;

Widths read_widths(const std::string& path) {
  std::ifstream in(path);
  Widths widths;
  unsigned width = 0;
  for (std::string kernel; in >> width >> kernel;) widths[kernel].push_back(width);
  if (widths.empty()) throw std::runtime_error("no widths in '" + path + "'");
  return widths;
}

// A JSON list of what `text` makes of each value.
template <class Values, class Text>
std::string list_of(const Values& values, const Text& text) {
  std::string list = "[";
  for (const auto& value : values) list += (list.size() > 1 ? ", " : "") + text(value);
  return list + "]";
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// --- treatments ---------------------------------------------------------------------------------

void tell_own(Machine& machine, Subject& subject, const Options& options,
              const std::optional<DigestFile>& against) {
  const std::vector<Digest> got = digests(machine, subject, options.trials);
  if (!options.digests.empty()) append_digests(options.digests, subject.name(), got);
  Digest all{};
  for (const Digest& digest : got) {
    all.low = all.low * 0x9e3779b97f4a7c15ULL + digest.low;
    all.high = all.high * 0xbf58476d1ce4e5b9ULL + digest.high;
  }
  std::printf(
      "{\"subject\": \"%s\", \"knob\": \"%s\", \"setting\": %u, \"trials\": %zu, "
      "\"hash\": \"%016llx%016llx\"",
      subject.name().c_str(), subject.knob().c_str(), subject.setting(machine.sms()), got.size(),
      all.low, all.high);
  if (against) {
    // Of a longer reference the first trials count.
    const auto found = against->find(subject.name());
    std::vector<Digest> reference;
    if (found != against->end()) reference = found->second;
    if (reference.size() > got.size()) reference.resize(got.size());
    std::vector<std::size_t> trials;  // that differ
    for (std::size_t i = 0; i < got.size(); ++i)
      if (i >= reference.size() || differing({reference[i]}, {got[i]}) > 0) trials.push_back(i);
    std::printf(", \"differing\": %zu, \"differing_trials\": %s", trials.size(),
                list_of(trials, [](std::size_t i) { return std::to_string(i); }).c_str());
  }
  if (options.trials.errors > 0) {
    const std::vector<double> error = errors(machine, subject, options.trials);
    std::printf(", \"error\": %.6g, \"errors\": %s", *std::max_element(error.begin(), error.end()),
                list_of(error, short_number).c_str());
  }
  std::printf("}\n");
}

void tell_drift(Machine& machine, Subject& subject, const Options& options,
                const Widths& all_widths) {
  const auto found = all_widths.find(subject.kernel());
  if (found == all_widths.end())
    throw std::runtime_error("no widths for " + subject.kernel() + " in " + options.widths);
  const std::vector<unsigned>& widths = found->second;
  const auto free = [&](unsigned trial) { return widths[trial % widths.size()]; };
  const Drift drift = options.treatment == "reshape"
                          ? reshaped(machine, subject, options.trials, free)
                          : in_atoms(machine, subject, options.trials, free);
  std::printf(
      "{\"subject\": \"%s\", \"knob\": \"%s\", \"trials\": %u, \"turned\": %u, "
      "\"differing\": %u, \"elements\": %llu, \"differing_elements\": %llu, "
      "\"mean_ulps\": %.6g, \"max_ulps\": %u, \"max_abs\": %.6g, \"own_error\": %.6g, "
      "\"error\": %.6g, \"samples\": %s}\n",
      subject.name().c_str(), subject.knob().c_str(), drift.trials, drift.turned, drift.differing,
      static_cast<unsigned long long>(drift.elements),
      static_cast<unsigned long long>(drift.differing_elements), drift.mean_ulps, drift.max_ulps,
      static_cast<double>(drift.max_abs), drift.own_error, drift.error,
      list_of(drift.samples, [](const TrialDrift& sample) {
        return "[" + std::to_string(sample.free) + ", " + std::to_string(sample.setting) + ", " +
               std::to_string(sample.elements) + ", " + std::to_string(sample.max_ulps) + ", " +
               short_number(static_cast<double>(sample.max_abs)) + "]";
      }).c_str());
}

// Asked to go, a tenant ends between two kernels: one that is killed in the middle of its work
// under MPS can take its neighbours' contexts with it (CUDA_ERROR_LAUNCH_FAILED).
volatile std::sig_atomic_t asked_to_go = 0;

// A tenant: kernels of 20 us to some milliseconds, wide and narrow, from a seed, until the time is
// over. It is busy half of the time, as a job is that also computes on its host. One line says that
// it has begun.
void interfere(DriverMachine& machine, unsigned seconds, const TrialOptions& options) {
  // A tenant whose landlord was killed must not stay behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, [](int) { asked_to_go = 1; });
  Launcher launch(machine);
  std::mt19937_64 random(options.seed);
  const unsigned lengths = options.scale == Scale::kFull ? 16 : 6;
  const std::uint64_t cell = machine.allocate(64);
  using clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPauseMost(20);
  bool said = false;
  const auto end = clock::now() + std::chrono::seconds(seconds);
  for (auto begin = clock::now(); begin < end && asked_to_go == 0; begin = clock::now()) {
    for (unsigned i = 0; i < 8; ++i) {
      const auto blocks = static_cast<unsigned>(1 + random() % (8 * machine.sms()));
      const auto rounds = 1u << random() % lengths;
      launch("interfere", {blocks}, {256}, cell, rounds);
    }
    machine.pace();
    if (!said) std::printf("{\"interfering\": true}\n"), std::fflush(stdout);
    said = true;
    std::this_thread::sleep_for(std::min(clock::now() - begin, clock::duration(kPauseMost)));
  }
}

void run(const Options& options) {
  const auto machine = driver_machine(options.driver);
  if (options.interfere_seconds > 0)
    return interfere(*machine, options.interfere_seconds, options.trials);
  std::optional<DigestFile> against;
  if (!options.against.empty()) against = read_digests(options.against);
  if (!options.digests.empty()) std::ofstream(options.digests, std::ios::trunc);
  Widths widths;
  if (options.treatment != "own") widths = read_widths(options.widths);
  std::printf("{\"processors\": %u}\n", machine->sms());
  for (const auto& subject : all_subjects()) {
    if (subject->name().find(options.only) == std::string::npos) continue;
    if (options.treatment == "own")
      tell_own(*machine, *subject, options, against);
    else
      tell_drift(*machine, *subject, options, widths);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace vitamin::determinism

int main(int argc, char** argv) {
  try {
    vitamin::determinism::run(vitamin::determinism::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "determinism: %s\n", error.what());
    return 1;
  }
}
