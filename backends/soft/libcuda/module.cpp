// SPDX-License-Identifier: Apache-2.0
//
// Loading code. An image is an ELF shared object that exports kModuleSymbol; anything else is
// answered as the real driver answers code for another machine.

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {

struct ModuleImage {
  void* library = nullptr;
  const ModuleTable* table = nullptr;
  // The image's file in memory. Open as long as the image lives: the loader knows a library by its
  // path, which the descriptor's number is a part of.
  int file = -1;

  ModuleImage() = default;
  ModuleImage(const ModuleImage&) = delete;
  ModuleImage& operator=(const ModuleImage&) = delete;
  ~ModuleImage() {
    if (library != nullptr) dlclose(library);
    if (file >= 0) close(file);
  }

  const KernelDescriptor* kernel(const char* name) const {
    for (std::uint32_t i = 0; i < table->kernel_count; ++i)
      if (std::strcmp(table->kernels[i]->name, name) == 0) return table->kernels[i];
    return nullptr;
  }
};

namespace {

constexpr std::uint32_t kDefaultDynamicShared = 48 * 1024;

// The size of an image that the caller gave without one: the end of whatever its headers name.
std::size_t image_bytes(const Elf64_Ehdr& header, const unsigned char* image) {
  std::size_t end = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  end = std::max(end, header.e_phoff + std::size_t{header.e_phnum} * header.e_phentsize);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image + header.e_phoff + std::size_t{i} * header.e_phentsize,
                sizeof segment);
    end = std::max(end, segment.p_offset + segment.p_filesz);
  }
  return end;
}

CUresult open_image(std::shared_ptr<ModuleImage> image, std::shared_ptr<ModuleImage>* result) {
  // By the process's number: a debugger opens the same path, and its own descriptor is another.
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(image->file);
  image->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (image->library == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  const auto entry = reinterpret_cast<ModuleEntry>(dlsym(image->library, kModuleSymbol));
  if (entry == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  image->table = entry();
  if (image->table == nullptr || image->table->version != kModuleVersion)
    return CUDA_ERROR_INVALID_IMAGE;
  *result = std::move(image);
  return CUDA_SUCCESS;
}

// A file of its own in memory for each load, so that two loads of one image have two sets of
// globals, as two CUmodules do.
CUresult load_from_memory(const void* data, std::shared_ptr<ModuleImage>* image) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof header);
  constexpr auto kHostMachine =
#if defined(__aarch64__)
      EM_AARCH64;
#else
      EM_X86_64;
#endif
  if (header.e_machine != kHostMachine || header.e_type != ET_DYN)
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  auto loaded = std::make_shared<ModuleImage>();
  loaded->file = memfd_create("software-module", MFD_CLOEXEC);
  if (loaded->file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::size_t size = image_bytes(header, bytes);
  std::size_t written = 0;
  while (written < size) {
    const ssize_t chunk = write(loaded->file, bytes + written, size - written);
    if (chunk <= 0) return CUDA_ERROR_OPERATING_SYSTEM;
    written += static_cast<std::size_t>(chunk);
  }
  return open_image(std::move(loaded), image);
}

CUresult load_from_file(const char* path, std::shared_ptr<ModuleImage>* image) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(path, "rbe");
  if (file == nullptr) return CUDA_ERROR_FILE_NOT_FOUND;
  std::vector<unsigned char> bytes;
  unsigned char chunk[1 << 16];
  for (std::size_t got; (got = std::fread(chunk, 1, sizeof chunk, file)) != 0;)
    bytes.insert(bytes.end(), chunk, chunk + got);
  std::fclose(file);
  if (bytes.size() < sizeof(Elf64_Ehdr)) return CUDA_ERROR_INVALID_IMAGE;
  return load_from_memory(bytes.data(), image);
}

