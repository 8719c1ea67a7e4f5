// SPDX-License-Identifier: Apache-2.0
//
// Launches: argument forms, errors and when they are told, attributes, handles, faults.
#include <cstring>

#include "session.h"

namespace vitamin::differential {
namespace {

// The parameters of the kernel `pack`, as the compiler lays them out.
struct Triple {
  std::uint64_t a, b, c;
};
struct alignas(16) PackParameters {
  CUdeviceptr out;
  char small;
  double wide;
  Triple triple;
  short last;
};

CUresult launch_with_extra(CUfunction function, CUstream stream, void* buffer, std::size_t* size) {
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, size,
                   CU_LAUNCH_PARAM_END};
  return api.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra);
}

std::string words(CUdeviceptr address, unsigned count) {
  std::uint32_t copy[16] = {};
  VITAMIN_MUST(cuMemcpyDtoH(copy, address, count * 4));
  std::string text;
  for (unsigned i = 0; i < count; ++i) text += std::to_string(copy[i]) + (i + 1 < count ? " " : "");
  return text;
}

CUresult launch_shape(CUfunction function, CUdeviceptr word, CUstream stream, unsigned grid,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared) {
  std::uint32_t value = 1;
  void* parameters[] = {&word, &value};
  return api.cuLaunchKernel(function, grid, 1, 1, block_x, block_y, block_z, shared, stream,
                            parameters, nullptr);
}

CUresult launch_with(CUfunction function, CUstream stream, CUdeviceptr word,
                     std::initializer_list<CUlaunchAttribute> attributes, unsigned grid = 1,
                     unsigned block = 1) {
  std::vector<CUlaunchAttribute> copy(attributes);
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = block;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = copy.data();
  config.numAttrs = static_cast<unsigned>(copy.size());
  std::uint32_t value = 1;
  void* parameters[] = {&word, &value};
  const CUresult result = api.cuLaunchKernelEx(&config, function, parameters, nullptr);
  std::memset(copy.data(), 0xff, copy.size() * sizeof(CUlaunchAttribute));
  return result;
}

}  // namespace

VITAMIN_RULE(launch_parameters_both_forms,
             "Do kernelParams and extra give the same bytes, and are they read during the call?") {
  Session session;
  CUdeviceptr out = session.memory(256);
  CUfunction pack = session.function("pack");
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const auto fill = [&](PackParameters& p, unsigned offset) {
    std::memset(&p, 0, sizeof p);
    p = {out + offset, 1, 2.5, {3, 4, 5}, 6};
  };
  {
    PackParameters p;
    fill(p, 0);
    void* parameters[] = {&p.out, &p.small, &p.wide, &p.triple, &p.last};
    Gate gate(session, stream);
    Say{"kernelParams {}",
        code(api.cuLaunchKernel(pack, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr))};
    std::memset(&p, 0xff, sizeof p);
    std::memset(parameters, 0xff, sizeof parameters);
    gate.open();
    drain();
    Say{"{}", words(out, 6)};
  }
  {
    PackParameters p;
    fill(p, 64);
    std::size_t size = offsetof(PackParameters, last) + sizeof p.last;
    Gate gate(session, stream);
    Say{"extra {}", code(launch_with_extra(pack, stream, &p, &size))};
    std::memset(&p, 0xff, sizeof p);
    size = 0;
    gate.open();
    drain();
    Say{"{}", words(out + 64, 6)};
  }
  PackParameters p;
  fill(p, 128);
  std::size_t size = sizeof p;
  Say{"extra with padding at the end {}", code(launch_with_extra(pack, stream, &p, &size))};
  drain();
  Say{"{}", words(out + 128, 6)};
  size = 16;
  Say{"extra too short {}", code(launch_with_extra(pack, stream, &p, &size))};
  void* parameters[] = {&p.out, &p.small, &p.wide, &p.triple, &p.last};
  void* extra[] = {CU_LAUNCH_PARAM_END};
  void* full[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                  CU_LAUNCH_PARAM_END};
  size = sizeof p;
  Say{"both, extra empty {}",
      code(api.cuLaunchKernel(pack, 1, 1, 1, 1, 1, 1, 0, stream, parameters, extra))};
  Say{"both {}", code(api.cuLaunchKernel(pack, 1, 1, 1, 1, 1, 1, 0, stream, parameters, full))};
  Say{"neither {}", code(api.cuLaunchKernel(pack, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr))};
  drain();
}

