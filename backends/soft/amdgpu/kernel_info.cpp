// SPDX-License-Identifier: Apache-2.0
//
// The runtime loads a code object as one image that begins with its ELF header; names are in the
// dynamic symbols, layouts in the note NT_AMDGPU_METADATA, which is MessagePack.
#include "backends/soft/amdgpu/kernel_info.h"

#include <elf.h>
#include <llvm/BinaryFormat/MsgPackDocument.h>

#include <cstring>

namespace vitamin::soft::amdgpu {
namespace {

constexpr std::uint32_t kMetadataNote = 32;
constexpr std::uint64_t kImageAlignment = 4096;

template <class T>
const T* at(std::uint64_t address) {
  return reinterpret_cast<const T*>(address);
}

// The image around the descriptor; 0: none.
std::uint64_t find_image(const Memory& memory, std::uint64_t descriptor) {
  const auto allocation = memory.find(descriptor);
  if (!allocation) return 0;
  for (std::uint64_t page = descriptor & ~(kImageAlignment - 1);; page -= kImageAlignment) {
    if (std::memcmp(at<char>(page), ELFMAG, SELFMAG) == 0) return page;
    if (page < allocation->begin + kImageAlignment) return 0;
  }
}

std::string symbol_name(std::uint64_t image, std::uint64_t descriptor) {
  const auto* const header = at<Elf64_Ehdr>(image);
  const auto* const segments = at<Elf64_Phdr>(image + header->e_phoff);
  std::uint64_t symbols = 0, strings = 0, hash = 0;
  for (unsigned index = 0; index < header->e_phnum; ++index) {
    if (segments[index].p_type != PT_DYNAMIC) continue;
    for (const auto* entry = at<Elf64_Dyn>(image + segments[index].p_vaddr);
         entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB) symbols = entry->d_un.d_ptr;
      if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
      if (entry->d_tag == DT_HASH) hash = entry->d_un.d_ptr;
    }
  }
  if (symbols == 0 || strings == 0 || hash == 0) return "?";
  const std::uint32_t count = at<std::uint32_t>(image + hash)[1];
  const auto* const table = at<Elf64_Sym>(image + symbols);
  for (std::uint32_t index = 1; index < count; ++index) {
    if (image + table[index].st_value != descriptor) continue;
    std::string name = at<char>(image + strings + table[index].st_name);
    if (name.ends_with(".kd")) name.resize(name.size() - 3);
    return name;
  }
  return "?";
}

llvm::StringRef metadata(std::uint64_t image) {
  const auto* const header = at<Elf64_Ehdr>(image);
  const auto* const segments = at<Elf64_Phdr>(image + header->e_phoff);
  for (unsigned index = 0; index < header->e_phnum; ++index) {
    if (segments[index].p_type != PT_NOTE) continue;
    const std::uint64_t begin = image + segments[index].p_vaddr;
    const std::uint64_t end = begin + segments[index].p_memsz;
    for (std::uint64_t note = begin; note + sizeof(Elf64_Nhdr) <= end;) {
      const auto* const head = at<Elf64_Nhdr>(note);
      const std::uint64_t text = note + sizeof *head + ((head->n_namesz + 3) & ~3u);
      if (head->n_type == kMetadataNote) return {at<char>(text), head->n_descsz};
      note = text + ((head->n_descsz + 3) & ~3u);
    }
  }
  return {};
}

std::uint32_t number(llvm::msgpack::MapDocNode& map, const char* key) {
  const auto found = map.find(key);
  if (found == map.end() || found->second.getKind() != llvm::msgpack::Type::UInt) return 0;
  return static_cast<std::uint32_t>(found->second.getUInt());
}

std::string word(llvm::msgpack::MapDocNode& map, const char* key) {
  const auto found = map.find(key);
  return found == map.end() || !found->second.isString() ? std::string()
                                                         : found->second.getString().str();
}

void read_arguments(llvm::msgpack::MapDocNode& kernel, KernelInfo& info) {
  info.has_arguments = true;
  info.kernarg_bytes = number(kernel, ".kernarg_segment_size");
  const auto arguments = kernel.find(".args");
  if (arguments == kernel.end() || !arguments->second.isArray()) return;
  for (auto& node : arguments->second.getArray()) {
    auto& argument = node.getMap();
    const std::string kind = word(argument, ".value_kind");
    info.arguments.push_back({.offset = number(argument, ".offset"),
                              .bytes = number(argument, ".size"),
                              .pointer = kind == "global_buffer",
                              .hidden = kind.starts_with("hidden_")});
  }
}

}  // namespace

KernelInfo KernelInfos::read(const Memory& memory, std::uint64_t descriptor) const {
  KernelInfo info;
  const std::uint64_t image = find_image(memory, descriptor);
  if (image == 0) return info;
  info.name = symbol_name(image, descriptor);
  llvm::msgpack::Document document;
  if (!document.readFromBlob(metadata(image), false) || !document.getRoot().isMap()) return info;
  auto& root = document.getRoot().getMap();
  const auto kernels = root.find("amdhsa.kernels");
  if (kernels == root.end() || !kernels->second.isArray()) return info;
  for (auto& node : kernels->second.getArray()) {
    auto& kernel = node.getMap();
    if (word(kernel, ".symbol") == info.name + ".kd") read_arguments(kernel, info);
  }
  return info;
}

}  // namespace vitamin::soft::amdgpu
