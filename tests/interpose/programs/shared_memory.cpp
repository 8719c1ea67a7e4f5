// SPDX-License-Identifier: Apache-2.0
//
// Memory that two processes share by a handle, for memory.cpp:
//
//   ipc take NAME BYTES     status of cuMemAlloc
//   ipc export NAME         status of cuIpcGetMemHandle, and the handle as eight numbers
//   ipc open NAME HANDLE    status of cuIpcOpenMemHandle
//   ipc close NAME          status of cuIpcCloseMemHandle
//   ipc free NAME           status of cuMemFree
//   ipc write NAME NUMBER   status of a fill of its first word
//   ipc read NAME           its first word
#include <array>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>

#include "driver.h"

namespace {

using HandleWords = std::array<std::uint64_t, sizeof(CUipcMemHandle) / sizeof(std::uint64_t)>;
std::map<std::string, CUdeviceptr> addresses;

std::string status_text(CUresult status) { return std::to_string(static_cast<int>(status)); }

std::string export_handle(CUdeviceptr address) {
  CUipcMemHandle handle{};
  std::string answer = status_text(cuIpcGetMemHandle(&handle, address));
  HandleWords words{};
  __builtin_memcpy(words.data(), handle.reserved, sizeof words);
  for (const std::uint64_t word : words) answer += " " + std::to_string(word);
  return answer;
}

CUresult open_handle(CUdeviceptr* address, std::istringstream& text) {
  HandleWords words{};
  for (std::uint64_t& word : words) text >> word;
  CUipcMemHandle handle{};
  __builtin_memcpy(handle.reserved, words.data(), sizeof words);
  return cuIpcOpenMemHandle(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

}  // namespace

std::string shared_memory(std::istringstream& text) {
  std::string verb, name;
  text >> verb >> name;
  CUdeviceptr& address = addresses[name];
  unsigned word = 0;
  if (verb == "take") {
    std::size_t bytes = 0;
    text >> bytes;
    return status_text(cuMemAlloc(&address, bytes));
  }
  if (verb == "export") return export_handle(address);
  if (verb == "open") return status_text(open_handle(&address, text));
  if (verb == "close") return status_text(cuIpcCloseMemHandle(address));
  if (verb == "free") return status_text(cuMemFree(address));
  if (verb == "write") {
    text >> word;
    const CUresult status = cuMemsetD32(address, word, 1);
    check(cuCtxSynchronize());  // no order of streams reaches the other process
    return status_text(status);
  }
  check(cuMemcpyDtoH(&word, address, sizeof word));
  return std::to_string(word);
}