VITAMIN_RULE(parameter_layout, "What do the parameter queries say, and of which handles?") {
  Session session;
  CUfunction function = session.function("pack");
  CUkernel kernel = session.kernel("pack");
  for (std::size_t i = 0; i < 7; ++i) {
    std::size_t offset = 0;
    std::size_t size = 0;
    const CUresult of_function = api.cuFuncGetParamInfo(function, i, &offset, &size);
    Say{"function {}: {}, offset {}, size {}", i, code(of_function), offset, size};
    offset = size = 0;
    const CUresult of_kernel = api.cuKernelGetParamInfo(kernel, i, &offset, &size);
    Say{"kernel {}: {}, offset {}, size {}", i, code(of_kernel), offset, size};
  }
  std::size_t offset = 0;
  Say{"function asked as a kernel {}",
      code(api.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), 0, &offset, nullptr))};
  Say{"kernel asked as a function {}",
      code(api.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), 0, &offset, nullptr))};
  const char* name = nullptr;
  Say{"cuFuncGetName of a function {}", code(api.cuFuncGetName(&name, function))};
  Say{"  {}", name != nullptr ? name : "none"};
  name = nullptr;
  Say{"cuKernelGetName of a kernel {}", code(api.cuKernelGetName(&name, kernel))};
  Say{"  {}", name != nullptr ? name : "none"};
  Say{"cuFuncGetName of a kernel {}",
      code(api.cuFuncGetName(&name, reinterpret_cast<CUfunction>(kernel)))};
  Say{"cuKernelGetName of a function {}",
      code(api.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function)))};
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  Say{"cuFuncGetModule of a function {}, the module it came from: {}",
      code(api.cuFuncGetModule(&module, function)), module == session.module() ? "yes" : "no"};
  Say{"cuFuncGetModule of a kernel {}",
      code(api.cuFuncGetModule(&module, reinterpret_cast<CUfunction>(kernel)))};
  Say{"cuKernelGetLibrary of a kernel {}", code(api.cuKernelGetLibrary(&library, kernel))};
  Say{"cuKernelGetLibrary of a function {}",
      code(api.cuKernelGetLibrary(&library, reinterpret_cast<CUkernel>(function)))};
  int threads = 0;
  Say{"cuFuncGetAttribute of a kernel handle {}",
      code(api.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                  reinterpret_cast<CUfunction>(kernel)))};
}

VITAMIN_RULE(launch_errors_are_told_by_the_call,
             "Which code does each impossible launch answer, and does the next launch work?") {
  Session session;
  CUdeviceptr word = session.memory(64);
  CUfunction store = session.function("store");
  CUstream primary = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  for (CUstream stream : {primary, green}) {
    const char* where = stream == green ? "green" : "primary";
    const auto shape = [&](const char* what, unsigned grid, unsigned x, unsigned y, unsigned z,
                           unsigned shared) {
      Say{"{}, {}: {}", where, what,
          code(launch_shape(store, word, stream, grid, x, y, z, shared))};
    };
    shape("block of 1025", 1, 1025, 1, 1, 0);
    shape("block of 32 x 64", 1, 32, 64, 1, 0);
    shape("block of 1 x 1 x 65", 1, 1, 1, 65, 0);
    shape("block of 0", 1, 0, 1, 1, 0);
    shape("grid of 0", 0, 1, 1, 1, 0);
    shape("49,153 bytes of shared memory", 1, 1, 1, 1, 49153);
    shape("49,152 bytes of shared memory", 1, 1, 1, 1, 49152);
    shape("1 GiB of shared memory", 1, 1, 1, 1, 1u << 30);
    Say{"{}, no function: {}", where, code(launch_shape(nullptr, word, stream, 1, 1, 1, 1, 0))};
    shape("possible", 1, 1, 1, 1, 0);
    Say{"{}, synchronize: {}", where, code(api.cuStreamSynchronize(stream))};
  }
  Say{"shared memory limit raised {}",
      code(api.cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  100 << 10))};
  for (CUstream stream : {primary, green}) {
    Say{"100 KiB of shared memory: {}",
        code(launch_shape(store, word, stream, 1, 1, 1, 1, 100 << 10))};
    Say{"101 KiB of shared memory: {}",
        code(launch_shape(store, word, stream, 1, 1, 1, 1, 101 << 10))};
  }
  Say{"limit of 228 KiB {}",
      code(api.cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  228 << 10))};
  Say{"limit of 227 KiB {}",
      code(api.cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  227 << 10))};
  drain();
}

