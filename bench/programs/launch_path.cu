// SPDX-License-Identifier: Apache-2.0
//
// What one launch executes on the calling thread: instructions by library, system calls and heap
// allocations, counted by single-stepping it. The program traces a child of its own, which marks
// each launch with two breakpoints; only the child's main thread is stepped.
#include <dlfcn.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "bench.h"

namespace {

__global__ void empty() {}
__global__ void with_parameters(float* data, unsigned count, float factor) {
  if (data != nullptr && count == 0) *data = factor;
}

constexpr int kWarmUp = 300;
constexpr int kCounted = 25;

// In the child. A pair of breakpoints around each of kCounted launches of each kind.
int traced() {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
  BENCH_CHECK(cudaFree(nullptr));
  auto* launch = BENCH_DRIVER(cuLaunchKernel, 4000);
  cudaFunction_t kernels[2];
  BENCH_CHECK(cudaGetFuncBySymbol(&kernels[0], reinterpret_cast<const void*>(&empty)));
  BENCH_CHECK(cudaGetFuncBySymbol(&kernels[1], reinterpret_cast<const void*>(&with_parameters)));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  float* data = nullptr;
  unsigned count = 1;
  float factor = 2;
  void* parameters[] = {&data, &count, &factor};
  for (CUfunction kernel : kernels) {
    for (int i = 0; i < kWarmUp + kCounted; ++i) {
      // As in a running program: a launch before this one, and nothing that waits.
      BENCH_CHECK(launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
      if (i < kWarmUp) continue;
      __asm__ volatile("int3" ::: "memory");
      const CUresult result = launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
      __asm__ volatile("int3" ::: "memory");
      BENCH_CHECK(result);
      BENCH_CHECK(cudaStreamSynchronize(stream));
    }
  }
  _exit(0);
}

struct Mapping {
  std::uint64_t begin, end;
  std::string name;
};

std::vector<Mapping> mappings(pid_t pid) {
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

  // Runs the child to its end; the counts of each marked launch.
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

  Counts step_to_breakpoint() {
    if (maps_.empty()) maps_ = mappings(child_);
    Counts counts;
    for (;;) {
      user_regs_struct registers{};
      ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
      count(registers.rip, registers.rax, &counts);
      int status = 0;
      if (ptrace(PTRACE_SINGLESTEP, child_, nullptr, nullptr) != 0 ||
          waitpid(child_, &status, 0) < 0 || !WIFSTOPPED(status))
        break;
      if (WSTOPSIG(status) == SIGTRAP && stopped_at_breakpoint()) break;
    }
    return counts;
  }

  void count(std::uint64_t at, std::uint64_t rax, Counts* counts) {
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
    const auto mapping = std::find_if(
        maps_.begin(), maps_.end(), [&](const Mapping& m) { return at >= m.begin && at < m.end; });
    ++counts->by_library[mapping == maps_.end() ? "(unmapped)" : mapping->name];
  }

  pid_t child_;
  std::vector<std::uint64_t> allocators_;
  std::uint64_t free_ = 0;
  std::vector<Mapping> maps_;
};

void tell(const char* kernel, const Counts* begin, const Counts* end) {
  std::vector<double> instructions;
  std::uint64_t system_calls = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::map<std::uint64_t, std::uint64_t> by_system_call;
  std::map<std::string, std::vector<double>> by_library;
  for (const Counts* counts = begin; counts != end; ++counts) {
    instructions.push_back(static_cast<double>(counts->instructions));
    system_calls = std::max(system_calls, counts->system_calls);
    allocations = std::max(allocations, counts->allocations);
    frees = std::max(frees, counts->frees);
    for (const auto& [number, count] : counts->by_system_call) by_system_call[number] += count;
    for (const auto& [name, count] : counts->by_library)
      by_library[name].push_back(static_cast<double>(count));
  }
  std::printf(
      "{\"name\": \"launch path\", \"kernel\": \"%s\", \"launches\": %zu, \"instructions\": %.0f, "
      "\"system_calls_max\": %llu, \"allocations_max\": %llu, \"frees_max\": %llu, \"by_library\": "
      "{",
      kernel, instructions.size(), bench::Order(instructions).median(),
      static_cast<unsigned long long>(system_calls), static_cast<unsigned long long>(allocations),
      static_cast<unsigned long long>(frees));
  const char* comma = "";
  for (auto& [name, counts] : by_library) {
    counts.resize(instructions.size());  // launches that did not enter the library count as 0
    std::printf("%s\"%s\": %.0f", comma, name.c_str(), bench::Order(counts).median());
    comma = ", ";
  }
  std::printf("}, \"system_calls\": {");
  comma = "";
  for (const auto& [number, count] : by_system_call) {
    std::printf("%s\"%llu\": %llu", comma, static_cast<unsigned long long>(number),
                static_cast<unsigned long long>(count));
    comma = ", ";
  }
  std::printf("}}\n");
}

}  // namespace

int main() {
  const pid_t child = fork();
  if (child == 0) return traced();
  const std::vector<Counts> all = Tracer(child).run();
  if (all.size() != 2 * kCounted) {
    std::fprintf(stderr, "%zu launches were counted, %d were made\n", all.size(), 2 * kCounted);
    return 1;
  }
  tell("no parameters", all.data(), all.data() + kCounted);
  tell("three parameters", all.data() + kCounted, all.data() + all.size());
}
