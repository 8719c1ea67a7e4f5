// SPDX-License-Identifier: Apache-2.0
//
// What a program's GPU code does that lies outside the contract of determinism: reading which
// processor it runs on, reading clocks, adding floats in the order of arrival. Read out of the code
// by NVIDIA's cuobjdump and, for AMD's code objects, by llvm-objdump, where they are installed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace vitamin::tools {

struct ScanResult {
  bool possible = false;  // a tool was found, and found code
  std::string why_not;
  std::set<std::string> seen;  // every kernel whose code was read
  // Kernel name -> what it does: "reads %smid", "reads a clock", "float atomics".
  std::map<std::string, std::set<std::string>> kernels;
};

ScanResult scan_code(const std::vector<std::string>& files);
// The listing of cuobjdump -sass -ptx or of llvm-objdump -d, read. Exposed for its test.
void read_listing(const std::string& listing, ScanResult& result);

}  // namespace vitamin::tools