namespace {

struct Refusal {
  const char* name;
  CUresult (*make)(CUfunction function, CUdeviceptr word, CUstream stream, CUevent timed);
};

CUresult geometry(CUfunction function, CUdeviceptr word, CUstream stream, unsigned x, unsigned y,
                  unsigned z, unsigned block) {
  std::uint32_t value = 1;
  void* parameters[] = {&word, &value};
  return api.cuLaunchKernel(function, x, y, z, block, 1, 1, 0, stream, parameters, nullptr);
}

CUresult cooperative(CUfunction function, CUdeviceptr word, CUstream stream, unsigned grid,
                     unsigned block, unsigned shared) {
  std::uint32_t value = 1;
  void* parameters[] = {&word, &value};
  return api.cuLaunchCooperativeKernel(function, grid, 1, 1, block, 1, 1, shared, stream,
                                       parameters);
}

CUlaunchAttribute cooperative_attribute() {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  return attribute;
}

CUlaunchAttribute cluster_attribute(unsigned x, unsigned y, unsigned z) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = x;
  attribute.value.clusterDim.y = y;
  attribute.value.clusterDim.z = z;
  return attribute;
}

constexpr Refusal kRefusals[] = {
    {"block of 1025",
     [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1, 1, 1, 1025); }},
    {"block of 0", [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1, 1, 1, 0); }},
    {"grid of 0", [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 0, 1, 1, 1); }},
    {"grid of 2^31",
     [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1u << 31, 1, 1, 1); }},
    {"grid of 1 x 65,536",
     [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1, 65536, 1, 1); }},
    {"grid of 1 x 1 x 65,536",
     [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1, 1, 65536, 1); }},
    {"49,153 bytes of shared memory",
     [](auto f, auto w, auto s, auto) { return launch_shape(f, w, s, 1, 1, 1, 1, 49153); }},
    {"no function",
     [](auto, auto w, auto s, auto) { return geometry(nullptr, w, s, 1, 1, 1, 1); }},
    {"no parameters",
     [](auto f, auto, auto s, auto) {
       return api.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr);
     }},
    {"cooperative grid of 100,000",
     [](auto f, auto w, auto s, auto) { return cooperative(f, w, s, 100000, 256, 0); }},
    {"cooperative block of 1025",
     [](auto f, auto w, auto s, auto) { return cooperative(f, w, s, 1, 1025, 0); }},
    {"cooperative grid of 0",
     [](auto f, auto w, auto s, auto) { return cooperative(f, w, s, 0, 32, 0); }},
    {"cooperative, 49,153 bytes of shared memory",
     [](auto f, auto w, auto s, auto) { return cooperative(f, w, s, 1, 32, 49153); }},
    {"cooperative grid of 100,000 by attribute",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cooperative_attribute()}, 100000, 256);
     }},
    {"clusters of 64",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(64, 1, 1)}, 128, 32);
     }},
    {"clusters of 16, not allowed",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(16, 1, 1)}, 128, 32);
     }},
    {"clusters of 3, which do not divide the grid",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(3, 1, 1)}, 128, 32);
     }},
    {"clusters of 1 x 2, which do not divide the grid",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(1, 2, 1)}, 128, 32);
     }},
    {"clusters of 0",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(0, 1, 1)}, 128, 32);
     }},
    {"clusters of 8 and a block of 1025",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(8, 1, 1)}, 128, 1025);
     }},
    {"cooperative clusters of 8, too large a grid",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(8, 1, 1), cooperative_attribute()}, 80000,
                          256);
     }},
    {"cooperative clusters of 3, which do not divide the grid",
     [](auto f, auto w, auto s, auto) {
       return launch_with(f, s, w, {cluster_attribute(3, 1, 1), cooperative_attribute()}, 16, 32);
     }},
    {"priority of 100",
     [](auto f, auto w, auto s, auto) {
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
       attribute.value.priority = 100;
       return launch_with(f, s, w, {attribute});
     }},
    {"programmatic event with timing",
     [](auto f, auto w, auto s, auto timed) {
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
       attribute.value.programmaticEvent.event = timed;
       return launch_with(f, s, w, {attribute});
     }},
    {"a node that can be updated",
     [](auto f, auto w, auto s, auto) {
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
       attribute.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
       return launch_with(f, s, w, {attribute});
     }},
    {"memory domain of 9",
     [](auto f, auto w, auto s, auto) {
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP;
       attribute.value.memSyncDomainMap.default_ = 9;
       attribute.value.memSyncDomainMap.remote = 9;
       return launch_with(f, s, w, {attribute});
     }},
    {"an attribute of streams only",
     [](auto f, auto w, auto s, auto) {
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
       return launch_with(f, s, w, {attribute});
     }},
    {"possible", [](auto f, auto w, auto s, auto) { return geometry(f, w, s, 1, 1, 1, 1); }}};

}  // namespace

