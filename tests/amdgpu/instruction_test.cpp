// SPDX-License-Identifier: Apache-2.0
//
// The interpreter's instructions, at random: operands, encodings, lane masks and memory. What a
// wave does must be what its lanes do one by one, and the bits must be those of the recorded
// digests.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ios>
#include <string>
#include <string_view>
#include <vector>

#include "backends/soft/amdgpu/isa/alias.h"
#include "tests/amdgpu/instruction_subject.h"
#include "tests/seed.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

struct Family {
  const char* name;
  U32 gfx9, gfx10, fixed;      // encoding, which gfx11 has from gfx10, and which bits are fixed
  std::array<U64, 5> digests;  // of each target
  bool only_gfx11 = false;
};

// What must come out, whatever compiles the interpreter and however it loops over the lanes.
constexpr Family kFamilies[] = {
    {"VOP2",
     0x00000000,
     0x00000000,
     0x80000000,
     {0xd892d75653becb0d, 0x83c52729bbb983a2, 0x15179e8438877ecb, 0xb3da1af506caf467,
      0x5c8d50869794d4fd}},
    {"VOP1",
     0x7e000000,
     0x7e000000,
     0xfe000000,
     {0xd943a930db448785, 0xb0425228e6fadbbb, 0xdd54fe9150025e34, 0x1f2b9d7c062f0778,
      0xa4ec4a5bc51bd01a}},
    {"VOPC",
     0x7c000000,
     0x7c000000,
     0xfe000000,
     {0xfd855088dc84bc1a, 0xb87604ad4f7d9dde, 0x100a6627dc3d244b, 0xe960c1b2a6d1ae4f,
      0xa54acd753fc799ec}},
    {"VOP3",
     0xd0000000,
     0xd4000000,
     0xfc000000,
     {0x971a7a9f70653f22, 0xb6d873431e2d587b, 0x7c22db572420693e, 0x6707d0d4661ee478,
      0xb1a2d7f64cdb4e9f}},
    {"VOP3P",
     0xd3800000,
     0xcc000000,
     0xff800000,
     {0x1ffc6bfa9a98311f, 0x90ca31e31cb891ac, 0xfbcbe12e3f8a9201, 0xabf351fca23d04ab,
      0xae5748fb154c3cbe}},
    {"SOP2",
     0x80000000,
     0x80000000,
     0xc0000000,
     {0xa1eff3e406630a30, 0xb836c778c68b5534, 0x82d815b533e5449d, 0x0408d3eaeff43626,
      0x219cc8afe782e45e}},
    {"SOP1",
     0xbe800000,
     0xbe800000,
     0xff800000,
     {0x2b747efb5857c205, 0xc8cfa6f4ff7a6413, 0x74bb030989b62054, 0xad54a69d784f690c,
      0x737aeab5ab7265d8}},
    {"SOPC",
     0xbf000000,
     0xbf000000,
     0xff800000,
     {0x8a5195e6389b5a43, 0xf5ef9d6aa3b395a7, 0xe0b8dba41f59d128, 0x1d9886f18aee2f3a,
      0x5303cdb2324e1804}},
    {"SOPK",
     0xb0000000,
     0xb0000000,
     0xf0000000,
     {0x3b8dfd5a2275c452, 0xedad0d52062db802, 0x71b3ce9206637117, 0xf01239495a0dfce8,
      0xe972285177dd5beb}},
    {"DS",
     0xd8000000,
     0xd8000000,
     0xfc00ff00,
     {0x7949d791d09a816c, 0xd06b64d75876a114, 0x88aadb028ab51869, 0x1127defee35b3e62,
      0x6bba34242d7d7957}},
    {"FLAT",
     0xdc000000,
     0xdc000000,
     0xfc000000,
     {0x44566961e1c6e70a, 0xc572addd0dbcc3ac, 0x199232fda0b3a121, 0x1bd6685e45cf8933,
      0x9ecc1ee9165b4053}},
    {"VOPD", 0xc8000000, 0xc8000000, 0xfc000000, {0, 0, 0, 0, 0x158f7bdf11253559}, true},
};

enum class Generation { kGfx9, kGfx10, kGfx11 };

