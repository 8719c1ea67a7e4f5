// SPDX-License-Identifier: Apache-2.0
//
// Records: what is encoded comes back; what no correct peer sends is refused; arbitrary bytes never
// give a record that breaks a bound. VITAMIN_TEST_RECORDS: how many arbitrary ones (default: some
// seconds' worth); the fuzzer (decode_fuzzer.cpp) runs for as long as one likes.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <random>

#include "daemon/protocol/handshake.h"
#include "daemon/protocol/record.h"
#include "tests/protocol/bounds_check.h"

namespace vitamin::protocol {

namespace {

constexpr Bounds kBounds{60, 132};

template <class T>
bool accepted(const T& typed) {
  const auto decoded = decode_request(encode(typed), kBounds);
  return decoded && std::holds_alternative<T>(*decoded);
}

}  // namespace

TEST_CASE("what is encoded comes back") {
  Ready ready;
  ready.head.lane = 3;
  ready.kernel = 77;
  ready.sms = 16;
  ready.predicted_ns = 12'000;
  ready.last_partition = 5;
  ready.moves_on = 1;
  const auto request = decode_request(encode(ready), kBounds);
  REQUIRE(request);
  const auto& back = std::get<Ready>(*request);
  CHECK(back.head.lane == 3);
  CHECK(back.kernel == 77);
  CHECK(back.sms == 16);
  CHECK(back.last_partition == 5);
  CHECK(back.moves_on == 1);

  Grant grant;
  grant.partition = 9;
  grant.launches = runtime::kNoPartition;
  grant.word = 0x1234567800000101;
  const auto reply = decode_reply(encode(grant), kBounds);
  REQUIRE(reply);
  CHECK(std::get<Grant>(*reply).word == grant.word);
  CHECK(std::get<Grant>(*reply).ahead_ns == 0);  // of before 1.5: as far as it likes
}

TEST_CASE("what no correct client sends is refused") {
  CHECK(accepted(Ready{}));
  CHECK(accepted(Ready{.sms = 133}));  // one more than there are: only the whole device
  CHECK_FALSE(accepted(Ready{.sms = 0}));
  CHECK_FALSE(accepted(Ready{.sms = 134}));
  CHECK_FALSE(accepted(Ready{.predicted_ns = ~0ULL}));
  CHECK_FALSE(accepted(Ready{.ready_in_ns = ~0ULL}));
  CHECK_FALSE(accepted(Ready{.last_partition = 60}));
  CHECK_FALSE(accepted(Ready{.moves_on = 2}));
  CHECK_FALSE(accepted(Ready{.head = {.lane = kLanes}}));
  CHECK_FALSE(accepted(Idle{.head = {.lane = ~0U}}));
  CHECK(accepted(Returned{.partition = 59}));
  CHECK_FALSE(accepted(Returned{.partition = 60}));
  CHECK_FALSE(accepted(Draining{.partition = 1u << 20}));
  CHECK_FALSE(accepted(HintRecord{.cancelled = 2}));
  CHECK(accepted(Ready{.kind = 3}));
  CHECK_FALSE(accepted(Ready{.kind = 4}));
  CHECK_FALSE(accepted(HintRecord{.kind = 4}));
  CHECK(accepted(Timed{.mean_ns = 1, .launches = 1, .sms = 132}));
  CHECK_FALSE(accepted(Timed{.mean_ns = 0, .launches = 1, .sms = 132}));
  CHECK_FALSE(accepted(Timed{.mean_ns = ~0ULL, .launches = 1, .sms = 132}));
  CHECK_FALSE(accepted(Timed{.mean_ns = 1, .launches = 1, .sms = 132, .whole_ns = ~0ULL}));
  CHECK_FALSE(accepted(Timed{.mean_ns = 1, .launches = 0, .sms = 132}));
  CHECK_FALSE(accepted(Timed{.mean_ns = 1, .launches = 1, .sms = 0}));
  CHECK_FALSE(accepted(Timed{.mean_ns = 1, .launches = 1, .sms = 133}));
  CHECK_FALSE(decode_request(encode(Grant{.launches = 1}), kBounds));
  CHECK_FALSE(decode_request(Record{}, kBounds));
}

TEST_CASE("what no correct daemon sends is refused") {
  CHECK(decode_reply(encode(Grant{.launches = 1}), kBounds));
  CHECK_FALSE(decode_reply(encode(Grant{.launches = 0}), kBounds));
  CHECK_FALSE(decode_reply(encode(Grant{.launches = 1, .partition = 60}), kBounds));
  CHECK(decode_reply(encode(Grant{.launches = 1, .ahead_ns = 500'000}), kBounds));
  CHECK_FALSE(decode_reply(encode(Grant{.launches = 1, .ahead_ns = ~0ULL}), kBounds));
  CHECK_FALSE(decode_reply(encode(Ready{}), kBounds));
}

TEST_CASE("arbitrary bytes never give a record outside the bounds") {
  const char* wanted = std::getenv("VITAMIN_TEST_RECORDS");
  const std::uint64_t many = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 2'000'000;
  std::mt19937_64 random(1);
  std::uint64_t bad = 0, good = 0;
  for (std::uint64_t i = 0; i < many; ++i) {
    Record record;
    // Mostly small values, so that many records come close to being right.
    for (auto& word : record.words) {
      word = random();
      if (const auto shape = random() % 4; shape > 0) word >>= 16 * shape;
      if (random() % 3 == 0) word &= 0x0000003f'0000003f;
    }
    if (random() % 2 == 0) record.words[0] = random() % 8;
    const int verdict = check_decoding(record, kBounds);
    bad += verdict < 0;
    good += verdict > 0;
  }
  MESSAGE(good << " of " << many << " were records");
  CHECK(good > many / 100);  // else nothing was tested
  CHECK(bad == 0);
}

TEST_CASE("a handshake of another major version is refused by its number") {
  Hello hello = hello_of({hal::Vendor::kSoftware, "soft", "GPU-1", 4, {2, 2}, 1000}, "test");
  REQUIRE(parse<Hello>(bytes_of(hello)));
  hello.preamble.major = kMajor + 1;
  const auto refused = parse<Hello>(bytes_of(hello));
  REQUIRE_FALSE(refused);
  const std::string theirs =
      "version " + std::to_string(kMajor + 1) + "." + std::to_string(kMinor) + " ";
  CHECK(refused.error().message.find(theirs) != std::string::npos);
  Welcome welcome;
  welcome.preamble.kind = MessageKind::kWelcome;
  REQUIRE(parse<Welcome>(bytes_of(welcome)));
  welcome.preamble.major = kMajor + 1;
  CHECK_FALSE(parse<Welcome>(bytes_of(welcome)));
}

TEST_CASE("what a program says of itself comes back, and a share that is none does not") {
  const hal::DeviceInfo info{hal::Vendor::kSoftware, "soft", "GPU-1", 4, {2, 2}, 1000};
  Hello hello = hello_of(info, "test", {"latency", "12.0", 25, "/run/mps"});
  const auto back = parse<Hello>(bytes_of(hello));
  REQUIRE(back);
  CHECK(claim_of(*back).workload_class == "latency");
  CHECK(claim_of(*back).job == "12.0");
  CHECK(claim_of(*back).share == 25);
  CHECK(claim_of(*back).mps_directory == "/run/mps");
  hello.share = 101;
  CHECK(claim_of(hello).share == 0);
  // Of clients that know 1.9 and 1.1 only, and send less.
  hello.preamble.minor = 9;
  const auto former = parse<Hello>(bytes_of(hello).first(offsetof(Hello, mps_directory)));
  REQUIRE(former);
  CHECK(claim_of(*former).job == "12.0");
  CHECK(claim_of(*former).mps_directory.empty());
  hello.preamble.minor = 1;
  hello.share = 0;
  const auto older = parse<Hello>(bytes_of(hello).first(offsetof(Hello, job)));
  REQUIRE(older);
  CHECK(claim_of(*older).workload_class == "latency");
  CHECK(claim_of(*older).job.empty());
}

TEST_CASE("a refusal is read as its sentence") {
  const auto answer = parse<Welcome>(bytes_of(refusal("the device is draining")));
  REQUIRE_FALSE(answer);
  CHECK(answer.error().message == "the device is draining");
}

TEST_CASE("a device that cannot be is refused") {
  const hal::DeviceInfo info{hal::Vendor::kSoftware, "soft", "GPU-1", 12, {4, 4, 4}, 1000};
  auto refused = [](Hello hello) { return !device_of(hello); };
  CHECK_FALSE(refused(hello_of(info, "x")));
  auto with = [&](auto change) {
    Hello hello = hello_of(info, "x");
    change(hello);
    return hello;
  };
  CHECK(refused(with([](Hello& h) { h.units = 0; })));
  CHECK(refused(with([](Hello& h) { h.units = 65; })));
  CHECK(refused(with([](Hello& h) { h.sms = 0; })));
  CHECK(refused(with([](Hello& h) { h.sms = 11; })));
  CHECK(refused(with([](Hello& h) { h.sms_per_unit[1] = 0; })));
  CHECK(refused(with([](Hello& h) { h.vendor = 9; })));
  CHECK(refused(with([](Hello& h) { h.uuid.set(""); })));
  CHECK(refused(with([](Hello& h) { h.uuid.set("../etc/passwd"); })));
}

}  // namespace vitamin::protocol