VITAMIN_RULE(launch_errors_behind_a_gate,
             "Is an impossible launch refused at once, with the same code, behind a held stream?") {
  Session session;
  const CUdeviceptr word = session.memory(64);
  CUfunction store = session.function("store");
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent timed = session.event(CU_EVENT_DEFAULT);
  for (const Refusal& refusal : kRefusals) {
    const std::string open = code(refusal.make(store, word, stream, timed));
    Gate gate(session, stream);
    const std::string held =
        waits_for(gate, [&] { return refusal.make(store, word, stream, timed); });
    gate.open();
    Say{"{}: {}; behind a gate {}; synchronize {}", refusal.name, open, held,
        code(api.cuStreamSynchronize(stream))};
  }
}

VITAMIN_RULE(shared_memory_limit_of_a_pending_launch,
             "Does lowering the shared memory limit touch a launch that is already queued?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUfunction append = log.function();
  VITAMIN_MUST(
      cuFuncSetAttribute(append, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  const CUdeviceptr memory = log.words();
  const std::uint32_t value = 1;
  Gate gate(session, stream);
  Say{"launch {}", code(launch(append, stream, {&memory, &value}, 1, 1, 100 << 10))};
  Say{"lower {}", waits_for(gate, [&] {
        return api.cuFuncSetAttribute(append, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      1 << 10);
      })};
  Say{"launch of 2 KiB now {}", code(launch(append, stream, {&memory, &value}, 1, 1, 2 << 10))};
  gate.open();
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(cooperative_grids, "How large a cooperative grid does each stream take?") {
  Session session;
  CUfunction store = session.function("store");
  const CUdeviceptr word = session.memory(64);
  constexpr unsigned kBlock = 1024;
  struct On {
    const char* name;
    CUstream stream;
  };
  const On streams[] = {
      {"primary", session.stream(CU_STREAM_NON_BLOCKING)},
      {"one group", session.green_stream(session.green({0}))},
      {"two groups", session.green_stream(session.green({0, 1}))},
      {"the last group", session.green_stream(session.green({session.group_count() - 1}))}};
  int blocks = 0;
  VITAMIN_MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, store, kBlock, 0));
  Say{"blocks on one processor {}", blocks};
  const auto fits = [&](CUstream stream, unsigned grid) {
    std::uint32_t value = 1;
    CUdeviceptr address = word;
    void* parameters[] = {&address, &value};
    return api.cuLaunchCooperativeKernel(store, grid, 1, 1, kBlock, 1, 1, 0, stream, parameters);
  };
  for (const On& on : streams) {
    unsigned low = 1;
    unsigned high = 4096;  // does not fit on any device of today
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      (fits(on.stream, middle) == CUDA_SUCCESS ? low : high) = middle;
    }
    Say{"{}: {} blocks fit; one more: {}", on.name, low, code(fits(on.stream, high))};
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    Say{"{}: by attribute: {}, one more: {}", on.name,
        code(launch_with(store, on.stream, word, {attribute}, low, kBlock)),
        code(launch_with(store, on.stream, word, {attribute}, high, kBlock))};
    Say{"{}: synchronize {}", on.name, code(api.cuStreamSynchronize(on.stream))};
  }
}

