// SPDX-License-Identifier: Apache-2.0
//
// Which function executes a mnemonic, and how its sources are typed. Each family of instructions
// adds its own; a mnemonic carries no encoding suffix (_e32, _e64, _sdwa, _dpp).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backends/soft/amdgpu/isa/instruction.h"

namespace vitamin::soft::amdgpu::isa {

struct Definition {
  Execute execute = nullptr;
  unsigned first_source = 1;  // operand of the first source: 1 behind a destination
  std::array<OperandType, 4> sources{};
  OperandType result = OperandType::kNone;
  bool accumulates = false;      // the destination is also the last source
  Execute saturating = nullptr;  // an integer result that stops at its limits: the clamp modifier
};

class InstructionSet {
 public:
  InstructionSet();

  void add(std::string name, const Definition& definition) {
    definitions_.insert_or_assign(std::move(name), definition);
  }
  // `earlier` under a second name.
  void rename(const std::string& name, const std::string& earlier) {
    add(name, definitions_.at(earlier));
  }
  const Definition* find(const std::string& name) const {
    const auto found = definitions_.find(name);
    return found == definitions_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::string, Definition> definitions_;
};

void add_scalar(InstructionSet& set);
void add_control(InstructionSet& set);
void add_vector_integer(InstructionSet& set);
void add_vector_float(InstructionSet& set);
void add_vector_double(InstructionSet& set);
void add_vector_half(InstructionSet& set);
void add_vector_compare(InstructionSet& set);
void add_vector_lane(InstructionSet& set);
void add_scalar_memory(InstructionSet& set);
void add_vector_memory(InstructionSet& set);
void add_private_memory(InstructionSet& set);
void add_shared_memory(InstructionSet& set);
void add_image(InstructionSet& set);
void add_matrix(InstructionSet& set);
void add_dot_product(InstructionSet& set);
void add_gfx11(InstructionSet& set);  // the last: it renames what the others added

}  // namespace vitamin::soft::amdgpu::isa
