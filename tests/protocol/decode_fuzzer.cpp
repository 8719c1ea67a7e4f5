// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over everything that is decoded from a peer: records and handshake messages.
#include <locale.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "daemon/protocol/handshake.h"
#include "tests/protocol/bounds_check.h"

namespace protocol = vitamin::protocol;

namespace {

// As the C library sees UTF-8, and without control characters; a second look changes nothing.
template <std::size_t kSize>
void must_be_text(const protocol::MessageText<kSize>& text) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return;
  ::uselocale(utf8);
  const std::string said = text.get();
  std::mbstate_t state{};
  for (std::size_t i = 0; i < said.size();) {
    wchar_t character = 0;
    const std::size_t length = std::mbrtowc(&character, &said[i], said.size() - i, &state);
    const bool control = character < 0x20 || (character >= 0x7f && character < 0xa0);
    if (length == 0 || length > 4 || control) std::abort();
    i += length;
  }
  protocol::MessageText<kSize> again;
  again.set(said);
  if (said.size() < kSize && again.get() != said) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  protocol::Record record;
  std::memcpy(record.words.data(), data, std::min(size, sizeof record.words));
  if (protocol::check_decoding(record, {60, 132}) < 0) std::abort();
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  protocol::MessageText<64> text;
  std::memcpy(text.bytes.data(), data, std::min(size, text.bytes.size()));
  must_be_text(text);
  if (const auto hello = protocol::parse<protocol::Hello>(bytes))
    if (const auto device = protocol::device_of(*hello))
      if (vitamin::runtime::PoolLayout::build(*device).size() < 1) std::abort();
  if (const auto control = protocol::parse<protocol::Control>(bytes)) must_be_text(control->verb);
  if (const auto welcome = protocol::parse<protocol::Welcome>(bytes)) protocol::limits_of(*welcome);
  return 0;
}
