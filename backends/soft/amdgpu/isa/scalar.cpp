// SPDX-License-Identifier: Apache-2.0
//
// Scalar arithmetic. As in lanes.h an instruction is made from a function whose argument types say
// how sources are read; a Flagged result also sets the condition code.
#include <bit>
#include <cstdint>
#include <string>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using U32 = std::uint32_t;
using I32 = std::int32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

template <class T>
struct Flagged {
  T value;
  bool flag;
};
template <class T>
constexpr Flagged<T> nonzero(T value) {
  return {value, value != 0};
}
struct Condition {  // as a first argument: the condition code comes in
  bool set;
};

template <class T>
T scalar_source(const Wave& wave, const Operand& operand) {
  U64 bits = operand.bits;
  if (operand.kind == Operand::Kind::kScalar)
    bits = sizeof(T) == 8 ? wave.pair(operand.reg) : wave.scalar[operand.reg];
  if constexpr (sizeof(T) == 8)
    return static_cast<T>(bits);
  else
    return static_cast<T>(static_cast<U32>(bits));
}

template <class T>
void scalar_result(Wave& wave, const Operand& operand, T value) {
  if constexpr (sizeof(T) == 8)
    wave.set_pair(operand.reg, static_cast<U64>(value));
  else
    wave.scalar[operand.reg] = static_cast<U32>(value);
}

template <class R>
struct ResultOf {
  using Value = R;
  static constexpr bool kFlagged = false;
};
template <class T>
struct ResultOf<Flagged<T>> {
  using Value = T;
  static constexpr bool kFlagged = true;
};

template <auto F, bool kTakesCondition, class R, class... A, std::size_t... K>
void run_scalar(Wave& wave, const Instruction& instruction, std::tuple<A...>*,
                std::index_sequence<K...>) {
  const R result = [&] {
    if constexpr (kTakesCondition)
      return F(Condition{wave.scalar[kScc] != 0},
               scalar_source<A>(wave, instruction.operand[K + 1])...);
    else
      return F(scalar_source<A>(wave, instruction.operand[K + 1])...);
  }();
  if constexpr (ResultOf<R>::kFlagged) {
    scalar_result(wave, instruction.operand[0], result.value);
    wave.scalar[kScc] = result.flag;
  } else {
    scalar_result(wave, instruction.operand[0], result);
  }
}

template <class Tuple>
struct WithoutCondition {
  using Type = Tuple;
  static constexpr bool kTakes = false;
};
template <class... A>
struct WithoutCondition<std::tuple<Condition, A...>> {
  using Type = std::tuple<A...>;
  static constexpr bool kTakes = true;
};

template <auto F>
void scalar(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  using W = WithoutCondition<typename S::Arguments>;
  using Sources = typename W::Type;
  run_scalar<F, W::kTakes, typename S::Result>(
      wave, instruction, static_cast<Sources*>(nullptr),
      std::make_index_sequence<std::tuple_size_v<Sources>>());
}

template <auto F>
Definition scalar_definition() {
  using Sources = typename WithoutCondition<typename SignatureOf<F>::Arguments>::Type;
  return {.execute = scalar<F>, .sources = types_of(static_cast<Sources*>(nullptr))};
}

// The immediate of an SOPK instruction and its destination, which is also a source.
template <auto F>
void with_immediate(Wave& wave, const Instruction& instruction) {
  const U32 old = wave.scalar[instruction.operand[0].reg];
  const auto immediate = static_cast<I32>(static_cast<std::int16_t>(instruction.immediate16()));
  const auto result = F(old, immediate);
  wave.scalar[instruction.operand[0].reg] = static_cast<U32>(result.value);
  wave.scalar[kScc] = result.flag;
}

template <auto F>
void compare(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  using A = std::tuple_element_t<0, typename S::Arguments>;
  using B = std::tuple_element_t<1, typename S::Arguments>;
  wave.scalar[kScc] = F(scalar_source<A>(wave, instruction.operand[0]),
                        scalar_source<B>(wave, instruction.operand[1]));
}

template <auto F>
void compare_immediate(Wave& wave, const Instruction& instruction) {
  using T = std::tuple_element_t<0, typename SignatureOf<F>::Arguments>;
  const U32 immediate = instruction.immediate16();
  const U32 wide =
      std::is_signed_v<T> ? static_cast<U32>(static_cast<std::int16_t>(immediate)) : immediate;
  wave.scalar[kScc] = F(scalar_source<T>(wave, instruction.operand[0]), static_cast<T>(wide));
}

