// SPDX-License-Identifier: Apache-2.0
#include "interpose/libamdhip64/code_object.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "interpose/libamdhip64/msgpack.h"

namespace vitamin::interpose {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr std::string_view kCompressedMagic = "CCOB";
constexpr std::uint32_t kMetadataNote = 32;  // NT_AMDGPU_METADATA
constexpr std::size_t kKernargMax = 1 << 20;

bool begins_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

template <class T>
std::optional<T> read(Bytes bytes, std::uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::optional<Bytes> part(Bytes bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) return std::nullopt;
  return bytes.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size));
}

// --- metadata ------------------------------------------------------------------------------------

struct Argument {
  std::optional<std::uint64_t> offset, size;
  bool hidden = false;
};

Argument read_argument(MsgpackReader& reader) {
  Argument argument;
  const std::uint32_t entries = reader.map().value_or(0);
  for (std::uint32_t i = 0; i < entries && reader.ok(); ++i) {
    const std::string_view key = reader.string().value_or("");
    if (key == ".offset") {
      argument.offset = reader.unsigned_integer();
    } else if (key == ".size") {
      argument.size = reader.unsigned_integer();
    } else if (key == ".value_kind") {
      argument.hidden = reader.string().value_or("").starts_with("hidden_");
    } else {
      reader.skip();
    }
  }
  return argument;
}

// The explicit parameters; hidden ones come behind them and are the runtime's.
std::optional<hal::KernelLayout> read_arguments(MsgpackReader& reader) {
  hal::KernelLayout layout;
  const std::uint32_t count = reader.array().value_or(0);
  bool complete = true;
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    const Argument argument = read_argument(reader);
    if (argument.hidden) continue;
    if (!argument.offset || !argument.size || *argument.offset > kKernargMax ||
        *argument.size > kKernargMax) {
      complete = false;
      continue;
    }
    const auto offset = static_cast<std::uint32_t>(*argument.offset);
    const auto size = static_cast<std::uint32_t>(*argument.size);
    layout.parameters.push_back({offset, size});
    layout.bytes = std::max(layout.bytes, offset + size);
  }
  if (!complete || !reader.ok()) return std::nullopt;
  return layout;
}

bool read_kernel(MsgpackReader& reader, KernelLayouts& layouts) {
  std::string_view name;
  std::optional<hal::KernelLayout> layout = hal::KernelLayout{};  // without ".args": none
  const std::uint32_t entries = reader.map().value_or(0);
  for (std::uint32_t i = 0; i < entries && reader.ok(); ++i) {
    const std::string_view key = reader.string().value_or("");
    if (key == ".name")
      name = reader.string().value_or("");
    else if (key == ".args")
      layout = read_arguments(reader);
    else
      reader.skip();
  }
  if (!reader.ok() || name.empty() || !layout) return false;
  layouts.insert_or_assign(std::string(name), std::move(*layout));
  return true;
}

bool read_metadata(Bytes metadata, KernelLayouts& layouts) {
  MsgpackReader reader(metadata);
  bool complete = true;
  const std::uint32_t entries = reader.map().value_or(0);
  for (std::uint32_t i = 0; i < entries && reader.ok(); ++i) {
    if (reader.string().value_or("") != "amdhsa.kernels") {
      reader.skip();
      continue;
    }
    const std::uint32_t kernels = reader.array().value_or(0);
    for (std::uint32_t k = 0; k < kernels && reader.ok(); ++k)
      complete = read_kernel(reader, layouts) && complete;
  }
  return complete && reader.ok();
}

// --- ELF and bundles -----------------------------------------------------------------------------

// True when there was such a note and it was read.
bool read_notes(Bytes notes, KernelLayouts& layouts) {
  auto aligned = [](std::uint64_t size) { return (size + 3) & ~std::uint64_t{3}; };
  std::uint64_t at = 0;
  while (const auto header = read<Elf64_Nhdr>(notes, at)) {
    at += sizeof(Elf64_Nhdr);
    const auto name = part(notes, at, header->n_namesz);
    at += aligned(header->n_namesz);
    const auto content = part(notes, at, header->n_descsz);
    at += aligned(header->n_descsz);
    if (!name || !content) return false;
    if (header->n_type == kMetadataNote && begins_with(*name, "AMDGPU"))
      return read_metadata(*content, layouts);
  }
  return false;
}

