// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/decoder.h"

#include <llvm-c/Disassembler.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/soft/amdgpu/isa/assembly.h"
#include "backends/soft/amdgpu/isa/lanes.h"
#include "backends/soft/amdgpu/isa/wave.h"

// Declared by no C header when LLVM's AMDGPU target is used alone.
extern "C" {
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUDisassembler();
}

namespace vitamin::soft::amdgpu::isa {
namespace {

[[noreturn]] void refuse(Wave&, const Instruction& instruction) {
  const std::uint32_t words[] = {static_cast<std::uint32_t>(instruction.raw),
                                 static_cast<std::uint32_t>(instruction.raw >> 32),
                                 instruction.raw_high};
  std::string encoding;
  for (std::size_t at = 0; at < std::min<std::size_t>(instruction.size / 4, 3); ++at) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%s%08x", at == 0 ? "" : " ", words[at]);
    encoding += digits;
  }
  throw Fault("the software GPU does not know the instruction '" + instruction.text + "' (" +
              encoding + ")");
}

// Runs an instruction whose first source is taken from other lanes.
void execute_permuted(Wave& wave, const Instruction& instruction) {
  const LanePermutation& permutation = *instruction.permutation;
  const std::uint64_t exec = wave.exec();
  std::uint64_t enabled = permutation.enabled & exec;
  for (unsigned part = 0; part < (permutation.wide ? 2u : 1u); ++part) {
    std::uint32_t* const to = wave.row(kPermutedRow + part);
    const std::uint32_t* const from = wave.row(static_cast<unsigned>(instruction.offset) + part);
    for (unsigned lane = 0; lane < wave.width; ++lane) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): negative is no lane
      const int source = permutation.source[lane];
      const bool valid = source >= 0 && source < static_cast<int>(wave.width) &&
                         (permutation.fetch_inactive || (exec >> source & 1) != 0);
      to[lane] = valid ? from[source] : 0;
      if (!valid && !permutation.zero_invalid) enabled &= ~(1ull << lane);
    }
  }
  wave.set_exec(enabled);
  instruction.inner(wave, instruction);
  wave.set_exec(exec);
}

// A load of 8 or 16 bits into one half of a register, on a part that protects its registers with
// ECC: the other half becomes zero. Code for such parts counts on it (rocBLAS), or on neither.
template <std::uint32_t kWritten>
void execute_clearing(Wave& wave, const Instruction& instruction) {
  instruction.inner(wave, instruction);
  std::uint32_t* const row = wave.row(instruction.operand[0].reg);
  write_lanes(wave, row, [&](std::ptrdiff_t lane) { return row[lane] & kWritten; });
}

bool loads_half(std::string_view name) {
  return name.find("_d16") != std::string_view::npos &&
         (name.find("_load_") != std::string_view::npos || name.starts_with("ds_read_"));
}

// Two operations at once (VOPD): what the first one writes is kept back until the second one has
// read its sources.
void execute_pair(Wave& wave, const Instruction& instruction) {
  const OperationPair& pair = *instruction.pair;
  pair.first.execute(wave, pair.first);
  pair.second.execute(wave, pair.second);
  write_row(wave, pair.first_result, wave.row(kPermutedRow));
}

bool is_half(OperandType type) { return type == OperandType::kB16 || type == OperandType::kF16; }

std::size_t source_count(const Definition& definition) {
  return static_cast<std::size_t>(
      std::find(definition.sources.begin(), definition.sources.end(), OperandType::kNone) -
      definition.sources.begin());
}

enum class Encoding { kShort, kVop3, kOther };

Encoding encoding_of(const Instruction& instruction) {
  if ((instruction.raw >> 31 & 1) == 0) return Encoding::kShort;
  return (instruction.raw >> 26 & 63) == 0x35 ? Encoding::kVop3 : Encoding::kOther;
}

