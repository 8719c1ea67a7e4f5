// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/assembly.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "backends/soft/amdgpu/isa/lanes.h"
#include "backends/soft/amdgpu/isa/wave.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

using Words = std::vector<std::string_view>;

// Splits at `separator` where no bracket is open.
Words split(std::string_view text, char separator) {
  Words words;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at < text.size()) {
      if (text[at] == '[' || text[at] == '(') ++depth;
      if (text[at] == ']' || text[at] == ')') --depth;
      if (text[at] != separator || depth != 0) continue;
    }
    if (at > begin) words.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  return words;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<std::int64_t> integer(std::string_view text) {
  const bool negative = take_prefix(text, "-");
  const int base = take_prefix(text, "0x") ? 16 : 10;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

struct Named {
  std::string_view name;
  unsigned reg, count;
};
constexpr Named kNamed[] = {{"vcc", kVcc, 2},
                            {"vcc_lo", kVcc, 1},
                            {"vcc_hi", kVcc + 1, 1},
                            {"exec", kExec, 2},
                            {"exec_lo", kExec, 1},
                            {"exec_hi", kExec + 1, 1},
                            {"m0", kM0, 1},
                            {"scc", kScc, 1},
                            {"src_scc", kScc, 1},
                            {"flat_scratch", kFlatScratch, 2},
                            {"flat_scratch_lo", kFlatScratch, 1},
                            {"flat_scratch_hi", kFlatScratch + 1, 1},
                            {"src_shared_base", kSharedBase, 2},
                            {"src_shared_limit", kSharedLimit, 2},
                            {"src_private_base", kPrivateBase, 2},
                            {"src_private_limit", kPrivateLimit, 2}};

// "v7", "s[4:5]", "a[0:3]", "ttmp9".
bool parse_register(std::string_view text, Operand& operand) {
  unsigned base = 0;
  Operand::Kind kind = Operand::Kind::kVector;
  if (take_prefix(text, "ttmp")) {
    kind = Operand::Kind::kScalar, base = kTrapTemporaries;
  } else if (take_prefix(text, "s")) {
    kind = Operand::Kind::kScalar;
  } else if (take_prefix(text, "a")) {
    base = kAccumulators;
  } else if (!take_prefix(text, "v")) {
    return false;
  }
  std::optional<std::int64_t> first, last;
  if (take_prefix(text, "[") && take_suffix(text, "]")) {
    const std::size_t colon = text.find(':');
    first = integer(text.substr(0, colon));
    last = colon == std::string_view::npos ? first : integer(text.substr(colon + 1));
  } else {
    first = last = integer(text);
  }
  if (!first || !last) return false;
  operand.kind = kind;
  operand.reg = static_cast<std::uint16_t>(base + static_cast<unsigned>(*first));
  operand.count = static_cast<std::uint16_t>(*last - *first + 1);
  return true;
}

// False: not understood.
bool parse_operand(std::string_view text, Word& word) {
  Operand& operand = word.operand;
  if (text.size() > 1 && text[0] == '-' && std::isdigit(static_cast<unsigned char>(text[1])) == 0)
    operand.negate = take_prefix(text, "-");
  if (take_prefix(text, "neg(")) operand.negate = take_suffix(text, ")");
  if (take_prefix(text, "|")) operand.absolute = take_suffix(text, "|");
  if (take_prefix(text, "sext(")) operand.sign_extend = take_suffix(text, ")");
  if (text.empty()) return false;
  for (const Named& named : kNamed) {
    if (named.name != text) continue;
    operand.kind = Operand::Kind::kScalar;
    operand.reg = static_cast<std::uint16_t>(named.reg);
    operand.count = static_cast<std::uint16_t>(named.count);
    return true;
  }
  if (text == "off") return true;
  if (text == "null") {
    operand.kind = Operand::Kind::kScalar;
    operand.reg = kSink;
    return true;
  }
  if (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-') {
    operand.kind = Operand::Kind::kConstant;
    word.constant = text;
    return true;
  }
  return parse_register(text, operand);
}

Operand::Select parse_select(std::string_view text) {
  using Select = Operand::Select;
  if (text.starts_with("BYTE_"))
    return static_cast<Select>(static_cast<int>(Select::kByte0) + (text[5] - '0'));
  if (text.starts_with("WORD_")) return text[5] == '1' ? Select::kWord1 : Select::kWord0;
  return Select::kWhole;
}

// "[0,1,1]" as bits, the first in bit 0.
std::uint8_t parse_bits(std::string_view text) {
  unsigned bits = 0, at = 0;
  for (const char c : text)
    if (c == '0' || c == '1') bits |= static_cast<unsigned>(c - '0') << at++;
  return static_cast<std::uint8_t>(bits);
}

std::string_view base_name(std::string_view mnemonic, bool& sdwa) {
  sdwa = take_suffix(mnemonic, "_sdwa");
  // "_e64_dpp" has two of them.
  for (const std::string_view suffix : {"_dpp8", "_dpp", "_e32", "_e64"})
    take_suffix(mnemonic, suffix);
  return mnemonic;
}

// Instructions whose operands are read from the encoding, or that have none of use.
bool takes_no_words(std::string_view name) {
  if (name.starts_with("s_sendmsg_rtn")) return false;
  for (const std::string_view prefix :
       {"s_waitcnt", "s_sendmsg", "s_setreg", "s_branch", "s_cbranch", "s_nop", "s_sleep",
        "buffer_inv", "buffer_wb", "s_delay_alu", "s_wait_event"})
    if (name.starts_with(prefix)) return true;
  return false;
}

}  // namespace

