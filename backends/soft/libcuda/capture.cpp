// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/capture.h"

#include <algorithm>
#include <set>

#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/graph.h"
#include "backends/soft/libcuda/graph_memory.h"

namespace vitamin::soft::driver {

struct Capture {
  Graph* graph = nullptr;
  bool owns_graph = true;  // false: begun into a graph of the application
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool valid = true;
  std::uint64_t id = 0;
  std::uint64_t thread = 0;
  Stream* origin = nullptr;
  std::set<Stream*> streams;
};

namespace {

// Every capture that is open. Guarded by the driver's mutex.
std::set<Capture*>& open_captures() {
  static auto* const captures = new std::set<Capture*>;
  return *captures;
}

void enter(Stream& stream, const std::shared_ptr<Capture>& capture, std::vector<GraphNode*> tail) {
  stream.capture = capture;
  stream.capture_tail = std::move(tail);
  capture->streams.insert(&stream);
  if (stream.blocking()) stream.context->captures.insert(capture.get());
}

// Every stream leaves; the capture is over.
void close(Capture& capture) {
  open_captures().erase(&capture);
  const std::set<Stream*> streams = std::exchange(capture.streams, {});
  for (Stream* stream : streams) {
    stream->context->captures.erase(&capture);
    stream->capture_tail.clear();
    stream->capture.reset();  // the last one frees the capture
  }
}

bool offends(const Capture& capture, const ThreadState& thread) {
  if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == thread.serial) return true;
  return thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void add_unique(std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& more) {
  for (GraphNode* node : more)
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

// An event that stands behind these nodes from now on.
void record_in_capture(EventObject& event, const std::shared_ptr<Capture>& capture,
                       std::vector<GraphNode*> tail) {
  event.captured = true;
  event.capture = capture;
  event.captured_tail = std::move(tail);
}

// Whether everything that other streams added leads to the origin's tail.
bool joined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<const GraphNode*> open(capture.origin->capture_tail.begin(),
                                     capture.origin->capture_tail.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const Stream* stream : capture.streams)
    for (const GraphNode* node : stream->capture_tail)
      if (!reached.contains(node)) return false;
  return true;
}

CUresult begin(CUstream handle, Graph* into, std::vector<GraphNode*> tail,
               CUstreamCaptureMode mode) {
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->kind == StreamClass::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->owns_graph = into == nullptr;
  capture->graph = into != nullptr ? into : driver().own(std::make_unique<Graph>(), Kind::kGraph);
  capture->mode = mode;
  capture->id = driver().next_id++;
  capture->thread = thread_state().serial;
  capture->origin = stream;
  open_captures().insert(capture.get());
  enter(*stream, capture, std::move(tail));
  return CUDA_SUCCESS;
}

CUresult end(Stream& stream, CUgraph* handle) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) {
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult answer = capture->valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture->valid && !joined(*capture)) answer = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_state().serial)
    answer = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  close(*capture);
  if (answer == CUDA_SUCCESS) {
    *handle = reinterpret_cast<CUgraph>(capture->graph);
  } else if (capture->owns_graph) {
    destroy_graph(capture->graph);
  }
  return answer;
}

