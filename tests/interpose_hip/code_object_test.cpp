// SPDX-License-Identifier: Apache-2.0
//
// Kernel layouts from code objects: from hipcc's own output, and from damaged bytes.
#include "interpose/libamdhip64/code_object.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "interpose/libamdhip64/msgpack.h"

namespace {

using std::string_view_literals::operator""sv;
using vitamin::interpose::CodeKind;
using vitamin::interpose::KernelLayouts;
using vitamin::interpose::MsgpackReader;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string module_file() {
  std::ifstream file(std::getenv("MODULE_FILE"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("values of every kind are stepped over, and what follows is read") {
  // nil, true, 300, -1, 1.5f, "ab", bytes, [1, {"k": 2}], extension, then 7
  const auto text =
      "\xc0\xc3\xcd\x01\x2c\xff\xca\x3f\xc0\x00\x00\xa2"
      "ab\xc4\x01z\x92\x01\x81\xa1k\x02\xd4\x05q\x07"sv;
  MsgpackReader reader(bytes_of(text));
  for (int i = 0; i < 9; ++i) reader.skip();
  CHECK(reader.unsigned_integer() == 7);
  CHECK(reader.ok());
  CHECK_FALSE(reader.unsigned_integer());
  CHECK_FALSE(reader.ok());
}

TEST_CASE("a value that claims more than there is ends the walk") {
  for (const auto text : {"\xd9\xff"sv, "\xdf\xff\xff\xff\xff"sv, "\xc6\xff\xff\xff\xff"sv, ""sv}) {
    MsgpackReader reader(bytes_of(text));
    reader.skip();
    CHECK_FALSE(reader.ok());
  }
  MsgpackReader deep(bytes_of(std::string(100000, '\x91')));
  deep.skip();
  CHECK_FALSE(deep.ok());
}

TEST_CASE("what is no code object has no layouts") {
  KernelLayouts layouts;
  CHECK_FALSE(vitamin::interpose::read_layouts(bytes_of("CCOB and more"), layouts));
  CHECK(vitamin::interpose::kind_of(bytes_of("CCOB")) == CodeKind::kCompressedBundle);
  CHECK_FALSE(vitamin::interpose::read_layouts(bytes_of("#!/bin/sh"), layouts));
  CHECK(layouts.empty());
}

TEST_CASE("a bundle of hipcc tells where its kernels' parameters lie") {
  const std::string file = module_file();
  REQUIRE(file.size() > 1000);
  KernelLayouts layouts;
  CHECK(vitamin::interpose::read_layouts(bytes_of(file), layouts));
  REQUIRE_FALSE(layouts.empty());
  for (const auto& kernel : layouts) {
    CAPTURE(kernel.first);
    const auto& layout = kernel.second;
    CHECK_FALSE(layout.parameters.empty());
    std::uint32_t end = 0;
    for (const auto& parameter : layout.parameters) {
      CHECK(parameter.offset >= end);
      CHECK(parameter.size > 0);
      end = parameter.offset + parameter.size;
    }
    CHECK(layout.bytes == end);
  }
  const auto* image = reinterpret_cast<const std::byte*>(file.data());
  CHECK(vitamin::interpose::extent_of(image) <= file.size());
  CHECK(vitamin::interpose::extent_of(image) > file.size() / 2);
}

TEST_CASE("a damaged code object is refused or read, never trusted") {
  const std::string file = module_file();
  REQUIRE(file.size() > 1000);
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = file.substr(0, random() % file.size());
    for (int i = 0; i < 20 && !damaged.empty(); ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (damaged.size() > 24) std::memcpy(damaged.data(), file.data(), 24);
    const std::vector<std::byte> exact(bytes_of(damaged).begin(), bytes_of(damaged).end());
    KernelLayouts layouts;
    vitamin::interpose::read_layouts(exact, layouts);
  }
}

}  // namespace
