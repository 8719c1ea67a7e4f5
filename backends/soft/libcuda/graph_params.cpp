// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/graph_params.h"

#include <cstring>

#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/graph_memory.h"
#include "backends/soft/libcuda/launches.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {
namespace {

CUresult context_or_current(CUcontext handle, Context** context) {
  return resolve_context(handle, context);
}

template <class Wanted>
Wanted* command_of(CUgraphNode handle, GraphNode** node) {
  *node = find_node(handle);
  return *node == nullptr ? nullptr : std::get_if<Wanted>(&(*node)->command);
}

void fill_kernel_params(GraphNode& node, KernelCommand& kernel,
                        CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  node.parameter_pointers.clear();
  for (std::uint32_t i = 0; i < kernel.descriptor->parameter_count; ++i)
    node.parameter_pointers.push_back(kernel.parameters.data() +
                                      kernel.descriptor->parameters[i].offset);
  *parameters = CUDA_KERNEL_NODE_PARAMS_v1{};
  parameters->func =
      kernel.is_kernel_handle ? nullptr : reinterpret_cast<CUfunction>(kernel.function);
  parameters->gridDimX = kernel.grid.x;
  parameters->gridDimY = kernel.grid.y;
  parameters->gridDimZ = kernel.grid.z;
  parameters->blockDimX = kernel.block.x;
  parameters->blockDimY = kernel.block.y;
  parameters->blockDimZ = kernel.block.z;
  parameters->sharedMemBytes = kernel.shared;
  parameters->kernelParams = node.parameter_pointers.data();
}

CUresult set_kernel(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS& parameters) {
  GraphNode* node = nullptr;
  if (command_of<KernelCommand>(handle, &node) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  NodeContent content{node->command, node->context};
  if (const CUresult error = kernel_content(parameters, &content); error != CUDA_SUCCESS)
    return error;
  node->command = std::move(content.command);
  node->context = content.context;
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D box_of(const CopyCommand& copy) {
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  box.srcDevice = reinterpret_cast<CUdeviceptr>(copy.source);
  box.dstDevice = reinterpret_cast<CUdeviceptr>(copy.target);
  box.srcPitch = copy.source_pitch;
  box.dstPitch = copy.target_pitch;
  box.srcHeight = copy.source_pitch != 0 ? copy.source_slice / copy.source_pitch : 0;
  box.dstHeight = copy.target_pitch != 0 ? copy.target_slice / copy.target_pitch : 0;
  box.WidthInBytes = copy.width;
  box.Height = copy.height;
  box.Depth = copy.depth;
  return box;
}

}  // namespace

CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1& parameters) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  static_assert(sizeof parameters <= sizeof wide);
  std::memcpy(&wide, &parameters, sizeof parameters);  // v2 appends two members to v1
  return wide;
}

CUresult kernel_content(const CUDA_KERNEL_NODE_PARAMS& parameters, NodeContent* content) {
  const void* handle = parameters.func != nullptr ? static_cast<const void*>(parameters.func)
                                                  : static_cast<const void*>(parameters.kern);
  const LaunchShape shape{{parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ},
                          {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ},
                          parameters.sharedMemBytes};
  KernelCommand before;
  if (const auto* old = std::get_if<KernelCommand>(&content->command)) before = *old;
  KernelCommand kernel;
  if (const CUresult error = make_kernel(
          handle, shape, before.attributes.data(), static_cast<unsigned>(before.attributes.size()),
          before.cooperative, parameters.kernelParams, parameters.extra, true, &kernel);
      error != CUDA_SUCCESS)
    return error;
  if (parameters.func != nullptr && !kernel.is_kernel_handle) {
    // Measured: with a CUfunction the `ctx` member is ignored, and a node that was captured on a
    // green stream returns to the function's own context.
    content->context = kernel.function->module->context;
  } else if (const CUresult error = context_or_current(parameters.ctx, &content->context);
             error != CUDA_SUCCESS) {
    return error;
  }
  content->command = std::move(kernel);
  return CUDA_SUCCESS;
}

