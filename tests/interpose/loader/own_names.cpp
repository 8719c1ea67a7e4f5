// SPDX-License-Identifier: Apache-2.0
//
// Defines functions with names of CUDA's driver for itself, exports them and calls them, as CuPy's
// libraries for ROCm do: the loader binds such a call to the first export of the process.
extern "C" {
[[gnu::visibility("default")]] int cuInit(unsigned flags) { return static_cast<int>(flags) + 1; }
[[gnu::visibility("default")]] int cuModuleLoadData(void**, const void*) { return 42; }

// Ends in a jump where the compiler optimises.
[[gnu::visibility("default")]] int vitamin_test_jump() { return cuInit(6); }

[[gnu::visibility("default")]] int vitamin_test_own() {
  void* module = nullptr;
  return cuInit(6) * 100 + cuModuleLoadData(&module, nullptr);
}
}