// A variable of the module and its size.
CUresult find_global(const ModuleImage& image, const char* name, CUdeviceptr* pointer,
                     std::size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* address = dlsym(image.library, name);
  Dl_info info;
  const ElfW(Sym)* symbol = nullptr;
  if (address == nullptr ||
      dladdr1(address, &info, const_cast<void**>(reinterpret_cast<const void**>(&symbol)),
              RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
    return CUDA_ERROR_NOT_FOUND;
  if (pointer != nullptr)
    *pointer = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  if (bytes != nullptr) *bytes = symbol->st_size;
  return CUDA_SUCCESS;
}

// A module's variable is device memory: the copy rules must know it as such.
void publish_global(Context& context, CUdeviceptr pointer, std::size_t bytes) {
  const auto base = static_cast<std::uintptr_t>(pointer);
  if (find_allocation(base) != nullptr) return;
  MemoryAllocation allocation;
  allocation.base = base;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kGlobal;
  allocation.context = context.root;
  allocation.id = driver().next_id++;
  driver().allocations[base] = allocation;
}

void withdraw_globals(const ModuleImage& image) {
  Dl_info image_info;
  if (dladdr(reinterpret_cast<const void*>(image.table), &image_info) == 0) return;
  auto& allocations = driver().allocations;
  for (auto at = allocations.begin(); at != allocations.end();) {
    Dl_info info;
    const bool mine = at->second.kind == MemoryKind::kGlobal &&
                      dladdr(reinterpret_cast<const void*>(at->first), &info) != 0 &&
                      info.dli_fbase == image_info.dli_fbase;
    at = mine ? allocations.erase(at) : std::next(at);
  }
}

Function* function_of(Module& module, const KernelDescriptor* descriptor) {
  std::unique_ptr<Function>& made = module.functions[descriptor];
  if (made == nullptr) {
    made = std::make_unique<Function>();
    made->descriptor = descriptor;
    made->image = module.image;
    made->module = &module;
    driver().remember(made.get(), Kind::kFunction);
  }
  return made.get();
}

Function* kernel_of(Library& library, const KernelDescriptor* descriptor) {
  std::unique_ptr<Function>& made = library.kernels[descriptor];
  if (made == nullptr) {
    made = std::make_unique<Function>();
    made->descriptor = descriptor;
    made->image = library.image;
    made->library = &library;
    driver().remember(made.get(), Kind::kKernel);
  }
  return made.get();
}

void forget_functions(
    const std::map<const KernelDescriptor*, std::unique_ptr<Function>>& functions) {
  for (const auto& [descriptor, function] : functions) driver().forget(function.get());
}

void forget_module(Module& module) {
  forget_functions(module.functions);
  withdraw_globals(*module.image);
  driver().forget(&module);
}

Module* module_of(Library& library, Context& context) {
  std::unique_ptr<Module>& made = library.modules[context.root];
  if (made == nullptr) {
    made = std::make_unique<Module>();
    made->context = context.root;
    made->image = library.image;
    driver().remember(made.get(), Kind::kModule);
  }
  return made.get();
}

CUresult finish_module(CUresult loaded, std::shared_ptr<ModuleImage> image, CUmodule* handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (loaded != CUDA_SUCCESS) return loaded;
  auto module = std::make_unique<Module>();
  module->context = context->root;
  module->image = std::move(image);
  *handle = reinterpret_cast<CUmodule>(driver().own(std::move(module), Kind::kModule));
  return CUDA_SUCCESS;
}

CUresult finish_library(CUresult loaded, std::shared_ptr<ModuleImage> image, CUlibrary* handle) {
  const std::lock_guard lock(driver().mutex);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (loaded != CUDA_SUCCESS) return loaded;
  auto library = std::make_unique<Library>();
  library->image = std::move(image);
  *handle = reinterpret_cast<CUlibrary>(driver().own(std::move(library), Kind::kLibrary));
  return CUDA_SUCCESS;
}

// Measured: loading a module waits for everything that runs in the context; a library does not.
CUresult wait_before_loading() {
  Device* device = nullptr;
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    Context* context = nullptr;
    if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
    device = context->device;
    groups = family_groups(*context->root);
  }
  return wait_for_groups(*device, groups);
}

// Keeps code that was unloaded without waiting until no device has anything left to run.
void retire(std::shared_ptr<ModuleImage> image) {
  Driver& self = driver();
  self.retired_images.push_back(std::move(image));
  for (const auto& device : self.devices)
    if (device->engine->outstanding() != 0) return;
  self.retired_images.clear();
}

}  // namespace

