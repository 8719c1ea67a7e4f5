// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/handshake.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hal/fnv1a.h"

namespace vitamin::protocol {
namespace {

tl::unexpected<hal::Error> refuse(std::string sentence) {
  return hal::fail(hal::Errc::kUnsupported, std::move(sentence));
}

std::string version(std::uint16_t major, std::uint16_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// How long the character is that this text begins with: of UTF-8, and one that is shown. 0: none.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0xa0, 0x800,
                                      0x10000};  // below 0xa0: control characters
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code >= kLeast[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

}  // namespace

template <std::size_t kSize>
std::string MessageText<kSize>::get() const {
  std::string text(bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0'));
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character(std::string_view(text).substr(i));
    if (length == 0) text[i] = '?';
    i += std::max<std::size_t>(length, 1);
  }
  return text;
}
template std::string MessageText<64>::get() const;
template std::string MessageText<256>::get() const;

template <class Message>
hal::Result<Message> parse(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<Message>);
  Preamble preamble;
  if (bytes.size() < sizeof preamble) return refuse("the peer sent something too short");
  std::memcpy(&preamble, bytes.data(), sizeof preamble);
  if (preamble.magic != Preamble{}.magic) return refuse("the peer does not speak this protocol");
  if (preamble.major != kMajor)
    return refuse("the peer speaks version " + version(preamble.major, preamble.minor) +
                  " of the protocol and this side version " + version(kMajor, kMinor) +
                  ": install the same release of vitamin and vitamind");
  if (preamble.kind == MessageKind::kRefusal && bytes.size() == sizeof(Refusal)) {
    Refusal refusal;
    std::memcpy(&refusal, bytes.data(), sizeof refusal);
    if (Message::kKind != MessageKind::kRefusal) return refuse(refusal.sentence.get());
  }
  if (preamble.kind != Message::kKind ||
      (bytes.size() != sizeof(Message) && preamble.minor == kMinor))
    return refuse("the peer sent a message that was not expected");
  Message message;
  auto* const raw = reinterpret_cast<std::byte*>(&message);
  std::fill(std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof message), raw),
            raw + sizeof message, std::byte{0});
  return message;
}
template hal::Result<Hello> parse(std::span<const std::byte>);
template hal::Result<Welcome> parse(std::span<const std::byte>);
template hal::Result<Refusal> parse(std::span<const std::byte>);
template hal::Result<Control> parse(std::span<const std::byte>);

hal::Result<hal::DeviceInfo> device_of(const Hello& hello) {
  constexpr std::uint32_t kSmsMax = 1 << 16;
  hal::DeviceInfo info;
  if (hello.vendor > static_cast<std::uint32_t>(hal::Vendor::kAmd))
    return refuse("the client names a vendor that is not known");
  if (hello.units == 0 || hello.units > hal::ComputeSet::kMaxUnits)
    return refuse("the client names a device of no or of too many units");
  if (hello.sms == 0 || hello.sms > kSmsMax)
    return refuse("the client names a device of no SMs or of too many");
  info.vendor = static_cast<hal::Vendor>(hello.vendor);
  info.name = hello.device_name.get();
  info.uuid = hello.uuid.get();
  info.sms = hello.sms;
  std::uint64_t sum = 0;
  for (std::uint32_t unit = 0; unit < hello.units; ++unit) {
    const std::uint32_t sms = hello.sms_per_unit[unit];
    if (sms == 0 || sms > hello.sms)
      return refuse("the client names a unit that is wider than its device, or empty");
    sum += sms;
    info.sms_per_unit.push_back(sms);
  }
  if (sum > hello.sms) return refuse("the units of the client's device do not fit into it");
  if (info.uuid.empty() || info.uuid.find('/') != std::string::npos || info.uuid[0] == '.')
    return refuse("the client's device has no usable UUID");
  return info;
}

Hello hello_of(const hal::DeviceInfo& info, std::string_view program, const Claim& claim) {
  Hello hello;
  hello.preamble.kind = MessageKind::kHello;
  hello.vendor = static_cast<std::uint32_t>(info.vendor);
  hello.sms = info.sms;
  hello.units = info.units();
  std::copy(info.sms_per_unit.begin(), info.sms_per_unit.end(), hello.sms_per_unit.begin());
  hello.uuid.set(info.uuid);
  hello.device_name.set(info.name);
  hello.program.set(program);
  hello.workload_class.set(claim.workload_class);
  hello.job.set(claim.job);
  hello.share = claim.share;
  hello.mps_directory.set(claim.mps_directory);
  return hello;
}

Claim claim_of(const Hello& hello) {
  Claim claim{hello.workload_class.get(), hello.job.get(), hello.share, hello.mps_directory.get()};
  if (claim.share > 100) claim.share = 0;
  return claim;
}

runtime::PoolLimits limits_of(const Welcome& welcome) {
  runtime::PoolLimits limits;
  limits.partitions_max = welcome.partitions_max;
  limits.leaf_units = welcome.leaf_units;
  limits.all_runs = welcome.all_runs != 0;
  return limits;
}

Refusal refusal(std::string_view sentence) {
  Refusal message;
  message.preamble.kind = MessageKind::kRefusal;
  message.sentence.set(sentence);
  return message;
}

std::uint64_t hash_of(const runtime::PoolLayout& layout) {
  std::uint64_t hash = hal::kFnv1aBasis;
  for (const runtime::Partition& partition : layout.partitions()) {
    hash = hal::fnv1a_add(hash, partition.id);
    hash = hal::fnv1a_add(hash, partition.compute.bits());
    hash = hal::fnv1a_add(hash, partition.sms);
  }
  return hash;
}

}  // namespace vitamin::protocol
