// SPDX-License-Identifier: Apache-2.0
//
// Green contexts: splits, what their streams say about themselves, limits, synchronisation, ends.
#include "session.h"

namespace vitamin::differential {

VITAMIN_RULE(green_split, "Into which groups is the device split, and which flags change that?") {
  Session session;
  for (const unsigned flags : {0u, 1u, 2u})
    for (const unsigned minimum : {2u, 8u, 9u, 16u, 32u}) {
      CUdevResource all{};
      CUdevResource rest{};
      CUdevResource groups[128];
      unsigned count = 128;
      VITAMIN_MUST(cuDeviceGetDevResource(session.device(), &all, CU_DEV_RESOURCE_TYPE_SM));
      const CUresult result =
          api.cuDevSmResourceSplitByCount(groups, &count, &all, &rest, flags, minimum);
      if (result != CUDA_SUCCESS) {
        Say{"flags {}, at least {}: {}", flags, minimum, code(result)};
        continue;
      }
      Say{"flags {}, at least {}: {} groups of {}, rest {} of {}",
          flags,
          minimum,
          count,
          groups[0].sm.smCount,
          rest.sm.smCount,
          all.sm.smCount};
    }
  unsigned count = 0;
  CUdevResource all{};
  VITAMIN_MUST(cuDeviceGetDevResource(session.device(), &all, CU_DEV_RESOURCE_TYPE_SM));
  Say{"asked for the count only {}",
      code(api.cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, 8))};
  Say{"  {}", count};
}

