// SPDX-License-Identifier: Apache-2.0
//
// The subjects of the suite: computations whose structure a library chooses from the number of
// SMs that it sees, as CUB, flash attention and split-K GEMMs do.
//
// The choice is a pure function of that number. Fed the device's own, it is the structure that the
// program submits; fed the SMs that happen to be free, it is what a controller that reshapes
// launches would submit instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/determinism/machine.h"

namespace vitamin::determinism {

constexpr unsigned kBlock = 256;  // threads

// kSmall is for a device that computes on the CPU.
enum class Scale { kSmall, kFull };

enum class Expect {
  kDrift,    // deterministic; reshaped it must drift
  kNone,     // deterministic, reshaped or not
  kExcluded  // differs from itself
};

class Subject {
 public:
  virtual ~Subject() = default;
  const std::string& name() const { return name_; }
  // What a controller would turn: "grid", "block", "splits".
  const std::string& knob() const { return knob_; }
  // The kernel whose launch the knob shapes.
  const std::string& kernel() const { return kernel_; }
  Expect expect() const { return expect_; }

  // Buffers; once for a machine.
  virtual void prepare(Launcher& launch, Scale scale) = 0;
  // Fresh inputs from a seed.
  virtual void draw(Launcher& launch, unsigned seed) = 0;
  // The setting of the knob that `sms` SMs ask for.
  virtual unsigned setting(unsigned sms) const = 0;
  // Computes into `out`, outputs() floats, with the knob at `setting`.
  virtual void run(Launcher& launch, std::uint64_t out, unsigned setting) = 0;
  virtual unsigned outputs() const = 0;
  // The same in double precision, outputs() doubles, whatever the setting of the knob.
  virtual void exact(Launcher& launch, std::uint64_t out) = 0;

 protected:
  Subject(std::string name, std::string knob, std::string kernel, Expect expect)
      : name_(std::move(name)),
        knob_(std::move(knob)),
        kernel_(std::move(kernel)),
        expect_(expect) {}

 private:
  std::string name_, knob_, kernel_;
  Expect expect_;
};

std::vector<std::unique_ptr<Subject>> all_subjects();

}  // namespace vitamin::determinism
