// SPDX-License-Identifier: Apache-2.0
//
// Where the suite runs: one in-order stream of a device, kernels by name. One implementation goes
// through the HAL (hal_machine.h), one is an ordinary CUDA program (driver_machine.h).
//
// Errors: thrown as std::runtime_error with a sentence. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/determinism/values.h"

namespace vitamin::determinism {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  unsigned volume() const { return x * y * z; }
};

class Machine {
 public:
  virtual ~Machine() = default;
  // How many SMs the device says it has: what libraries size their grids by.
  virtual unsigned sms() const = 0;
  virtual std::uint64_t allocate(std::size_t bytes) = 0;  // for the life of the machine
  virtual void launch(const std::string& kernel, Extent grid, Extent block, void** arguments) = 0;
  // Waits for everything launched.
  virtual void read(void* to, std::uint64_t from, std::size_t bytes) = 0;
};

// Launches kernels of kernels.cpp, all of which take an Atom first.
class Launcher {
 public:
  explicit Launcher(Machine& machine) : machine_(machine) {}

  Machine& machine() { return machine_; }
  // From now on each grid is launched in so many atoms.
  void set_atoms(unsigned atoms) { atoms_ = atoms; }

  template <class... Arguments>
  void operator()(const char* kernel, Extent grid, Extent block, Arguments... arguments) {
    const unsigned blocks = grid.volume();
    const unsigned atoms = atoms_ < blocks ? atoms_ : blocks;
    for (unsigned atom = 0; atom < atoms; ++atom) {
      Atom range{blocks / atoms * atom, atom + 1 == atoms ? ~0u : blocks / atoms * (atom + 1)};
      void* pointers[] = {&range, static_cast<void*>(&arguments)...};
      machine_.launch(kernel, grid, block, pointers);
    }
  }

 private:
  Machine& machine_;
  unsigned atoms_ = 1;
};

}  // namespace vitamin::determinism
