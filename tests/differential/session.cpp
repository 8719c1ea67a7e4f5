// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace vitamin::differential {

void Say::print(std::string_view format, const std::vector<std::string>& values) {
  std::string line;
  std::size_t next = 0;
  for (std::size_t at; (at = format.find("{}")) != std::string_view::npos;) {
    line += format.substr(0, at);
    line += values.at(next++);
    format.remove_prefix(at + 2);
  }
  line += format;
  if (next != values.size()) throw std::logic_error("a line of the trace has too many values");
  std::puts(line.c_str());
  // A rule that hangs or dies must leave the lines before it.
  std::fflush(stdout);
}

std::string code(CUresult result) {
  static constexpr struct {
    int value;
    const char* name;
  } kNames[] = {{0, "SUCCESS"},
                {1, "INVALID_VALUE"},
                {2, "OUT_OF_MEMORY"},
                {3, "NOT_INITIALIZED"},
                {4, "DEINITIALIZED"},
                {34, "STUB_LIBRARY"},
                {35, "DEVICE_UNAVAILABLE"},
                {100, "NO_DEVICE"},
                {101, "INVALID_DEVICE"},
                {200, "INVALID_IMAGE"},
                {201, "INVALID_CONTEXT"},
                {205, "MAP_FAILED"},
                {208, "ALREADY_MAPPED"},
                {304, "OPERATING_SYSTEM"},
                {400, "INVALID_HANDLE"},
                {401, "ILLEGAL_STATE"},
                {500, "NOT_FOUND"},
                {600, "NOT_READY"},
                {700, "ILLEGAL_ADDRESS"},
                {701, "LAUNCH_OUT_OF_RESOURCES"},
                {709, "CONTEXT_IS_DESTROYED"},
                {712, "HOST_MEMORY_ALREADY_REGISTERED"},
                {713, "HOST_MEMORY_NOT_REGISTERED"},
                {715, "ILLEGAL_INSTRUCTION"},
                {719, "LAUNCH_FAILED"},
                {720, "COOPERATIVE_LAUNCH_TOO_LARGE"},
                {800, "NOT_PERMITTED"},
                {801, "NOT_SUPPORTED"},
                {900, "STREAM_CAPTURE_UNSUPPORTED"},
                {901, "STREAM_CAPTURE_INVALIDATED"},
                {902, "STREAM_CAPTURE_MERGE"},
                {903, "STREAM_CAPTURE_UNMATCHED"},
                {904, "STREAM_CAPTURE_UNJOINED"},
                {905, "STREAM_CAPTURE_ISOLATION"},
                {906, "STREAM_CAPTURE_IMPLICIT"},
                {907, "CAPTURED_EVENT"},
                {908, "STREAM_CAPTURE_WRONG_THREAD"},
                {910, "GRAPH_EXEC_UPDATE_FAILURE"},
                {912, "INVALID_CLUSTER_SIZE"},
                {914, "INVALID_RESOURCE_TYPE"},
                {915, "INVALID_RESOURCE_CONFIGURATION"},
                {917, "STREAM_DETACHED"}};
  std::string text = std::to_string(static_cast<int>(result));
  for (const auto& name : kNames)
    if (name.value == static_cast<int>(result)) text += std::string(" ") + name.name;
  return text;
}

std::chrono::milliseconds timeout() {
  static const std::chrono::milliseconds value = [] {
    const char* text = std::getenv("VITAMIN_DIFFERENTIAL_TIMEOUT_MS");
    return std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 150);
  }();
  return value;
}

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + " answered " + code(result));
}

std::vector<Rule>& rules() {
  static std::vector<Rule> all;
  return all;
}