std::array<U32, 4> encode(const Family& family, Generation generation, Random& random) {
  std::array<U32, 4> words;
  for (U32& word : words) word = static_cast<U32>(random.next());
  const U32 begin = generation == Generation::kGfx9 ? family.gfx9 : family.gfx10;
  words[0] = (words[0] & ~family.fixed) | begin;
  const bool vector_short = begin < 0x80000000;
  constexpr U32 kDpp8 = 233, kSdwa = 249, kDpp = 250, kLiteral = 255;
  const U32 most = generation == Generation::kGfx11 ? kDpp8 : kSdwa;  // gfx11 has no SDWA
  if (vector_short && random.one_in(4))
    words[0] = (words[0] & ~0x1ffu) | (random.one_in(2)   ? most
                                       : random.one_in(2) ? kDpp
                                                          : kLiteral);
  // Three fields of SDWA have values that LLVM takes for impossible.
  if (vector_short && (words[0] & 0x1ff) == kSdwa)
    for (const U32 field : {0x07000000u, 0x00070000u, 0x00000700u, 0x00001800u})
      if ((words[1] & field) == field) words[1] &= ~field;
  // Fields that an instruction does not use must be zero.
  constexpr U32 kByBytes[] = {0xff, 0xff00, 0xff0000, 0xff000000};
  constexpr U32 kBySources[] = {0x07fc0000, 0xf8000000, 0xe0000000, 0x18000000};
  if (!vector_short)
    for (const U32 field : begin >> 26 >= 0x36 ? kByBytes : kBySources)
      if (random.one_in(2)) words[1] &= ~field;
  if (begin >> 28 == 0xd && begin >> 26 < 0x36 && !random.one_in(4)) words[0] &= ~0xff00u;
  return words;
}

bool starts_with_any(const std::string& text, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return text.starts_with(prefix); });
}

// What ends or moves the wave, reads a clock, has last bits of the host's mathematics library, or
// multiplies matrices of the whole wave (matrix_rules_test.cpp).
bool is_left_out(const std::string& text) {
  return starts_with_any(text, {"s_getpc", "s_setpc", "s_swappc", "s_call", "s_getreg",
                                "s_sendmsg_rtn", "s_trap", "ds_gws", "s_cbranch", "v_exp", "v_log",
                                "v_sin", "v_cos", "scratch_", "v_mfma", "v_wmma"});
}

// Whether one lane's result depends on no other lane.
bool has_independent_lanes(const std::string& text) {
  if (text.find("exec") != std::string::npos || text.find("_dpp") != std::string::npos ||
      text.find(" quad_perm") != std::string::npos || text.find("row_") != std::string::npos ||
      text.find("wave_") != std::string::npos)
    return false;
  return starts_with_any(text, {"v_", "global_load", "global_store", "flat_load", "flat_store",
                                "ds_read", "ds_write", "ds_load", "ds_store"}) &&
         !starts_with_any(text, {"v_read", "v_writelane", "v_permlane", "v_cmpx"});
}

// Leads the addresses of a memory instruction into memory that is there. False: it cannot.
bool place_addresses(Subject& subject, const Instruction& instruction, Random& random) {
  const std::string& text = instruction.text;
  const bool shared = text.starts_with("ds_"), load = text.find("_load") != std::string::npos;
  const bool atomic = text.find("_atomic") != std::string::npos;
  if (!shared && !starts_with_any(text, {"global_", "flat_"})) return true;
  if (starts_with_any(text, {"ds_bpermute", "ds_permute", "ds_swizzle"})) return true;
  const bool behind = shared ? starts_with_any(text, {"ds_read", "ds_load"}) ||
                                   text.find("rtn") != std::string::npos
                             : load || (atomic && instruction.returns);
  const unsigned at = behind ? 1 : 0;
  const Operand& vector = instruction.operand[at];
  if (vector.kind != Operand::Kind::kVector) return false;
  U32* const low = &subject.state().vector[vector.reg * kLanes];
  constexpr U32 kSteps[] = {0, 1, 2, 4, 4, 8, 12, 16};
  const U32 step = kSteps[random.below(8)], begin = random.below(256) * 8, last = random.below(8);
  const bool scattered = random.one_in(3);
  std::array<U32, kLanes> offset;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    offset[lane] = scattered ? random.below(512) * 8 : begin + lane * step;
  if (random.one_in(4)) offset[63 - last] = random.below(512) * 8;
  if (atomic)
    for (U32& each : offset) each &= ~7u;
  const U64 immediate = static_cast<U64>(std::int64_t{instruction.offset});
  if (shared) {
    std::copy(offset.begin(), offset.end(), low);
    return true;
  }
  const Operand& base = instruction.operand[at + (load ? 1u : 2u)];
  const U64 middle = subject.memory() + kMiddle - immediate;
  if (text.starts_with("global_") && base.kind == Operand::Kind::kScalar && base.reg != kSink) {
    if (base.reg > 100) return false;
    std::copy(offset.begin(), offset.end(), low);
    std::memcpy(&subject.state().scalar[base.reg], &middle, 8);
    return true;
  }
  const unsigned space = text.starts_with("flat_") ? random.below(4) : 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    U64 address = middle + offset[lane];
    if (space == 1 || (space == 3 && lane % 2 != 0))
      address = (U64{kSharedAperture} << 32) + offset[lane] % (kLdsBytes - 64) - immediate;
    if (space == 2 || (space == 3 && lane % 3 != 0))
      address = (U64{kPrivateAperture} << 32) + offset[lane] % (kPrivateBytes - 16) - immediate;
    low[lane] = static_cast<U32>(address);
    low[kLanes + lane] = static_cast<U32>(address >> 32);
  }
  return true;
}

