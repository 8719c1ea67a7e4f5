// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches and the questions about what would fit. Everything that the real driver refuses
// in the call is refused in the call.

#include <algorithm>
#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/launches.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::uint32_t kMaxBlockXY = 1024;
constexpr std::uint32_t kMaxBlockZ = 64;
constexpr std::uint32_t kMaxGridX = 0x7fffffff;
constexpr std::uint32_t kMaxGridYZ = 65535;
constexpr std::uint32_t kPortableCluster = 8;
constexpr std::uint32_t kLargestCluster = 16;
constexpr unsigned kMemoryDomains = 4;

CUresult check_geometry(const KernelCommand& kernel) {
  const Index3& grid = kernel.grid;
  const Index3& block = kernel.block;
  if (grid.volume() == 0 || block.volume() == 0) return CUDA_ERROR_INVALID_VALUE;
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ)
    return CUDA_ERROR_INVALID_VALUE;
  if (block.x > kMaxBlockXY || block.y > kMaxBlockXY || block.z > kMaxBlockZ ||
      block.volume() > kernel.descriptor->traits.max_threads)
    return CUDA_ERROR_INVALID_VALUE;
  if (kernel.shared <= dynamic_shared_limit(*kernel.function)) return CUDA_SUCCESS;
  // Measured: of a cooperative grid whose blocks need too much none fits.
  return kernel.cooperative ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_cluster(KernelCommand& kernel) {
  const std::uint32_t required = kernel.descriptor->traits.required_cluster;
  if (kernel.cluster.x == 0) {
    if (required <= 1) return CUDA_SUCCESS;
    kernel.cluster = Index3{required, 1, 1};
  }
  const Index3& cluster = kernel.cluster;
  if (cluster.volume() == 0 || (required != 0 && cluster.volume() != required))
    return CUDA_ERROR_INVALID_VALUE;
  if (kernel.grid.x % cluster.x != 0 || kernel.grid.y % cluster.y != 0 ||
      kernel.grid.z % cluster.z != 0)
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const bool allowed =
      cluster.volume() <= kPortableCluster ||
      (cluster.volume() <= kLargestCluster && non_portable_clusters_allowed(*kernel.function));
  return allowed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult use_completion_event(CUevent handle, KernelCommand& kernel) {
  EventObject* event = nullptr;
  if (const CUresult error = resolve_event(handle, &event); error != CUDA_SUCCESS) return error;
  // "The event supplied must not be an interprocess or interop event" and must disable timing.
  if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0 || event->shared != nullptr)
    return CUDA_ERROR_NOT_SUPPORTED;
  kernel.completion = event;
  return CUDA_SUCCESS;
}

CUresult apply_attribute(const CUlaunchAttribute& attribute, [[maybe_unused]] bool capturing,
                         KernelCommand& kernel) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      kernel.cooperative = attribute.value.cooperative != 0;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      kernel.cluster = Index3{attribute.value.clusterDim.x, attribute.value.clusterDim.y,
                              attribute.value.clusterDim.z};
      return kernel.cluster.volume() == 0 ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return use_completion_event(attribute.value.programmaticEvent.event, kernel);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return use_completion_event(attribute.value.launchCompletionEvent.event, kernel);
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return CUDA_ERROR_NOT_SUPPORTED;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      return std::max(attribute.value.memSyncDomainMap.default_,
                      attribute.value.memSyncDomainMap.remote) < kMemoryDomains
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return CUDA_ERROR_INVALID_VALUE;  // for streams only
    default:
      // Hints, and programmatic serialisation: it permits an overlap and does not demand one.
      return attribute.id >= 0 && attribute.id < CU_LAUNCH_ATTRIBUTE_MAX ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pack_extra(const KernelDescriptor& descriptor, void** extra,
                    std::vector<unsigned char>& packed) {
  const void* buffer = nullptr;
  std::size_t size = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != nullptr) {
      size = *static_cast<const std::size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (buffer == nullptr && descriptor.parameter_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  // Measured: too many bytes do not fit, too few leave the rest as it is.
  if (size > descriptor.parameter_bytes) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (size != 0) std::memcpy(packed.data(), buffer, size);
  return CUDA_SUCCESS;
}

// Runs what cuLaunchKernel and its neighbours share.
CUresult launch(CUstream handle, CUfunction function, const LaunchShape& shape,
                const CUlaunchAttribute* attributes, unsigned attribute_count, bool cooperative,
                void** parameters, void** extra) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  KernelCommand kernel;
  CUresult error = make_kernel(function, shape, attributes, attribute_count, cooperative,
                               parameters, extra, stream->capture != nullptr, &kernel);
  if (error == CUDA_SUCCESS) error = check_placement(kernel, *stream->context);
  if (error != CUDA_SUCCESS) {
    spoil_capture(*stream);
    return error;
  }
  return enqueue(lock, *stream, std::move(kernel));
}

}  // namespace