// gfx11 names a half of a register for each source and result of 16 bits: by bit 7 of the
// register's number in VOP1, VOP2 and VOPC, by op_sel in VOP3, whose last bit is the result's. LLVM
// 15 prints the first as registers from v128 on, and the other for few instructions.
void name_halves(Instruction& instruction, const Definition& definition, std::vector<Word>& words) {
  constexpr unsigned kUpper = 128, kResultBit = 3;
  const std::size_t sources = source_count(definition);
  const Encoding encoding = encoding_of(instruction);
  if (encoding == Encoding::kVop3) {
    const auto bits = static_cast<unsigned>(instruction.raw >> 11 & 15);
    const unsigned result = bits >> kResultBit & 1;
    const unsigned accumulator = definition.accumulates ? result << (sources - 1) : 0;
    instruction.op_sel =
        static_cast<std::uint8_t>((bits & ((1u << sources) - 1)) | accumulator | result << sources);
  }
  if (encoding != Encoding::kShort) return;
  for (std::size_t at = 0; at < words.size(); ++at) {
    Operand& operand = words[at].operand;
    const std::size_t source = at - definition.first_source;  // wraps for destinations
    const bool result = at == 0 && definition.first_source != 0;
    const OperandType type = result             ? definition.result
                             : source < sources ? definition.sources[source]
                                                : OperandType::kNone;
    if (!is_half(type) || operand.kind != Operand::Kind::kVector || operand.reg < kUpper) continue;
    operand.reg = static_cast<std::uint16_t>(operand.reg - kUpper);
    const std::size_t bit = result ? sources : source;
    instruction.op_sel = static_cast<std::uint8_t>(instruction.op_sel | 1u << bit);
    if (result && definition.accumulates)
      instruction.op_sel = static_cast<std::uint8_t>(instruction.op_sel | 1u << (sources - 1));
  }
}

// Whether 16-bit results need care: which half is written, and what becomes of the other one.
void settle_result(Instruction& instruction, const Definition& definition, bool sdwa,
                   bool preserves_halves) {
  using Select = Operand::Select;
  if (!sdwa && is_half(definition.result)) {
    const bool upper = (instruction.op_sel >> source_count(definition) & 1) != 0;
    instruction.preserve_rest = upper || preserves_halves || instruction.op_sel != 0;
    instruction.result_select = upper                       ? Select::kWord1
                                : instruction.preserve_rest ? Select::kWord0
                                                            : Select::kWhole;
  }
  instruction.shaped = instruction.clamp || instruction.output_scale != 1 ||
                       instruction.result_select != Select::kWhole;
}

void settle_sources(Instruction& instruction, const Definition& definition,
                    const Modifiers& modifiers, const std::vector<Word>& words) {
  const auto is_upper = [&](std::size_t source, OperandType type) {
    return is_half(type) && (instruction.op_sel >> source & 1) != 0;
  };
  for (std::size_t at = 0; at < words.size(); ++at) {
    Operand& operand = instruction.operand[at] = words[at].operand;
    const std::size_t source = at - definition.first_source;  // wraps for destinations
    OperandType type =
        source < definition.sources.size() ? definition.sources[source] : OperandType::kNone;
    if (operand.kind == Operand::Kind::kConstant)
      operand.bits = constant_bits(words[at].constant, type);
    if (source < 2 && modifiers.source_select[source] != Operand::Select::kWhole)
      operand.select = modifiers.source_select[source];
    if (is_upper(source, type)) operand.select = Operand::Select::kWord1;
    if (operand.kind == Operand::Kind::kScalar && operand.reg == kSink &&
        at >= definition.first_source)
      operand = {.kind = Operand::Kind::kConstant};  // `null` reads as zero
  }
  instruction.operands = static_cast<std::uint8_t>(words.size());
  if (definition.accumulates) {
    Operand& operand = instruction.operand[instruction.operands++] = instruction.operand[0];
    const std::size_t source = source_count(definition) - 1;
    if (is_upper(source, definition.sources[source])) operand.select = Operand::Select::kWord1;
  }
  for (Operand& operand : instruction.operand)
    operand.plain_row = operand.kind == Operand::Kind::kVector && !operand.modified();
}

