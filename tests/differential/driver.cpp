// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace vitamin::differential {

Driver api;

template <class... Arguments>
void Entry<CUresult(Arguments...)>::load(void* library) {
  address_ = reinterpret_cast<CUresult (*)(Arguments...)>(dlsym(library, name_));
}

void Driver::open(const char* path) {
  library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw std::runtime_error(dlerror());
#define ENTRY(name) this->name.load(library_);
#define ENTRY_PTSZ(name) this->VITAMIN_PASTE(name, _ptsz).load(library_);
#define ENTRY_PTDS(name) this->VITAMIN_PASTE(name, _ptds).load(library_);
#include "driver.def"
  create_context.load(library_);
  elapsed_time_v1.load(library_);
  elapsed_time_v2.load(library_);
  get_proc_address.load(library_);
  memcpy_batch_async.load(library_);
}

void* Driver::symbol(const char* name) const { return dlsym(library_, name); }

}  // namespace vitamin::differential
