// SPDX-License-Identifier: Apache-2.0
//
// Results of HAL calls.
//
// Two kinds of result, because there are two kinds of caller:
//   * set-up calls (open a device, create a context) return Result<T>, which must not be ignored.
//     On failure it has a code to branch on and a message for a person;
//   * calls on the launch path return NativeStatus: the vendor's own code, untouched, because the
//     interposer hands it to the application as the answer of the call that the application made.
#pragma once

#include <cstdint>
#include <string>

// The attribute takes effect only in the first declaration, so this one precedes the library's.
// Include this header, not <tl/expected.hpp>.
namespace tl {
template <class T, class E>
class [[nodiscard]] expected;
}  // namespace tl

#include <tl/expected.hpp>

namespace vitamin::hal {

enum class Errc : std::uint8_t {
  kUnavailable,      // not on this machine: no driver, no device, too old. Tests skip on it
  kInvalidArgument,  // the caller's mistake
  kUnsupported,      // this backend cannot do it, ever
  kOutOfMemory,
  kBusy,  // the resource is in use; it may be free later
  kDeviceLost,
  kInternal,
};

struct Error {
  Errc code = Errc::kInternal;
  int native = 0;  // the vendor's code, 0 where no vendor call failed
  // A clause in the present tense, lower case, without a full stop, since callers put it into lines
  // of their own: what failed, values in parentheses.
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Errc code, std::string message, int native = 0) {
  return tl::unexpected<Error>(Error{code, native, std::move(message)});
}

// The vendor's status of one call on the launch path. 0 is success for CUDA, HIP and the software
// device; every other value is opaque to vendor-neutral code, which asks Device::errors().
using NativeStatus = int;
inline constexpr NativeStatus kNativeOk = 0;

// What a NativeStatus means to the runtime.
enum class Outcome : std::uint8_t {
  kOk,
  kNotReady,          // a query: the work is still running
  kPartitionRefused,  // the operation cannot run unchanged on this partition (a cluster or
                      // cooperative grid that is too large); a wider partition may run it
  kError,             // the application would get it natively, too: return it, do not retry
};

}  // namespace vitamin::hal
