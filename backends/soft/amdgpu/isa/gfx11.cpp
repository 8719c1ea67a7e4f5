// SPDX-License-Identifier: Apache-2.0
//
// What gfx11 calls otherwise than earlier parts, and what it has beyond them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "backends/soft/amdgpu/isa/floating_point.h"
#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using I32 = std::int32_t;

using Names = std::pair<const char*, const char*>;  // of gfx11, of earlier parts

constexpr Names kInstructions[] = {
    {"s_and_not1_b32", "s_andn2_b32"},
    {"s_and_not1_b64", "s_andn2_b64"},
    {"s_or_not1_b32", "s_orn2_b32"},
    {"s_or_not1_b64", "s_orn2_b64"},
    {"s_and_not0_saveexec_b32", "s_andn1_saveexec_b32"},
    {"s_and_not0_saveexec_b64", "s_andn1_saveexec_b64"},
    {"s_or_not0_saveexec_b32", "s_orn1_saveexec_b32"},
    {"s_or_not0_saveexec_b64", "s_orn1_saveexec_b64"},
    {"s_and_not1_saveexec_b32", "s_andn2_saveexec_b32"},
    {"s_and_not1_saveexec_b64", "s_andn2_saveexec_b64"},
    {"s_or_not1_saveexec_b32", "s_orn2_saveexec_b32"},
    {"s_or_not1_saveexec_b64", "s_orn2_saveexec_b64"},
    {"s_ctz_i32_b32", "s_ff1_i32_b32"},
    {"s_ctz_i32_b64", "s_ff1_i32_b64"},
    {"s_clz_i32_u32", "s_flbit_i32_b32"},
    {"s_clz_i32_u64", "s_flbit_i32_b64"},
    {"s_cls_i32", "s_flbit_i32"},
    {"v_clz_i32_u32", "v_ffbh_u32"},
    {"v_ctz_i32_b32", "v_ffbl_b32"},
    {"v_cls_i32", "v_ffbh_i32"},
    {"v_cvt_floor_i32_f32", "v_cvt_flr_i32_f32"},
    {"v_cvt_nearest_i32_f32", "v_cvt_rpi_i32_f32"},
    {"v_cvt_pk_rtz_f16_f32", "v_cvt_pkrtz_f16_f32"},
    {"v_mul_dx9_zero_f32", "v_mul_legacy_f32"},
    {"s_set_inst_prefetch_distance", "s_inst_prefetch"},
    {"s_delay_alu", "s_nop"},
    {"s_wait_event", "s_nop"},
    {"s_wait_idle", "s_nop"},
    {"ds_storexchg_rtn_b32", "ds_wrxchg_rtn_b32"},
    {"ds_storexchg_rtn_b64", "ds_wrxchg_rtn_b64"},
};

constexpr Names kScalarLoads[] = {{"b32", "dword"},
                                  {"b64", "dwordx2"},
                                  {"b128", "dwordx4"},
                                  {"b256", "dwordx8"},
                                  {"b512", "dwordx16"}};

constexpr Names kLoads[] = {{"u8", "ubyte"},
                            {"i8", "sbyte"},
                            {"u16", "ushort"},
                            {"i16", "sshort"},
                            {"b32", "dword"},
                            {"b64", "dwordx2"},
                            {"b96", "dwordx3"},
                            {"b128", "dwordx4"},
                            {"d16_u8", "ubyte_d16"},
                            {"d16_i8", "sbyte_d16"},
                            {"d16_b16", "short_d16"},
                            {"d16_hi_u8", "ubyte_d16_hi"},
                            {"d16_hi_i8", "sbyte_d16_hi"},
                            {"d16_hi_b16", "short_d16_hi"}};

constexpr Names kStores[] = {{"b8", "byte"},
                             {"b16", "short"},
                             {"b32", "dword"},
                             {"b64", "dwordx2"},
                             {"b96", "dwordx3"},
                             {"b128", "dwordx4"},
                             {"d16_hi_b8", "byte_d16_hi"},
                             {"d16_hi_b16", "short_d16_hi"}};

// The type comes behind the name; earlier parts have no word for 32 bits and "_x2" for 64.
struct Atomic {
  const char* name;
  char type;
  const char* earlier;
};
constexpr Atomic kAtomics[] = {
    {"swap", 'b', "swap"}, {"cmpswap", 'b', "cmpswap"}, {"add", 'u', "add"},  {"sub", 'u', "sub"},
    {"inc", 'u', "inc"},   {"dec", 'u', "dec"},         {"min", 'i', "smin"}, {"max", 'i', "smax"},
    {"min", 'u', "umin"},  {"max", 'u', "umax"},        {"and", 'b', "and"},  {"or", 'b', "or"},
    {"xor", 'b', "xor"}};

