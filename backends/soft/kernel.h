// SPDX-License-Identifier: Apache-2.0
//
// Kernels written once: nvcc compiles this header's macros to CUDA, hipcc to HIP, g++ and clang++
// compile them to functions that the software device runs block by block.
//
//   VITAMIN_KERNEL(scale, float factor, float* data, unsigned count) {
//     VITAMIN_THREADS(t) {
//       const unsigned i = block.index().x * block.threads() + t;
//       if (i < count) data[i] *= factor;
//     }
//   }
//
// Structure. Code inside VITAMIN_THREADS runs once for each thread, with a barrier behind it. Code
// outside runs once a block on the software device and once a thread on CUDA, so it must give every
// thread the same result and write nothing; VITAMIN_ONCE { } is one thread's turn, with a barrier
// behind it. `continue` ends a thread's turn; `break` and `return` are not allowed inside.
// Values that a thread keeps from one turn to the next live in a vitamin::kernel::PerThread.
//
// Waiting. A kernel that takes device time (VITAMIN_BUSY_NS) or waits for memory
// (VITAMIN_SPIN_UNTIL) is declared with VITAMIN_WAITING_KERNEL; on the software device it is a
// coroutine, and such a block keeps its slot while it is suspended. The two macros stand in the
// kernel's own body, outside VITAMIN_THREADS. A plain kernel's blocks last `block_ns` each.
//
// Parameters are trivially copyable values. Their layout is derived from the types, by the rule
// that CUDA uses (each at its natural alignment, in order).
//
// Modules. A shared object made of such kernels exports kModuleSymbol; its loader finds the
// kernels there, each with its name, layout and limits. A program that links kernels in uses
// VITAMIN_SOFT_KERNEL(name).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) || defined(__HIP__)
#define VITAMIN_KERNEL_ON_GPU 1
#endif
#if defined(__HIP__)
#include <hip/hip_runtime.h>
#endif

#if !defined(VITAMIN_KERNEL_ON_GPU)
#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#endif

#if defined(VITAMIN_KERNEL_ON_GPU)
#define VITAMIN_DEVICE static inline __device__
#else
// A function that kernels call.
#define VITAMIN_DEVICE [[maybe_unused]] static inline
#endif

#include "backends/soft/short_floats.h"

namespace vitamin::kernel {

// What a kernel states about itself. Written as designated initialisers in VITAMIN_KERNEL_WITH.
struct Traits {
  std::uint32_t static_shared = 0;     // bytes; the sum of its VITAMIN_SHARED arrays, checked
  std::uint32_t max_threads = 1024;    // a block
  std::uint32_t registers = 32;        // a thread; occupancy of the software device
  std::uint32_t required_cluster = 0;  // blocks; 0: any launch may choose. Software device only
  std::uint32_t block_ns = 1000;       // device time of one block of a plain kernel
};

}  // namespace vitamin::kernel

#if defined(VITAMIN_KERNEL_ON_GPU)
// ---------------------------------------------------------------------------------- CUDA and HIP

namespace vitamin::kernel {

// The block that runs a kernel's body. In the body it is called `block`.
struct GpuBlock {
  __device__ uint3 index() const { return uint3{blockIdx.x, blockIdx.y, blockIdx.z}; }
  __device__ uint3 grid() const { return uint3{gridDim.x, gridDim.y, gridDim.z}; }
  __device__ uint3 dim() const { return uint3{blockDim.x, blockDim.y, blockDim.z}; }
  __device__ unsigned threads() const { return blockDim.x * blockDim.y * blockDim.z; }
  __device__ uint3 thread(unsigned) const { return uint3{threadIdx.x, threadIdx.y, threadIdx.z}; }
  __device__ unsigned linear_index() const {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  __device__ unsigned blocks() const { return gridDim.x * gridDim.y * gridDim.z; }
#if defined(__HIP__)
  // XCC, engine, array and CU out of the hardware ids: names a CU, numbers none. HIP has no word
  // for how many there are.
  __device__ unsigned sm_id() const {
    unsigned id;
#if defined(__GFX9__)
    unsigned xcc = 0;
    asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(id));
#if defined(__gfx942__) || defined(__gfx950__)
    asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(xcc));
#endif
    return (id >> 8 & 0xff) | (xcc & 15) << 8;
#else
    asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID1)" : "=s"(id));
    return (id >> 9 & 1) | (id >> 10 & 15) << 1 | (id >> 16 & 1) << 5 | (id >> 18 & 7) << 6;
#endif
  }