// The field ACC_CD says whether C and D of an MFMA are accumulation registers; on gfx908, which has
// no such field, they always are. LLVM 15 prints them as such in some instructions of gfx940,
// whatever the field holds.
void name_accumulators(Instruction& instruction) {
  const unsigned first = (instruction.raw >> 15 & 1) != 0 ? kAccumulators : 0;
  for (const std::size_t at : {0, 3}) {
    Operand& operand = instruction.operand[at];
    if (operand.kind == Operand::Kind::kVector)
      operand.reg = static_cast<std::uint16_t>(first + operand.reg % kAccumulators);
  }
}

// LLVM 15 does not know gfx11's v_mov_b16, whose encodings differ from those of v_not_b16 in the
// number of the operation only. True: `bytes` was a v_mov_b16 and is a v_not_b16 now.
bool replace_move_of_half(std::uint8_t* bytes) {
  constexpr std::uint32_t kMove = 0x1c, kNot = 0x69;
  std::uint32_t word;
  std::memcpy(&word, bytes, 4);
  if (word >> 25 == 0x3f && (word >> 9 & 0xff) == kMove)  // VOP1
    word ^= (kMove ^ kNot) << 9;
  else if (word >> 16 == (0xd580 | kMove))  // VOP3
    word ^= (kMove ^ kNot) << 16;
  else
    return false;
  std::memcpy(bytes, &word, 4);
  return true;
}

}  // namespace

Decoder::Decoder(const char* processor, bool preserves_halves)
    : preserves_halves_(preserves_halves),
      gfx11_(std::string_view(processor).starts_with("gfx11")),
      says_accumulators_(std::string_view(processor) != "gfx908") {
  LLVMInitializeAMDGPUTargetInfo();
  LLVMInitializeAMDGPUTargetMC();
  LLVMInitializeAMDGPUDisassembler();
  disassembler_ = LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", processor, nullptr, 0, nullptr, nullptr);
}

Decoder::~Decoder() {
  if (disassembler_ != nullptr) LLVMDisasmDispose(disassembler_);
}

void Decoder::settle_constants(Instruction& instruction, const Definition& definition) {
  for (std::size_t source = 0; source < definition.sources.size(); ++source) {
    const OperandType type = definition.sources[source];
    if (type == OperandType::kNone) break;
    Operand& operand = instruction.operand[definition.first_source + source];
    if (operand.kind != Operand::Kind::kConstant) continue;
    const std::uint64_t value = constant_value(operand, is_half(type) ? 2 : is_wide(type) ? 8 : 4);
    const auto [rows, fresh] = constants_.try_emplace(value);
    if (fresh) {
      std::fill_n(rows->second.low, kLanes, static_cast<std::uint32_t>(value));
      std::fill_n(rows->second.high, kLanes, static_cast<std::uint32_t>(value >> 32));
    }
    operand.rows = rows->second.low;
  }
}