VITAMIN_RULE(clusters, "Which cluster sizes does each stream take, and what does occupancy say?") {
  Session session;
  CUfunction store = session.function("store");
  const CUdeviceptr word = session.memory(64);
  struct On {
    const char* name;
    CUstream stream;
  };
  const On streams[] = {
      {"primary", session.stream(CU_STREAM_NON_BLOCKING)},
      {"one group", session.green_stream(session.green({0}))},
      {"two groups", session.green_stream(session.green({0, 1}))},
      {"four groups", session.green_stream(session.green({0, 1, 2, 3}))},
      {"the last group", session.green_stream(session.green({session.group_count() - 1}))}};
  const auto each = [&](unsigned size) {
    for (const On& on : streams) {
      CUlaunchAttribute attribute{};
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim.x = size;
      attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
      CUlaunchConfig config{};
      config.gridDimX = 16;
      config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = 128;
      config.blockDimY = config.blockDimZ = 1;
      config.hStream = on.stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      int active = -1;
      const CUresult asked = api.cuOccupancyMaxActiveClusters(&active, store, &config);
      Say{"{}, clusters of {}: launch {}; occupancy {}, any: {}",
          on.name,
          size,
          code(launch_with(store, on.stream, word, {attribute}, 16, 128)),
          code(asked),
          active > 0 ? "yes" : "no"};
    }
  };
  for (const unsigned size : {1u, 2u, 4u, 8u, 16u}) each(size);
  Say{"non-portable sizes allowed {}",
      code(api.cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))};
  each(16);
  each(3);
  drain();
  Say{"synchronize after the refusals {}", code(api.cuCtxSynchronize())};
}