struct Outcome {
  U64 digest = 0;
  unsigned executed = 0, compared = 0;  // by the wave, and by its lanes as well
};

// One random instruction, by the wave and by each of its lanes. False: it is none to try.
bool try_one(Subject& subject, const Family& family, Generation generation, Random& random,
             Outcome& outcome) {
  const auto words = encode(family, generation, random);
  const Instruction& instruction = subject.decode(words);
  const std::string& text = instruction.text;
  const U64 exec = random.mask();
  if (is_left_out(text) || !place_addresses(subject, instruction, random)) return false;
  const bool memory = starts_with_any(text, {"ds_", "flat_", "global_"});
  Wave& wave = subject.wave();
  subject.restore(memory);
  wave.set_exec(exec);
  try {
    instruction.execute(wave, instruction);
  } catch (const Fault& fault) {
    if (std::string(fault.what()).find("does not know") != std::string::npos) return false;
    FAIL_CHECK(text << ": " << fault.what());
  }
  const U64 by_wave = subject.lanes_digest(memory);
  outcome.digest = (outcome.digest ^ by_wave ^ subject.scalars_digest()) * 0x9e3779b97f4a7c15ull;
  ++outcome.executed;
  if (!has_independent_lanes(text)) return true;
  subject.restore(memory);
  for (unsigned lane = 0; lane < wave.width; ++lane) {
    if ((exec >> lane & 1) == 0) continue;
    subject.restore_scalars();
    wave.set_exec(1ull << lane);
    instruction.execute(wave, instruction);
  }
  INFO(text << " under " << exec);
  CHECK(subject.lanes_digest(memory) == by_wave);
  ++outcome.compared;
  return true;
}

// Runs one instruction under `exec` from the state at the start. False: it is unknown.
bool run_fresh(Subject& subject, const Instruction& instruction, U64 exec) {
  subject.restore(false);
  subject.wave().set_exec(exec);
  try {
    instruction.execute(subject.wave(), instruction);
  } catch (const Fault&) {
    return false;
  }
  return true;
}

struct Target {
  const char* processor;
  unsigned width;
  Generation generation;
};
constexpr Target kTargets[] = {{"gfx90a", 64, Generation::kGfx9},
                               {"gfx1030", 32, Generation::kGfx10},
                               {"gfx1030", 64, Generation::kGfx10},
                               {"gfx940", 64, Generation::kGfx9},
                               {"gfx1100", 32, Generation::kGfx11}};

Outcome try_family(Subject& subject, const Family& family, Generation generation, U64 seed,
                   unsigned count) {
  Random random(seed);
  Outcome outcome;
  while (outcome.executed < count) {
    if (outcome.executed % 32 == 0) subject.fill(random);
    while (!try_one(subject, family, generation, random, outcome)) {
    }
  }
  return outcome;
}

TEST_CASE("a wave does what its lanes do one by one, with the bits that were recorded") {
  constexpr U64 kRecordedSeed = 1;
  constexpr unsigned kRecorded = 300, kLong = 10'000;
  const U64 seed = test::seed(kRecordedSeed);
  for (std::size_t at = 0; at < std::size(kTargets); ++at) {
    const Target& target = kTargets[at];
    Subject subject(target.processor, target.width);
    for (const Family& family : kFamilies) {
      if (family.only_gfx11 && target.generation != Generation::kGfx11) continue;
      INFO(target.processor << ", " << target.width << " lanes, " << family.name);
      const unsigned count = test::long_form() ? kLong : kRecorded;
      const Outcome outcome = try_family(subject, family, target.generation, seed + at, count);
      CHECK((outcome.compared > count / 8 || family.name[0] == 'S'));
      if (seed == kRecordedSeed && count == kRecorded)
        CHECK_MESSAGE(outcome.digest == family.digests[at], std::hex << outcome.digest);
    }
  }
}

// Loads and stores of words in a row, which the interpreter copies at once, where the row meets the
// end of the workgroup's memory, wraps, crosses four gigabytes, or reaches an alias.
constexpr U64 kFarMemory = 0x3000000000, kFarBytes = 4096;  // around a multiple of 2^32

struct RowOfWords {
  const char* what;
  std::array<U32, 4> code;  // of gfx9: data in v2, addresses in v0 and v1, into v3
  std::vector<U64> first;   // addresses of lane 0
};

