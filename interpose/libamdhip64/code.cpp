// SPDX-License-Identifier: Apache-2.0
//
// Code on its way into the process: what the compiler's constructors register, and modules.
#include "interpose/libamdhip64/code.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

#include "hal/file_memory.h"
#include "interpose/call_wrappers.h"
#include "interpose/handle_map.h"
#include "interpose/libamdhip64/code_object.h"
#include "interpose/libamdhip64/manual_overrides.h"
#include "interpose/module_origins.h"

namespace vitamin::interpose {
namespace {

// The argument of __hipRegisterFatBinary (LLVM, CGCUDANV.cpp: "HIPF").
struct FatBinaryWrapper {
  std::uint32_t magic, version;
  const std::byte* image;
  void* unused;
};
constexpr std::uint32_t kWrapperMagic = 0x48495046;

// One registered image. Read when the first of its kernels is launched: a process registers far
// more than it uses.
struct Image {
  const std::byte* bytes = nullptr;
  bool read = false;
  KernelLayouts layouts;
  std::vector<hipFunction_t> functions;  // of a module, which were asked for
};

struct Stub {
  const char* name;  // in the program's own image
  Image* image;
  std::atomic<const hip::Kernel*> kernel{nullptr};
};

constinit HandleMap<Image> images;         // by what __hipRegisterFatBinary answered
constinit HandleMap<Image> module_images;  // by hipModule_t
constinit HandleMap<Stub> stubs;
constinit HandleMap<const hip::Kernel> functions;
constinit std::mutex reading;

void read_image(Image& image, std::span<const std::byte> bytes) {
  if (read_layouts(bytes, image.layouts)) return;
  if (kind_of(bytes) == CodeKind::kCompressedBundle)
    VITAMIN_WARN_ONCE(
        Problem::kUnreadableCode,
        "the program's code is a compressed bundle, which is not supported; its launches are "
        "bound, but wait for nothing (compile with -no-offload-compress)");
  else
    VITAMIN_WARN_ONCE(Problem::kUnreadableCode,
                      "a code object cannot be read; its launches are bound, but wait for nothing");
}

std::optional<hal::KernelLayout> layout_in(const Image* image, std::string_view name) {
  if (image == nullptr) return std::nullopt;
  const auto found = image->layouts.find(name);
  if (found == image->layouts.end()) return std::nullopt;
  return found->second;
}

const char* origin_at(const void* address) {
  const char* object = object_of(address);
  if (object == nullptr) return "(unknown)";
  const char* slash = std::strrchr(object, '/');
  return slash != nullptr ? slash + 1 : object;
}

const hip::Kernel* first_launch(const void* address, Stub* stub) {
  const std::lock_guard lock(reading);
  if (stub != nullptr)
    if (const hip::Kernel* known = stub->kernel.load()) return known;
  auto* kernel = new hip::Kernel;
  kernel->kind = hip::Kernel::Kind::kHostFunction;
  kernel->native = address;
  kernel->origin = origin_at(address);
  if (stub == nullptr) {
    auto* unknown = new Stub{nullptr, nullptr};
    unknown->kernel = kernel;
    stubs.insert(address, unknown);
    return kernel;
  }
  kernel->name = stub->name;
  if (Image* image = stub->image) {
    if (!std::exchange(image->read, true))
      read_image(*image, {image->bytes, extent_of(image->bytes)});
    kernel->layout = layout_in(image, stub->name);
  }
  stub->kernel.store(kernel, std::memory_order_release);
  return kernel;
}

// A module was loaded from these bytes.
void note_module(hipModule_t module, std::span<const std::byte> bytes) {
  auto* image = new Image;
  image->read = true;
  read_image(*image, bytes);
  const std::lock_guard lock(reading);
  delete module_images.insert(module, image);
}

// It was unloaded, and so was everything that named its kernels (unload()).
void forget_module(hipModule_t module) {
  const std::lock_guard lock(reading);
  const std::unique_ptr<Image> image(module_images.erase(module));
  if (image == nullptr) return;
  for (const hipFunction_t function : image->functions) delete functions.erase(function);
}

// What a file holds; empty when it cannot be read. Not mapped: a process that writes it anew while
// it is read must not end the program.
class FileContents {
 public:
  explicit FileContents(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts {};
    if (file >= 0 && ::fstat(file, &facts) == 0 && facts.st_size > 0) {
      size_ = static_cast<std::size_t>(facts.st_size);
      data_.reset(new (std::nothrow) std::byte[size_]);
      if (data_ != nullptr && !hal::read_at(file, data_.get(), size_)) data_.reset();
    }
    if (file >= 0) ::close(file);
  }
  std::span<const std::byte> bytes() const {
    if (data_ == nullptr) return {};
    return {data_.get(), size_};
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

hipError_t loaded_from_memory(hipError_t answer, const hipModule_t* module, const void* image) {
  if (answer != hipSuccess) return answer;
  note_image(*module, image);
  const auto* bytes = static_cast<const std::byte*>(image);
  note_module(*module, {bytes, extent_of(bytes)});
  return answer;
}

}  // namespace

const hip::Kernel* kernel_of_stub(const void* address) {
  Stub* stub = stubs.find(address);
  if (stub != nullptr)
    if (const hip::Kernel* kernel = stub->kernel.load(std::memory_order_acquire)) return kernel;
  return first_launch(address, stub);
}

const hip::Kernel* kernel_of_registered_stub(const void* address) {
  const Stub* stub = stubs.find(address);
  return stub != nullptr && stub->name != nullptr ? kernel_of_stub(address) : nullptr;
}

const hip::Kernel* kernel_of_function(hipFunction_t function) {
  if (const hip::Kernel* kernel = functions.find(function)) return kernel;
  const std::lock_guard lock(reading);
  if (const hip::Kernel* kernel = functions.find(function)) return kernel;
  auto* kernel = new hip::Kernel;
  kernel->kind = hip::Kernel::Kind::kFunction;
  kernel->native = function;
  functions.insert(function, kernel);
  return kernel;
}

void** register_fat_binary(EntryPoint<decltype(__hipRegisterFatBinary)> entry, const void* binary) {
  void** const modules = entry.real(binary);
  const auto* wrapper = static_cast<const FatBinaryWrapper*>(binary);
  if (modules != nullptr && wrapper != nullptr && wrapper->magic == kWrapperMagic) {
    auto* image = new Image;
    image->bytes = wrapper->image;
    images.insert(modules, image);
  }
  return modules;
}

void unregister_fat_binary(EntryPoint<decltype(__hipUnregisterFatBinary)> entry, void** modules) {
  images.erase(modules);
  entry.real(modules);
}

void register_function(EntryPoint<decltype(__hipRegisterFunction)> entry, void** modules,
                       const void* stub, char* device_function, const char* device_name,
                       unsigned thread_limit, void* thread, void* block, void* block_dim,
                       void* grid_dim, int* wave_size) {
  entry.real(modules, stub, device_function, device_name, thread_limit, thread, block, block_dim,
             grid_dim, wave_size);
  stubs.insert(stub, new Stub{device_name, images.find(modules)});
}

hipError_t module_load(EntryPoint<decltype(::hipModuleLoad)> entry, hipModule_t* module,
                       const char* file) {
  const hipError_t answer = entry.real(module, file);
  if (answer != hipSuccess) return answer;
  note_origin(*module, file);
  note_module(*module, FileContents(file).bytes());
  return answer;
}

hipError_t module_load_data(EntryPoint<decltype(::hipModuleLoadData)> entry, hipModule_t* module,
                            const void* image) {
  return loaded_from_memory(entry.real(module, image), module, image);
}

hipError_t module_load_data_ex(EntryPoint<decltype(::hipModuleLoadDataEx)> entry,
                               hipModule_t* module, const void* image, unsigned count,
                               hipJitOption* options, void** values) {
  return loaded_from_memory(entry.real(module, image, count, options, values), module, image);
}

hipError_t module_unload(EntryPoint<decltype(::hipModuleUnload)> entry, hipModule_t module) {
  const hipError_t answer = unloaded(module, await_deferred_then(known_current_context(), [&] {
                                       return hal::NativeStatus(entry.real(module));
                                     }));
  if (answer == hipSuccess) forget_module(module);
  return answer;
}

// Kernels of a library have no layout here, so none of their launches is deferred; what is may be
// behind one, and an executable of a graph may be made with one.
hipError_t library_unload(EntryPoint<decltype(hipLibraryUnload)> entry, void* library) {
  return unloaded(library, await_deferred_then(known_current_context(), [&] {
                    return hal::NativeStatus(entry.real(library));
                  }));
}

hipError_t module_get_function(EntryPoint<decltype(::hipModuleGetFunction)> entry,
                               hipFunction_t* function, hipModule_t module, const char* name) {
  const hipError_t answer = entry.real(function, module, name);
  if (answer != hipSuccess) return answer;
  const std::lock_guard lock(reading);
  const hip::Kernel* known = functions.find(*function);
  if (known != nullptr && known->name == name && known->layout) return answer;
  auto* kernel = new hip::Kernel;
  kernel->kind = hip::Kernel::Kind::kFunction;
  kernel->native = *function;
  kernel->name = name;
  kernel->origin = origin_of(module);
  Image* const image = module_images.find(module);
  kernel->layout = layout_in(image, name);
  if (image != nullptr) image->functions.push_back(*function);
  functions.insert(*function, kernel);  // an older one stays: a deferred launch may name it
  return answer;
}

// Everything that is deferred was launched with the function as it was.
hipError_t function_set_attribute(EntryPoint<decltype(::hipFuncSetAttribute)> entry,
                                  const void* function, hipFuncAttribute attribute, int value) {
  return flush_deferred_then(
      [&] { return hal::NativeStatus(entry.real(function, attribute, value)); });
}

}  // namespace vitamin::interpose
