// SPDX-License-Identifier: Apache-2.0
//
// Completion: what was submitted of each stream, which of it was seen to end, and how much more
// fits. Keeps Stream::submitted and the submitted and completed parts of Stream::timeline
// (stream.h).
//
// Operations of a stream on one queue form batches. A marker is recorded behind the last operation
// of a batch when it is closed; when the marker has fired, the batch has ended.
//
// A queue of the driver takes so many operations until the caller blocks in the driver
// (hal::DeviceInfo::queue_depth), which must not happen with the lock held. So the places that
// operations take are counted, and room(), takes() and may_defer() say whether there is one.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/submission/core.h"

namespace vitamin::runtime {

// Queue places that go with a launch at most: three waits (for its stream's tail, for what a wait
// waits for, for allocations), the two records of a Profiler::Stopwatch, and two markers (behind
// the launch, behind its predecessor). One is spare.
inline constexpr std::uint64_t kBesideALaunch = 8;

class Completion {
 public:
  explicit Completion(Core& core);

  // --- markers ---------------------------------------------------------------------------------
  // Behind what is on `queue` now, counted as the stream's; empty when the driver gives no more
  // events.
  MarkerRef mark(Stream& stream, hal::Queue& queue);
  // Behind the stream's newest submitted operation; empty when nothing is outstanding.
  MarkerRef tail_marker(Stream& stream);
  // The device waits on `queue` for the event: a marker's, or the application's.
  hal::NativeStatus wait_for(Stream& stream, hal::Queue& queue, hal::Event event);
  // The event was recorded and has not ended. Asks the driver.
  bool waits_for(hal::Event event) const;
  // Whether markers are recorded behind records of events and host waits as soon as these are made:
  // where operations are deferred, since what is kept for later waits for markers. Elsewhere few
  // are ever asked for, and each costs as much as the record itself (record 29). Asked once for
  // each: the answer is yes for some time behind the last operation that was deferred.
  bool marks_at_once() { return waits_for_completion() || (marks_ > 0 && marks_-- > 0); }
  // An operation was deferred, or could not be.
  void note_deferral() { marks_ = kMarksBehindDeferral; }
  // So many waits or records of the runtime were put on queues for the stream.
  void put_beside(Stream& stream, std::uint64_t count) {
    if (markers_take_places_) take_places(stream, count);
  }

  // --- what was submitted ----------------------------------------------------------------------
  struct Load {  // that an operation puts on its queue
    std::uint64_t places = 1;
    std::uint64_t predicted_ns = 0;
    std::uint32_t work = 0;           // of a launch (Kernel::work); 0: it is none
    bool counts_outstanding = false;  // it counts under the stream's grant (Arbiter::submitted)
  };
  // The driver took the operation on `queue`: it is the stream's tail now.
  void submitted(Stream& stream, PhysicalQueue& queue, const Load& load);
  void submitted(Stream& stream, PhysicalQueue& queue, OperationKind kind) {
    submitted(stream, queue,
              {.places = places_of(kind), .predicted_ns = core_.options.predicted_kernel_ns});
  }
  // One more operation of the stream was submitted on a queue that is not ours; it ends at
  // `marker`.
  void submitted_elsewhere(Stream& stream, MarkerRef marker);
  // submitted() for a launch of the fast path: on the queue of the stream's tail, without a marker.
  void submitted_on_fast_path(Stream& stream, const Kernel& kernel);
  // The stream's tail becomes a point that is known only by `marker`.
  void detach_tail(Stream& stream, MarkerRef marker);

  // --- what has ended --------------------------------------------------------------------------
  // The open batch gets its marker, and is observed complete on its own, unless there are many.
  void close_batch(Stream& stream);
  // Asks the driver how far the stream has got.
  void poll(Stream& stream);
  // Of a retired stream: all its work was seen to end, and no thread is inside a call on it.
  bool ended(Stream& stream);
  // Everything submitted of the stream, up to a serial, was seen complete.
  void all_complete(Stream& stream, std::uint64_t submitted);
  // Looks for the end of what was submitted on parts. Under an arbiter that isolates streams
  // (Arbiter::streams_share() is false) grants under which all work has ended end with that.
  void look_at_parts();
  // Looks for the end of what counts on the whole device.
  void look_at_whole();

  // --- host waits -----------------------------------------------------------------------
  // The stream's newest work lies behind something that needs the host and was not seen to end.
  bool waits_for_host(Stream& stream);
  // The same, without a call of the vendor: it may have ended.
  bool may_wait_for_host(const Stream& stream) const {
    const Stream::Submitted& work = stream.submitted;
    return work.unmarked_host_wait != 0 || (work.host_wait && !work.host_wait->fired);
  }
  // Before a host wait is submitted: what is ahead may end long before it does.
  void close_before_host_wait(Stream& stream);
  // The stream's newest operation is a host wait, submitted behind close_before_host_wait(). It
  // ends at `marker`; without one, waits_for_host() records one where it has not ended.
  void note_host_wait(Stream& stream, MarkerRef marker);
  void note_host_wait(Stream& stream) {
    note_host_wait(stream, marks_at_once() ? tail_marker(stream) : MarkerRef());
  }