std::vector<RowOfWords> rows_of_words(const Subject& subject) {
  const U32 all = kLanes * 4;
  const std::vector<U64> shared = {0,         kLdsBytes - all, kLdsBytes - all + 4, kLdsBytes - 4,
                                   kLdsBytes, 0xfffffffc,      0x100000000 - all,   2};
  const U64 end = subject.memory() + kMemoryBytes;
  const std::vector<U64> global = {subject.memory(),         end - all, end - all / 2, end,
                                   kFarMemory - all / 2 - 2, kFarMemory};
  return {{"ds_read_b32 v3, v0", {0xd86c0000, 0x03000000}, shared},
          {"ds_read_b32 v3, v0 offset:4", {0xd86c0004, 0x03000000}, shared},
          {"ds_write_b32 v0, v2", {0xd81a0000, 0x00000200}, shared},
          {"global_load_dword v3, v[0:1], off", {0xdc508000, 0x037f0000}, global},
          {"global_store_dword v[0:1], v2, off", {0xdc708000, 0x007f0200}, global},
          {"flat_load_dword v3, v[0:1]", {0xdc500000, 0x03000000}, global},
          {"flat_store_dword v[0:1], v2", {0xdc700000, 0x00000200}, global}};
}

TEST_CASE("words in a row are those of the lanes one by one, at every edge") {
  Random random(test::seed(1));
  Subject subject("gfx90a", 64);
  void* const far =
      ::mmap(reinterpret_cast<void*>(kFarMemory - kFarBytes), 2 * kFarBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(far != MAP_FAILED);
  // Behind the subject's memory the device has its beginning once more.
  const U64 end = subject.memory() + kMemoryBytes;
  REQUIRE(add_alias(end, 4096, subject.memory()));
  Wave& wave = subject.wave();
  for (const RowOfWords& row : rows_of_words(subject)) {
    const Instruction instruction = subject.decode(row.code);
    REQUIRE(instruction.text.starts_with(row.what));
    for (const U64 first : row.first) {
      INFO(row.what << " from " << first);
      subject.fill(random);
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        const U64 address = first + 4 * lane;
        subject.state().vector[lane] = static_cast<U32>(address);
        subject.state().vector[kLanes + lane] = static_cast<U32>(address >> 32);
      }
      U64 digest[2];
      for (const bool at_once : {true, false}) {
        subject.restore(true);
        for (U64 at = 0; at < 2 * kFarBytes; ++at)
          static_cast<std::uint8_t*>(far)[at] = static_cast<std::uint8_t>(at * 7);
        for (unsigned lane = 0; lane < (at_once ? 1 : kLanes); ++lane) {
          wave.set_exec(at_once ? ~0ull : 1ull << lane);
          instruction.execute(wave, instruction);
        }
        wave.set_exec(0);
        digest[at_once ? 0 : 1] =
            subject.lanes_digest(true) * 31 + std::hash<std::string_view>()(std::string_view(
                                                  static_cast<const char*>(far), 2 * kFarBytes));
      }
      CHECK(digest[0] == digest[1]);
    }
  }
  remove_alias(end);
  ::munmap(far, 2 * kFarBytes);
}

// From gfx10 on v_cmpx names no mask, so that its sources stand where v_cmp has one.
TEST_CASE("v_cmpx activates the lanes that v_cmp finds, whatever its sources are") {
  constexpr U32 kActivates = 1u << 21;  // of the opcode
  constexpr Family kCompares{"VOPC", 0, 0x7c000000, 0xfe000000, {}};
  Random random(test::seed(1));
  Subject subject("gfx1030", 64);
  unsigned compared = 0, constants = 0, parts = 0;
  for (unsigned attempt = 0; attempt < 8000; ++attempt) {
    if (attempt % 64 == 0) subject.fill(random);
    auto words = encode(kCompares, Generation::kGfx10, random);
    if (random.one_in(2)) words[0] = (words[0] & ~0x1ffu) | (128 + random.below(120));
    words[0] &= ~kActivates;
    const U64 exec = random.mask();
    const Instruction finds = subject.decode(words);
    const Operand& to = finds.operand[0];
    if (!finds.text.starts_with("v_cmp_") || to.reg == kExec || !run_fresh(subject, finds, exec))
      continue;
    const U64 found = subject.wave().mask64(to.reg);
    words[0] |= kActivates;
    const Instruction& activates = subject.decode(words);
    if (!activates.text.starts_with("v_cmpx_")) continue;  // SDWA's field for a mask must be zero
    INFO(activates.text << " under " << exec);
    REQUIRE(run_fresh(subject, activates, exec));
    CHECK(subject.wave().exec() == found);
    ++compared;
    constants += finds.operand[1].kind == Operand::Kind::kConstant ? 1 : 0;
    parts += finds.operand[1].modified() ? 1 : 0;
  }
  CHECK(compared > 1000);
  CHECK(constants > 300);
  CHECK(parts > 10);
}

}  // namespace
}  // namespace vitamin::soft::amdgpu::isa