#else
  __device__ unsigned sm_id() const {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
  }
  __device__ unsigned sm_count() const {
    unsigned count;
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
  }
#endif
  __device__ unsigned cluster_rank() const {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
  }
  __device__ unsigned cluster_blocks() const {
    unsigned count = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    return count;
  }
  __device__ unsigned thread_turn() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
};

// One value for each thread of the block that lasts from turn to turn.
template <class T>
class PerThread {
 public:
  __device__ explicit PerThread(const GpuBlock&) {}
  __device__ T& operator[](unsigned) { return value_; }

 private:
  T value_{};
};

#if defined(__HIP__)
// The counter that runs at 100 MHz on every part.
VITAMIN_DEVICE std::uint64_t device_time_ns() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime() * 10;
#else
  return 0;  // hipcc compiles device functions for the host too
#endif
}
#else
VITAMIN_DEVICE std::uint64_t device_time_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#endif

// Atomics on global memory, relaxed, as CUDA's own. Each gives the old value.
template <class T>
__device__ T atomic_add(T* address, T value) {
  return atomicAdd(address, value);
}
template <class T>
__device__ T atomic_max(T* address, T value) {
  return atomicMax(address, value);
}
template <class T>
__device__ T atomic_cas(T* address, T expected, T desired) {
  return atomicCAS(address, expected, desired);
}
template <class T>
__device__ T atomic_exchange(T* address, T value) {
  return atomicExch(address, value);
}
// A load that sees what other blocks and the host wrote, and a store that they see after everything
// that this thread wrote before.
template <class T>
__device__ T load_acquire(const T* address) {
  const T value = *static_cast<const volatile T*>(address);
  __threadfence_system();
  return value;
}
template <class T>
__device__ void store_release(T* address, T value) {
  __threadfence_system();
  *static_cast<volatile T*>(address) = value;
}

VITAMIN_DEVICE void illegal_address() { *reinterpret_cast<volatile int*>(16) = 1; }
#if defined(__HIP__)
VITAMIN_DEVICE void trap() { abort(); }
#else
VITAMIN_DEVICE void trap() { __trap(); }
#endif

}  // namespace vitamin::kernel

namespace vitamin::kernel {
using Block = GpuBlock;  // the type of `block`, for functions that kernels call
}
static __device__ const vitamin::kernel::GpuBlock block{};

#define VITAMIN_DETAIL_UNWRAP(...) __VA_ARGS__
#define VITAMIN_DETAIL_GPU_KERNEL(traits, name, ...)                                           \
  static_assert(::vitamin::kernel::Traits{VITAMIN_DETAIL_UNWRAP traits}.required_cluster == 0, \
                "a required cluster cannot be expressed here: give it at the launch");         \
  extern "C" __global__ void __launch_bounds__(                                                \
      (::vitamin::kernel::Traits{VITAMIN_DETAIL_UNWRAP traits}.max_threads)) name(__VA_ARGS__)