template <auto F>
void add_compare(InstructionSet& set, const std::string& name, bool short_form) {
  using T = std::tuple_element_t<0, typename SignatureOf<F>::Arguments>;
  set.add("s_cmp_" + name,
          {.execute = compare<F>, .first_source = 0, .sources = {type_of<T>(), type_of<T>()}});
  if (short_form)
    set.add("s_cmpk_" + name,
            {.execute = compare_immediate<F>, .first_source = 0, .sources = {type_of<T>()}});
}

template <class T>
void add_relations(InstructionSet& set, const std::string& type) {
  add_compare<[](T x, T y) { return x == y; }>(set, "eq_" + type, true);
  add_compare<[](T x, T y) { return x != y; }>(set, "lg_" + type, true);
  add_compare<[](T x, T y) { return y < x; }>(set, "gt_" + type, true);
  add_compare<[](T x, T y) { return x >= y; }>(set, "ge_" + type, true);
  add_compare<[](T x, T y) { return x < y; }>(set, "lt_" + type, true);
  add_compare<[](T x, T y) { return x <= y; }>(set, "le_" + type, true);
}

template <bool kSet, class T>
void test_bit(Wave& wave, const Instruction& instruction) {
  const T word = scalar_source<T>(wave, instruction.operand[0]);
  const U32 bit = scalar_source<U32>(wave, instruction.operand[1]) & (sizeof(T) * 8 - 1);
  wave.scalar[kScc] = ((word >> bit & 1) != 0) == kSet;
}

// exec becomes F(source, exec) and the old exec goes to the destination.
template <auto F, class T>
void save_exec(Wave& wave, const Instruction& instruction) {
  const T source = scalar_source<T>(wave, instruction.operand[1]);
  T old, next;
  if constexpr (sizeof(T) == 8) {
    old = wave.pair(kExec);
    next = F(source, old);
    wave.set_pair(kExec, next);
  } else {
    old = wave.scalar[kExec];
    next = static_cast<U32>(F(source, old));
    wave.scalar[kExec] = next;
  }
  scalar_result(wave, instruction.operand[0], old);
  wave.scalar[kScc] = next != 0;
}

template <auto F>
void add_save_exec(InstructionSet& set, const std::string& name) {
  set.add("s_" + name + "_saveexec_b64",
          {.execute = save_exec<F, U64>, .sources = {OperandType::kB64}});
  set.add("s_" + name + "_saveexec_b32",
          {.execute = save_exec<F, U32>, .sources = {OperandType::kB32}});
}

template <auto F, auto G>
void add_bitwise(InstructionSet& set, const std::string& name) {
  set.add("s_" + name + "_b32", scalar_definition<F>());
  set.add("s_" + name + "_b64", scalar_definition<G>());
}

constexpr Flagged<U32> carry_in_bit_32(U64 sum) {
  return {static_cast<U32>(sum), (sum >> 32) != 0};
}

template <class T>
constexpr Flagged<T> larger(T x, T y) {
  return {x > y ? x : y, x > y};
}

constexpr U32 add_overflows(I32 x, I32 y, I32 sum) { return ((x ^ sum) & (y ^ sum)) < 0; }

template <class T>
constexpr T field(T word, U32 selector) {
  const U32 count = selector >> 16 & 0x7f;
  const U32 at = selector & (sizeof(T) * 8 - 1);
  if (count == 0) return 0;
  using U = std::make_unsigned_t<T>;
  constexpr U32 kBits = sizeof(T) * 8;
  if (at + count >= kBits) return static_cast<T>(word >> at);
  return static_cast<T>(static_cast<T>(static_cast<U>(word) << (kBits - at - count)) >>
                        (kBits - count));
}

template <class T>
constexpr T reversed(T word) {
  T result = 0;
  for (unsigned bit = 0; bit < sizeof(T) * 8; ++bit)
    result |= (word >> bit & 1) << (sizeof(T) * 8 - 1 - bit);
  return result;
}

constexpr U64 whole_quads(U64 mask) {
  U64 result = 0;
  for (unsigned quad = 0; quad < 64; quad += 4)
    if ((mask >> quad & 15) != 0) result |= 15ull << quad;
  return result;
}

