// SPDX-License-Identifier: Apache-2.0
//
// A fake libamdhip64 for tests of `vitamin doctor`. The environment says what it answers:
//   FAKE_RUNTIME_VERSION   hipRuntimeGetVersion()
//   FAKE_RUNTIME_DEVICES   the number of devices
//   FAKE_RUNTIME_CRASH     not 0: hipRuntimeGetVersion() aborts
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kNoDevice = 100;

int number(const char* name, int preset) {
  const char* text = std::getenv(name);
  return text == nullptr ? preset : std::atoi(text);
}

}  // namespace

#define FAKE_RUNTIME_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_RUNTIME_EXPORT int hipRuntimeGetVersion(int* version) {
  if (number("FAKE_RUNTIME_CRASH", 0) != 0) std::abort();
  *version = number("FAKE_RUNTIME_VERSION", 50'221'153);
  return 0;
}
FAKE_RUNTIME_EXPORT int hipGetDeviceCount(int* count) {
  *count = number("FAKE_RUNTIME_DEVICES", 1);
  return *count > 0 ? 0 : kNoDevice;
}
FAKE_RUNTIME_EXPORT const char* hipGetErrorName(int error) {
  return error == kNoDevice ? "hipErrorNoDevice" : "hipSuccess";
}
FAKE_RUNTIME_EXPORT int hipDeviceGetName(char* name, int room, int device) {
  std::snprintf(name, static_cast<std::size_t>(room), "fake %d", device);
  return 0;
}
