// SPDX-License-Identifier: Apache-2.0
//
// A walk over MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md): one value after
// the other, no copies, no allocation. Anything malformed ends the walk: ok() is false then and
// every further read answers nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace vitamin::interpose {

class MsgpackReader {
 public:
  explicit MsgpackReader(std::span<const std::byte> bytes) : left_(bytes) {}
  bool ok() const { return ok_; }

  // The number of entries of the map or elements of the array that begins here, and steps inside.
  std::optional<std::uint32_t> map() { return container(0x80, 0xde); }
  std::optional<std::uint32_t> array() { return container(0x90, 0xdc); }
  std::optional<std::string_view> string();
  std::optional<std::uint64_t> unsigned_integer();
  // Steps over the value that begins here, whatever it is.
  void skip() { skip(0); }

 private:
  static constexpr int kDepthMax = 32;
  std::optional<std::uint32_t> container(std::uint8_t fixed, std::uint8_t wide);
  void skip(int depth);
  std::uint8_t peek();
  std::uint64_t number(std::size_t bytes);  // big-endian
  bool advance(std::uint64_t bytes);

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace vitamin::interpose
