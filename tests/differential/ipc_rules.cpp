// SPDX-License-Identifier: Apache-2.0
//
// Memory that two processes share by cuIpcGetMemHandle: codes that the documentation leaves open,
// and what of it is still there when its owner frees it or ends.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "session.h"

namespace vitamin::differential {
namespace {

constexpr unsigned kFlags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

// Processes of the software driver share a device only by a file.
class SharedDevice {
 public:
  SharedDevice() {
    const int file = ::mkstemp(name_);
    if (file < 0) throw std::runtime_error("no temporary file");
    ::close(file);
    ::setenv("VITAMIN_SOFT_LEDGER", name_, 1);
  }
  ~SharedDevice() { ::unlink(name_); }
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

 private:
  char name_[40] = "/tmp/vitamin-differential-XXXXXX";
};

std::uint32_t word_at(CUdeviceptr address) {
  std::uint32_t word = 0;
  VITAMIN_MUST(cuMemcpyDtoH(&word, address, sizeof word));
  return word;
}

std::size_t free_memory(std::size_t* of = nullptr) {
  std::size_t available = 0, total = 0;
  VITAMIN_MUST(cuMemGetInfo(&available, &total));
  if (of != nullptr) *of = total;
  return available;
}

// Memory of which half is more than the contexts of rules that are asked beside this one, which
// come and go.
std::size_t bulk() {
  constexpr std::size_t kLarge = std::size_t{64} << 30, kSmall = std::size_t{256} << 20;
  std::size_t total = 0;
  free_memory(&total);
  return total > kLarge ? total / 5 / kSmall * kSmall : kSmall;
}

const char* grown_since(std::size_t before) { return yes_no(free_memory() > before + bulk() / 2); }

struct Order {
  char verb = 0;
  std::uint64_t number = 0;
  CUipcMemHandle handle{};
};
struct Reply {
  CUresult result = CUDA_SUCCESS;
  std::uint64_t number = 0;
};

// What the peer has opened.
class Opener {
 public:
  Reply obey(const Order& order) {
    switch (order.verb) {
      case 'o': {  // opens with these flags; the address relative to the first one
        CUdeviceptr address = 0;
        const CUresult result =
            api.cuIpcOpenMemHandle(&address, order.handle, static_cast<unsigned>(order.number));
        if (result == CUDA_SUCCESS && base_ == 0) base_ = address;
        return {result, address - base_};
      }
      case 'c':
        return {api.cuIpcCloseMemHandle(base_), 0};
      case 'f':
        return {api.cuMemFree(base_), 0};
      case 'g': {
        CUipcMemHandle handle{};
        return {api.cuIpcGetMemHandle(&handle, base_), 0};
      }
      case 'r':
        return {CUDA_SUCCESS, word_at(base_)};
      case 'w': {
        const CUresult result = api.cuMemsetD32(base_, static_cast<unsigned>(order.number), 1);
        VITAMIN_MUST(cuCtxSynchronize());
        return {result, 0};
      }
      case 'n':  // the next one that is opened is the first
        base_ = 0;
        return {};
      default: {  // another context becomes current
        CUcontext context = nullptr;
        return {api.create_context(&context, 0, 0), 0};
      }
    }
  }

