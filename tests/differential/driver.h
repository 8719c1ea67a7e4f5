// SPDX-License-Identifier: Apache-2.0
//
// The driver under test: every entry point that a rule calls, looked up by name in the library that
// the command line names. Nothing here links libcuda, so one binary asks the real driver and the
// software driver the same questions.
#pragma once

#include <cuda.h>

#include <exception>
#include <string>

namespace vitamin::differential {

// A rule called something that the loaded driver does not export.
class MissingEntry : public std::exception {
 public:
  explicit MissingEntry(const char* name)
      : message_(std::string("the driver does not export ") + name) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

template <class Function>
class Entry;

// Callable like the driver's function; throws MissingEntry where the driver has none.
template <class... Arguments>
class Entry<CUresult(Arguments...)> {
 public:
  explicit Entry(const char* name) : name_(name) {}
  CUresult operator()(Arguments... arguments) const {
    if (address_ == nullptr) throw MissingEntry(name_);
    return address_(arguments...);
  }
  void load(void* library);
  const char* name() const { return name_; }
  const void* address() const { return reinterpret_cast<const void*>(address_); }

 private:
  const char* name_;
  CUresult (*address_)(Arguments...) = nullptr;
};

#define VITAMIN_TEXT_(x) #x
#define VITAMIN_TEXT(x) VITAMIN_TEXT_(x)
#define VITAMIN_PASTE_(a, b) a##b
#define VITAMIN_PASTE(a, b) VITAMIN_PASTE_(a, b)

struct Driver {
#define ENTRY(name) Entry<decltype(::name)> name{VITAMIN_TEXT(name)};
#define ENTRY_PTSZ(name) \
  Entry<decltype(::name)> VITAMIN_PASTE(name, _ptsz){VITAMIN_TEXT(VITAMIN_PASTE(name, _ptsz))};
#define ENTRY_PTDS(name) \
  Entry<decltype(::name)> VITAMIN_PASTE(name, _ptds){VITAMIN_TEXT(VITAMIN_PASTE(name, _ptds))};
#include "driver.def"

  // Variants that cuda.h's own names do not lead to, or whose type differs between toolkits.
  Entry<CUresult(CUcontext*, unsigned, CUdevice)> create_context{"cuCtxCreate_v2"};
  Entry<CUresult(float*, CUevent, CUevent)> elapsed_time_v1{"cuEventElapsedTime"};
  Entry<CUresult(float*, CUevent, CUevent)> elapsed_time_v2{"cuEventElapsedTime_v2"};
  Entry<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>
      get_proc_address{"cuGetProcAddress_v2"};
  Entry<CUresult(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                 std::size_t*, std::size_t, CUstream)>
      memcpy_batch_async{"cuMemcpyBatchAsync_v2"};

  // Opens `path` (a soname or a file). Throws std::runtime_error with the loader's words.
  void open(const char* path);
  void* symbol(const char* name) const;

 private:
  void* library_ = nullptr;
};

// The one driver of this process; opened by main before any rule runs.
extern Driver api;

}  // namespace vitamin::differential