Function* find_function(const void* handle, bool* is_kernel_handle) {
  if (Function* function = driver().find<Function>(handle, Kind::kFunction)) {
    *is_kernel_handle = false;
    return function;
  }
  *is_kernel_handle = true;
  return driver().find<Function>(handle, Kind::kKernel);
}

std::uint32_t dynamic_shared_limit(const Function& function) {
  const auto found = function.settings.values.find(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  if (found != function.settings.values.end()) return static_cast<std::uint32_t>(found->second);
  const std::uint32_t used = function.descriptor->traits.static_shared;
  return used < kDefaultDynamicShared ? kDefaultDynamicShared - used : 0;
}

bool non_portable_clusters_allowed(const Function& function) {
  const auto found =
      function.settings.values.find(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  return found != function.settings.values.end() && found->second != 0;
}

void unload_context_modules(Context& context) {
  const std::vector<Library*> libraries = driver().all<Library>(Kind::kLibrary);
  for (Module* module : driver().all<Module>(Kind::kModule)) {
    if (module->context != &context) continue;
    forget_module(*module);
    bool of_library = false;
    for (Library* library : libraries) {
      const auto of = library->modules.find(&context);
      if (of == library->modules.end() || of->second.get() != module) continue;
      library->modules.erase(of);  // which frees it
      of_library = true;
    }
    if (!of_library) delete module;
  }
}

// --------------------------------------------------------------------------------------- modules

CUresult api::cuModuleLoad(CUmodule* module, const char* path) {
  if (const CUresult error = wait_before_loading(); error != CUDA_SUCCESS) return error;
  std::shared_ptr<ModuleImage> image;
  const CUresult loaded = load_from_file(path, &image);
  return finish_module(loaded, std::move(image), module);
}

CUresult api::cuModuleLoadData(CUmodule* module, const void* data) {
  if (const CUresult error = wait_before_loading(); error != CUDA_SUCCESS) return error;
  std::shared_ptr<ModuleImage> image;
  const CUresult loaded = load_from_memory(data, &image);
  return finish_module(loaded, std::move(image), module);
}

CUresult api::cuModuleLoadDataEx(CUmodule* module, const void* data, unsigned, CUjit_option*,
                                 void**) {
  return api::cuModuleLoadData(module, data);
}

CUresult api::cuModuleLoadFatBinary(CUmodule* module, const void* data) {
  return api::cuModuleLoadData(module, data);
}

CUresult api::cuModuleUnload(CUmodule handle) {
  Device* device = nullptr;
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    Module* module = driver().find<Module>(handle, Kind::kModule);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = forbid_in_capture(nullptr); error != CUDA_SUCCESS) return error;
    device = module->context->device;
    groups = family_groups(*module->context->root);
  }
  // Code may not go while it runs.
  if (const CUresult error = wait_for_groups(*device, groups); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(driver().mutex);
  Module* module = driver().find<Module>(handle, Kind::kModule);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  forget_module(*module);
  delete module;
  return CUDA_SUCCESS;
}

CUresult api::cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult api::cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  const std::lock_guard lock(driver().mutex);
  Module* module = driver().find<Module>(handle, Kind::kModule);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const KernelDescriptor* descriptor = module->image->kernel(name);
  if (descriptor == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(function_of(*module, descriptor));
  return CUDA_SUCCESS;
}

CUresult api::cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  const std::lock_guard lock(driver().mutex);
  const Module* module = driver().find<Module>(handle, Kind::kModule);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = module->image->table->kernel_count;
  return CUDA_SUCCESS;
}

