// SPDX-License-Identifier: Apache-2.0
#include "interpose/module_origins.h"

#include <dlfcn.h>

#include <mutex>
#include <string_view>
#include <unordered_set>

#include "interpose/handle_map.h"

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

}  // namespace

const char* object_of(const void* address) {
  Dl_info object{};
  return dladdr(address, &object) != 0 ? object.dli_fname : nullptr;
}

void note_origin(const void* module, const char* file) {
  origins.insert(module, interned(file_name(file)));
}

void note_image(const void* module, const void* image) {
  // Code that the vendor's compiler embedded lies in the shared object that it was linked into.
  const char* object = object_of(image);
  note_origin(module, object != nullptr ? object : "jit");
}

void forget_origin(const void* module) { origins.erase(module); }

std::string origin_of(const void* module) {
  const std::string* origin = origins.find(module);
  return origin != nullptr ? *origin : "(unknown)";
}

}  // namespace vitamin::interpose