namespace {

constexpr unsigned kGateWords = 1024;
constexpr unsigned kGateStride = 16;  // one cache line each

std::vector<char> read_image() {
  const char* path = std::getenv("VITAMIN_DIFFERENTIAL_KERNELS");
  if (path == nullptr) throw std::runtime_error("VITAMIN_DIFFERENTIAL_KERNELS names no file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("the kernels cannot be read: ") + path);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  bytes.push_back('\0');  // the driver reads PTX as a C string
  return bytes;
}

}  // namespace

Session::Session(int ordinal) : image_(read_image()) {
  VITAMIN_MUST(cuInit(0));
  int devices = 0;
  VITAMIN_MUST(cuDeviceGetCount(&devices));
  if (ordinal >= devices)
    throw std::runtime_error("it needs " + std::to_string(ordinal + 1) + " devices");
  VITAMIN_MUST(cuDeviceGet(&device_, ordinal));
  VITAMIN_MUST(cuDevicePrimaryCtxRetain(&primary_, device_));
  VITAMIN_MUST(cuCtxSetCurrent(primary_));
  VITAMIN_MUST(cuModuleLoadData(&module_, image_.data()));
  VITAMIN_MUST(
      cuLibraryLoadData(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  // Loaded here and once for all: a kernel that is loaded lazily may wait for other streams, and
  // that is a question of its own (launch_of_a_kernel_never_launched).
  for (const char* name : {"append", "store", "slow_add", "copy_word", "pack"}) {
    VITAMIN_MUST(cuFuncLoad(function(name)));
    CUfunction of_kernel = nullptr;
    VITAMIN_MUST(cuKernelGetFunction(&of_kernel, kernel(name)));
    VITAMIN_MUST(cuFuncLoad(of_kernel));
  }
  gate_words_ = pinned(sizeof(std::uint32_t) * kGateWords * kGateStride);
}

std::uint32_t* Session::gate_word() {
  if (gate_words_used_ == kGateWords) throw std::runtime_error("a rule uses too many gates");
  return gate_words_ + std::size_t{gate_words_used_++} * kGateStride;
}

CUstream Session::stream(unsigned flags, int priority) {
  CUstream stream = nullptr;
  VITAMIN_MUST(cuStreamCreateWithPriority(&stream, flags, priority));
  return stream;
}

CUevent Session::event(unsigned flags) {
  CUevent event = nullptr;
  VITAMIN_MUST(cuEventCreate(&event, flags));
  return event;
}

CUdeviceptr Session::memory(std::size_t bytes) {
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemAlloc(&address, bytes));
  VITAMIN_MUST(cuMemsetD8(address, 0, bytes));
  VITAMIN_MUST(cuCtxSynchronize());
  return address;
}

std::uint32_t* Session::pinned(std::size_t bytes) {
  void* address = nullptr;
  VITAMIN_MUST(cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* words = static_cast<std::uint32_t*>(address);
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) words[i] = 0;
  return words;
}

CUfunction Session::function(const char* name) const {
  CUfunction function = nullptr;
  VITAMIN_MUST(cuModuleGetFunction(&function, module_, name));
  return function;
}

CUkernel Session::kernel(const char* name) const {
  CUkernel kernel = nullptr;
  VITAMIN_MUST(cuLibraryGetKernel(&kernel, library_, name));
  return kernel;
}

void Session::split() {
  if (!groups_.empty()) return;
  CUdevResource all{};
  CUdevResource rest{};
  unsigned count = 64;
  groups_.resize(count);
  VITAMIN_MUST(cuDeviceGetDevResource(device_, &all, CU_DEV_RESOURCE_TYPE_SM));
  VITAMIN_MUST(cuDevSmResourceSplitByCount(groups_.data(), &count, &all, &rest, 0, 8));
  groups_.resize(count);
  if (rest.sm.smCount > 0) groups_.push_back(rest);
}

unsigned Session::group_count() {
  split();
  return static_cast<unsigned>(groups_.size());
}

unsigned Session::processors_of_group(unsigned group) {
  split();
  return groups_.at(group).sm.smCount;
}

CUgreenCtx Session::green(std::initializer_list<unsigned> groups) {
  split();
  std::vector<CUdevResource> chosen;
  for (unsigned group : groups) chosen.push_back(groups_.at(group));
  CUdevResourceDesc description = nullptr;
  VITAMIN_MUST(
      cuDevResourceGenerateDesc(&description, chosen.data(), static_cast<unsigned>(chosen.size())));
  CUgreenCtx context = nullptr;
  VITAMIN_MUST(cuGreenCtxCreate(&context, description, device_, CU_GREEN_CTX_DEFAULT_STREAM));
  return context;
}

CUstream Session::green_stream(CUgreenCtx context, int priority) {
  CUstream stream = nullptr;
  VITAMIN_MUST(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, priority));
  return stream;
}

CUresult Door::query() const {
  return per_thread ? api.cuStreamQuery_ptsz(stream) : api.cuStreamQuery(stream);
}
CUresult Door::synchronize() const {
  return per_thread ? api.cuStreamSynchronize_ptsz(stream) : api.cuStreamSynchronize(stream);
}
CUresult Door::record(CUevent event) const {
  return per_thread ? api.cuEventRecord_ptsz(event, stream) : api.cuEventRecord(event, stream);
}
CUresult Door::wait(CUevent event) const {
  return per_thread ? api.cuStreamWaitEvent_ptsz(stream, event, 0)
                    : api.cuStreamWaitEvent(stream, event, 0);
}
CUresult Door::launch(CUfunction function, void** parameters) const {
  return per_thread
             ? api.cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr)
             : api.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUresult launch(CUfunction function, CUstream stream, std::initializer_list<const void*> parameters,
                unsigned grid, unsigned block, unsigned shared_bytes) {
  std::vector<void*> pointers;
  for (const void* parameter : parameters) pointers.push_back(const_cast<void*>(parameter));
  return api.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared_bytes, stream,
                            pointers.data(), nullptr);
}

