// SPDX-License-Identifier: Apache-2.0
//
// v_cmp and v_cmpx: a lane mask out of two sources.
#include <bit>
#include <cmath>
#include <limits>

#include "backends/soft/amdgpu/isa/lanes.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

// gfx9 writes the mask and, for v_cmpx, exec as well; gfx10's v_cmpx names no mask and writes exec
// alone. Either way the sources are the last two operands.
template <auto F, bool kWritesExec>
void compare(Wave& wave, const Instruction& instruction) {
  using S = SignatureOf<F>;
  using A = std::tuple_element_t<0, typename S::Arguments>;
  using B = std::tuple_element_t<1, typename S::Arguments>;
  alignas(64) std::uint32_t scratch[2][2][kLanes];
  const unsigned first = instruction.operands - 2u;
  const Source<A> left(wave, instruction.operand[first], scratch[0]);
  const Source<B> right(wave, instruction.operand[first + 1], scratch[1]);
  alignas(64) std::uint32_t words[kLanes];
  each_lane(wave.width,
            [&](std::ptrdiff_t lane) { words[lane] = F(left[lane], right[lane]) ? ~0u : 0u; });
  const std::uint64_t mask = mask_of_words(words, wave.width) & wave.exec();
  if (first != 0) wave.set_mask64(instruction.operand[0].reg, mask);
  if (kWritesExec) wave.set_exec(mask);
}

template <auto F>
void add_both(InstructionSet& set, const std::string& relation, const std::string& type) {
  using S = SignatureOf<F>;
  using A = std::tuple_element_t<0, typename S::Arguments>;
  using B = std::tuple_element_t<1, typename S::Arguments>;
  Definition definition{.execute = compare<F, false>, .sources = {type_of<A>(), type_of<B>()}};
  set.add("v_cmp_" + relation + "_" + type, definition);
  definition.execute = compare<F, true>;
  set.add("v_cmpx_" + relation + "_" + type, definition);
}

template <class T>
void add_ordered(InstructionSet& set, const std::string& type) {
  add_both<[](T x, T y) { return x < y; }>(set, "lt", type);
  add_both<[](T x, T y) { return x == y; }>(set, "eq", type);
  add_both<[](T x, T y) { return x <= y; }>(set, "le", type);
  add_both<[](T x, T y) { return y < x; }>(set, "gt", type);
  add_both<[](T x, T y) { return x >= y; }>(set, "ge", type);
  add_both<[](T, T) { return false; }>(set, "f", type);
}

template <class T>
void add_integers(InstructionSet& set, const std::string& type) {
  add_ordered<T>(set, type);
  add_both<[](T x, T y) { return x != y; }>(set, "ne", type);
  add_both<[](T, T) { return true; }>(set, "t", type);
}

template <class T>
void add_reals(InstructionSet& set, const std::string& type) {
  add_ordered<T>(set, type);
  add_both<[](T x, T y) { return x < y || y < x; }>(set, "lg", type);
  add_both<[](T x, T y) { return x == x && y == y; }>(set, "o", type);
  add_both<[](T x, T y) { return x != x || y != y; }>(set, "u", type);
  add_both<[](T x, T y) { return !(x >= y); }>(set, "nge", type);
  add_both<[](T x, T y) { return !(x < y || y < x); }>(set, "nlg", type);
  add_both<[](T x, T y) { return !(y < x); }>(set, "ngt", type);
  add_both<[](T x, T y) { return !(x <= y); }>(set, "nle", type);
  add_both<[](T x, T y) { return !(x == y); }>(set, "neq", type);
  add_both<[](T x, T y) { return !(x < y); }>(set, "nlt", type);
  add_both<[](T, T) { return true; }>(set, "tru", type);
}

// The bit of a class mask that a value falls under.
template <class T>
unsigned class_of(T value, T smallest_normal) {
  if (value != value) return 1;  // quiet; signalling ones are not told apart below
  const bool negative = std::signbit(value);
  if (std::isinf(value)) return negative ? 2 : 9;
  if (value == 0) return negative ? 5 : 6;
  if (std::fabs(value) < smallest_normal) return negative ? 4 : 7;
  return negative ? 3 : 8;
}

template <class T>
bool in_class(T value, T smallest_normal, std::uint32_t classes) {
  if (value != value) return (classes & 3) != 0;
  return (classes >> class_of(value, smallest_normal) & 1) != 0;
}

}  // namespace

void add_vector_compare(InstructionSet& set) {
  add_integers<std::int16_t>(set, "i16");
  add_integers<std::uint16_t>(set, "u16");
  add_integers<std::int32_t>(set, "i32");
  add_integers<std::uint32_t>(set, "u32");
  add_integers<std::int64_t>(set, "i64");
  add_integers<std::uint64_t>(set, "u64");
  add_reals<Half>(set, "f16");
  add_reals<float>(set, "f32");
  add_reals<double>(set, "f64");
  add_both<[](float value, std::uint32_t classes) {
    return in_class(value, std::numeric_limits<float>::min(), classes);
  }>(set, "class", "f32");
  add_both<[](double value, std::uint32_t classes) {
    return in_class(value, std::numeric_limits<double>::min(), classes);
  }>(set, "class", "f64");
  add_both<[](Half value, std::uint16_t classes) {
    return in_class(static_cast<float>(value), 6.103515625e-05f, classes);
  }>(set, "class", "f16");
}

}  // namespace vitamin::soft::amdgpu::isa
