// SPDX-License-Identifier: Apache-2.0
//
// What a child's main thread executes between two breakpoints (BENCH_STEP around a statement),
// counted by single-stepping it: instructions by library, system calls and heap allocations. Calls
// of one library into another may be counted and run over: what happens in them does not count.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

// In the traced child: counts what `statement` executes.
#define BENCH_STEP(statement)              \
  do {                                     \
    __asm__ volatile("int3" ::: "memory"); \
    statement;                             \
    __asm__ volatile("int3" ::: "memory"); \
  } while (0)

namespace bench {

// The child's first call. The child is killed when the tracer ends.
inline void let_parent_trace() {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
}

struct Mapping {
  std::uint64_t begin, end;
  std::string name;
};

inline std::vector<Mapping> mappings(pid_t pid) {
  std::vector<Mapping> result;
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(file, line);) {
    Mapping mapping{};
    unsigned long begin = 0;
    unsigned long end = 0;
    int at = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &at) < 2) continue;
    mapping.begin = begin;
    mapping.end = end;
    mapping.name = at > 0 ? line.substr(static_cast<std::size_t>(at)) : "";
    mapping.name = mapping.name.substr(mapping.name.rfind('/') + 1);
    if (mapping.name.empty()) mapping.name = "(anonymous)";
    result.push_back(mapping);
  }
  return result;
}

struct Counts {
  std::uint64_t instructions = 0, system_calls = 0, allocations = 0, frees = 0;
  std::uint64_t calls_run_over = 0;
  std::map<std::uint64_t, std::uint64_t> by_system_call;  // its number
  std::map<std::string, std::uint64_t> by_library;
};

class Tracer {
 public:
  explicit Tracer(pid_t child) : child_(child) {
    for (const char* name : {"malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign"})
      allocators_.push_back(reinterpret_cast<std::uint64_t>(dlsym(RTLD_DEFAULT, name)));
    free_ = reinterpret_cast<std::uint64_t>(dlsym(RTLD_DEFAULT, "free"));
  }

  // Before run().
  void run_over_calls(std::string from, std::string into) {
    from_ = std::move(from);
    into_ = std::move(into);
  }

  // Runs the child to its end, which must be exit code 0; the counts of each marked statement.
  std::vector<Counts> run() {
    std::vector<Counts> all;
    int status = 0;
    waitpid(child_, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child_, nullptr, PTRACE_O_EXITKILL);
    int signal = 0;
    while (ptrace(PTRACE_CONT, child_, nullptr, signal) == 0 && waitpid(child_, &status, 0) > 0 &&
           WIFSTOPPED(status)) {
      signal = WSTOPSIG(status);
      if (signal != SIGTRAP) continue;
      signal = 0;
      all.push_back(step_to_breakpoint());
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      std::fprintf(stderr, "the traced program did not end well (status %x)\n", status);
      std::exit(1);
    }
    return all;
  }

 private:
  // A step that ends in a system call is reported as TRAP_BRKPT, `int3` itself as SI_KERNEL.
  bool stopped_at_breakpoint() const {
    siginfo_t info{};
    ptrace(PTRACE_GETSIGINFO, child_, nullptr, &info);
    return info.si_code == SI_KERNEL;
  }

  const std::string& library_at(std::uint64_t at) const {
    static const std::string unmapped = "(unmapped)";
    const auto mapping = std::find_if(
        maps_.begin(), maps_.end(), [&](const Mapping& m) { return at >= m.begin && at < m.end; });
    return mapping == maps_.end() ? unmapped : mapping->name;
  }

  // From the first instruction of a function to where it returns.
  void run_to_return(std::uint64_t stack) {
    const auto at = static_cast<std::uint64_t>(ptrace(PTRACE_PEEKDATA, child_, stack, nullptr));
    const long before = ptrace(PTRACE_PEEKTEXT, child_, at, nullptr);
    ptrace(PTRACE_POKETEXT, child_, at, (before & ~0xffL) | 0xcc);
    int status = 0, signal = 0;
    while (ptrace(PTRACE_CONT, child_, nullptr, signal) == 0 && waitpid(child_, &status, 0) > 0 &&
           WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP)
      signal = WSTOPSIG(status);
    ptrace(PTRACE_POKETEXT, child_, at, before);
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
    registers.rip = at;
    ptrace(PTRACE_SETREGS, child_, nullptr, &registers);
  }

  Counts step_to_breakpoint() {
    if (maps_.empty()) maps_ = mappings(child_);
    Counts counts;
    std::string last;
    for (;;) {
      user_regs_struct registers{};
      ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
      const std::string& library = library_at(registers.rip);
      if (!into_.empty() && library == into_ && last == from_) {
        ++counts.calls_run_over;
        run_to_return(registers.rsp);
        continue;
      }
      last = library;
      count(registers.rip, registers.rax, library, &counts);
      int status = 0;
      if (ptrace(PTRACE_SINGLESTEP, child_, nullptr, nullptr) != 0 ||
          waitpid(child_, &status, 0) < 0 || !WIFSTOPPED(status))
        break;
      if (WSTOPSIG(status) == SIGTRAP && stopped_at_breakpoint()) break;
    }
    return counts;
  }

  void count(std::uint64_t at, std::uint64_t rax, const std::string& library, Counts* counts) {
    ++counts->instructions;
    unsigned char bytes[2] = {};
    const iovec here{bytes, sizeof bytes};
    const iovec there{reinterpret_cast<void*>(at), sizeof bytes};
    process_vm_readv(child_, &here, 1, &there, 1, 0);
    if (bytes[0] == 0x0f && bytes[1] == 0x05) {
      ++counts->system_calls;
      ++counts->by_system_call[rax];
    }
    counts->allocations +=
        std::find(allocators_.begin(), allocators_.end(), at) != allocators_.end();
    counts->frees += at == free_;
    ++counts->by_library[library];
  }

  pid_t child_;
  std::vector<std::uint64_t> allocators_;
  std::uint64_t free_ = 0;
  std::vector<Mapping> maps_;
  std::string from_, into_;
};

}  // namespace bench