// The legacy stream cannot be asked while a blocking stream of its context captures.
CUresult look(CUstream handle, Stream** stream) {
  if (const CUresult error = resolve_stream(handle, stream); error != CUDA_SUCCESS) return error;
  const bool implicit =
      (*stream)->kind == StreamClass::kLegacy && !(*stream)->context->captures.empty();
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

struct CaptureQuestion {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

CUresult answer_question(CUstream handle, const CaptureQuestion& question) {
  const std::lock_guard lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = look(handle, &stream); error != CUDA_SUCCESS) return error;
  if (question.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *question.status = status_of(*stream);
  if (*question.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (question.id != nullptr) *question.id = stream->capture->id;
  if (question.graph != nullptr)
    *question.graph = reinterpret_cast<CUgraph>(stream->capture->graph);
  if (question.dependencies != nullptr)
    *question.dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  // Every edge is a full dependency, which the answer "no data" says.
  if (question.edges != nullptr) *question.edges = nullptr;
  if (question.count != nullptr) *question.count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

CUresult nodes_of(const Graph* graph, const CUgraphNode* handles, std::size_t count,
                  std::vector<GraphNode*>* nodes) {
  if (count != 0 && handles == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* node = find_node(handles[i]);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    nodes->push_back(node);
  }
  return CUDA_SUCCESS;
}

CUresult update_dependencies(CUstream handle, const CUgraphNode* dependencies, std::size_t count,
                             unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = look(handle, &stream); error != CUDA_SUCCESS) return error;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (!stream->capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<GraphNode*> nodes;
  if (const CUresult error = nodes_of(stream->capture->graph, dependencies, count, &nodes);
      error != CUDA_SUCCESS)
    return error;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_tail.clear();
  add_unique(stream->capture_tail, nodes);
  return CUDA_SUCCESS;
}

CUresult wait_in_capture(Stream& stream, const EventObject& event) {
  if (!event.recorded && event.shared == nullptr) return CUDA_SUCCESS;
  stream.capture->valid = false;
  return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

}  // namespace

CUresult forbid_in_capture(const Stream* stream) {
  if (stream != nullptr) {
    if (const CUresult error = forbid_on_stream(*stream); error != CUDA_SUCCESS) return error;
  }
  const ThreadState& thread = thread_state();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult answer = CUDA_SUCCESS;
  for (Capture* capture : open_captures()) {
    if (!offends(*capture, thread)) continue;
    capture->valid = false;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}

CUresult forbid_while_capturing(const Context& context) {
  CUresult answer = CUDA_SUCCESS;
  for (Capture* capture : open_captures()) {
    const bool inside =
        std::any_of(capture->streams.begin(), capture->streams.end(),
                    [&](const Stream* stream) { return stream->context == &context; });
    if (!inside) continue;
    capture->valid = false;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}

CUresult forbid_on_stream(const Stream& stream) {
  if (stream.capture != nullptr) {
    stream.capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return stream.kind == StreamClass::kLegacy ? refuse_implicit_dependency(*stream.context)
                                             : CUDA_SUCCESS;
}

CUresult refuse_implicit_dependency(Context& context) {
  if (context.captures.empty()) return CUDA_SUCCESS;
  for (Capture* capture : context.captures) capture->valid = false;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult refuse_in_capture(Stream& stream) {
  spoil_capture(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void spoil_capture(Stream& stream) {
  if (stream.capture != nullptr) stream.capture->valid = false;
}

void abandon_capture(Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  capture->valid = false;
  if (capture->origin == &stream) {
    close(*capture);
    if (capture->owns_graph) destroy_graph(capture->graph);
    return;
  }
  capture->streams.erase(&stream);
  stream.capture.reset();
}

CUresult refuse_captured_event(EventObject& event) {
  const std::shared_ptr<Capture> capture = event.capture.lock();
  if (capture == nullptr || !open_captures().contains(capture.get()))
    return CUDA_ERROR_INVALID_VALUE;
  capture->valid = false;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_allocation(Stream& stream, std::size_t bytes, CUdeviceptr* pointer) {
  if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  GraphAllocCommand command;
  if (const CUresult error = make_graph_block(*stream.capture->graph, stream.capture_tail, bytes,
                                              *stream.context, &command);
      error != CUDA_SUCCESS)
    return error;
  *pointer = static_cast<CUdeviceptr>(command.block->base);
  return capture_command(stream, std::move(command));
}

CUresult capture_free(Stream& stream, CUdeviceptr pointer) {
  if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  GraphFreeCommand command;
  if (const CUresult error =
          free_in_graph(*stream.capture->graph, static_cast<std::uintptr_t>(pointer), &command);
      error != CUDA_SUCCESS)
    return error;
  return capture_command(stream, std::move(command));
}

CUresult capture_command(Stream& stream, Command command) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (const auto* record = std::get_if<EventRecordCommand>(&command);
      record != nullptr && !record->external) {
    record_in_capture(*record->event, capture, stream.capture_tail);
    return CUDA_SUCCESS;
  }
  if (const auto* wait = std::get_if<EventWaitCommand>(&command);
      wait != nullptr && !wait->external)
    return wait_in_capture(stream, *wait->event);
  // A callback also runs on errors, which no node can express.
  if (std::holds_alternative<CallbackCommand>(command)) return refuse_in_capture(stream);

  EventObject* completion = nullptr;
  if (auto* kernel = std::get_if<KernelCommand>(&command))
    completion = std::exchange(kernel->completion, nullptr);
  const CUgraphNodeType type = type_of(command);
  GraphNode* node =
      add_node(*capture->graph, stream.capture_tail, type, stream.context, std::move(command));
  stream.capture_tail = {node};
  if (completion != nullptr) record_in_capture(*completion, capture, {node});
  return CUDA_SUCCESS;
}

CUresult join_capture(Stream& stream, EventObject& event) {
  const std::shared_ptr<Capture> capture = event.capture.lock();
  if (capture == nullptr || !open_captures().contains(capture.get()))
    return CUDA_ERROR_INVALID_VALUE;
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.kind == StreamClass::kLegacy) {
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream.capture == nullptr) {
    enter(stream, capture, event.captured_tail);
    return CUDA_SUCCESS;
  }
  if (stream.capture != capture) {
    stream.capture->valid = capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  add_unique(stream.capture_tail, event.captured_tail);
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------------- entry points

CUresult api::cuStreamBeginCapture(CUstream stream) {
  const std::lock_guard lock(driver().mutex);
  return begin(stream, nullptr, {}, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult api::cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(driver().mutex);
  return begin(stream, nullptr, {}, mode);
}

CUresult api::cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph_handle,
                                          const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                          size_t count, CUstreamCaptureMode mode) {
  const std::lock_guard lock(driver().mutex);
  Graph* graph = find_graph(graph_handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphNode*> tail;
  if (const CUresult error = nodes_of(graph, dependencies, count, &tail); error != CUDA_SUCCESS)
    return error;
  return begin(stream, graph, std::move(tail), mode);
}

CUresult api::cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  const std::lock_guard lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  return end(*stream, graph);
}

CUresult api::cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return answer_question(handle, {.status = status});
}

CUresult api::cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status,
                                     cuuint64_t* id) {
  return answer_question(handle, {.status = status, .id = id});
}

CUresult api::cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status,
                                        cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies, size_t* count) {
  return answer_question(
      handle,
      {.status = status, .id = id, .graph = graph, .dependencies = dependencies, .count = count});
}

CUresult api::cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                        cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies,
                                        const CUgraphEdgeData** edges, size_t* count) {
  return answer_question(handle, {.status = status,
                                  .id = id,
                                  .graph = graph,
                                  .dependencies = dependencies,
                                  .edges = edges,
                                  .count = count});
}

CUresult api::cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies,
                                                size_t count, unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

CUresult api::cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                                   const CUgraphEdgeData*, size_t count,
                                                   unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

CUresult api::cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_state().capture_mode);
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
