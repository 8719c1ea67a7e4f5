// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for libcuda.so.1 in tests of `vitamin doctor` and of what is said when no launch was
// seen. Answers what the environment asks for: STAND_IN_VERSION, STAND_IN_INIT, STAND_IN_DEVICES,
// STAND_IN_CRASH.
#include <cstdio>
#include <cstdlib>

namespace {

int number(const char* name, int preset) {
  const char* text = std::getenv(name);
  return text == nullptr ? preset : std::atoi(text);
}

}  // namespace

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

STAND_IN_EXPORT int cuInit(unsigned /*flags*/) {
  if (number("STAND_IN_CRASH", 0) != 0) std::abort();
  return number("STAND_IN_INIT", 0);
}
STAND_IN_EXPORT int cuDriverGetVersion(int* version) {
  *version = number("STAND_IN_VERSION", 13000);
  return 0;
}
STAND_IN_EXPORT int cuDeviceGetCount(int* count) {
  *count = number("STAND_IN_DEVICES", 1);
  return 0;
}
STAND_IN_EXPORT int cuDeviceGetName(char* name, int room, int device) {
  std::snprintf(name, static_cast<std::size_t>(room), "stand-in %d", device);
  return 0;
}
STAND_IN_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  *value = attribute;
  return 0;
}
STAND_IN_EXPORT int cuGetErrorName(int error, const char** name) {
  *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_STAND_IN";
  return 0;
}
STAND_IN_EXPORT int cuGreenCtxCreate() { return 0; }
