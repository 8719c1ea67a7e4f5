// SPDX-License-Identifier: Apache-2.0
//
// What the conformance suite runs on. Each backend has one file that defines open_subject() and
// lacks(); the suite is compiled into one program with each. A subject may be used by one thread
// at a time; its device by several, as hal/device.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "hal/device.h"

namespace vitamin::conformance {

class Subject {
 public:
  virtual ~Subject() = default;
  virtual hal::Device& device() = 0;
  // Of conformance_kernels.cpp.
  virtual hal::KernelHandle kernel(const char* name) = 0;
  // Zeroed; kernels and the host see it at the same address. Lives as long as the subject.
  virtual void* memory(std::size_t bytes) = 0;
  // Streams of the application.
  virtual void* make_stream() = 0;  // blocking
  virtual void destroy_stream(void* stream) = 0;
  virtual void* legacy_stream() = 0;
  // The processor that a block saw itself on (`places`), as DeviceInfo counts them.
  virtual unsigned processor(unsigned seen) = 0;
  // The packed form of parameters, as the vendor wants it: room for five pointers.
  virtual void pack(void** extra, void* buffer, std::size_t* bytes) = 0;
};

std::unique_ptr<Subject> open_subject();

// What a backend may lack. A case that asks for it must fail there, with this reason printed.
enum class Ability { kQueuesOutsideLegacyOrder, kPackedArguments };
const char* lacks(Ability ability);  // the reason, or null

}  // namespace vitamin::conformance
