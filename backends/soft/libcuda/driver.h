// SPDX-License-Identifier: Apache-2.0
//
// The driver's own objects: what a handle of the application points to.
//
// Threads. One mutex, Driver::mutex, guards every object here; an entry point holds it from its
// first look at a handle to its last enqueueing call. It is never held while the host waits, while
// virtual time advances, or while a callback of the application runs. The engine's mutex is inside.
// Ownership. A handle is the address of its object. `Driver::objects` says which addresses are
// alive and of what kind, so a wrong handle is answered with an error and never dereferenced.
// Contexts are never freed: a handle of a destroyed one must still be recognised. Many later a
// green one is used again.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backends/soft/engine.h"
#include "backends/soft/libcuda/cuda_api.h"
#include "backends/soft/libcuda/mps_client.h"
#include "backends/soft/libcuda/settings.h"

namespace vitamin::soft::driver {

// A call that puts one more launch, copy, fill, value or graph on a stream which has this many
// outstanding waits, and so does one with more bytes of parameters than this together. Records,
// waits and host functions take no place (bench/results/green/queue_depths.txt).
inline constexpr std::size_t kStreamPlaces = 1020;
inline constexpr std::size_t kStreamParameterBytes = 734 * 4000;

enum class Kind : std::uint8_t {
  kContext,
  kGreenContext,
  kResourceDescriptor,
  kStream,
  kEvent,
  kModule,
  kLibrary,
  kFunction,
  kKernel,
  kPool,
  kGraph,
  kGraphNode,
  kGraphExec,
  kPhysicalMemory,
  kArray,
  kMipmappedArray,
};

struct Context;
struct GreenContext;
struct Stream;
struct Capture;

// The engine's handles with an owner.
struct QueueDeleter {
  Engine* engine;
  void operator()(Queue* queue) const { engine->destroy_queue(queue); }
};
using QueueRef = std::shared_ptr<Queue>;

struct GraphMemoryUse {
  std::size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

struct Device {
  int ordinal = 0;  // in this process
  int number = 0;   // in the machine
  std::unique_ptr<Engine> engine;
  Context* primary = nullptr;
  unsigned primary_flags = 0;
  std::uint32_t primary_retained = 0;
  CUuuid uuid{};
  std::string pci_bus_id;
  struct Pool* default_pool = nullptr;
  struct Pool* current_pool = nullptr;
  std::shared_ptr<class SharedHeap> heap;  // ipc.h
  GraphMemoryUse graph_memory;
  std::map<const void*, std::shared_ptr<struct GraphSlab>> graph_slabs;  // by stream or executable
};

// One SM resource: where its SMs are, and which split it came from.
struct SmResource {
  SmSet sms;
  std::vector<SmSet> cluster_groups;
  std::uint32_t max_cluster = 1;
  std::uint32_t split = 0;  // 0: the whole device

  // Whichever split it came from.
  bool same_as(const SmResource& other) const {
    return sms == other.sms && cluster_groups == other.cluster_groups &&
           max_cluster == other.max_cluster;
  }
};

// What cuCtxSetLimit and its neighbours changed. Measured: the limits of a primary context and of
// its green contexts are the same ones, those of the root.
struct ContextSettings {
  std::array<std::size_t, CU_LIMIT_MAX> limits{};
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
};

enum class ContextKind : std::uint8_t { kRegular, kPrimary, kGreen };

struct Context {
  Device* device = nullptr;
  ContextKind kind = ContextKind::kRegular;
  GreenContext* green = nullptr;  // kGreen
  Context* root = nullptr;        // whose address space it shares: the primary for a green one
  bool alive = false;
  unsigned flags = 0;
  unsigned api_version = 0;
  std::uint64_t id = 0;
  std::uint32_t sync_group = 0;  // the engine's group for this context's default-stream rules
  ContextSettings settings;
  SmResource resource;
  std::shared_ptr<const ClusterRule> clusters;
  std::unique_ptr<Stream> legacy;
  std::uint32_t waiting_for_room = 0;  // of a root: threads that wait on any of its streams
  std::map<std::uint64_t, std::unique_ptr<Stream>> per_thread;  // by thread serial
  std::set<Stream*> streams;
  std::set<Context*> children;  // of a root: its green contexts
  std::set<Context*> peers;
  // Captures begun on blocking streams of this context, for the implicit-dependency rule.
  std::set<Capture*> captures;
};

struct GreenContext {
  Context* context = nullptr;
};

struct ResourceDescriptor {
  SmResource resource;
};

enum class StreamClass : std::uint8_t { kLegacy, kPerThread, kBlocking, kNonBlocking };

struct Stream {
  Context* context = nullptr;
  StreamClass kind = StreamClass::kBlocking;
  std::uint64_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  QueueRef queue;
  std::map<CUstreamAttrID, CUstreamAttrValue> attributes;
  // The newest operation that is more than an event record.
  std::uint64_t work_ticket = 0;
  // Oldest first, some of them done.
  struct Place {
    std::uint64_t ticket;
    std::size_t parameter_bytes;
  };
  std::deque<Place> places;
  std::size_t parameter_bytes = 0;  // of all places
  // Threads that wait in a call for a place.
  std::uint32_t waiting_for_room = 0;
  // Capture state (capture.cpp): null when the stream is not part of one.
  std::shared_ptr<Capture> capture;
  std::vector<struct GraphNode*> capture_tail;