 private:
  CUdeviceptr base_ = 0;
};

// Another process, made before this one uses CUDA.
class Peer {
 public:
  Peer() {
    int orders[2], replies[2];
    if (::pipe(orders) != 0 || ::pipe(replies) != 0) throw std::runtime_error("no pipe");
    std::fflush(stdout);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(orders[1]);
      ::close(replies[0]);
      serve(orders[0], replies[1]);
    }
    ::close(orders[0]);
    ::close(replies[1]);
    orders_ = orders[1];
    replies_ = replies[0];
  }
  ~Peer() {
    ::close(orders_);
    ::waitpid(process_, nullptr, 0);
    ::close(replies_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Reply ask(char verb, std::uint64_t number = 0, const CUipcMemHandle& handle = {}) {
    const Order order{verb, number, handle};
    Reply reply;
    if (::write(orders_, &order, sizeof order) != sizeof order ||
        ::read(replies_, &reply, sizeof reply) != sizeof reply)
      throw std::runtime_error("the other process has ended");
    return reply;
  }
  std::string code_of(char verb, std::uint64_t number = 0, const CUipcMemHandle& handle = {}) {
    return code(ask(verb, number, handle).result);
  }

 private:
  [[noreturn]] static void serve(int orders, int replies) {
    try {
      const Session session;
      Opener opener;
      for (Order order; ::read(orders, &order, sizeof order) == sizeof order;) {
        const Reply reply = opener.obey(order);
        if (::write(replies, &reply, sizeof reply) != sizeof reply) break;
      }
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }

  pid_t process_ = -1;
  int orders_ = -1, replies_ = -1;
};

bool equal(const CUipcMemHandle& a, const CUipcMemHandle& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

CUdeviceptr memory_of(std::size_t bytes) {
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemAlloc(&address, bytes));
  VITAMIN_MUST(cuMemsetD32(address, 7, 1));
  VITAMIN_MUST(cuCtxSynchronize());
  return address;
}

}  // namespace

VITAMIN_RULE(handles_of_memory, "What memory has a handle for other processes, and which one?") {
  const SharedDevice shared;
  Session session;
  CUipcMemHandle first{}, inside{}, neighbour{}, again{};
  const CUdeviceptr memory = memory_of(4096), beside = memory_of(4096);
  CUdeviceptr pooled = 0;
  VITAMIN_MUST(cuMemAllocAsync(&pooled, 4096, nullptr));
  const auto pinned = reinterpret_cast<CUdeviceptr>(session.pinned(4096));
  Say{"memory {}", code(api.cuIpcGetMemHandle(&first, memory))};
  Say{"the same again {}", code(api.cuIpcGetMemHandle(&again, memory))};
  Say{"equal: {}", yes_no(equal(first, again))};
  Say{"inside of it {}", code(api.cuIpcGetMemHandle(&inside, memory + 512))};
  Say{"equal to that of its beginning: {}", yes_no(equal(first, inside))};
  Say{"small memory beside it {}", code(api.cuIpcGetMemHandle(&neighbour, beside))};
  Say{"equal: {}", yes_no(equal(first, neighbour))};
  Say{"a pool's {}", code(api.cuIpcGetMemHandle(&again, pooled))};
  Say{"pinned memory of the host {}", code(api.cuIpcGetMemHandle(&again, pinned))};
  Say{"no memory {}", code(api.cuIpcGetMemHandle(&again, 0))};
  Say{"no place for the handle {}", code(api.cuIpcGetMemHandle(nullptr, memory))};
  CUdeviceptr own = 0;
  Say{"opened by its own process {}", code(api.cuIpcOpenMemHandle(&own, first, kFlags))};
  VITAMIN_MUST(cuMemFree(memory));
  Say{"freed memory {}", code(api.cuIpcGetMemHandle(&again, memory))};
}

VITAMIN_RULE(memory_of_another_process, "What do calls with another process's memory answer?") {
  const SharedDevice shared;
  Peer peer;
  Session session;
  CUipcMemHandle handle{}, inside{};
  const CUdeviceptr memory = memory_of(bulk());
  VITAMIN_MUST(cuIpcGetMemHandle(&handle, memory));
  const bool has_inside = api.cuIpcGetMemHandle(&inside, memory + 512) == CUDA_SUCCESS;
  Say{"no flags {}", peer.code_of('o', 0, handle)};
  Say{"no handle {}", peer.code_of('o', kFlags)};
  const std::size_t before = free_memory();
  Say{"opened {}", peer.code_of('o', kFlags, handle)};
  Say{"free memory shrinks by it: {}", yes_no(free_memory() + bulk() / 2 < before)};
  const Reply again = peer.ask('o', kFlags, handle);
  Say{"opened again {}, {} bytes further", code(again.result), again.number};
  if (has_inside) {
    const Reply from_inside = peer.ask('o', kFlags, inside);
    Say{"by a handle of its inside {}, {} bytes further", code(from_inside.result),
        from_inside.number};
    Say{"closed once {}", peer.code_of('c')};
  }
  Say{"reads {}", peer.ask('r').number};
  Say{"writes {}", peer.code_of('w', 9)};
  Say{"its owner reads {}", word_at(memory)};
  Say{"a handle of what was opened {}", peer.code_of('g')};
  Say{"cuMemFree of what was opened {}", peer.code_of('f')};
  for (const char* time : {"closed", "closed again", "closed once too often"})
    Say{"{} {}", time, peer.code_of('c')};
  peer.ask('n');
  Say{"opened anew {}, reads {}", peer.code_of('o', kFlags, handle), peer.ask('r').number};
  Say{"another context {}", peer.code_of('x')};
  Say{"opened in that one, too {}", peer.code_of('o', kFlags, handle)};
}

VITAMIN_RULE(freed_memory_of_another_process,
             "What is left of memory that its owner freed while another process has it open?") {
  const SharedDevice shared;
  Peer peer;
  Session session;
  CUipcMemHandle handle{};
  const CUdeviceptr memory = memory_of(bulk());
  VITAMIN_MUST(cuIpcGetMemHandle(&handle, memory));
  Say{"opened {}", peer.code_of('o', kFlags, handle)};
  const std::size_t before = free_memory();
  Say{"freed by its owner {}", code(api.cuMemFree(memory))};
  Say{"free memory grows by it: {}", grown_since(before)};
  Say{"opened again {}", peer.code_of('o', kFlags, handle)};
  for (const char* time : {"closed", "closed again"}) Say{"{} {}", time, peer.code_of('c')};
  Say{"free memory has grown by it: {}", grown_since(before)};
  peer.ask('n');
  Say{"opened after that {}", peer.code_of('o', kFlags, handle)};
}

VITAMIN_RULE(memory_of_a_killed_process,
             "What is left of memory whose owner was killed while another process has it open?") {
  const SharedDevice shared;
  int pipe[2];
  if (::pipe(pipe) != 0) throw std::runtime_error("no pipe");
  const pid_t owner = ::fork();
  if (owner == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    CUipcMemHandle handle{};
    try {
      const Session session;
      VITAMIN_MUST(cuIpcGetMemHandle(&handle, memory_of(bulk())));
    } catch (const std::exception&) {
      ::_exit(1);
    }
    if (::write(pipe[1], &handle, sizeof handle) != sizeof handle) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(pipe[1]);
  CUipcMemHandle handle{};
  const bool told = ::read(pipe[0], &handle, sizeof handle) == sizeof handle;
  ::close(pipe[0]);
  Session session;
  Opener opener;
  const Reply opened = opener.obey({'o', kFlags, handle});
  const std::size_t before = free_memory();
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  if (!told) throw std::runtime_error("the owner has ended");
  Say{"opened {}", code(opened.result)};
  Say{"its owner was killed; free memory grows by it: {}", grown_since(before)};
  Say{"reads {}", opener.obey({'r'}).number};
  Say{"opened again {}", code(opener.obey({'o', kFlags, handle}).result)};
  for (const char* time : {"closed", "closed again"})
    Say{"{} {}", time, code(opener.obey({'c'}).result)};
  Say{"free memory has grown by it: {}", grown_since(before)};
}

}  // namespace vitamin::differential
