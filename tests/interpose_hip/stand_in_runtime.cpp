// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for libamdhip64 in tests of `vitamin doctor`. Answers what the environment asks for:
// STAND_IN_VERSION, STAND_IN_DEVICES, STAND_IN_CRASH.
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kNoDevice = 100;

int number(const char* name, int preset) {
  const char* text = std::getenv(name);
  return text == nullptr ? preset : std::atoi(text);
}

}  // namespace

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

STAND_IN_EXPORT int hipRuntimeGetVersion(int* version) {
  if (number("STAND_IN_CRASH", 0) != 0) std::abort();
  *version = number("STAND_IN_VERSION", 50'221'153);
  return 0;
}
STAND_IN_EXPORT int hipGetDeviceCount(int* count) {
  *count = number("STAND_IN_DEVICES", 1);
  return *count > 0 ? 0 : kNoDevice;
}
STAND_IN_EXPORT const char* hipGetErrorName(int error) {
  return error == kNoDevice ? "hipErrorNoDevice" : "hipSuccess";
}
STAND_IN_EXPORT int hipDeviceGetName(char* name, int room, int device) {
  std::snprintf(name, static_cast<std::size_t>(room), "stand-in %d", device);
  return 0;
}