void add_logic(InstructionSet& set) {
  add_bitwise<[](U32 x, U32 y) { return nonzero(x & y); },
              [](U64 x, U64 y) { return nonzero(x & y); }>(set, "and");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x | y); },
              [](U64 x, U64 y) { return nonzero(x | y); }>(set, "or");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x ^ y); },
              [](U64 x, U64 y) { return nonzero(x ^ y); }>(set, "xor");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x & ~y); },
              [](U64 x, U64 y) { return nonzero(x & ~y); }>(set, "andn2");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x | ~y); },
              [](U64 x, U64 y) { return nonzero(x | ~y); }>(set, "orn2");
  add_bitwise<[](U32 x, U32 y) { return nonzero(~(x & y)); },
              [](U64 x, U64 y) { return nonzero(~(x & y)); }>(set, "nand");
  add_bitwise<[](U32 x, U32 y) { return nonzero(~(x | y)); },
              [](U64 x, U64 y) { return nonzero(~(x | y)); }>(set, "nor");
  add_bitwise<[](U32 x, U32 y) { return nonzero(~(x ^ y)); },
              [](U64 x, U64 y) { return nonzero(~(x ^ y)); }>(set, "xnor");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x << (y & 31)); },
              [](U64 x, U32 y) { return nonzero(x << (y & 63)); }>(set, "lshl");
  add_bitwise<[](U32 x, U32 y) { return nonzero(x >> (y & 31)); },
              [](U64 x, U32 y) { return nonzero((x >> (y & 63))); }>(set, "lshr");
  add_bitwise<[](U32 x) { return nonzero(~x); }, [](U64 x) { return nonzero(~x); }>(set, "not");
  add_bitwise<[](U32 x) { return x; }, [](U64 x) { return x; }>(set, "mov");
  add_bitwise<[](U32 x) { return reversed(x); }, [](U64 x) { return reversed(x); }>(set, "brev");
  add_bitwise<[](Condition c, U32 x, U32 y) { return c.set ? x : y; },
              [](Condition c, U64 x, U64 y) { return c.set ? x : y; }>(set, "cselect");
  add_bitwise<[](U32 n, U32 at) { return ((1u << (n & 31)) - 1) << (at & 31); },
              [](U32 n, U32 at) { return ((1ull << (n & 63)) - 1) << (at & 63); }>(set, "bfm");
  set.add("s_wqm_b64", scalar_definition<[](U64 x) { return nonzero(whole_quads(x)); }>());
  set.add("s_ashr_i32", scalar_definition<[](I32 x, U32 y) { return nonzero((x >> (y & 31))); }>());
  set.add("s_ashr_i64", scalar_definition<[](I64 x, U32 y) { return nonzero(x >> (y & 63)); }>());
  set.add("s_bfe_u32", scalar_definition<[](U32 x, U32 y) { return nonzero(field(x, y)); }>());
  set.add("s_bfe_i32", scalar_definition<[](I32 x, U32 y) { return nonzero(field(x, y)); }>());
  set.add("s_bfe_u64", scalar_definition<[](U64 x, U32 y) { return nonzero(field(x, y)); }>());
  set.add("s_bfe_i64", scalar_definition<[](I64 x, U32 y) { return nonzero(field(x, y)); }>());
  set.add("s_pack_ll_b32_b16",
          scalar_definition<[](U32 x, U32 y) { return (x & 0xffff) | y << 16; }>());
  set.add("s_pack_lh_b32_b16",
          scalar_definition<[](U32 x, U32 y) { return (x & 0xffff) | (y & 0xffff0000); }>());
  set.add("s_pack_hh_b32_b16",
          scalar_definition<[](U32 x, U32 y) { return (y & 0xffff0000) | (x >> 16); }>());
}