bool read_elf(Bytes elf, KernelLayouts& layouts) {
  const auto header = read<Elf64_Ehdr>(elf, 0);
  if (!header || header->e_ident[EI_CLASS] != ELFCLASS64) return false;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    const auto segment =
        read<Elf64_Phdr>(elf, header->e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
    if (!segment) return false;
    if (segment->p_type != PT_NOTE) continue;
    const auto notes = part(elf, segment->p_offset, segment->p_filesz);
    if (notes && read_notes(*notes, layouts)) return true;
  }
  return false;
}

struct BundleEntry {
  std::uint64_t offset, size;
  std::string_view triple;
};

// The entry at `at`, which is moved behind it.
std::optional<BundleEntry> next_entry(Bytes bundle, std::uint64_t& at) {
  const auto offset = read<std::uint64_t>(bundle, at);
  const auto size = read<std::uint64_t>(bundle, at + 8);
  const auto length = read<std::uint64_t>(bundle, at + 16);
  if (!offset || !size || !length) return std::nullopt;
  const auto triple = part(bundle, at + 24, *length);
  if (!triple) return std::nullopt;
  at += 24 + *length;
  return BundleEntry{
      *offset, *size, {reinterpret_cast<const char*>(triple->data()), triple->size()}};
}

bool read_bundle(Bytes bundle, KernelLayouts& layouts) {
  const auto count = read<std::uint64_t>(bundle, kBundleMagic.size());
  if (!count) return false;
  bool complete = true;
  std::uint64_t at = kBundleMagic.size() + 8;
  for (std::uint64_t i = 0; i < *count; ++i) {
    const auto entry = next_entry(bundle, at);
    if (!entry) return false;
    if (entry->triple.starts_with("host") || entry->size == 0) continue;
    const auto code = part(bundle, entry->offset, entry->size);
    // Code objects only: a bundle that named itself would be read for ever.
    complete = code && kind_of(*code) == CodeKind::kElf && read_elf(*code, layouts) && complete;
  }
  return complete;
}

constexpr std::size_t kHeadersMax = std::size_t{1} << 16;

}  // namespace

CodeKind kind_of(Bytes image) {
  if (begins_with(image, std::string_view(ELFMAG, SELFMAG))) return CodeKind::kElf;
  if (begins_with(image, kBundleMagic)) return CodeKind::kBundle;
  if (begins_with(image, kCompressedMagic)) return CodeKind::kCompressedBundle;
  return CodeKind::kUnknown;
}

bool read_layouts(Bytes image, KernelLayouts& layouts) {
  switch (kind_of(image)) {
    case CodeKind::kElf:
      return read_elf(image, layouts);
    case CodeKind::kBundle:
      return read_bundle(image, layouts);
    default:
      return false;
  }
}

std::size_t extent_of(const std::byte* image) {
  // Magics differ within their first bytes, so no more is read than belongs to the shortest image.
  switch (kind_of({image, 4})) {
    case CodeKind::kElf: {
      // A code object ends with its section headers, or with the last section that they name.
      Elf64_Ehdr header;
      std::memcpy(&header, image, sizeof header);
      std::uint64_t end = header.e_shoff + std::uint64_t{header.e_shnum} * header.e_shentsize;
      for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        std::memcpy(&segment, image + header.e_phoff + i * sizeof segment, sizeof segment);
        end = std::max(end, segment.p_offset + segment.p_filesz);
      }
      return static_cast<std::size_t>(end);
    }
    case CodeKind::kCompressedBundle:
      return kCompressedMagic.size();
    default:
      break;
  }
  if (std::memcmp(image, kBundleMagic.data(), 4) != 0 ||
      kind_of({image, kBundleMagic.size()}) != CodeKind::kBundle)
    return 0;
  const Bytes headers(image, kHeadersMax);
  const std::uint64_t count = read<std::uint64_t>(headers, kBundleMagic.size()).value_or(0);
  std::uint64_t at = kBundleMagic.size() + 8, end = at;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto entry = next_entry(headers, at);
    if (!entry) return 0;
    end = std::max({end, at, entry->offset + entry->size});
  }
  return static_cast<std::size_t>(end);
}

}  // namespace vitamin::interpose