CUresult pack_parameters(const KernelDescriptor& descriptor, void** parameters, void** extra,
                         std::vector<unsigned char>* packed) {
  packed->assign(descriptor.parameter_bytes, 0);
  // An empty list counts as none.
  if (parameters != nullptr && extra != nullptr && *extra == CU_LAUNCH_PARAM_END) extra = nullptr;
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) return pack_extra(descriptor, extra, *packed);
  if (descriptor.parameter_count == 0) return CUDA_SUCCESS;
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint32_t i = 0; i < descriptor.parameter_count; ++i) {
    if (parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(packed->data() + descriptor.parameters[i].offset, parameters[i],
                descriptor.parameters[i].size);
  }
  return CUDA_SUCCESS;
}

CUresult set_kernel_attribute(KernelCommand& kernel, const CUlaunchAttribute& attribute,
                              bool capturing) {
  if (const CUresult error = apply_attribute(attribute, capturing, kernel); error != CUDA_SUCCESS)
    return error;
  for (CUlaunchAttribute& known : kernel.attributes) {
    if (known.id != attribute.id) continue;
    known = attribute;
    return CUDA_SUCCESS;
  }
  kernel.attributes.push_back(attribute);
  return CUDA_SUCCESS;
}

CUresult make_kernel(const void* handle, const LaunchShape& shape,
                     const CUlaunchAttribute* attributes, unsigned attribute_count,
                     bool cooperative, void** parameters, void** extra, bool capturing,
                     KernelCommand* kernel) {
  kernel->function = find_function(handle, &kernel->is_kernel_handle);
  if (kernel->function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute_count != 0 && attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  kernel->image = kernel->function->image;
  kernel->descriptor = kernel->function->descriptor;
  kernel->grid = shape.grid;
  kernel->block = shape.block;
  kernel->shared = shape.shared;
  kernel->cooperative = cooperative;
  for (unsigned i = 0; i < attribute_count; ++i) {
    if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_IGNORE) continue;
    if (const CUresult error = set_kernel_attribute(*kernel, attributes[i], capturing);
        error != CUDA_SUCCESS)
      return error;
  }
  if (const CUresult error = check_geometry(*kernel); error != CUDA_SUCCESS) return error;
  if (const CUresult error = check_cluster(*kernel); error != CUDA_SUCCESS) return error;
  return pack_parameters(*kernel->descriptor, parameters, extra, &kernel->parameters);
}

CUresult check_placement(const KernelCommand& kernel, const Context& context) {
  // A function belongs to the address space that its module was loaded into; a kernel to none.
  if (kernel.function->module != nullptr && kernel.function->module->context != context.root)
    return CUDA_ERROR_INVALID_HANDLE;
  Launch launch;
  launch.kernel = kernel.descriptor;
  launch.grid = kernel.grid;
  launch.block = kernel.block;
  launch.dynamic_shared = kernel.shared;
  launch.cluster_blocks = kernel.cluster_blocks();
  launch.cooperative = kernel.cooperative;
  launch.parameters = kernel.parameters.data();
  const ClusterRule rule{context.resource.cluster_groups, context.resource.max_cluster};
  const int status = context.device->engine->check_launch(context.resource.sms, rule, launch);
  // A block that no SM can hold asks for too much of something.
  return status == kInvalidLaunch ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : result_of(status);
}

CUresult api::cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             CUstream stream, void** parameters, void** extra) {
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  return launch(stream, function, shape, nullptr, 0, false, parameters, extra);
}

CUresult api::cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared, CUstream stream,
                                        void** parameters) {
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  return launch(stream, function, shape, nullptr, 0, true, parameters, nullptr);
}

CUresult api::cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                               void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes};
  return launch(config->hStream, function, shape, config->attrs, config->numAttrs, false,
                parameters, extra);
}

// ------------------------------------------------------------------------------------- occupancy