void add_counts(InstructionSet& set) {
  set.add("s_bcnt1_i32_b32",
          scalar_definition<[](U32 x) { return nonzero(U32(std::popcount(x))); }>());
  set.add("s_bcnt1_i32_b64",
          scalar_definition<[](U64 x) { return nonzero(U32(std::popcount(x))); }>());
  set.add("s_bcnt0_i32_b32",
          scalar_definition<[](U32 x) { return nonzero(U32(std::popcount(~x))); }>());
  set.add("s_bcnt0_i32_b64",
          scalar_definition<[](U64 x) { return nonzero(U32(std::popcount(~x))); }>());
  set.add("s_ff1_i32_b32",
          scalar_definition<[](U32 x) { return x == 0 ? ~0u : U32(std::countr_zero(x)); }>());
  set.add("s_ff1_i32_b64",
          scalar_definition<[](U64 x) { return x == 0 ? ~0u : U32(std::countr_zero(x)); }>());
  set.add("s_ff0_i32_b32",
          scalar_definition<[](U32 x) { return ~x == 0 ? ~0u : U32(std::countr_one(x)); }>());
  set.add("s_ff0_i32_b64",
          scalar_definition<[](U64 x) { return ~x == 0 ? ~0u : U32(std::countr_one(x)); }>());
  set.add("s_flbit_i32_b32",
          scalar_definition<[](U32 x) { return x == 0 ? ~0u : U32(std::countl_zero(x)); }>());
  set.add("s_flbit_i32_b64",
          scalar_definition<[](U64 x) { return x == 0 ? ~0u : U32(std::countl_zero(x)); }>());
  set.add("s_flbit_i32", scalar_definition<[](I32 x) {
            const U32 y = static_cast<U32>(x < 0 ? ~x : x);
            return y == 0 ? ~0u : U32(std::countl_zero(y));
          }>());
}

void add_arithmetic(InstructionSet& set) {
  using F32 = Flagged<U32>;
  set.add("s_add_u32", scalar_definition<[](U32 x, U32 y) { return F32{x + y, x + y < x}; }>());
  set.add("s_sub_u32", scalar_definition<[](U32 x, U32 y) { return F32{x - y, x < y}; }>());
  set.add("s_addc_u32", scalar_definition<[](Condition c, U32 x, U32 y) {
            return carry_in_bit_32(U64{x} + y + c.set);
          }>());
  set.add("s_subb_u32", scalar_definition<[](Condition c, U32 x, U32 y) {
            return F32{x - y - c.set, x < U64{y} + c.set};
          }>());
  set.add("s_add_i32", scalar_definition<[](U32 x, U32 y) {
            return F32{x + y, add_overflows(I32(x), I32(y), I32(x + y)) != 0};
          }>());
  set.add("s_sub_i32", scalar_definition<[](U32 x, U32 y) {
            return F32{x - y, add_overflows(I32(x), I32(~y), I32(x - y)) != 0};
          }>());
  set.add("s_mul_i32", scalar_definition<[](U32 x, U32 y) { return x * y; }>());
  set.add("s_mul_hi_u32", scalar_definition<[](U32 x, U32 y) { return U32(U64{x} * y >> 32); }>());
  set.add("s_mul_hi_i32",
          scalar_definition<[](I32 x, I32 y) { return U32(U64(I64{x} * y) >> 32); }>());
  set.add("s_min_u32", scalar_definition<[](U32 x, U32 y) { return F32{x < y ? x : y, x < y}; }>());
  set.add("s_max_u32", scalar_definition<[](U32 x, U32 y) { return larger(x, y); }>());
  set.add("s_min_i32", scalar_definition<[](I32 x, I32 y) {
            return Flagged<I32>{x < y ? x : y, x < y};
          }>());
  set.add("s_max_i32", scalar_definition<[](I32 x, I32 y) { return larger(x, y); }>());
  set.add("s_abs_i32",
          scalar_definition<[](I32 x) { return nonzero(U32(x < 0 ? -U32(x) : U32(x))); }>());
  set.add("s_sext_i32_i8", scalar_definition<[](U32 x) { return I32{std::int8_t(x)}; }>());
  set.add("s_sext_i32_i16", scalar_definition<[](U32 x) { return I32{std::int16_t(x)}; }>());
  set.add("s_lshl1_add_u32",
          scalar_definition<[](U32 x, U32 y) { return carry_in_bit_32((U64{x} << 1) + y); }>());
  set.add("s_lshl2_add_u32",
          scalar_definition<[](U32 x, U32 y) { return carry_in_bit_32((U64{x} << 2) + y); }>());
  set.add("s_lshl3_add_u32",
          scalar_definition<[](U32 x, U32 y) { return carry_in_bit_32((U64{x} << 3) + y); }>());
  set.add("s_lshl4_add_u32",
          scalar_definition<[](U32 x, U32 y) { return carry_in_bit_32((U64{x} << 4) + y); }>());
}

