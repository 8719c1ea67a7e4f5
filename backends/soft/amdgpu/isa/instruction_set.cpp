// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/instruction_set.h"

namespace vitamin::soft::amdgpu::isa {

InstructionSet::InstructionSet() {
  add_scalar(*this);
  add_control(*this);
  add_vector_integer(*this);
  add_vector_float(*this);
  add_vector_double(*this);
  add_vector_half(*this);
  add_vector_compare(*this);
  add_vector_lane(*this);
  add_scalar_memory(*this);
  add_vector_memory(*this);
  add_private_memory(*this);
  add_shared_memory(*this);
  add_image(*this);
  add_matrix(*this);
  add_dot_product(*this);
  add_gfx11(*this);
}

}  // namespace vitamin::soft::amdgpu::isa