CUresult api::cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule handle) {
  const std::lock_guard lock(driver().mutex);
  Module* module = driver().find<Module>(handle, Kind::kModule);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ModuleTable& table = *module->image->table;
  for (unsigned i = 0; i < std::min(count, table.kernel_count); ++i)
    functions[i] = reinterpret_cast<CUfunction>(function_of(*module, table.kernels[i]));
  return CUDA_SUCCESS;
}

CUresult api::cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule handle,
                                   const char* name) {
  const std::lock_guard lock(driver().mutex);
  Module* module = driver().find<Module>(handle, Kind::kModule);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUdeviceptr found = 0;
  std::size_t size = 0;
  if (const CUresult error = find_global(*module->image, name, &found, &size);
      error != CUDA_SUCCESS)
    return error;
  publish_global(*module->context, found, size);
  if (pointer != nullptr) *pointer = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------- libraries

CUresult api::cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                                unsigned, CUlibraryOption*, void**, unsigned) {
  std::shared_ptr<ModuleImage> image;
  const CUresult loaded = load_from_memory(code, &image);
  return finish_library(loaded, std::move(image), library);
}

CUresult api::cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                                    unsigned, CUlibraryOption*, void**, unsigned) {
  std::shared_ptr<ModuleImage> image;
  const CUresult loaded = load_from_file(path, &image);
  return finish_library(loaded, std::move(image), library);
}

CUresult api::cuLibraryUnload(CUlibrary handle) {
  const std::lock_guard lock(driver().mutex);
  Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [context, module] : library->modules) forget_module(*module);
  forget_functions(library->kernels);
  retire(library->image);
  driver().release(library);
  return CUDA_SUCCESS;
}

CUresult api::cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  const std::lock_guard lock(driver().mutex);
  Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const KernelDescriptor* descriptor = library->image->kernel(name);
  if (descriptor == nullptr) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(kernel_of(*library, descriptor));
  return CUDA_SUCCESS;
}

CUresult api::cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  const std::lock_guard lock(driver().mutex);
  const Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = library->image->table->kernel_count;
  return CUDA_SUCCESS;
}

CUresult api::cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary handle) {
  const std::lock_guard lock(driver().mutex);
  Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (kernels == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ModuleTable& table = *library->image->table;
  for (unsigned i = 0; i < std::min(count, table.kernel_count); ++i)
    kernels[i] = reinterpret_cast<CUkernel>(kernel_of(*library, table.kernels[i]));
  return CUDA_SUCCESS;
}

CUresult api::cuLibraryGetModule(CUmodule* module, CUlibrary handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = reinterpret_cast<CUmodule>(module_of(*library, *context));
  return CUDA_SUCCESS;
}

CUresult api::cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary handle,
                                 const char* name) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  Library* library = driver().find<Library>(handle, Kind::kLibrary);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUdeviceptr found = 0;
  std::size_t size = 0;
  if (const CUresult error = find_global(*library->image, name, &found, &size);
      error != CUDA_SUCCESS)
    return error;
  publish_global(*context, found, size);
  if (pointer != nullptr) *pointer = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

// Modules hold no __managed__ variables here.
CUresult api::cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary handle, const char*) {
  const std::lock_guard lock(driver().mutex);
  return driver().find<Library>(handle, Kind::kLibrary) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                                   : CUDA_ERROR_NOT_FOUND;
}

CUresult api::cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  Function* kernel = driver().find<Function>(handle, Kind::kKernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* module = module_of(*kernel->library, *context);
  *function = reinterpret_cast<CUfunction>(function_of(*module, kernel->descriptor));
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