template <auto F>
void add_immediate(InstructionSet& set, const char* name) {
  set.add(name, {.execute = with_immediate<F>});
}

void move_immediate(Wave& wave, const Instruction& instruction) {
  wave.scalar[instruction.operand[0].reg] =
      static_cast<U32>(static_cast<std::int16_t>(instruction.immediate16()));
}

void multiply_immediate(Wave& wave, const Instruction& instruction) {
  U32& to = wave.scalar[instruction.operand[0].reg];
  to *= static_cast<U32>(static_cast<std::int16_t>(instruction.immediate16()));
}

void move_immediate_if(Wave& wave, const Instruction& instruction) {
  if (wave.scalar[kScc] != 0) move_immediate(wave, instruction);
}

template <bool kSet, class T>
void write_bit(Wave& wave, const Instruction& instruction) {
  const unsigned bit = scalar_source<U32>(wave, instruction.operand[1]) & (sizeof(T) * 8 - 1);
  const T one = T{1} << bit;
  const T old = scalar_source<T>(wave, instruction.operand[0]);
  scalar_result<T>(wave, instruction.operand[0], kSet ? old | one : old & ~one);
}

template <class T>
void move_if(Wave& wave, const Instruction& instruction) {
  if (wave.scalar[kScc] != 0)
    scalar_result<T>(wave, instruction.operand[0], scalar_source<T>(wave, instruction.operand[1]));
}

}  // namespace

void add_scalar(InstructionSet& set) {
  add_logic(set);
  add_counts(set);
  add_arithmetic(set);
  add_relations<U32>(set, "u32");
  add_relations<I32>(set, "i32");
  add_compare<[](U64 x, U64 y) { return x == y; }>(set, "eq_u64", false);
  add_compare<[](U64 x, U64 y) { return x != y; }>(set, "lg_u64", false);
  set.add("s_movk_i32", {.execute = move_immediate});
  set.add("s_cmovk_i32", {.execute = move_immediate_if});
  set.add("s_cmov_b32", {.execute = move_if<U32>, .sources = {OperandType::kB32}});
  set.add("s_cmov_b64", {.execute = move_if<U64>, .sources = {OperandType::kB64}});
  set.add("s_mulk_i32", {.execute = multiply_immediate});
  add_immediate<[](U32 old, I32 immediate) {
    const U32 sum = old + static_cast<U32>(immediate);
    return Flagged<U32>{sum, add_overflows(I32(old), immediate, I32(sum)) != 0};
  }>(set, "s_addk_i32");
  set.add("s_bitset0_b32", {.execute = write_bit<false, U32>, .sources = {OperandType::kB32}});
  set.add("s_bitset1_b32", {.execute = write_bit<true, U32>, .sources = {OperandType::kB32}});
  set.add("s_bitset0_b64", {.execute = write_bit<false, U64>, .sources = {OperandType::kB32}});
  set.add("s_bitset1_b64", {.execute = write_bit<true, U64>, .sources = {OperandType::kB32}});
  const auto bit_test = [&](const char* name, Execute execute, OperandType type) {
    set.add(name, {.execute = execute, .first_source = 0, .sources = {type, OperandType::kB32}});
  };
  bit_test("s_bitcmp0_b32", test_bit<false, U32>, OperandType::kB32);
  bit_test("s_bitcmp1_b32", test_bit<true, U32>, OperandType::kB32);
  bit_test("s_bitcmp0_b64", test_bit<false, U64>, OperandType::kB64);
  bit_test("s_bitcmp1_b64", test_bit<true, U64>, OperandType::kB64);
  add_save_exec<[](U64 x, U64 exec) { return x & exec; }>(set, "and");
  add_save_exec<[](U64 x, U64 exec) { return x | exec; }>(set, "or");
  add_save_exec<[](U64 x, U64 exec) { return x ^ exec; }>(set, "xor");
  add_save_exec<[](U64 x, U64 exec) { return x & ~exec; }>(set, "andn2");
  add_save_exec<[](U64 x, U64 exec) { return x | ~exec; }>(set, "orn2");
  add_save_exec<[](U64 x, U64 exec) { return ~x & exec; }>(set, "andn1");
  add_save_exec<[](U64 x, U64 exec) { return ~x | exec; }>(set, "orn1");
}

}  // namespace vitamin::soft::amdgpu::isa
