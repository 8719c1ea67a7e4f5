// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify/scan.h"

#include <elf.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <sstream>

#include "hal/read_file.h"
#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

struct Sign {
  const char* word;
  const char* second;  // must stand in the same line too, or null
  const char* meaning;
};
// As listings of SASS name them, and the PTX manual ("Special Registers", "atom", "red").
constexpr Sign kSigns[] = {
    {"SR_VIRTUALSMID", nullptr, "reads %smid"},
    {"SR_VIRTID", nullptr, "reads %smid"},
    {"SR_NSMID", nullptr, "reads %nsmid"},
    {"%smid", nullptr, "reads %smid"},
    {"%nsmid", nullptr, "reads %nsmid"},
    {"SR_CLOCK", nullptr, "reads a clock"},
    {"SR_GLOBALTIMER", nullptr, "reads a clock"},
    {"%clock", nullptr, "reads a clock"},
    {"%globaltimer", nullptr, "reads a clock"},
    {" RED", ".F32", "float atomics"},
    {" RED", ".F16", "float atomics"},
    {" RED", ".BF16", "float atomics"},
    {" RED", ".F64", "float atomics"},
    {"ATOM", ".F32", "float atomics"},
    {"ATOM", ".F16", "float atomics"},
    {"ATOM", ".BF16", "float atomics"},
    {"ATOM", ".F64", "float atomics"},
    // As llvm-objdump names AMD's (LLVM, "User Guide for AMDGPU Backend").
    {"hwreg(HW_REG_HW_ID", nullptr, "reads %smid"},
    {"hwreg(HW_REG_XCC_ID", nullptr, "reads %smid"},
    {"s_memtime", nullptr, "reads a clock"},
    {"s_memrealtime", nullptr, "reads a clock"},
    {"hwreg(HW_REG_SHADER_CYCLES", nullptr, "reads a clock"},
    {"atomic_add_f", nullptr, "float atomics"},
    {"atomic_pk_add_", nullptr, "float atomics"},
    {"ds_add_f", nullptr, "float atomics"},
    {"ds_add_rtn_f", nullptr, "float atomics"},
    {"red.", ".add.f", "float atomics"},
    {"red.", ".add.noftz", "float atomics"},
    {"atom.", ".add.f", "float atomics"},
    {"atom.", ".add.noftz", "float atomics"},
};

std::string answer(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  std::array<char, 1 << 16> buffer{};
  if (!pipe) return text;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
    text.append(buffer.data(), n);
  return text;
}

// The first of these commands that is there.
std::string tool_of(std::initializer_list<const char*> paths) {
  for (const char* path : paths) {
    const std::string found = answer(fmt::format("command -v {} 2>/dev/null", path));
    if (!found.empty()) return found.substr(0, found.find('\n'));
  }
  return "";
}

// --- AMD code objects --------------------------------------------------------------------------

constexpr std::uint16_t kAmdGpu = 224;  // EM_AMDGPU

// The code objects in a program, library or bundle: ELF files for the GPU, wherever they lie.
std::vector<std::string> amd_code_objects(const std::string& file) {
  const std::string bytes = hal::read_file(file).value_or("");
  std::vector<std::string> objects;
  for (std::size_t at = 0; (at = bytes.find("\x7f"
                                            "ELF\x02",
                                            at)) != std::string::npos;
       ++at) {
    Elf64_Ehdr header;
    if (bytes.size() - at < sizeof header) break;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    const std::uint64_t room = bytes.size() - at;
    const std::uint64_t sections = std::uint64_t{header.e_shnum} * header.e_shentsize;
    if (header.e_machine != kAmdGpu || header.e_shoff > room || sections > room - header.e_shoff)
      continue;
    objects.push_back(bytes.substr(at, header.e_shoff + sections));  // LLVM puts the table last
  }
  return objects;
}

std::string amd_listing(const std::string& tool, const std::string& file) {
  std::string listing;
  for (const std::string& object : amd_code_objects(file)) {
    const RunDirectory directory;
    const std::string name = directory.path() / "code";
    std::ofstream(name, std::ios::binary) << object;
    listing +=
        answer(fmt::format("timeout 60 {} -d {} 2>/dev/null", shell_word(tool), shell_word(name)));
  }
  return listing;
}

// Where the code has no instruction for it, a float is added by comparing and swapping.
bool adds_by_swapping(const std::string& line, bool& adds, bool& swaps) {
  adds = adds || line.find("v_add_f") != std::string::npos;
  swaps = swaps || line.find("atomic_cmpswap") != std::string::npos;
  return adds && swaps;
}

}  // namespace

void read_listing(const std::string& listing, ScanResult& result) {
  std::string kernel;
  bool adds = false, swaps = false;
  std::istringstream in(listing);
  for (std::string line; std::getline(in, line);) {
    if (const std::size_t at = line.find("Function : "); at != std::string::npos) {
      kernel = line.substr(at + 11);
    } else if (const std::size_t entry = line.find(".entry "); entry != std::string::npos) {
      kernel = line.substr(entry + 7, line.find_first_of("( \t", entry + 7) - entry - 7);
    } else if (line.ends_with(">:")) {  // "0000000000001000 <histogram>:"
      const std::size_t name = line.find('<') + 1;
      kernel = line.substr(name, line.size() - 2 - name);
      adds = swaps = false;
    }
    if (kernel.empty()) continue;
    result.seen.insert(kernel);
    if (adds_by_swapping(line, adds, swaps)) result.kernels[kernel].insert("float atomics");
    for (const Sign& sign : kSigns)
      if (line.find(sign.word) != std::string::npos &&
          (sign.second == nullptr || line.find(sign.second) != std::string::npos))
        result.kernels[kernel].insert(sign.meaning);
  }
}

ScanResult scan_code(const std::vector<std::string>& files) {
  ScanResult result;
  const std::string nvidia = tool_of({"cuobjdump", "/usr/local/cuda/bin/cuobjdump"});
  const std::string amd = tool_of(
      {"/opt/rocm/llvm/bin/llvm-objdump", "llvm-objdump", "llvm-objdump-15", "llvm-objdump-14"});
  if (nvidia.empty() && amd.empty()) {
    result.why_not = "neither cuobjdump nor llvm-objdump was found";
    return result;
  }
  for (const std::string& file : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) continue;
    std::string listing;
    if (!nvidia.empty())
      listing = answer(fmt::format("timeout 60 {} -sass -ptx {} 2>/dev/null", shell_word(nvidia),
                                   shell_word(file)));
    if (!amd.empty()) listing += amd_listing(amd, file);
    const std::size_t before = result.seen.size();
    read_listing(listing, result);
    result.possible = result.possible || result.seen.size() > before;
  }
  if (!result.possible)
    result.why_not = nvidia.empty() ? "cuobjdump was not found"
                                    : "no GPU code was found in the command's own files";
  return result;
}

}  // namespace vitamin::tools