VITAMIN_RULE(green_descriptors, "Which unions of groups make a context?") {
  Session session;
  CUgreenCtx context = nullptr;
  CUdevResource all{};
  VITAMIN_MUST(cuDeviceGetDevResource(session.device(), &all, CU_DEV_RESOURCE_TYPE_SM));
  const auto made = [&](std::vector<CUdevResource> resources, unsigned flags) {
    CUdevResourceDesc description = nullptr;
    const CUresult described = api.cuDevResourceGenerateDesc(
        &description, resources.data(), static_cast<unsigned>(resources.size()));
    if (described != CUDA_SUCCESS) return "describe " + code(described);
    return "describe 0, create " +
           code(api.cuGreenCtxCreate(&context, description, session.device(), flags));
  };
  CUdevResource groups[64];
  CUdevResource rest{};
  unsigned count = 64;
  VITAMIN_MUST(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 8));
  CUdevResource again[64];
  unsigned again_count = 64;
  VITAMIN_MUST(cuDevSmResourceSplitByCount(again, &again_count, &all, nullptr, 0, 8));
  Say{"one group: {}", made({groups[0]}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"neighbours: {}", made({groups[0], groups[1]}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"not neighbours: {}", made({groups[0], groups[5]}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"with the rest: {}", made({groups[0], rest}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"the rest alone: {}", made({rest}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"the same group twice: {}", made({groups[0], groups[0]}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"groups of two splits: {}", made({groups[0], again[1]}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"the whole device: {}", made({all}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"none: {}", made({}, CU_GREEN_CTX_DEFAULT_STREAM)};
  Say{"without the stream flag: {}", made({groups[0]}, 0)};
}

VITAMIN_RULE(green_streams_about_themselves,
             "What do streams of green and primary contexts say about their context and flags?") {
  Session session;
  CUgreenCtx green = session.green({0});
  CUcontext converted = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&converted, green));
  Say{"converted context is the primary: {}", converted == session.primary() ? "yes" : "no"};
  CUstream refused = nullptr;
  Say{"a blocking stream: {}",
      code(api.cuGreenCtxStreamCreate(&refused, green, CU_STREAM_DEFAULT, 0))};
  int least = 99;
  int greatest = 99;
  VITAMIN_MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  Say{"priorities {} to {}", least, greatest};
  for (const int asked : {0, -1, -5, -100, 7}) {
    CUstream on_green = session.green_stream(green, asked);
    CUstream on_primary = session.stream(CU_STREAM_NON_BLOCKING, asked);
    for (CUstream stream : {on_green, on_primary}) {
      int priority = 99;
      VITAMIN_MUST(cuStreamGetPriority(stream, &priority));
      Say{"{}, priority {} asked: {}", stream == on_green ? "green" : "primary", asked, priority};
    }
  }
  CUstream streams[] = {session.green_stream(green), session.stream(), nullptr};
  const char* names[] = {"green", "primary", "NULL"};
  for (int i = 0; i < 3; ++i) {
    CUcontext context = nullptr;
    CUgreenCtx of_stream = nullptr;
    unsigned flags = 99;
    const auto which = [&](CUcontext c) {
      return c == nullptr             ? "none"
             : c == session.primary() ? "primary"
             : c == converted         ? "converted"
                                      : "another";
    };
    Say{"{}: flags {}", names[i], code(api.cuStreamGetFlags(streams[i], &flags))};
    Say{"  {}", flags};
    const CUresult got = api.cuStreamGetCtx(streams[i], &context);
    Say{"{}: context {}, {}", names[i], code(got), which(context)};
    context = nullptr;
    const CUresult both = api.cuStreamGetCtx_v2(streams[i], &context, &of_stream);
    Say{"{}: context _v2 {}, {}, green {}", names[i], code(both), which(context),
        of_stream == nullptr ? "none"
        : of_stream == green ? "this"
                             : "another"};
    of_stream = nullptr;
    const CUresult only = api.cuStreamGetGreenCtx(streams[i], &of_stream);
    Say{"{}: green context {}, {}", names[i], code(only),
        of_stream == nullptr ? "none"
        : of_stream == green ? "this"
                             : "another"};
  }
}

VITAMIN_RULE(green_resources_and_occupancy,
             "What do resource and occupancy queries answer for green contexts?") {
  Session session;
  CUgreenCtx green = session.green({0});
  CUcontext converted = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&converted, green));
  CUfunction store = session.function("store");
  const auto ask = [&](const char* who) {
    CUdevResource resource{};
    int processors = 0;
    int blocks = 0;
    CUcontext current = nullptr;
    VITAMIN_MUST(cuCtxGetCurrent(&current));
    const CUresult of_context =
        api.cuCtxGetDevResource(current, &resource, CU_DEV_RESOURCE_TYPE_SM);
    VITAMIN_MUST(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                      session.device()));
    VITAMIN_MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, store, 1024, 0));
    Say{"{} current: resource of the current context {}, {}; attribute {}; blocks {}",
        who,
        code(of_context),
        resource.sm.smCount,
        processors,
        blocks};
  };
  CUdevResource resource{};
  VITAMIN_MUST(cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM));
  Say{"green context {}", resource.sm.smCount};
  VITAMIN_MUST(cuCtxGetDevResource(session.primary(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  Say{"primary context {}", resource.sm.smCount};
  VITAMIN_MUST(cuCtxGetDevResource(converted, &resource, CU_DEV_RESOURCE_TYPE_SM));
  Say{"converted context {}", resource.sm.smCount};
  ask("primary");
  VITAMIN_MUST(cuCtxSetCurrent(converted));
  ask("green");
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));

  CUstream on_green = session.green_stream(green);
  CUstream on_primary = session.stream(CU_STREAM_NON_BLOCKING);
  for (CUstream stream : {on_primary, on_green}) {
    for (const unsigned size : {1u, 2u, 8u}) {
      CUlaunchAttribute attribute{};
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim.x = size;
      attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
      CUlaunchConfig config{};
      config.gridDimX = 16;
      config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = 1024;
      config.blockDimY = config.blockDimZ = 1;
      config.hStream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      int active = -1;
      const CUresult asked = api.cuOccupancyMaxActiveClusters(&active, store, &config);
      Say{"{}: active clusters of {}: {}, {}", stream == on_green ? "green" : "primary", size,
          code(asked), active};
    }
    CUlaunchConfig config{};
    config.gridDimX = 16;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    int size = -1;
    const CUresult asked = api.cuOccupancyMaxPotentialClusterSize(&size, store, &config);
    Say{"{}: potential cluster size {}, {}", stream == on_green ? "green" : "primary", code(asked),
        size};
  }
}

VITAMIN_RULE(green_limits,
             "Do limits set on the primary context hold for green contexts, and the reverse?") {
  Session session;
  CUcontext before = nullptr;
  CUcontext after = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&before, session.green({0})));
  const auto limit = [&](CUcontext context) {
    std::size_t value = 0;
    VITAMIN_MUST(cuCtxSetCurrent(context));
    const CUresult result = api.cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE);
    VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
    return result == CUDA_SUCCESS ? std::to_string(value) : code(result);
  };
  Say{"at first: primary {}, green {}", limit(session.primary()), limit(before)};
  Say{"set on the primary {}", code(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096))};
  VITAMIN_MUST(cuCtxFromGreenCtx(&after, session.green({1})));
  Say{"then: primary {}, green made before {}, made after {}", limit(session.primary()),
      limit(before), limit(after)};
  VITAMIN_MUST(cuCtxSetCurrent(before));
  const CUresult set = api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192);
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
  Say{"set on the first green {}", code(set)};
  Say{"then: primary {}, first green {}, second green {}", limit(session.primary()), limit(before),
      limit(after)};
}