#define VITAMIN_KERNEL(name, ...) VITAMIN_DETAIL_GPU_KERNEL((), name, ##__VA_ARGS__)
#define VITAMIN_KERNEL_WITH(traits, name, ...) \
  VITAMIN_DETAIL_GPU_KERNEL(traits, name, ##__VA_ARGS__)
#define VITAMIN_WAITING_KERNEL(name, ...) VITAMIN_DETAIL_GPU_KERNEL((), name, ##__VA_ARGS__)
#define VITAMIN_WAITING_KERNEL_WITH(traits, name, ...) \
  VITAMIN_DETAIL_GPU_KERNEL(traits, name, ##__VA_ARGS__)

#define VITAMIN_THREADS(t) \
  for (unsigned t = block.thread_turn(), t##_turn = 1; t##_turn; t##_turn = 0, __syncthreads())
#define VITAMIN_ONCE                                                               \
  for (unsigned vitamin_turn = 1; vitamin_turn; vitamin_turn = 0, __syncthreads()) \
    if (block.thread_turn() == 0)

#define VITAMIN_SHARED(type, name, extent) __shared__ type name extent
#define VITAMIN_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char vitamin_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(vitamin_dynamic_shared)

#define VITAMIN_BUSY_NS(ns)                                                    \
  do {                                                                         \
    const std::uint64_t vitamin_ns = (ns);                                     \
    const std::uint64_t vitamin_begin = ::vitamin::kernel::device_time_ns();   \
    while (::vitamin::kernel::device_time_ns() - vitamin_begin < vitamin_ns) { \
    }                                                                          \
    __syncthreads();                                                           \
  } while (0)
#define VITAMIN_SPIN_UNTIL(condition) \
  do {                                \
    if (block.thread_turn() == 0) {   \
      while (!(condition)) {          \
      }                               \
      __threadfence_system();         \
    }                                 \
    __syncthreads();                  \
  } while (0)

#else
// ------------------------------------------------------------------------------- software device

namespace vitamin::soft {

struct Index3 {
  std::uint32_t x = 1, y = 1, z = 1;
  constexpr std::uint64_t volume() const { return std::uint64_t{x} * y * z; }
};

// Why a block gave control back before its end.
enum class BlockRequest : std::uint32_t { kNone, kBusy, kSpin };
// What a block did wrong. The engine makes it the device's sticky error.
enum class BlockFault : std::uint32_t { kNone, kIllegalAddress, kTrap, kSharedOverflow };

// One running block: what the engine tells the kernel, and what the kernel answers. In the body it
// is called `block`. Part of the module ABI (kModuleVersion).
class BlockContext {
 public:
  Index3 index() const { return index_; }
  Index3 grid() const { return grid_; }
  Index3 dim() const { return dim_; }
  std::uint32_t threads() const { return threads_; }
  Index3 thread(std::uint32_t t) const {
    return Index3{t % dim_.x, t / dim_.x % dim_.y, t / (dim_.x * dim_.y)};
  }
  std::uint32_t linear_index() const { return linear_index_; }
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(grid_.volume()); }
  // The SM that holds this block, and how many the whole device has (never how many the queue has).
  std::uint32_t sm_id() const { return sm_id_; }
  std::uint32_t sm_count() const { return sm_count_; }
  std::uint32_t cluster_rank() const { return cluster_rank_; }
  std::uint32_t cluster_blocks() const { return cluster_blocks_; }

  // One static shared array. It is never cleared: it holds what an earlier block left.
  template <class Array>
  Array& shared() {
    static_assert(std::is_trivial_v<std::remove_all_extents_t<Array> >);
    const std::size_t offset =
        (shared_used_ + alignof(Array) - 1) / alignof(Array) * alignof(Array);
    shared_used_ = static_cast<std::uint32_t>(offset + sizeof(Array));
    if (shared_used_ > static_shared_capacity_)
      return *reinterpret_cast<Array*>(overflow(sizeof(Array)));
    return *reinterpret_cast<Array*>(shared_ + offset);
  }
  void* dynamic_shared() const { return dynamic_shared_; }
  std::uint32_t dynamic_shared_bytes() const { return dynamic_shared_bytes_; }

  void fault(BlockFault what) {
    if (fault_ == BlockFault::kNone) fault_ = what;
  }
  // kBusy: for so many nanoseconds. kSpin: this many looks at the same condition were in vain.
  void request(BlockRequest what, std::uint64_t amount) {
    request_ = what;
    request_amount_ = amount;
  }

 private:
  friend struct BlockAccess;  // the engine's side

  struct Overflow {
    std::unique_ptr<unsigned char[]> bytes;
    std::unique_ptr<Overflow> next;
  };

  // The declared static_shared is too small. The block goes on in memory of its own, so that the
  // mistake is reported as a fault of this kernel instead of damaging another.
  unsigned char* overflow(std::size_t bytes) {
    fault(BlockFault::kSharedOverflow);
    auto piece = std::make_unique<Overflow>();
    piece->bytes = std::make_unique<unsigned char[]>(bytes);
    piece->next = std::move(overflow_);
    overflow_ = std::move(piece);
    return overflow_->bytes.get();
  }

  Index3 index_, grid_, dim_;
  std::uint32_t threads_ = 1, linear_index_ = 0;
  std::uint32_t sm_id_ = 0, sm_count_ = 1;
  std::uint32_t cluster_rank_ = 0, cluster_blocks_ = 1;
  unsigned char* shared_ = nullptr;
  std::uint32_t shared_used_ = 0, static_shared_capacity_ = 0;
  void* dynamic_shared_ = nullptr;
  std::uint32_t dynamic_shared_bytes_ = 0;
  BlockRequest request_ = BlockRequest::kNone;
  std::uint64_t request_amount_ = 0;
  BlockFault fault_ = BlockFault::kNone;
  std::unique_ptr<Overflow> overflow_;
};

// Where one parameter lies in the packed buffer. Bytes.
struct ParameterInfo {
  std::uint32_t offset = 0, size = 0, alignment = 1;
};

// One kernel. Its address is its identity (hal::KernelHandle).
struct KernelDescriptor {
  const char* name = nullptr;
  // Begins one block with the packed parameters. A plain kernel has then run to its end and the
  // answer is null; a waiting kernel has not run at all and the answer is its coroutine's address.
  void* (*start)(BlockContext& block, const void* parameters) = nullptr;
  const ParameterInfo* parameters = nullptr;
  std::uint32_t parameter_count = 0;
  std::uint32_t parameter_bytes = 0;
  bool waiting = false;
  kernel::Traits traits;
};

// What a module exports.
struct ModuleTable {
  std::uint32_t version = 0;
  std::uint32_t kernel_count = 0;
  const KernelDescriptor* const* kernels = nullptr;
};
inline constexpr std::uint32_t kModuleVersion = 1;
using ModuleEntry = const ModuleTable* (*)();
inline constexpr const char* kModuleSymbol = "vitamin_soft_module";

// What a waiting kernel returns: a coroutine that the engine resumes and destroys.
class Resumable {
 public:
  struct promise_type {  // NOLINT(readability-identifier-naming): the language's name
    Resumable get_return_object() {
      return Resumable(std::coroutine_handle<promise_type>::from_promise(*this).address());
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
  void* address() const { return address_; }

 private:
  explicit Resumable(void* address) : address_(address) {}
  void* address_;
};

// Suspends the block and leaves word why.
struct Suspension {
  BlockContext& block;
  BlockRequest request;
  std::uint64_t amount;
  bool await_ready() const noexcept { return request == BlockRequest::kBusy && amount == 0; }
  void await_suspend(std::coroutine_handle<>) const noexcept { block.request(request, amount); }
  void await_resume() const noexcept {}
};

namespace detail {

template <class... Parameters>
struct Layout {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel parameters are copied bit by bit");
  static constexpr std::size_t kCount = sizeof...(Parameters);
  static constexpr std::array<ParameterInfo, kCount> table() {
    std::array<ParameterInfo, kCount> result{};
    [[maybe_unused]] std::uint32_t end = 0;
    [[maybe_unused]] std::size_t i = 0;
    ((result[i] =
          // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is a value here
      ParameterInfo{align(end, alignof(Parameters)), sizeof(Parameters), alignof(Parameters)},
      end = result[i].offset + result[i].size, ++i),
     ...);
    return result;
  }
  static constexpr std::uint32_t align(std::uint32_t end, std::size_t alignment) {
    return static_cast<std::uint32_t>((end + alignment - 1) / alignment * alignment);
  }
  static constexpr std::array<ParameterInfo, kCount> kTable = table();
  static constexpr std::uint32_t kBytes =
      kCount == 0
          ? 0
          : kTable[kCount == 0 ? 0 : kCount - 1].offset + kTable[kCount == 0 ? 0 : kCount - 1].size;
};

template <class T>
T read_parameter(const void* parameters, std::uint32_t offset) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is a value here
  alignas(T) unsigned char storage[sizeof(T)];
  std::memcpy(storage, static_cast<const unsigned char*>(parameters) + offset, sizeof storage);
  return *std::launder(reinterpret_cast<T*>(storage));
}

template <auto Function>
struct Adapter;

template <class Answer, class... Parameters, Answer (*Function)(BlockContext&, Parameters...)>
struct Adapter<Function> {
  using ParameterLayout = Layout<Parameters...>;
  static constexpr bool kWaiting = std::is_same_v<Answer, Resumable>;

  static void* start(BlockContext& block, const void* parameters) {
    return call(block, parameters, std::index_sequence_for<Parameters...>{});
  }
  template <std::size_t... I>
  static void* call(BlockContext& block, [[maybe_unused]] const void* parameters,
                    std::index_sequence<I...>) {
    if constexpr (kWaiting) {
      return Function(block,
                      read_parameter<Parameters>(parameters, ParameterLayout::kTable[I].offset)...)
          .address();
    } else {
      Function(block, read_parameter<Parameters>(parameters, ParameterLayout::kTable[I].offset)...);
      return nullptr;
    }
  }
  static constexpr KernelDescriptor describe(const char* name, kernel::Traits traits) {
    return KernelDescriptor{name,
                            &start,
                            ParameterLayout::kTable.data(),
                            static_cast<std::uint32_t>(ParameterLayout::kCount),
                            ParameterLayout::kBytes,
                            kWaiting,
                            traits};
  }
};

// The kernels of this module. Hidden, so that every shared object has a list of its own.
inline constexpr std::uint32_t kModuleKernelsMax = 1024;
struct ModuleList {
  const KernelDescriptor* kernels[kModuleKernelsMax];
  ModuleTable table;
};
[[gnu::visibility("hidden")]] inline ModuleList module_list;

struct Registration {
  explicit Registration(const KernelDescriptor* kernel) {
    ModuleTable& table = module_list.table;
    if (table.kernel_count == kModuleKernelsMax) std::terminate();
    module_list.kernels[table.kernel_count++] = kernel;
    table.kernels = module_list.kernels;
    table.version = kModuleVersion;
  }
};

}  // namespace detail

extern "C" [[gnu::used, gnu::visibility("default")]] inline const ModuleTable*
vitamin_soft_module() {
  return &detail::module_list.table;
}

}  // namespace vitamin::soft

namespace vitamin::kernel {

using Block = soft::BlockContext;

template <class T>
class PerThread {
 public:
  explicit PerThread(const soft::BlockContext& block) : values_(new T[block.threads()]()) {}
  T& operator[](std::uint32_t t) { return values_[t]; }

 private:
  std::unique_ptr<T[]> values_;
};

template <class T>
T atomic_add(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomic_max(T* address, T value) {
  std::atomic_ref<T> cell(*address);
  T old = cell.load(std::memory_order_relaxed);
  while (old < value && !cell.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}
template <class T>
T atomic_cas(T* address, T expected, T desired) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, desired,
                                                       std::memory_order_relaxed);
  return expected;
}
template <class T>
T atomic_exchange(T* address, T value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <class T>
T load_acquire(const T* address) {
  return std::atomic_ref<T>(*const_cast<T*>(address)).load(std::memory_order_acquire);
}
template <class T>
void store_release(T* address, T value) {
  std::atomic_ref<T>(*address).store(value, std::memory_order_release);
}

}  // namespace vitamin::kernel

#define VITAMIN_DETAIL_UNWRAP(...) __VA_ARGS__
#define VITAMIN_DETAIL_SOFT_KERNEL(answer, traits, name, ...)                             \
  static answer name(::vitamin::soft::BlockContext& block __VA_OPT__(, ) __VA_ARGS__);    \
  static const ::vitamin::soft::KernelDescriptor vitamin_kernel_##name =                  \
      ::vitamin::soft::detail::Adapter<&name>::describe(                                  \
          #name, ::vitamin::kernel::Traits{VITAMIN_DETAIL_UNWRAP traits});                \
  static const ::vitamin::soft::detail::Registration vitamin_registration_##name{         \
      &vitamin_kernel_##name};                                                            \
  static answer name([[maybe_unused]] ::vitamin::soft::BlockContext& block __VA_OPT__(, ) \
                         __VA_ARGS__)

#define VITAMIN_KERNEL(name, ...) \
  VITAMIN_DETAIL_SOFT_KERNEL(void, (), name __VA_OPT__(, ) __VA_ARGS__)
#define VITAMIN_KERNEL_WITH(traits, name, ...) \
  VITAMIN_DETAIL_SOFT_KERNEL(void, traits, name __VA_OPT__(, ) __VA_ARGS__)
#define VITAMIN_WAITING_KERNEL(name, ...) \
  VITAMIN_DETAIL_SOFT_KERNEL(::vitamin::soft::Resumable, (), name __VA_OPT__(, ) __VA_ARGS__)
#define VITAMIN_WAITING_KERNEL_WITH(traits, name, ...) \
  VITAMIN_DETAIL_SOFT_KERNEL(::vitamin::soft::Resumable, traits, name __VA_OPT__(, ) __VA_ARGS__)

// The descriptor of a kernel of this translation unit.
#define VITAMIN_SOFT_KERNEL(name) (&vitamin_kernel_##name)

// NOLINTBEGIN(bugprone-macro-parentheses): names, types, declarators and a coroutine's operand
#define VITAMIN_THREADS(t) for (std::uint32_t t = 0, t##_end = block.threads(); t < t##_end; ++t)
#define VITAMIN_ONCE for (bool vitamin_turn = true; vitamin_turn; vitamin_turn = false)

#define VITAMIN_SHARED(type, name, extent)   \
  using vitamin_shared_##name = type extent; \
  auto& name = block.template shared<vitamin_shared_##name>()
#define VITAMIN_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(block.dynamic_shared())

#define VITAMIN_BUSY_NS(ns) \
  co_await ::vitamin::soft::Suspension { block, ::vitamin::soft::BlockRequest::kBusy, (ns) }
// The count lets the engine tell a block that got further from one that still waits.
#define VITAMIN_SPIN_UNTIL(condition)                                  \
  for (std::uint64_t vitamin_looks = 0; !(condition); ++vitamin_looks) \
    co_await ::vitamin::soft::Suspension {                             \
      block, ::vitamin::soft::BlockRequest::kSpin, vitamin_looks       \
    }
// NOLINTEND(bugprone-macro-parentheses)

#endif  // VITAMIN_KERNEL_ON_GPU

// The kernel's own errors. Nothing behind them in this block can be relied on.
#if defined(VITAMIN_KERNEL_ON_GPU)
#define VITAMIN_ILLEGAL_ADDRESS() ::vitamin::kernel::illegal_address()
#define VITAMIN_TRAP() ::vitamin::kernel::trap()
#else
#define VITAMIN_ILLEGAL_ADDRESS() block.fault(::vitamin::soft::BlockFault::kIllegalAddress)
#define VITAMIN_TRAP() block.fault(::vitamin::soft::BlockFault::kTrap)
#endif