CUresult copy_content(const CUDA_MEMCPY3D& box, CUcontext context, NodeContent* content) {
  CopyCommand copy;
  if (const CUresult error = copy_from_box(box, &copy); error != CUDA_SUCCESS) return error;
  if (const CUresult error = context_or_current(context, &content->context); error != CUDA_SUCCESS)
    return error;
  content->command = std::move(copy);
  return CUDA_SUCCESS;
}

CUresult fill_content(const CUDA_MEMSET_NODE_PARAMS& fill, CUcontext context,
                      NodeContent* content) {
  if (fill.dst == 0 || (fill.elementSize != 1 && fill.elementSize != 2 && fill.elementSize != 4) ||
      fill.width == 0 || fill.height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = context_or_current(context, &content->context); error != CUDA_SUCCESS)
    return error;
  content->command = FillCommand{reinterpret_cast<unsigned char*>(fill.dst),
                                 fill.pitch,
                                 fill.value,
                                 fill.elementSize,
                                 fill.width,
                                 fill.height};
  return CUDA_SUCCESS;
}

CUresult event_content(CUevent handle, bool record, NodeContent* content) {
  EventObject* event = nullptr;
  if (const CUresult error = resolve_event(handle, &event); error != CUDA_SUCCESS) return error;
  content->context = event->context;
  if (record) {
    content->command = EventRecordCommand{event, true};
  } else {
    content->command = EventWaitCommand{event, true};
  }
  return CUDA_SUCCESS;
}

