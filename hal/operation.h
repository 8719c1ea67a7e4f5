// SPDX-License-Identifier: Apache-2.0
//
// A kernel launch as the application submitted it, in vendor-neutral terms.
//
// The fields are the B_k and C_k of the paper (section "Determinism Model"): binary, geometry,
// shared memory, arguments, attributes. Nothing in this project writes to one after it was built.
// Everything here is borrowed: valid during the call that received it. What must outlive the call
// is copied by runtime/descriptor.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitamin::hal {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  constexpr std::uint64_t volume() const { return std::uint64_t{x} * y * z; }
  friend constexpr bool operator==(Dim3, Dim3) = default;
};

// The vendor's kernel handle (CUfunction or CUkernel; hipFunction_t). Identity only.
using KernelHandle = const void*;

// Which of the vendor's entry points the application called; a resubmission uses the same one.
enum class LaunchForm : std::uint8_t { kPlain, kCooperative, kExtended };

// Vendor attribute records, laid out as the vendor's header says, copied verbatim.
struct AttributeList {
  const void* records = nullptr;
  std::uint32_t count = 0;
};

struct KernelLaunch {
  KernelHandle kernel = nullptr;
  Dim3 grid, block;
  std::uint32_t shared_bytes = 0;
  LaunchForm form = LaunchForm::kPlain;
  void** arguments = nullptr;  // one pointer per parameter, or null
  void** extra = nullptr;      // the vendor's packed form, or null
  AttributeList attributes;

  // What the interposer derives from `attributes` and the entry point, to decide eligibility.
  std::uint32_t cluster_blocks = 1;  // blocks in one cluster; 1 without clusters
  bool cooperative = false;          // the whole grid must be resident at once
  bool programmatic = false;         // may overlap the kernel directly ahead in its stream (PDL)
  // The device's context is known to be current on the calling thread. A backend whose default
  // stream is that of the current context then need not query it.
  bool in_context = false;
};

// Where each parameter lies in the packed argument buffer. Unit: bytes.
struct KernelLayout {
  struct Parameter {
    std::uint32_t offset = 0;
    std::uint32_t size = 0;
  };
  std::vector<Parameter> parameters;
  std::uint32_t bytes = 0;  // end of the last parameter
};

}  // namespace vitamin::hal