  bool blocking() const { return kind != StreamClass::kNonBlocking; }
  Engine& engine() const { return *context->device->engine; }
};

// Shared between processes by an IPC handle; one file in shared memory, mapped until the process
// ends because operations on it may be outstanding.
struct SharedEventPage {
  std::uint64_t recorded;   // number of records made
  std::uint64_t completed;  // number of the newest record that has fired
};

struct EventDeleter {
  Engine* engine;
  void operator()(vitamin::soft::Event* event) const { engine->destroy_event(event); }
};

struct EventObject {
  Context* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<vitamin::soft::Event> native;
  bool recorded = false;
  // Interprocess events live in shared memory instead.
  SharedEventPage* shared = nullptr;
  std::string shared_name;
  bool owns_name = false;
  // Last recorded inside this capture, behind these nodes.
  std::weak_ptr<Capture> capture;
  std::vector<struct GraphNode*> captured_tail;
  bool captured = false;
};

// One loaded shared object with kernels.
struct ModuleImage;
struct Module;
struct Library;

struct FunctionSettings {
  std::map<CUfunction_attribute, int> values;  // what cuFuncSetAttribute changed
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
};

// A CUfunction or a CUkernel. They differ in what owns them and which queries accept them.
struct Function {
  const KernelDescriptor* descriptor = nullptr;
  std::shared_ptr<ModuleImage> image;
  Module* module = nullptr;    // CUfunction
  Library* library = nullptr;  // CUkernel
  FunctionSettings settings;
};

struct Module {
  Context* context = nullptr;
  std::shared_ptr<ModuleImage> image;
  std::map<const KernelDescriptor*, std::unique_ptr<Function>> functions;
};

struct Library {
  std::shared_ptr<ModuleImage> image;
  std::map<const KernelDescriptor*, std::unique_ptr<Function>> kernels;
  std::map<Context*, std::unique_ptr<Module>> modules;  // one for each context that asked
};

enum class MemoryKind : std::uint8_t {
  kDevice,
  kPool,
  kManaged,
  kHost,
  kRegistered,
  kVirtual,
  kGlobal,  // a variable of a loaded module
  kArray,
  kGraph,   // of a graph's allocation node
  kOpened,  // another process's, by an IPC handle
};

// Physical memory of a device, as long as a handle or a mapping of it is left.
struct Backing {
  Backing(Device* owner, std::size_t size, const CUmemAllocationProp& asked)
      : device(owner), bytes(size), properties(asked) {}
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  Device* device;
  std::size_t bytes;
  CUmemAllocationProp properties;
  int fd = -1;
  void* handle = nullptr;  // the PhysicalMemory of it, while there is one
};

// Memory that a process may share: where it lies in a file that this process has open.
struct SharedPlace {
  std::int64_t process = 0;
  std::uint64_t started = 0;  // when the process did, tells one of a reused number
  std::int32_t file = -1;
  std::int32_t device = 0;  // its number in the machine
  std::uint64_t offset = 0;
  bool operator==(const SharedPlace&) const = default;
};
struct SharedMemory {
  SharedPlace place;         // of one's own: whole once it is exported
  bool exported = false;     // one's own: a handle was asked for
  std::uint32_t opened = 0;  // another process's: so often
};

struct MemoryAllocation {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  Context* context = nullptr;
  unsigned flags = 0;
  std::uint64_t id = 0;
  struct Pool* pool = nullptr;
  std::shared_ptr<Backing> backing = nullptr;      // of a mapping
  std::shared_ptr<SharedMemory> shared = nullptr;  // null: other processes cannot have it
};

// A block that a pool got from the device. It is in use, free, or on its way from the one to the
// other: freed by a call whose place in `stream` has not been reached yet.
struct PoolBlock {
  std::size_t bytes = 0;
  enum class State : std::uint8_t { kUsed, kFreeing, kFree } state = State::kUsed;
  Stream* freeing_on = nullptr;
  std::shared_ptr<vitamin::soft::Event> freed;  // behind its newest free, of a pool with a limit
  std::uint64_t frees_in_flight = 0;
};

struct Pool {
  Device* device = nullptr;
  CUmemPoolProps properties{};
  std::map<std::uintptr_t, PoolBlock> blocks;
  std::map<CUmemPool_attribute, std::uint64_t> attributes;
  std::size_t capacity = 0;  // what was taken from the device, in large pieces
  std::size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

// An array's elements lie in rows without gaps; only the copy functions can tell.
struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  unsigned char* data = nullptr;
  std::size_t row_bytes = 0, rows = 1, layers = 1;
};

struct PhysicalMemory {
  std::shared_ptr<Backing> backing;
  std::uint32_t references = 1;
};

struct MipmappedArray {
  std::vector<CUarray> levels;
};

class Driver {
 public:
  std::mutex mutex;
  std::condition_variable room;  // a thread no longer waits for room in a stream
  std::atomic<bool> initialised{false};
  // After fork the child has none of the engine's threads: every call is refused.
  std::atomic<bool> forked{false};
  Settings settings;
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<MpsClient> mps;  // null: this process is not a client of MPS
  std::unordered_map<const void*, Kind> objects;
  // Of them, by kind, those that all() lists.
  std::unordered_map<Kind, std::unordered_set<const void*>> listed = {
      {Kind::kModule, {}}, {Kind::kLibrary, {}}, {Kind::kPool, {}}};
  std::deque<std::unique_ptr<Context>> contexts;
  std::deque<Context*> buried;  // green ones, in the order in which they were destroyed
  std::vector<struct ResourceDescriptor*> descriptors;
  std::map<std::uintptr_t, MemoryAllocation> allocations;  // by base
  std::uint64_t next_id = 1;
  std::uint32_t next_sync_group = 1;
  std::uint32_t next_split = 1;
  // Code of unloaded libraries that may still run.
  std::vector<std::shared_ptr<ModuleImage>> retired_images;

