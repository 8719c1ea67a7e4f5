// SPDX-License-Identifier: Apache-2.0
//
// One stream-ordered request of the application.
//
// An Operation is built on the caller's stack from the arguments of the intercepted call and
// borrows everything they point to. Submitted within that call it is never copied. When it
// has to wait, keep() makes the deep copy that the paper calls the immutable descriptor; what
// cannot be copied (a pageable source that the caller may overwrite) says so and is submitted at
// once on the program's own stream instead.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "hal/device.h"

namespace vitamin::runtime {

class GraphOperation;
class LaunchOperation;

class Operation {
 public:
  virtual ~Operation() = default;
  // Itself, if it is a launch of a kernel or of a graph.
  virtual const LaunchOperation* as_launch() const { return nullptr; }
  virtual GraphOperation* as_graph() { return nullptr; }
  // Makes the vendor's call on `queue`, whose native stream replaces the application's.
  virtual hal::NativeStatus submit(hal::Queue& queue) noexcept = 0;
  // An owning copy with the same effect, or null when there can be none.
  virtual std::unique_ptr<Operation> keep() const = 0;
};

// An operation given by a callable: NativeStatus(void* native_stream). Everything captured by value
// is the deep copy, so a lambda that captures only values keeps itself.
template <class F>
class CallOperation final : public Operation {
 public:
  CallOperation(F call, bool keepable) : call_(std::move(call)), keepable_(keepable) {}
  hal::NativeStatus submit(hal::Queue& queue) noexcept override { return call_(queue.native()); }
  std::unique_ptr<Operation> keep() const override {
    if constexpr (std::is_copy_constructible_v<F>)
      if (keepable_) return std::make_unique<CallOperation>(call_, true);
    return nullptr;
  }

 private:
  F call_;
  bool keepable_;
};

// The same, but copied only if `may_keep` allows when the call would have to wait: a call that the
// vendor may refuse is made at once, so that the application hears of it.
template <class F, class P>
class CheckedCallOperation final : public Operation {
 public:
  CheckedCallOperation(F call, P may_keep)
      : call_(std::move(call)), may_keep_(std::move(may_keep)) {}
  hal::NativeStatus submit(hal::Queue& queue) noexcept override { return call_(queue.native()); }
  std::unique_ptr<Operation> keep() const override {
    return may_keep_() ? std::make_unique<CallOperation<F>>(call_, true) : nullptr;
  }

 private:
  F call_;
  P may_keep_;
};

enum class Keep : bool { kNo, kYes };

template <class F>
CallOperation<std::decay_t<F>> call(F&& function, Keep keepable = Keep::kYes) {
  return {std::forward<F>(function), keepable == Keep::kYes};
}

template <class F, class P>
CheckedCallOperation<std::decay_t<F>, std::decay_t<P>> call_kept_if(F&& function, P&& may_keep) {
  return {std::forward<F>(function), std::forward<P>(may_keep)};
}

}  // namespace vitamin::runtime