void rename_memory(InstructionSet& set, const std::string& space) {
  for (const auto& [name, earlier] : kLoads)
    set.rename(space + "_load_" + name, space + "_load_" + earlier);
  for (const auto& [name, earlier] : kStores)
    set.rename(space + "_store_" + name, space + "_store_" + earlier);
}

void rename_atomics(InstructionSet& set, const std::string& space) {
  const std::string prefix = space + "_atomic_";
  for (const Atomic& atomic : kAtomics) {
    const std::string name = prefix + atomic.name + "_" + atomic.type;
    set.rename(name + "32", prefix + atomic.earlier);
    set.rename(name + "64", prefix + atomic.earlier + "_x2");
  }
  set.rename(prefix + "min_f32", prefix + "fmin");
  set.rename(prefix + "max_f32", prefix + "fmax");
}

void rename_shared_memory(InstructionSet& set) {
  for (const std::string type : {"u8", "i8", "u16", "i16", "b32", "b64", "b96", "b128", "u8_d16",
                                 "u8_d16_hi", "i8_d16", "i8_d16_hi", "u16_d16", "u16_d16_hi"})
    set.rename("ds_load_" + type, "ds_read_" + type);
  for (const std::string type :
       {"b8", "b16", "b32", "b64", "b96", "b128", "b8_d16_hi", "b16_d16_hi"})
    set.rename("ds_store_" + type, "ds_write_" + type);
  for (const std::string type : {"_b32", "_b64"}) {
    set.rename("ds_load_2addr" + type, "ds_read2" + type);
    set.rename("ds_load_2addr_stride64" + type, "ds_read2st64" + type);
    set.rename("ds_store_2addr" + type, "ds_write2" + type);
    set.rename("ds_store_2addr_stride64" + type, "ds_write2st64" + type);
  }
}

void add_halves(InstructionSet& set) {
  set.add("v_mov_b16", per_lane<[](U16 x) { return x; }>());
  set.add("v_not_b16", per_lane<[](U16 x) { return U16(~x); }>());
  set.add("v_and_b16", per_lane<[](U16 x, U16 y) { return U16(x & y); }>());
  set.add("v_or_b16", per_lane<[](U16 x, U16 y) { return U16(x | y); }>());
  set.add("v_xor_b16", per_lane<[](U16 x, U16 y) { return U16(x ^ y); }>());
  set.add("v_cvt_u32_u16", per_lane<[](U16 x) { return U32{x}; }>());
  set.add("v_cvt_i32_i16", per_lane<[](std::int16_t x) { return I32{x}; }>());
}

void add_limits(InstructionSet& set) {
  set.add("v_minmax_f32",
          per_lane<[](float x, float y, float z) { return maximum(minimum(x, y), z); }>());
  set.add("v_maxmin_f32",
          per_lane<[](float x, float y, float z) { return minimum(maximum(x, y), z); }>());
  set.add("v_minmax_f16",
          per_lane<[](Half x, Half y, Half z) { return maximum(minimum(x, y), z); }>());
  set.add("v_maxmin_f16",
          per_lane<[](Half x, Half y, Half z) { return minimum(maximum(x, y), z); }>());
  set.add("v_minmax_u32",
          per_lane<[](U32 x, U32 y, U32 z) { return std::max(std::min(x, y), z); }>());
  set.add("v_maxmin_u32",
          per_lane<[](U32 x, U32 y, U32 z) { return std::min(std::max(x, y), z); }>());
  set.add("v_minmax_i32",
          per_lane<[](I32 x, I32 y, I32 z) { return std::max(std::min(x, y), z); }>());
  set.add("v_maxmin_i32",
          per_lane<[](I32 x, I32 y, I32 z) { return std::min(std::max(x, y), z); }>());
}

}  // namespace

void add_gfx11(InstructionSet& set) {
  for (const auto& [name, earlier] : kInstructions) set.rename(name, earlier);
  for (const auto& [name, earlier] : kScalarLoads)
    for (const std::string prefix : {"s_load_", "s_buffer_load_"})
      set.rename(prefix + name, prefix + earlier);
  for (const char* space : {"global", "flat", "scratch", "buffer"}) rename_memory(set, space);
  for (const char* space : {"global", "flat", "buffer"}) rename_atomics(set, space);
  rename_shared_memory(set);
  add_halves(set);
  add_limits(set);
}

}  // namespace vitamin::soft::amdgpu::isa