  // The object behind a handle, or null when the handle is none of that kind.
  template <class T>
  T* find(const void* handle, Kind kind) const {
    const auto found = objects.find(handle);
    return found != objects.end() && found->second == kind
               ? static_cast<T*>(const_cast<void*>(handle))
               : nullptr;
  }
  // From here on the handle is one. An address that is still known is an object that was freed
  // without being forgotten: a handle of one kind would be taken for another.
  void remember(const void* handle, Kind kind) {
    if (!objects.emplace(handle, kind).second) std::abort();
    if (const auto list = listed.find(kind); list != listed.end()) list->second.insert(handle);
  }
  void forget(const void* handle) {
    const auto found = objects.find(handle);
    if (found == objects.end()) return;
    if (const auto list = listed.find(found->second); list != listed.end())
      list->second.erase(handle);
    objects.erase(found);
  }
  // All modules, libraries or pools, in any order.
  template <class T>
  std::vector<T*> all(Kind kind) const {
    const auto& handles = listed.at(kind);
    std::vector<T*> found;
    found.reserve(handles.size());
    for (const void* handle : handles) found.push_back(static_cast<T*>(const_cast<void*>(handle)));
    return found;
  }
  template <class T>
  T* own(std::unique_ptr<T> object, Kind kind) {
    remember(object.get(), kind);
    return object.release();
  }
  // Forgets the handle and frees the object.
  template <class T>
  void release(T* object) {
    forget(object);
    delete object;
  }
  Device* device(CUdevice ordinal) const {
    return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size()
               ? devices[static_cast<std::size_t>(ordinal)].get()
               : nullptr;
  }
};

// The one driver of the process. Never destroyed: the application may call during its own exit.
Driver& driver();

// What a thread carries: its context stack, its capture mode, its own default streams.
struct ThreadState {
  ThreadState();
  ~ThreadState();
  std::uint64_t serial;
  std::vector<Context*> contexts;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_callback = false;  // inside a host function, where CUDA calls are refused
};
ThreadState& thread_state();

// CUDA's word for an engine's answer.
CUresult result_of(int status);

// The context that is current on this thread. Answers INVALID_CONTEXT, CONTEXT_IS_DESTROYED or the
// sticky error of its device.
CUresult current_context(Context** context);
// The same for a context handle; null means the current one.
CUresult resolve_context(CUcontext handle, Context** context);
// What every later call on a device answers after a kernel faulted.
CUresult sticky_error(const Context& context);

// The stream that a handle names on this thread in this call: NULL, CU_STREAM_LEGACY and
// CU_STREAM_PER_THREAD belong to the current context.
CUresult resolve_stream(CUstream handle, Stream** stream);
CUresult create_stream(Context& context, StreamClass kind, unsigned flags, int priority,
                       std::unique_ptr<Stream>* stream);
// The context's default streams, made on first use.
CUresult legacy_stream(Context& context, Stream** stream);

CUresult resolve_event(CUevent handle, EventObject** event);

// Whether a stream's own work is done. Measured: a record that is held by the legacy stream alone
// is not work that cuStreamQuery or cuStreamSynchronize of its blocking stream waits for.
int stream_status(const Stream& stream);

// Waiting. Called without the mutex.
CUresult wait_for_ticket(Device& device, const QueueRef& queue, std::uint64_t ticket);
CUresult wait_for_groups(Device& device, const std::vector<std::uint32_t>& groups);
// Every stream of the contexts that share `root`'s address space, green contexts included.
std::vector<std::uint32_t> family_groups(const Context& root);

// Contexts.
Context& make_context(Device& device, ContextKind kind, unsigned flags);
// It is destroyed: what it holds is given back, but for its streams.
void bury_green_context(Context& context);
CUresult retain_primary(Device& device);

// The allocation that holds an address, or null.
MemoryAllocation* find_allocation(std::uintptr_t address);

}  // namespace vitamin::soft::driver
