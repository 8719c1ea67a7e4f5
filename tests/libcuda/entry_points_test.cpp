// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <string>
#include <string_view>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

struct Line {
  const char* symbol;
  const char* base;
  int since;
  bool per_thread() const {
    const std::string_view name(symbol);
    return name.ends_with("_ptsz") || name.ends_with("_ptds");
  }
};
const std::vector<Line> kTable = {
#define ENTRY(symbol, base, since) {#symbol, #base, since},
#define SAME_AS(symbol, target, base, since) {#symbol, #base, since},
#define PER_THREAD(symbol, target, base, since) {#symbol, #base, since},
#define MISSING(symbol, base, since) {#symbol, #base, since},
#include "backends/soft/libcuda/entry_points.def"
};

void* ask(const char* name, int version, cuuint64_t flags,
          CUdriverProcAddressQueryResult* status = nullptr) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult ignored;
  (void)cuGetProcAddress_v2(name, &address, version, flags, status != nullptr ? status : &ignored);
  return address;
}

TEST_CASE("cuGetProcAddress gives for every exported symbol the address that dlsym gives") {
  for (const Line& line : kTable) {
    CAPTURE(line.symbol);
    void* exported = dlsym(RTLD_DEFAULT, line.symbol);
    REQUIRE(exported != nullptr);
    const cuuint64_t flags = line.per_thread() ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                               : CU_GET_PROC_ADDRESS_DEFAULT;
    CHECK_EQ(ask(line.base, line.since, flags), exported);
  }
}

TEST_CASE("a version below a variant's own gives the variant before it") {
  CHECK_EQ(ask("cuMemAlloc", 2000, 0), dlsym(RTLD_DEFAULT, "cuMemAlloc"));
  CHECK_EQ(ask("cuMemAlloc", 3019, 0), dlsym(RTLD_DEFAULT, "cuMemAlloc"));
  CHECK_EQ(ask("cuMemAlloc", 3020, 0), dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  CHECK_EQ(ask("cuStreamGetCaptureInfo", 11030, 0),
           dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v2"));
  CHECK_EQ(ask("cuGetProcAddress", 12000, 0), dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"));
}

TEST_CASE("the per-thread flag falls back to the plain variant where there is no other") {
  CHECK_EQ(ask("cuMemAlloc", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
           dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  // cuLaunchKernel came with 4.0, its per-thread variant with 7.0.
  CHECK_EQ(ask("cuLaunchKernel", 4000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
           dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
}

TEST_CASE("an unknown name and a version that is too low are told apart") {
  CUdriverProcAddressQueryResult status;
  CHECK_EQ(ask("cuNoSuchThing", 13000, 0, &status), nullptr);
  CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK_EQ(ask("cuGreenCtxCreate", 12000, 0, &status), nullptr);
  CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK_EQ(ask("cuGreenCtxCreate", 12040, 0, &status), dlsym(RTLD_DEFAULT, "cuGreenCtxCreate"));
  CHECK_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
}

TEST_CASE("a call that is not modelled says so") {
  REQUIRE_OK(cuInit(0));
  CUtexref reference = nullptr;
  auto* create = reinterpret_cast<CUresult (*)(CUtexref*)>(dlsym(RTLD_DEFAULT, "cuTexRefCreate"));
  CHECK_RESULT(create(&reference), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("there are no private tables") {
  const CUuuid id{};
  const void* table = &id;
  CHECK_RESULT(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
  CHECK_EQ(table, nullptr);
}

TEST_CASE("errors have the names of the header") {
  const char* text = nullptr;
  REQUIRE_OK(cuGetErrorName(CUDA_ERROR_NOT_READY, &text));
  CHECK_EQ(std::string(text), "CUDA_ERROR_NOT_READY");
  REQUIRE_OK(cuGetErrorString(CUDA_ERROR_NOT_READY, &text));
  CHECK_EQ(std::string(text), "device not ready");
  CHECK_RESULT(cuGetErrorName(static_cast<CUresult>(998), &text), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
