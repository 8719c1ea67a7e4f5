// SPDX-License-Identifier: Apache-2.0
//
// Markers: native events of the runtime, recorded behind an operation and shared by all that must
// know when it ended: a wait on another queue, a host wait, a completion batch.
//
// A wait that was issued has captured its record, so a marker may be recorded again as soon as the
// last holder drops it, fired or not. DispatchOptions::markers are made at start; acquire() makes
// more when none is free, by calls of the vendor. Guarded by the device lock.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hal/device.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

class MarkerPool;

struct Marker {
  hal::Event event;
  std::uint32_t holders = 0;
  bool fired = false;          // observed; never goes back while it is held
  bool superseded = false;     // no answer about an event is about the record ahead of it
  std::uint64_t asked_in = 0;  // the round in which it was asked for last, and had not fired
  MarkerPool* pool = nullptr;
};

class MarkerRef {
 public:
  MarkerRef() = default;
  explicit MarkerRef(Marker* marker) : marker_(marker) {
    if (marker_) ++marker_->holders;
  }
  MarkerRef(const MarkerRef& other) : MarkerRef(other.marker_) {}
  MarkerRef(MarkerRef&& other) noexcept : marker_(std::exchange(other.marker_, nullptr)) {}
  MarkerRef& operator=(MarkerRef other) noexcept {
    std::swap(marker_, other.marker_);
    return *this;
  }
  ~MarkerRef() { reset(); }
  void reset() {
    if (marker_ != nullptr) release();
  }
  Marker* operator->() const { return marker_; }
  explicit operator bool() const { return marker_ != nullptr; }

 private:
  inline void release();
  Marker* marker_ = nullptr;
};

class MarkerPool {
 public:
  MarkerPool(hal::Device& device, std::size_t ready) : device_(device), errors_(device.errors()) {
    free_.reserve(2 * ready);
    grow(ready);
  }
  ~MarkerPool() {
    for (const auto& marker : all_) device_.destroy_event(marker->event);
  }
  MarkerPool(const MarkerPool&) = delete;
  MarkerPool& operator=(const MarkerPool&) = delete;

  // Null when the driver gives no more events.
  MarkerRef acquire() {
    if (free_.empty()) grow(64);
    if (free_.empty()) return {};
    Marker* marker = free_.back();
    free_.pop_back();
    marker->fired = marker->superseded = false;
    marker->asked_in = 0;
    return MarkerRef(marker);
  }
  // Whether so many can be had now.
  bool can_acquire(std::size_t count) {
    if (free_.size() < count) grow(count - free_.size() + 64);
    return free_.size() >= count;
  }
  // While it lives, a marker that has not fired is asked for once, however many callers ask: a
  // query costs 1.3 us on an H200.
  class Round {
   public:
    explicit Round(MarkerPool& pool) : pool_(pool) { pool_.round_ = ++pool_.rounds_; }
    ~Round() { pool_.round_ = 0; }
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;

   private:
    MarkerPool& pool_;
  };

  std::uint64_t round() const { return round_; }  // 0: none

  // Asks the driver at most once for each firing.
  bool fired(const MarkerRef& marker) {
    if (!marker || marker->fired) return true;
    if (round_ != 0 && std::exchange(marker->asked_in, round_) == round_) return false;
    const CaptureSafeScope safe(device_);
    const hal::NativeStatus status = device_.query(marker->event);
    // A sticky error ends all waiting: what comes next gets the error itself from the driver.
    if (errors_.classify(status) != hal::Outcome::kNotReady) marker->fired = true;
    return marker->fired;
  }

 private:
  friend class MarkerRef;
  void grow(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      hal::Result<hal::Event> event = device_.create_event();
      if (!event) return;
      all_.push_back(std::make_unique<Marker>(Marker{.event = *event, .pool = this}));
      free_.push_back(all_.back().get());
    }
  }
  hal::Device& device_;
  const hal::ErrorClassifier& errors_;
  std::uint64_t rounds_ = 0, round_ = 0;  // round_ 0: none
  std::vector<std::unique_ptr<Marker>> all_;
  std::vector<Marker*> free_;
};

inline void MarkerRef::release() {
  if (--marker_->holders == 0) marker_->pool->free_.push_back(marker_);
  marker_ = nullptr;
}

}  // namespace vitamin::runtime
