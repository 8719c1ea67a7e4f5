// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcudart/backend.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>

#include "backends/cuda/device.h"
#include "interpose/handle_map.h"
#include "interpose/libcudart/context.h"

namespace vitamin::interpose {
namespace {

constinit HandleMap<const std::string> origins;

// One string for each distinct origin, for ever: there are as many as libraries.
const std::string* interned(std::string_view text) {
  static constinit std::mutex mutex;
  static auto* const strings = new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return &*strings->emplace(text).first;
}

std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string origin_of(void* module_or_library) {
  const std::string* origin = origins.find(module_or_library);
  return origin != nullptr ? *origin : "(unknown)";
}

// Driver functions never move, so one table serves every device.
const hal::Result<cuda::Api>& driver_api() {
  static const auto* const api = new hal::Result<cuda::Api>(cuda::Api::load(&real_function));
  return *api;
}

}  // namespace

hal::Result<std::unique_ptr<hal::Device>> open_device(int ordinal, CUcontext primary) {
  const hal::Result<cuda::Api>& api = driver_api();
  if (!api) return tl::unexpected(api.error());
  cuda::DeviceOptions options;
  options.ordinal = ordinal;
  options.primary = primary;
  options.open_captures = &open_captures;
  options.origin_of = &origin_of;
  return cuda::open_device(*api, options);
}

CUcontext context_of_entry(hal::PhysicalContext& entry) { return cuda::context_of(entry); }

void note_origin(const void* module_or_library, const char* origin) {
  origins.insert(module_or_library, interned(file_name(origin)));
}

void note_image(const void* module_or_library, const void* image) {
  // Code that nvcc embedded lies in the shared object that it was linked into.
  Dl_info object{};
  if (dladdr(image, &object) != 0 && object.dli_fname != nullptr)
    note_origin(module_or_library, object.dli_fname);
  else
    note_origin(module_or_library, "jit");
}

void forget_origin(const void* module_or_library) { origins.erase(module_or_library); }

}  // namespace vitamin::interpose