std::uint64_t constant_bits(std::string_view text, OperandType type) {
  if (text.find('.') != std::string_view::npos) {
    const double value = std::strtod(std::string(text).c_str(), nullptr);
    if (is_wide(type)) return std::bit_cast<std::uint64_t>(value);
    const bool half =
        type == OperandType::kF16 || type == OperandType::kPackedF16 || type == OperandType::kB16;
    if (half) return std::bit_cast<std::uint16_t>(static_cast<Half>(value));
    return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
  const auto value = static_cast<std::uint64_t>(integer(text).value_or(0));
  const bool literal = text.starts_with("0x");
  if (type == OperandType::kF64 && literal) return value << 32;
  return is_wide(type) ? value : value & 0xffffffff;
}

bool Modifiers::take_flag(std::string_view text) {
  // An image's resource says what "da" says, and its loads and stores are always "unorm".
  constexpr std::string_view kIgnored[] = {"glc", "slc", "dlc",   "scc",   "sc0",   "sc1",   "nt",
                                           "gds", "lds", "offen", "idxen", "clamp", "unorm", "da"};
  if (std::find(std::begin(kIgnored), std::end(kIgnored), text) == std::end(kIgnored)) return false;
  if (text == "lds") return false;  // a load that bypasses the registers
  if (text == "gds") global_share = true;
  if (text == "glc" || text == "sc0") instruction.returns = true;
  if (text == "offen") instruction.per_lane_offset = true;
  if (text == "idxen") instruction.per_lane_index = true;
  if (text == "clamp") instruction.clamp = true;
  return true;
}

bool Modifiers::take_permutation(std::string_view name, std::string_view value) {
  const int n = static_cast<int>(integer(value).value_or(0));
  const auto in_row = [](int lane, int from) { return from >> 4 == lane >> 4 ? from : -1; };
  if (name == "quad_perm" || name == "dpp8") {
    std::vector<int> digits;
    for (const char c : value)
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) digits.push_back(c - '0');
    const int group = name == "dpp8" ? 8 : 4;
    if (static_cast<int>(digits.size()) != group) return false;
    permute([&](int lane) {
      return lane - lane % group + digits[static_cast<std::size_t>(lane % group)];
    });
  } else if (name == "row_shl") {
    permute([&](int lane) { return in_row(lane, lane + n); });
  } else if (name == "row_shr") {
    permute([&](int lane) { return lane - n < 0 ? -1 : in_row(lane, lane - n); });
  } else if (name == "row_ror") {
    permute([&](int lane) { return (lane & ~15) | ((lane - n) & 15); });
  } else if (name == "row_share" || name == "row_newbcast") {
    permute([&](int lane) { return (lane & ~15) | n; });
  } else if (name == "row_xmask") {
    permute([&](int lane) { return lane ^ n; });
  } else if (name == "row_mirror") {
    permute([](int lane) { return lane ^ 15; });
  } else if (name == "row_half_mirror") {
    permute([](int lane) { return lane ^ 7; });
  } else if (name == "row_bcast" && n == 15) {
    permute([](int lane) { return lane < 16 ? -1 : (lane & ~15) - 1; });
  } else if (name == "row_bcast" && n == 31) {
    permute([](int lane) { return lane < 32 ? -1 : 31; });
  } else if (name == "wave_shl") {
    permute([](int lane) { return lane == 63 ? -1 : lane + 1; });
  } else if (name == "wave_shr") {
    permute([](int lane) { return lane - 1; });
  } else if (name == "wave_rol") {
    permute([](int lane) { return (lane + 1) & 63; });
  } else if (name == "wave_ror") {
    permute([](int lane) { return (lane - 1) & 63; });
  } else {
    return false;
  }
  return true;
}

