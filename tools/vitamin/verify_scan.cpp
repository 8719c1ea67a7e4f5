// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/verify_scan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

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

std::string cuobjdump() {
  for (const char* path : {"cuobjdump", "/usr/local/cuda/bin/cuobjdump"}) {
    const std::string found = answer(fmt::format("command -v {} 2>/dev/null", path));
    if (!found.empty()) return found.substr(0, found.find('\n'));
  }
  return "";
}

}  // namespace

void read_listing(const std::string& listing, ScanResult& result) {
  std::string kernel;
  std::istringstream in(listing);
  for (std::string line; std::getline(in, line);) {
    if (const std::size_t at = line.find("Function : "); at != std::string::npos) {
      kernel = line.substr(at + 11);
    } else if (const std::size_t entry = line.find(".entry "); entry != std::string::npos) {
      kernel = line.substr(entry + 7, line.find_first_of("( \t", entry + 7) - entry - 7);
    }
    if (kernel.empty()) continue;
    result.seen.insert(kernel);
    for (const Sign& sign : kSigns)
      if (line.find(sign.word) != std::string::npos &&
          (sign.second == nullptr || line.find(sign.second) != std::string::npos))
        result.kernels[kernel].insert(sign.meaning);
  }
}

ScanResult scan_code(const std::vector<std::string>& files) {
  ScanResult result;
  const std::string tool = cuobjdump();
  if (tool.empty()) {
    result.why_not = "cuobjdump was not found";
    return result;
  }
  for (const std::string& file : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) continue;
    const std::string listing = answer(
        fmt::format("timeout 60 {} -sass -ptx {} 2>/dev/null", shell_word(tool), shell_word(file)));
    if (listing.find("Function : ") == std::string::npos &&
        listing.find(".entry ") == std::string::npos)
      continue;
    result.possible = true;
    read_listing(listing, result);
  }
  if (!result.possible) result.why_not = "no GPU code was found in the command's own files";
  return result;
}

}  // namespace vitamin::tools