VITAMIN_RULE(green_synchronisation,
             "Who waits for a green stream: its context, the primary context, another green one?") {
  Session session;
  const Log log(session);
  CUgreenCtx green = session.green({0});
  CUgreenCtx other = session.green({1});
  CUcontext green_context = nullptr;
  CUcontext other_context = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&green_context, green));
  VITAMIN_MUST(cuCtxFromGreenCtx(&other_context, other));
  CUstream stream = session.green_stream(green);
  CUstream primary_stream = session.stream(CU_STREAM_NON_BLOCKING);
  const auto with = [&](const char* name, CUcontext context, CUstream held) {
    Gate gate(session, held);
    must(log.append(held, 1), "launch");
    VITAMIN_MUST(cuCtxSetCurrent(context));
    const std::string answer = waits_for(gate, [] { return api.cuCtxSynchronize(); });
    VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
    gate.open();
    drain();
    Say{"{}: cuCtxSynchronize {}", name, answer};
  };
  with("primary current, green stream held", session.primary(), stream);
  with("its own context current, green stream held", green_context, stream);
  with("another green context current, green stream held", other_context, stream);
  with("green context current, primary stream held", green_context, primary_stream);
}

VITAMIN_RULE(green_waits_across_contexts,
             "Are waits between streams of several green contexts kept, in a chain of them?") {
  Session session;
  const Log log(session);
  std::vector<CUstream> streams;
  for (unsigned i = 0; i < 6; ++i)
    streams.push_back(session.green_stream(session.green({i, (i + 3) % 7})));
  CUevent event = session.event();  // recorded again at each hop, as the runtime does
  Gate gate(session, streams[0]);
  for (std::uint32_t hop = 0; hop < 30; ++hop) {
    must(log.append(streams[hop % 6], hop), "launch");
    VITAMIN_MUST(cuEventRecord(event, streams[hop % 6]));
    VITAMIN_MUST(cuStreamWaitEvent(streams[(hop + 1) % 6], event, 0));
  }
  Say{"before the gate opens: event {}, kernels {}", now(event), log.text()};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(green_context_destroyed_before_its_stream,
             "What do calls on a stream answer whose green context is gone?") {
  Session session;
  const Log log(session);
  CUgreenCtx green = session.green({0});
  CUstream stream = session.green_stream(green);
  CUevent event = session.event();
  must(log.append(stream, 1), "launch");
  drain();
  Say{"destroy {}", code(api.cuGreenCtxDestroy(green))};
  Say{"query {}", now(stream)};
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
  Say{"record {}", code(api.cuEventRecord(event, stream))};
  Say{"wait {}", code(api.cuStreamWaitEvent(stream, event, 0))};
  Say{"launch {}", code(log.append(stream, 2))};
  Say{"destroy the stream {}", code(api.cuStreamDestroy(stream))};
  Say{"primary {}", code(api.cuCtxSynchronize())};
}

VITAMIN_RULE(green_context_destroyed_with_work,
             "Does destroying a green context wait for its streams?") {
  Session session;
  const Log log(session);
  CUgreenCtx green = session.green({0});
  CUstream stream = session.green_stream(green);
  CUevent event = session.event();
  Gate gate(session, stream);
  must(log.append(stream, 1), "launch");
  VITAMIN_MUST(cuEventRecord(event, stream));
  Say{"destroy {}", waits_for(gate, [&] { return api.cuGreenCtxDestroy(green); })};
  gate.open();
  Say{"event {}", soon(event)};
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(green_takes_functions_and_kernels,
             "Do green streams take functions and kernels loaded under the primary context?") {
  Session session;
  CUstream stream = session.green_stream(session.green({0}));
  const CUdeviceptr word = session.memory(64);
  std::uint32_t value = 1;
  Say{"function {}", code(launch(session.function("store"), stream, {&word, &value}))};
  value = 2;
  Say{"kernel {}",
      code(launch(reinterpret_cast<CUfunction>(session.kernel("store")), stream, {&word, &value}))};
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
  std::uint32_t got = 0;
  VITAMIN_MUST(cuMemcpyDtoH(&got, word, 4));
  Say{"word {}", got};
  Say{"fill {}", code(api.cuMemsetD32Async(word, 3, 1, stream))};
  CUdeviceptr memory = 0;
  Say{"ordered allocation {}", code(api.cuMemAllocAsync(&memory, 64, stream))};
  Say{"ordered free {}", code(api.cuMemFreeAsync(memory, stream))};
  Say{"synchronize {}", code(api.cuStreamSynchronize(stream))};
}

}  // namespace vitamin::differential
