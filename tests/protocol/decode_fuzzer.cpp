// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over everything that is decoded from a peer: records and handshake messages.
#include <cstdlib>
#include <cstring>

#include "protocol/handshake.h"
#include "tests/protocol/bounds_check.h"

namespace protocol = vitamin::protocol;

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  protocol::Record record;
  std::memcpy(record.words.data(), data, std::min(size, sizeof record.words));
  if (protocol::check_decoding(record, {60, 132}) < 0) std::abort();
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto hello = protocol::parse<protocol::Hello>(bytes))
    if (const auto device = protocol::device_of(*hello))
      if (vitamin::runtime::PoolLayout::build(*device).size() < 1) std::abort();
  if (const auto control = protocol::parse<protocol::Control>(bytes)) control->verb.get();
  if (const auto welcome = protocol::parse<protocol::Welcome>(bytes)) protocol::limits_of(*welcome);
  return 0;
}
