// SPDX-License-Identifier: Apache-2.0
//
// A fake libcuda.so.1 in tests of `vitamin doctor` and of what is said when no launch was
// seen. Answers what the environment asks for: FAKE_VERSION, FAKE_INIT, FAKE_DEVICES,
// FAKE_CRASH.
#include <cstdio>
#include <cstdlib>

namespace {

int number(const char* name, int preset) {
  const char* text = std::getenv(name);
  return text == nullptr ? preset : std::atoi(text);
}

}  // namespace

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_EXPORT int cuInit(unsigned /*flags*/) {
  if (number("FAKE_CRASH", 0) != 0) std::abort();
  return number("FAKE_INIT", 0);
}
FAKE_EXPORT int cuDriverGetVersion(int* version) {
  *version = number("FAKE_VERSION", 13000);
  return 0;
}
FAKE_EXPORT int cuDeviceGetCount(int* count) {
  *count = number("FAKE_DEVICES", 1);
  return 0;
}
FAKE_EXPORT int cuDeviceGetName(char* name, int room, int device) {
  std::snprintf(name, static_cast<std::size_t>(room), "fake %d", device);
  return 0;
}
FAKE_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  *value = attribute;
  return 0;
}
FAKE_EXPORT int cuGetErrorName(int error, const char** name) {
  *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
FAKE_EXPORT int cuGreenCtxCreate() { return 0; }