namespace {
constexpr std::size_t kLogBytes = 4096;
}

Log::Log(Session& session)
    : append_(session.function("append")),
      words_(session.memory(kLogBytes)),
      copy_(session.pinned(kLogBytes)),
      reader_(session.stream(CU_STREAM_NON_BLOCKING)) {}

CUresult Log::append(CUstream stream, std::uint32_t value) const {
  return launch(append_, stream, {&words_, &value});
}

CUresult Log::append(const Door& door, std::uint32_t value) const {
  CUdeviceptr words = words_;
  void* parameters[] = {&words, &value};
  return door.launch(append_, parameters);
}

std::string Log::text() const {
  VITAMIN_MUST(cuMemcpyDtoHAsync(copy_, words_, kLogBytes, reader_));
  VITAMIN_MUST(cuStreamSynchronize(reader_));
  std::string text;
  for (std::uint32_t i = 0; i < copy_[0]; ++i) text += std::to_string(copy_[1 + i]) + " ";
  if (text.empty()) return "(nothing)";
  text.pop_back();
  return text;
}

Gate::Gate(Session& session) : word_(session.gate_word()) {
  VITAMIN_MUST(cuMemHostGetDevicePointer(&address_, const_cast<std::uint32_t*>(word_), 0));
}

Gate::Gate(Session& session, CUstream stream) : Gate(session) { put(stream); }

void Gate::put(CUstream stream) {
  VITAMIN_MUST(cuStreamWaitValue32(stream, address_, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

CUresult Gate::put_ptsz(CUstream stream) {
  return api.cuStreamWaitValue32_v2_ptsz(stream, address_, 1, CU_STREAM_WAIT_VALUE_GEQ);
}

void Gate::open() { __atomic_store_n(word_, 1, __ATOMIC_SEQ_CST); }
bool Gate::is_open() const { return __atomic_load_n(word_, __ATOMIC_SEQ_CST) != 0; }

CUresult soon(const std::function<CUresult()>& ask) {
  const auto deadline = std::chrono::steady_clock::now() + timeout();
  for (;;) {
    const CUresult answer = ask();
    if (answer != CUDA_ERROR_NOT_READY) return answer;
    if (std::chrono::steady_clock::now() > deadline) return answer;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::string soon(CUstream stream) {
  return code(soon([=] { return api.cuStreamQuery(stream); }));
}
std::string soon(CUevent event) {
  return code(soon([=] { return api.cuEventQuery(event); }));
}
std::string now(CUstream stream) { return code(api.cuStreamQuery(stream)); }
std::string now(CUevent event) { return code(api.cuEventQuery(event)); }

std::string waits_for(Gate& gate, const std::function<CUresult()>& call) {
  std::mutex mutex;
  std::condition_variable returned;
  bool done = false;
  std::thread opener([&] {
    std::unique_lock lock(mutex);
    if (!returned.wait_for(lock, timeout(), [&] { return done; })) gate.open();
  });
  const CUresult result = call();
  {
    const std::lock_guard lock(mutex);
    done = true;
  }
  returned.notify_one();
  opener.join();
  return (gate.is_open() ? "waits for the gate, then " : "returns ") + code(result);
}

void drain() { VITAMIN_MUST(cuCtxSynchronize()); }

}  // namespace vitamin::differential
