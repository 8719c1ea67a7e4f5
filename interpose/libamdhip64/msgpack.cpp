// SPDX-License-Identifier: Apache-2.0
#include "interpose/libamdhip64/msgpack.h"

namespace vitamin::interpose {

std::uint8_t MsgpackReader::peek() {
  if (!ok_ || left_.empty()) {
    ok_ = false;
    return 0xc1;  // never a value
  }
  return static_cast<std::uint8_t>(left_[0]);
}

bool MsgpackReader::advance(std::uint64_t bytes) {
  if (!ok_ || bytes > left_.size()) return ok_ = false;
  left_ = left_.subspan(static_cast<std::size_t>(bytes));
  return true;
}

std::uint64_t MsgpackReader::number(std::size_t bytes) {
  if (!ok_ || bytes > left_.size()) {
    ok_ = false;
    return 0;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<std::uint8_t>(left_[i]);
  advance(bytes);
  return value;
}

// A container's tag carries up to 15 elements, or is followed by 2 or 4 bytes that count them.
std::optional<std::uint32_t> MsgpackReader::container(std::uint8_t fixed, std::uint8_t wide) {
  const std::uint8_t tag = peek();
  std::uint64_t count = tag & 0xfU;
  if ((tag & 0xf0) == fixed) {
    advance(1);
  } else if (tag == wide || tag == wide + 1) {
    advance(1);
    count = number(tag == wide ? 2 : 4);
  } else {
    ok_ = false;
  }
  if (!ok_) return std::nullopt;
  return static_cast<std::uint32_t>(count);
}

std::optional<std::string_view> MsgpackReader::string() {
  const std::uint8_t tag = peek();
  std::uint64_t size = tag & 0x1fU;
  if ((tag & 0xe0) == 0xa0) {
    advance(1);
  } else if (tag >= 0xd9 && tag <= 0xdb) {
    advance(1);
    size = number(std::size_t{1} << (tag - 0xd9));
  } else {
    ok_ = false;
  }
  const std::span<const std::byte> text = left_;
  if (!advance(size)) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(text.data()),
                          static_cast<std::size_t>(size));
}

std::optional<std::uint64_t> MsgpackReader::unsigned_integer() {
  const std::uint8_t tag = peek();
  std::uint64_t value = tag;
  if (tag < 0x80) {
    advance(1);
  } else if (tag >= 0xcc && tag <= 0xcf) {
    advance(1);
    value = number(std::size_t{1} << (tag - 0xcc));
  } else {
    ok_ = false;
  }
  if (!ok_) return std::nullopt;
  return value;
}

void MsgpackReader::skip(int depth) {
  const std::uint8_t tag = peek();
  if (!ok_ || depth > kDepthMax) {
    ok_ = false;
    return;
  }
  auto elements = [&](std::optional<std::uint32_t> count, unsigned each) {
    const std::uint64_t values = std::uint64_t{count.value_or(0)} * each;
    for (std::uint64_t i = 0; i < values && ok_; ++i) skip(depth + 1);
  };
  if (tag < 0x80 || tag >= 0xe0) return void(advance(1));  // small integers
  if ((tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf) return elements(map(), 2);
  if ((tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd) return elements(array(), 1);
  if ((tag & 0xe0) == 0xa0 || (tag >= 0xd9 && tag <= 0xdb)) return void(string());
  advance(1);
  if (tag == 0xc0 || tag == 0xc2 || tag == 0xc3) return;  // nil, false, true
  if (tag >= 0xc4 && tag <= 0xc6) {                       // bytes
    advance(number(std::size_t{1} << (tag - 0xc4)));
  } else if (tag >= 0xc7 && tag <= 0xc9) {  // extensions
    advance(number(std::size_t{1} << (tag - 0xc7)) + 1);
  } else if (tag == 0xca || tag == 0xcb) {  // floating point
    advance(tag == 0xca ? 4 : 8);
  } else if (tag >= 0xcc && tag <= 0xd3) {  // integers
    advance(std::uint64_t{1} << ((tag - 0xcc) % 4));
  } else if (tag >= 0xd4 && tag <= 0xd8) {  // fixed extensions
    advance((std::uint64_t{1} << (tag - 0xd4)) + 1);
  } else {
    ok_ = false;
  }
}

}  // namespace vitamin::interpose