bool Modifiers::take(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (colon == std::string_view::npos) return take_flag(name) || take_permutation(name, "");
  const std::string_view value = text.substr(colon + 1);
  const auto number = static_cast<std::int32_t>(integer(value).value_or(0));
  if (name == "offset" || name == "offset0") return instruction.offset = number, true;
  if (name == "offset1") return instruction.offset1 = number, true;
  if (name == "mul") return instruction.output_scale = static_cast<std::uint8_t>(number), true;
  if (name == "div") return instruction.output_scale = 0, true;
  if (name == "op_sel") return instruction.op_sel = parse_bits(value), true;
  if (name == "op_sel_hi") return instruction.op_sel_hi = parse_bits(value), true;
  if (name == "neg_lo") return instruction.neg_lo = parse_bits(value), true;
  if (name == "neg_hi") return instruction.neg_hi = parse_bits(value), true;
  if (name == "src0_sel") return source_select[0] = parse_select(value), true;
  if (name == "src1_sel") return source_select[1] = parse_select(value), true;
  if (name == "dst_sel") return instruction.result_select = parse_select(value), true;
  if (name == "dst_unused") {
    instruction.preserve_rest = value == "UNUSED_PRESERVE";
    signs_rest = value == "UNUSED_SEXT";
    return true;
  }
  // Image and matrix instructions read these from the encoding.
  for (const std::string_view field : {"dmask", "cbsz", "abid", "blgp"})
    if (name == field) return true;
  if (name == "row_mask") return row_mask = static_cast<std::uint64_t>(number), true;
  if (name == "bank_mask") return bank_mask = static_cast<std::uint64_t>(number), true;
  if (name == "bound_ctrl") return permutation.zero_invalid = true, true;
  if (name == "fi") return permutation.fetch_inactive = number != 0, true;
  return take_permutation(name, value);
}

Parsed parse(std::string_view text, Modifiers& modifiers) {
  Parsed parsed;
  const std::size_t space = std::min(text.find(' '), text.size());
  parsed.name = std::string(base_name(text.substr(0, space), parsed.sdwa));
  if (takes_no_words(parsed.name)) return parsed;
  for (const std::string_view part : split(text.substr(space), ',')) {
    bool first = true;
    for (const std::string_view word : split(part, ' ')) {
      // "v[0:1]" holds a colon too, inside its brackets.
      const bool modifier = word.find(':') < word.find('[') || !first;
      if (word.starts_with("hwreg(") || word.starts_with("sendmsg(")) {
        first = false;
      } else if (modifier) {
        parsed.understood &= modifiers.take(word);
      } else {
        parsed.understood &= parse_operand(word, parsed.words.emplace_back());
      }
      first = false;
    }
  }
  return parsed;
}

}  // namespace vitamin::soft::amdgpu::isa