std::string Decoder::disassemble(Bytes& bytes, std::uint64_t pc, std::size_t& size) {
  std::array<char, 512> buffer{};
  if (disassembler_ != nullptr)
    size = LLVMDisasmInstruction(disassembler_, bytes.data(), bytes.size(), pc, buffer.data(),
                                 buffer.size());
  if (size == 0) return "(not an instruction)";
  std::string text = buffer.data();
  if (const std::size_t comment = text.find("//"); comment != std::string::npos)
    text.resize(comment);
  std::replace(text.begin(), text.end(), '\t', ' ');
  text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

Instruction Decoder::decode(std::uint64_t pc, std::uint64_t available) {
  Bytes bytes{};
  std::memcpy(bytes.data(), reinterpret_cast<const void*>(pc),
              std::min<std::uint64_t>(available, bytes.size()));
  Instruction instruction;
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  std::memcpy(&instruction.raw_high, bytes.data() + 8, 4);
  const std::lock_guard lock(mutex_);
  std::size_t size = 0;
  instruction.text = disassemble(bytes, pc, size);
  if (size == 0 && gfx11_ && replace_move_of_half(bytes.data())) {
    instruction.text = disassemble(bytes, pc, size);
    if (size != 0) instruction.text.replace(0, std::strlen("v_not"), "v_mov");
  }
  instruction.size = size == 0 ? 4 : static_cast<std::uint32_t>(size);
  instruction.raw = instruction.size == 4 ? raw & 0xffffffff : raw;
  instruction.execute = refuse;
  if (size == 0) return instruction;
  if (const std::size_t at = instruction.text.find(" :: "); at != std::string::npos)
    settle_pair(instruction, at);
  else
    settle(instruction, instruction.text);
  return instruction;
}

void Decoder::settle_pair(Instruction& instruction, std::size_t separator) {
  constexpr std::string_view kSeparator = " :: ", kDual = "v_dual_";
  OperationPair pair{.first = instruction, .second = instruction};
  const auto settle_one = [&](Instruction& operation, std::string_view text) {
    std::string alone = "v_" + std::string(text.substr(kDual.size()));
    if (alone.starts_with("v_cndmask_")) alone += ", vcc_lo";  // which the text leaves out
    settle(operation, alone);
    return operation.execute != refuse;
  };
  const std::string_view text = instruction.text;
  if (!settle_one(pair.first, text.substr(0, separator)) ||
      !settle_one(pair.second, text.substr(separator + kSeparator.size())))
    return;
  pair.first_result = std::exchange(pair.first.operand[0].reg, kPermutedRow);
  instruction.pair = &pairs_.emplace_back(std::move(pair));
  instruction.execute = execute_pair;
}

void Decoder::settle_permutation(Instruction& instruction, Operand& source, bool wide,
                                 const Modifiers& modifiers) {
  LanePermutation& permutation = permutations_.emplace_back(modifiers.permutation);
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if ((modifiers.row_mask >> (lane / 16) & 1) == 0 ||
        (modifiers.bank_mask >> (lane % 16 / 4) & 1) == 0)
      permutation.enabled &= ~(1ull << lane);
  permutation.wide = wide;
  instruction.permutation = &permutation;
  instruction.inner = instruction.execute;
  instruction.execute = execute_permuted;
  instruction.offset = source.reg;
  source.reg = kPermutedRow;
}

// `text`: of one operation. What is not understood leaves `execute` as it is.
void Decoder::settle(Instruction& instruction, std::string_view text) {
  Modifiers modifiers(instruction);
  Parsed parsed = parse(text, modifiers);
  const Definition* definition = set_.find(parsed.name);
  // Of the global data share there is nothing but its barriers.
  const bool elsewhere = modifiers.global_share && !parsed.name.starts_with("ds_gws_");
  if (definition == nullptr || !parsed.understood || modifiers.signs_rest || elsewhere ||
      parsed.words.size() + (definition->accumulates ? 1 : 0) > Instruction::kMaxOperands)
    return;
  const bool real =
      definition->result == OperandType::kF32 || definition->result == OperandType::kF16;
  const bool saturates = instruction.clamp && definition->result != OperandType::kNone && !real;
  if (saturates && definition->saturating == nullptr) return;
  if (instruction.output_scale != 1 && !real) return;
  // It is not known what becomes of the lanes of exec that take no part.
  const bool activates = parsed.name.starts_with("v_cmpx_");
  if (activates && modifiers.permutes) return;
  Definition typed = *definition;
  // From gfx10 on v_cmpx names no mask: its sources come first.
  if (activates && parsed.words.size() == 2) typed.first_source = 0;
  if (gfx11_) name_halves(instruction, typed, parsed.words);
  settle_sources(instruction, typed, modifiers, parsed.words);
  if (says_accumulators_ && parsed.name.starts_with("v_mfma_")) name_accumulators(instruction);
  if (parsed.name.starts_with("v_")) settle_constants(instruction, typed);
  settle_result(instruction, *definition, parsed.sdwa, preserves_halves_);
  Operand& source = instruction.operand[typed.first_source];
  if (modifiers.permutes && source.kind != Operand::Kind::kVector) return;
  instruction.execute = saturates ? definition->saturating : definition->execute;
  if (!preserves_halves_ && loads_half(parsed.name)) {
    instruction.inner = instruction.execute;
    instruction.execute =
        parsed.name.ends_with("_hi") ? execute_clearing<0xffff0000> : execute_clearing<0xffff>;
  }
  if (modifiers.permutes)
    settle_permutation(instruction, source, is_wide(typed.sources[0]), modifiers);
}

}  // namespace vitamin::soft::amdgpu::isa
