// SPDX-License-Identifier: Apache-2.0
//
// A program that tries the doors to the driver and says where each leads. doors_test.py runs it
// with and without the preloaded library.
//
//   doors next | origin PATH | deepbind PATH | own PATH
//   doors absent              probes for a driver that is not loaded
//   doors symbols NAME...     "NAME owner dlerror" through dlsym
//   doors requests FILE       "name version flags variant owner" through cuGetProcAddress_v2, for
//                             each "name version flags" of FILE
// Owner: "vitamin", "driver", "program" or "none".
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

extern "C" const char* vitamin_test_name();

namespace {

using Text = const char* (*)();

const char* owner_of(void* address) {
  Dl_info info{};
  if (address == nullptr) return "none";
  if (dladdr(address, &info) == 0) return "unknown";
  if (std::strstr(info.dli_fname, "libvitamin_cuda")) return "vitamin";
  if (std::strstr(info.dli_fname, "libcuda")) return "driver";
  return "program";
}

void* open_or_die(const char* path, int flags) {
  void* handle = dlopen(path, flags);
  if (handle == nullptr) {
    std::printf("%s\n", dlerror());
    std::exit(2);
  }
  return handle;
}

int origin(const char* path) {
  void* outer = open_or_die(path, RTLD_NOW | RTLD_LOCAL);
  std::printf("%s\n", reinterpret_cast<Text>(dlsym(outer, "vitamin_test_origin"))());
  return 0;
}

int deepbind(const char* path) {
  void* driver = open_or_die("libcuda.so.1", RTLD_NOW);
  void* library = open_or_die(path, RTLD_NOW | RTLD_DEEPBIND);
  using Lookup = void* (*)(void*, const char*);
  auto lookup = reinterpret_cast<Lookup>(dlsym(library, "vitamin_test_lookup"));
  std::printf("%s %s\n", owner_of(lookup(driver, "cuMemFree_v2")),
              owner_of(dlsym(driver, "cuMemFree_v2")));
  return 0;
}

int own(const char* path) {
  void* library = open_or_die(path, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : {"vitamin_test_own", "vitamin_test_own", "vitamin_test_jump"})
    std::printf("%d ", reinterpret_cast<int (*)()>(dlsym(library, name))());
  return 0;
}

int absent() {
  void* probes[] = {dlsym(RTLD_DEFAULT, "cuInit"), dlsym(dlopen(nullptr, RTLD_NOW), "cuInit"),
                    dlsym(RTLD_DEFAULT, "cudnnCreate"), dlsym(nullptr, "cuda_like_name")};
  for (void* probe : probes) std::printf("%s ", owner_of(probe));
  dlerror();
  static_cast<void>(dlsym(RTLD_DEFAULT, "cuInit"));
  const char* error = dlerror();
  std::printf("| %s\n", error != nullptr && std::strstr(error, "cuInit") ? "named" : "silent");
  return 0;
}

int symbols(int count, char** names) {
  void* driver = open_or_die("libcuda.so.1", RTLD_NOW);
  dlerror();
  for (int i = 0; i < count; ++i) {
    void* address = dlsym(driver, names[i]);
    const char* error = dlerror();
    void* global = dlsym(RTLD_DEFAULT, names[i]);
    dlerror();
    std::printf("%s %s %s %s\n", names[i], owner_of(address), error != nullptr ? "error" : "clean",
                owner_of(global));
  }
  return 0;
}

using GetProcAddress = int (*)(const char*, void**, int, unsigned long long, int*);

// Each exported variant of the driver by its address, as this program sees it through dlsym.
std::map<void*, std::string> variants_of(void* driver, const std::string& base) {
  std::map<void*, std::string> found;
  for (const char* version : {"", "_v2", "_v3", "_v4"})
    for (const char* thread : {"", "_ptsz", "_ptds"})
      if (void* address = dlsym(driver, (base + version + thread).c_str()))
        found.emplace(address, base + version + thread);
  return found;
}

int requests(const char* path) {
  void* driver = open_or_die("libcuda.so.1", RTLD_NOW);
  auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress_v2"));
  // Continue with the function that the driver names for itself, as cudart does.
  void* itself = nullptr;
  if (get("cuGetProcAddress", &itself, 12000, 0, nullptr) != 0) return 3;
  get = reinterpret_cast<GetProcAddress>(itself);
  std::ifstream file(path);
  std::string name;
  int version = 0;
  unsigned long long flags = 0;
  while (file >> name >> version >> flags) {
    void* address = nullptr;
    const int status = get(name.c_str(), &address, version, flags, nullptr);
    const auto variants = variants_of(driver, name);
    const auto variant = variants.find(address);
    std::printf("%s %d %llu %d %s %s\n", name.c_str(), version, flags, status,
                variant != variants.end() ? variant->second.c_str() : "-", owner_of(address));
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "next") return std::printf("%s\n", vitamin_test_name()) > 0 ? 0 : 1;
  if (what == "origin" && count == 3) return origin(words[2]);
  if (what == "deepbind" && count == 3) return deepbind(words[2]);
  if (what == "own" && count == 3) return own(words[2]);
  if (what == "absent") return absent();
  if (what == "symbols") return symbols(count - 2, words + 2);
  if (what == "requests" && count == 3) return requests(words[2]);
  return 64;
}