VITAMIN_RULE(
    launch_attributes_on_green_streams,
    "Which launch attributes do green streams take, and which events do launches record?") {
  Session session;
  CUfunction store = session.function("store");
  const CUdeviceptr word = session.memory(64);
  CUstream primary = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  CUevent timed = session.event(CU_EVENT_DEFAULT);
  for (CUstream stream : {primary, green}) {
    const char* where = stream == green ? "green" : "primary";
    CUlaunchAttribute a{};
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a.value.programmaticStreamSerializationAllowed = 1;
    Say{"{}: programmatic serialisation {}", where, code(launch_with(store, stream, word, {a}))};
    a = {};
    a.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    a.value.priority = -1;
    Say{"{}: priority {}", where, code(launch_with(store, stream, word, {a}))};
    a = {};
    a.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
    a.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    Say{"{}: memory domain {}", where, code(launch_with(store, stream, word, {a}))};
    a = {};
    a.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
    Say{"{}: ignore {}", where, code(launch_with(store, stream, word, {a}))};
    const int unknown = 63;
    std::memcpy(&a.id, &unknown, sizeof unknown);
    Say{"{}: unknown {}", where, code(launch_with(store, stream, word, {a}))};
    a.id = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
    Say{"{}: a stream's attribute {}", where, code(launch_with(store, stream, word, {a}))};
    CUevent event = session.event();
    a = {};
    a.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
    a.value.launchCompletionEvent.event = event;
    {
      Gate gate(session, stream);
      Say{"{}: launch completion event {}", where, code(launch_with(store, stream, word, {a}))};
      Say{"{}: it is {}", where, soon(event)};
      gate.open();
      Say{"{}: after the gate {}", where, soon(event)};
    }
    a.value.launchCompletionEvent.event = timed;
    Say{"{}: launch completion event with timing {}", where,
        code(launch_with(store, stream, word, {a}))};
    a = {};
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    a.value.programmaticEvent.event = event;
    {
      Gate gate(session, stream);
      Say{"{}: programmatic event {}", where, code(launch_with(store, stream, word, {a}))};
      Say{"{}: it is {}", where, soon(event)};
      gate.open();
      Say{"{}: after the gate {}", where, soon(event)};
    }
    drain();
  }
}

namespace {

void after_a_fault(Session& session, CUstream stream) {
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent fired = session.event();
  CUevent never = session.event();
  CUdeviceptr memory = session.memory(64);
  CUfunction fault = session.function("fault");
  CUfunction store = session.function("store");
  VITAMIN_MUST(cuEventRecord(fired, other));
  drain();
  CUevent behind = session.event();
  {
    Gate gate(session, stream);
    Say{"launch {}", code(launch(fault, stream, {&memory}))};
    Say{"record behind it {}", code(api.cuEventRecord(behind, stream))};
    Say{"another stream before the fault {}", now(other)};
    gate.open();
  }
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
  Say{"again {}", code(api.cuStreamSynchronize(stream))};
  Say{"query {}", now(stream)};
  Say{"query of another stream {}", now(other)};
  Say{"event behind it {}", now(behind)};
  Say{"event fired before {}", now(fired)};
  Say{"event never recorded {}", now(never)};
  Say{"event synchronize {}", code(api.cuEventSynchronize(fired))};
  Say{"record {}", code(api.cuEventRecord(never, other))};
  Say{"wait {}", code(api.cuStreamWaitEvent(other, fired, 0))};
  const std::uint32_t value = 1;
  Say{"launch {}", code(launch(store, other, {&memory, &value}))};
  Say{"fill {}", code(api.cuMemsetD32Async(memory, 1, 1, other))};
  Say{"host function {}", code(api.cuLaunchHostFunc(
                              other, [](void*) {}, nullptr))};
  Say{"context synchronize {}", code(api.cuCtxSynchronize())};
  CUdeviceptr more = 0;
  Say{"alloc {}", code(api.cuMemAlloc(&more, 64))};
  Say{"free {}", code(api.cuMemFree(memory))};
  CUevent event = nullptr;
  Say{"event create {}", code(api.cuEventCreate(&event, 0))};
  Say{"event destroy {}", code(api.cuEventDestroy(fired))};
  Say{"stream destroy {}", code(api.cuStreamDestroy(other))};
  std::size_t limit = 0;
  Say{"limit {}", code(api.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE))};
  CUcontext current = nullptr;
  Say{"current context {}", code(api.cuCtxGetCurrent(&current))};
}

}  // namespace

VITAMIN_RULE(fault_is_sticky, "What does every call answer after a kernel faulted?") {
  Session session;
  after_a_fault(session, session.stream(CU_STREAM_NON_BLOCKING));
}

VITAMIN_RULE(fault_on_a_green_stream_is_sticky,
             "What does every call answer after a kernel of a green stream faulted?") {
  Session session;
  after_a_fault(session, session.green_stream(session.green({0})));
}

}  // namespace vitamin::differential