  // --- how much fits ---------------------------------------------------------------------------
  // The window is 0, the paper's rule: a launch waits until its predecessors were seen to end.
  bool waits_for_completion() const { return core_.options.window.ahead_ns == 0; }
  // How far the stream's submission may run ahead: as configured, and what it was granted.
  std::uint64_t window(const Stream& stream) const {
    return std::min(core_.options.window.ahead_ns, stream.placing.grant.ahead_ns);
  }
  bool has_window(const Stream& stream) const {
    return !waits_for_completion() && window(stream) != kNever;
  }
  // Nothing looks at every launch: no window, audit or trace.
  bool unobserved() const { return unobserved_; }
  // Whether an operation may be submitted behind `predecessors`. `launch`: by the window, too.
  bool room(Stream& stream, std::span<const Predecessor> predecessors, bool launch,
            std::uint64_t places, std::uint64_t predicted_ns = 0);
  // Whether the driver takes an operation of this kind next, and everything that goes with it,
  // without blocking; what ends meanwhile is looked for. `kernel`: of a launch, else null.
  bool takes(Stream& stream, std::span<const Predecessor> predecessors, const Kernel* kernel,
             OperationKind kind) {
    return room(stream, predecessors, false, places_of(kernel, kind));
  }
  // Whether the stream's own queue would take the operation behind what is deferred, as far as the
  // depth of the queue is known. Where it would not, the caller blocks, as natively. So the
  // deferred operations always fit the stream's own queue, and a call that flushes them does not
  // block.
  bool may_defer(Stream& stream, const Kernel* kernel, OperationKind kind);
  // True: a launch may wait in the driver for what may need the host or another process. Streams
  // share the device's hardware queues, and the driver blocks its caller, who holds the device
  // lock, when one is full. So what waits there takes at most half of one, and from the first
  // success on half of each queue is kept free for it.
  bool reserve_behind_host_waits() {
    if (places_ >= depth_ / 2) return false;
    spare_places_ = depth_ / 2;
    return true;
  }
  // The launch leaves room in the open batch and in the queue of the tail.
  bool room_on_fast_path(const Stream& stream, const Kernel& kernel) const {
    return stream.submitted.open.operations + 1 < stream.submitted.batch_room &&
           stream.submitted.places + kernel.places + kBesideALaunch + spare_places_ <= depth_;
  }
  std::uint64_t places_of(OperationKind kind) const {
    return takes_no_place(kind) && !markers_take_places_ ? 0 : 1;
  }
  // `kernel`: of a launch, else null.
  std::uint64_t places_of(const Kernel* kernel, OperationKind kind) const {
    return kernel != nullptr ? kernel->places : places_of(kind);
  }

  // --- blocking streams ------------------------------------------------------------------------
  // They exist: the legacy stream's marker is then recorded at once, since one recorded later would
  // also cover what blocking streams did in between.
  void note_blocking_stream(Stream& legacy) {
    if (!blocking_streams_) tail_marker(legacy);
    blocking_streams_ = true;
  }
  bool blocking_streams() const { return blocking_streams_; }

  // --- reports to the arbiter ------------------------------------------------------------------
  // While the arbiter wants them: streams whose operations are not all seen complete are looked
  // at, and it is told what ended (report()).
  void report_if(bool wanted);
  bool reports_due() const { return !unfinished_.empty(); }
  void report();

 private:
  void take_places(Stream& stream, std::uint64_t count) {
    places_ += count;
    stream.submitted.places += count;
    stream.submitted.open.places += count;
  }
  void note_unfinished(Stream& stream);
  void count_outstanding(Stream& stream);
  std::uint32_t batch_operations(std::uint64_t ahead_ns) const;
  bool fits_queue(Stream& stream, std::span<const Predecessor> predecessors, std::uint64_t places,
                  std::uint64_t spare_places);
  void push_open_batch(Stream& stream);
  void end_batch(Stream& stream);
  void leave_tail(Stream& stream);
  void leave(Stream& stream, PhysicalQueue& queue);
  const HostWait* oldest_host_wait(Stream& stream);
  // The queue of the stream's tail has nothing left. Asks the driver.
  bool idle(const Stream& stream) const;

  // Records and host waits behind a deferral: where one operation was deferred, others soon are.
  static constexpr std::uint32_t kMarksBehindDeferral = 64;

  Core& core_;
  std::uint32_t marks_ = 0;  // of marks_at_once()
  // hal::DeviceInfo's.
  const std::uint64_t depth_;
  const bool depth_measured_;
  const bool markers_take_places_;
  const bool unobserved_;
  const std::uint32_t batch_operations_;  // a marker behind so many operations of a stream
  std::uint64_t places_ = 0;              // places that the operations of all streams take
  std::uint64_t spare_places_ = 0;        // of each queue, for what waits behind host waits
  bool blocking_streams_ = false;
  // Streams that look_at_whole() looks at: something on the whole device has counted since it saw
  // them idle last.
  std::vector<Stream*> counted_whole_;
  // Streams that report() looks at, and since when there are any, or when it was called last.
  bool reporting_ = false;
  std::vector<Stream*> unfinished_;
  std::chrono::steady_clock::time_point busy_since_{};
};

}  // namespace vitamin::runtime
