// SPDX-License-Identifier: Apache-2.0
//
// Single instructions with known sources.
#pragma once

#include <cstdio>
#include <string>

#include "tests/amdgpu/instruction_subject.h"

namespace vitamin::soft::amdgpu::isa {

struct Code {
  U32 first, second = 0, third = 0;
};

class Rules {
 public:
  explicit Rules(const char* processor, unsigned width = 64) : subject(processor, width) {
    subject.restore(true);
  }

  // Empty: it was executed. Otherwise why it was not.
  std::string run(const Code& code, const char* text) {
    const Instruction instruction = subject.decode({code.first, code.second, code.third, 0});
    CHECK(instruction.text == text);
    subject.wave().set_exec(exec);
    try {
      instruction.execute(subject.wave(), instruction);
    } catch (const Fault& fault) {
      return fault.what();
    }
    return "";
  }
  std::string run(U32 first, U32 second, const char* text) { return run({first, second}, text); }
  void refused(U32 first, U32 second, const std::string& text) {
    char words[32];
    std::snprintf(words, sizeof words, second == 0 ? "%08x" : "%08x %08x", first, second);
    const std::string said = run(first, second, text.c_str());
    CHECK(said == "the software GPU does not know the instruction '" + text + "' (" + words + ")");
  }
  U32& row(unsigned reg, unsigned lane = 0) { return subject.wave().row(reg)[lane]; }
  U32& scalar(unsigned reg) { return subject.wave().scalar[reg]; }
  void set_pair(unsigned reg, U64 value) {
    row(reg) = static_cast<U32>(value);
    row(reg + 1) = static_cast<U32>(value >> 32);
  }
  U64 pair(unsigned reg, unsigned lane = 0) {
    return row(reg, lane) | static_cast<U64>(row(reg + 1, lane)) << 32;
  }

  Subject subject;
  U64 exec = 1;
};

}  // namespace vitamin::soft::amdgpu::isa