namespace {

// The context and the kernel that an occupancy question is about.
CUresult resolve_question(const void* handle, Context** context, Function** function) {
  if (const CUresult error = current_context(context); error != CUDA_SUCCESS) return error;
  bool is_kernel = false;
  *function = find_function(handle, &is_kernel);
  return *function == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// The cluster of a configuration, and the context of its stream.
CUresult resolve_cluster_question(const void* handle, const CUlaunchConfig* config,
                                  Context** context, KernelCommand* kernel) {
  Stream* stream = nullptr;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = resolve_stream(config->hStream, &stream); error != CUDA_SUCCESS)
    return error;
  *context = stream->context;
  bool is_kernel = false;
  kernel->function = find_function(handle, &is_kernel);
  if (kernel->function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  kernel->descriptor = kernel->function->descriptor;
  kernel->block = Index3{config->blockDimX, config->blockDimY, config->blockDimZ};
  kernel->shared = config->sharedMemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      kernel->cluster =
          Index3{config->attrs[i].value.clusterDim.x, config->attrs[i].value.clusterDim.y,
                 config->attrs[i].value.clusterDim.z};
  return CUDA_SUCCESS;
}

std::uint32_t active_clusters(const Context& context, const KernelCommand& kernel,
                              std::uint32_t cluster_blocks) {
  Launch launch;
  launch.kernel = kernel.descriptor;
  launch.grid = Index3{cluster_blocks, 1, 1};
  launch.block = kernel.block;
  launch.dynamic_shared = kernel.shared;
  launch.cluster_blocks = cluster_blocks;
  const ClusterRule rule{context.resource.cluster_groups, context.resource.max_cluster};
  return context.device->engine->max_active_clusters(context.resource.sms, rule, launch);
}

CUresult potential_block_size(int* min_grid, int* block, CUfunction handle,
                              CUoccupancyB2DSize shared_of, std::size_t shared, int limit) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  Function* function = nullptr;
  if (const CUresult error = resolve_question(handle, &context, &function); error != CUDA_SUCCESS)
    return error;
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int largest = static_cast<int>(function->descriptor->traits.max_threads);
  const int first = limit > 0 ? std::min(limit, largest) : largest;
  std::uint32_t best_threads = 0, best_blocks = 0;
  int best_size = 0;
  for (int size = first; size > 0; size = (size - 1) / 32 * 32) {
    const std::size_t dynamic = shared_of != nullptr ? shared_of(size) : shared;
    const std::uint32_t blocks = context->device->engine->blocks_per_sm(
        *function->descriptor, static_cast<std::uint64_t>(size),
        static_cast<std::uint32_t>(dynamic));
    if (blocks * static_cast<std::uint32_t>(size) <= best_threads) continue;
    best_threads = blocks * static_cast<std::uint32_t>(size);
    best_blocks = blocks;
    best_size = size;
  }
  *block = best_size;
  // Answers for the partition under a green context.
  *min_grid = static_cast<int>(best_blocks * context->resource.sms.count());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult api::cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle,
                                                          int block_size, size_t shared) {
  return api::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block_size,
                                                                   shared, CU_OCCUPANCY_DEFAULT);
}

CUresult api::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                                   int block_size, size_t shared,
                                                                   unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  Function* function = nullptr;
  if (const CUresult error = resolve_question(handle, &context, &function); error != CUDA_SUCCESS)
    return error;
  if (blocks == nullptr || block_size <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
    return CUDA_ERROR_INVALID_VALUE;
  *blocks = static_cast<int>(context->device->engine->blocks_per_sm(
      *function->descriptor, static_cast<std::uint64_t>(block_size),
      static_cast<std::uint32_t>(shared)));
  return CUDA_SUCCESS;
}

CUresult api::cuOccupancyAvailableDynamicSMemPerBlock(size_t* shared, CUfunction handle, int blocks,
                                                      int block_size) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  Function* function = nullptr;
  if (const CUresult error = resolve_question(handle, &context, &function); error != CUDA_SUCCESS)
    return error;
  if (shared == nullptr || blocks <= 0 || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  const SmLimits& sm = context->device->engine->device().sm;
  const std::uint32_t fixed =
      sm.reserved_shared_per_block + function->descriptor->traits.static_shared;
  const std::uint32_t share = sm.shared_bytes / static_cast<std::uint32_t>(blocks);
  const std::uint32_t most = sm.block_shared_bytes - function->descriptor->traits.static_shared;
  *shared = share > fixed ? std::min(share - fixed, most) : 0;
  return CUDA_SUCCESS;
}

CUresult api::cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction handle,
                                               CUoccupancyB2DSize shared_of, size_t shared,
                                               int limit) {
  return potential_block_size(min_grid, block, handle, shared_of, shared, limit);
}

CUresult api::cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block,
                                                        CUfunction handle,
                                                        CUoccupancyB2DSize shared_of, size_t shared,
                                                        int limit, unsigned flags) {
  if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return potential_block_size(min_grid, block, handle, shared_of, shared, limit);
}

CUresult api::cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                                 const CUlaunchConfig* config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  KernelCommand kernel;
  if (const CUresult error = resolve_cluster_question(handle, config, &context, &kernel);
      error != CUDA_SUCCESS)
    return error;
  if (size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::uint32_t most =
      non_portable_clusters_allowed(*kernel.function) ? kLargestCluster : kPortableCluster;
  *size = 0;
  for (std::uint32_t blocks = most; blocks > 0 && *size == 0; blocks /= 2)
    if (active_clusters(*context, kernel, blocks) > 0) *size = static_cast<int>(blocks);
  return CUDA_SUCCESS;
}

CUresult api::cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle,
                                           const CUlaunchConfig* config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  KernelCommand kernel;
  if (const CUresult error = resolve_cluster_question(handle, config, &context, &kernel);
      error != CUDA_SUCCESS)
    return error;
  if (clusters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::uint32_t blocks = kernel.cluster_blocks();
  if (kernel.cluster.x != 0 && config->gridDimX % kernel.cluster.x != 0)
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (blocks > kPortableCluster && !non_portable_clusters_allowed(*kernel.function))
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  *clusters = static_cast<int>(active_clusters(*context, kernel, blocks));
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