CUresult content_of(const CUgraphNodeParams& parameters, NodeContent* content) {
  switch (parameters.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      static_assert(sizeof kernel == sizeof parameters.kernel);
      std::memcpy(&kernel, &parameters.kernel, sizeof kernel);
      return kernel_content(kernel, content);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return copy_content(parameters.memcpy.copyParams, parameters.memcpy.copyCtx, content);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS fill{parameters.memset.dst,   parameters.memset.pitch,
                                         parameters.memset.value, parameters.memset.elementSize,
                                         parameters.memset.width, parameters.memset.height};
      return fill_content(fill, parameters.memset.ctx, content);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      if (parameters.host.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
      content->command = HostCommand{parameters.host.fn, parameters.host.userData};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      const Graph* body = find_graph(parameters.graph.graph);
      if (body == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (allocates(*body)) return CUDA_ERROR_NOT_SUPPORTED;
      content->command = make_child(*body);
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      content->command = EmptyCommand{};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_content(parameters.eventRecord.event, true, content);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_content(parameters.eventWait.event, false, content);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// --------------------------------------------------------------------------------------- kernels

CUresult api::cuGraphKernelNodeGetParams(CUgraphNode handle,
                                         CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* kernel = command_of<KernelCommand>(handle, &node);
  if (kernel == nullptr || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  fill_kernel_params(*node, *kernel, parameters);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphKernelNodeGetParams_v2(CUgraphNode handle,
                                            CUDA_KERNEL_NODE_PARAMS* parameters) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* kernel = command_of<KernelCommand>(handle, &node);
  if (kernel == nullptr || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v1 narrow;
  fill_kernel_params(*node, *kernel, &narrow);
  *parameters = widen(narrow);
  parameters->kern =
      kernel->is_kernel_handle ? reinterpret_cast<CUkernel>(kernel->function) : nullptr;
  parameters->ctx = reinterpret_cast<CUcontext>(node->context);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphKernelNodeSetParams(CUgraphNode node,
                                         const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  const std::lock_guard lock(driver().mutex);
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE : set_kernel(node, widen(*parameters));
}

CUresult api::cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS* parameters) {
  const std::lock_guard lock(driver().mutex);
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE : set_kernel(node, *parameters);
}

CUresult api::cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                            CUkernelNodeAttrValue* value) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* kernel = command_of<KernelCommand>(handle, &node);
  if (kernel == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = CUkernelNodeAttrValue{};
  if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value->cooperative = kernel->cooperative;
  for (const CUlaunchAttribute& known : kernel->attributes)
    if (known.id == attribute) *value = known.value;
  return CUDA_SUCCESS;
}

CUresult api::cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                            const CUkernelNodeAttrValue* value) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* kernel = command_of<KernelCommand>(handle, &node);
  if (kernel == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUlaunchAttribute record{};
  record.id = attribute;
  record.value = *value;
  return set_kernel_attribute(*kernel, record, true);
}

CUresult api::cuGraphKernelNodeCopyAttributes(CUgraphNode target_handle,
                                              CUgraphNode source_handle) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* target = command_of<KernelCommand>(target_handle, &node);
  const auto* source = command_of<KernelCommand>(source_handle, &node);
  if (target == nullptr || source == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const CUlaunchAttribute& attribute : source->attributes) {
    if (const CUresult error = set_kernel_attribute(*target, attribute, true);
        error != CUDA_SUCCESS)
      return error;
  }
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ copies and fills

CUresult api::cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* box) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* copy = command_of<CopyCommand>(handle, &node);
  if (copy == nullptr || box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *box = box_of(*copy);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* box) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* copy = command_of<CopyCommand>(handle, &node);
  if (copy == nullptr || box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand changed;
  if (const CUresult error = copy_from_box(*box, &changed); error != CUDA_SUCCESS) return error;
  *copy = std::move(changed);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* fill) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* command = command_of<FillCommand>(handle, &node);
  if (command == nullptr || fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *fill = CUDA_MEMSET_NODE_PARAMS{reinterpret_cast<CUdeviceptr>(command->target),
                                  command->pitch,
                                  command->value,
                                  command->element_bytes,
                                  command->width,
                                  command->height};
  return CUDA_SUCCESS;
}

CUresult api::cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* fill) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  if (command_of<FillCommand>(handle, &node) == nullptr || fill == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  NodeContent content;
  if (const CUresult error =
          fill_content(*fill, reinterpret_cast<CUcontext>(node->context), &content);
      error != CUDA_SUCCESS)
    return error;
  node->command = std::move(content.command);
  return CUDA_SUCCESS;
}

// -------------------------------------------------------------------------- the other parameters

CUresult api::cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* host) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* command = command_of<HostCommand>(handle, &node);
  if (command == nullptr || host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *host = CUDA_HOST_NODE_PARAMS{command->function, command->data};
  return CUDA_SUCCESS;
}

CUresult api::cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* host) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* command = command_of<HostCommand>(handle, &node);
  if (command == nullptr || host == nullptr || host->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *command = HostCommand{host->fn, host->userData};
  return CUDA_SUCCESS;
}

CUresult api::cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent* event) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* command = command_of<EventRecordCommand>(handle, &node);
  if (command == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(command->event);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphEventRecordNodeSetEvent(CUgraphNode handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* command = command_of<EventRecordCommand>(handle, &node);
  if (command == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return resolve_event(event_handle, &command->event);
}

CUresult api::cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent* event) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* command = command_of<EventWaitCommand>(handle, &node);
  if (command == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(command->event);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphEventWaitNodeSetEvent(CUgraphNode handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  auto* command = command_of<EventWaitCommand>(handle, &node);
  if (command == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return resolve_event(event_handle, &command->event);
}

CUresult api::cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = nullptr;
  const auto* command = command_of<ChildGraphCommand>(handle, &node);
  if (command == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = reinterpret_cast<CUgraph>(&command->body->graph);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* parameters) {
  const std::lock_guard lock(driver().mutex);
  GraphNode* node = find_node(handle);
  if (node == nullptr || parameters == nullptr || parameters->type != node->type)
    return CUDA_ERROR_INVALID_VALUE;
  NodeContent content{node->command, node->context};
  if (const CUresult error = content_of(*parameters, &content); error != CUDA_SUCCESS) return error;
  forget_child(*node);
  node->command = std::move(content.command);
  node->context = content.context;
  remember_child(*node);
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
