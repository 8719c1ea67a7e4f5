// SPDX-License-Identifier: Apache-2.0
#include "interpose/nvtx.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <cwchar>
#include <string>

#include "interpose/advice/vitamin_advice.h"
#include "interpose/process_state.h"
#include "runtime/clock.h"

extern "C" const vitamin_advice_functions* VITAMIN_ADVICE_SYMBOL();

namespace vitamin::interpose {
namespace {

using runtime::Advice;
using runtime::now_ns;
using runtime::WorkKind;

// --- what a message says -------------------------------------------------------------------------

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool contains(std::string_view text, std::string_view word) {
  for (std::size_t at = 0; at + word.size() <= text.size(); ++at) {
    std::size_t i = 0;
    while (i < word.size() && lower(text[at + i]) == word[i]) ++i;
    if (i == word.size()) return true;
  }
  return false;
}

// Whether "dec" or "pre" stands in the text, in any case. Compilers push ranges with long messages
// around each of their operations, and hardly any is for us: without a branch, this loop is made of
// vector instructions.
bool may_name_a_kind(std::string_view text) {
  unsigned char found = 0;
  for (std::size_t i = 0; i + 2 < text.size(); ++i) {
    const auto is = [&](std::size_t ahead, char letter) -> unsigned char {
      return (text[i + ahead] | 0x20) == letter;  // capital letters become small ones
    };
    found = static_cast<unsigned char>(found | (is(0, 'd') & is(1, 'e') & is(2, 'c')) |
                                       (is(0, 'p') & is(1, 'r') & is(2, 'e')));
  }
  return found != 0;
}

// Of a message that is not ours. In one that speaks of both, the range around both phases is meant.
WorkKind named_kind(std::string_view text) {
  if (!may_name_a_kind(text)) return WorkKind::kUnknown;
  const bool decode = contains(text, "decode"), prefill = contains(text, "prefill");
  if (decode == prefill) return WorkKind::kUnknown;
  return decode ? WorkKind::kDecode : WorkKind::kPrefill;
}

WorkKind work_kind(std::string_view word) {
  if (word == "prefill") return WorkKind::kPrefill;
  if (word == "decode") return WorkKind::kDecode;
  if (word == "best-effort") return WorkKind::kBestEffort;
  return WorkKind::kUnknown;
}

// "deadline_us=30000"
const char* read_fact(std::string_view word, std::uint64_t now_ns, Advice& advice) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  std::uint64_t number = 0;
  const char* end = word.data() + word.size();
  const auto [stop, error] =
      std::from_chars(word.data() + std::min(equals + 1, word.size()), end, number);
  constexpr std::uint64_t kLongest = 1'000'000'000'000;  // us: 11 days
  if (equals == word.npos || error != std::errc() || stop != end || number > kLongest)
    return "a fact is NAME=NUMBER";
  if (name == "processors")
    advice.sms = static_cast<std::uint32_t>(number);
  else if (name == "ready_us")
    advice.ready_at_ns = now_ns + number * 1000;
  else if (name == "deadline_us")
    advice.deadline_ns = now_ns + number * 1000;
  else if (name == "queued_us")
    advice.queued_ns = number * 1000;
  else
    return "known are processors, ready_us, deadline_us and queued_us";
  return nullptr;
}

constexpr std::string_view kOurs = "vitamin:";

}  // namespace

Said parse_message(std::string_view message) {
  Said said;
  if (!message.starts_with(kOurs)) {
    said.advice.kind = named_kind(message);
    said.says = said.advice.kind != WorkKind::kUnknown;
    return said;
  }
  message.remove_prefix(kOurs.size());
  const std::uint64_t now = now_ns();
  while (!message.empty() && said.wrong == nullptr) {
    const std::size_t space = std::min(message.find(' '), message.size());
    const std::string_view word = message.substr(0, space);
    message.remove_prefix(std::min(space + 1, message.size()));
    if (word.empty()) continue;
    if (const WorkKind kind = work_kind(word); kind != WorkKind::kUnknown)
      said.advice.kind = kind;
    else if (word.find('=') == word.npos)
      said.wrong = "known classes are prefill, decode and best-effort";
    else
      said.wrong = read_fact(word, now, said.advice);
  }
  said.says = said.wrong == nullptr;
  return said;
}

// --- NVTX ----------------------------------------------------------------------------------------

namespace {

int push(std::string_view message) {
  const Said spoken = parse_message(message);
  if (spoken.wrong != nullptr)
    VITAMIN_WARN_ONCE(runtime::Problem::kAdvice, "the NVTX range '%.*s' is no advice: %s",
                      static_cast<int>(std::min<std::size_t>(message.size(), 80)), message.data(),
                      spoken.wrong);
  open_range(spoken.advice, spoken.says);
  return static_cast<int>(open_ranges()) - 1;
}

int pop() { return close_range() ? static_cast<int>(open_ranges()) : -1; }

void mark(std::string_view message) {
  if (message == "vitamin:cancel") VITAMIN_ADVICE_SYMBOL()->cancel(nullptr);
  if (message == "vitamin:iteration_end") VITAMIN_ADVICE_SYMBOL()->iteration_end(nullptr);
}

// nvtxEventAttributes_t, as far as it is read here.
struct Attributes {
  std::uint16_t version, size;
  std::uint32_t category;
  std::int32_t color_type;
  std::uint32_t color;
  std::int32_t payload_type, reserved;
  std::uint64_t payload;
  std::int32_t message_type;
  const void* message;
};
static_assert(offsetof(Attributes, message) == 40);
enum MessageType { kAscii = 1, kUnicode = 2, kRegistered = 3 };

// ASCII and UTF-8 as they are; of wide characters, those that are ASCII.
std::string narrow(const wchar_t* text) {
  std::string result;
  for (; text != nullptr && *text != 0; ++text)
    result += *text < 128 ? static_cast<char>(*text) : '?';
  return result;
}
std::string_view text_of(const char* text) { return text != nullptr ? text : ""; }

template <class Use>
auto with_message(const Attributes* attributes, Use use) {
  if (attributes == nullptr || attributes->size < sizeof(Attributes)) return use(text_of(nullptr));
  const void* message = attributes->message;
  switch (attributes->message_type) {
    case kAscii:
    case kRegistered:  // a registered string is its own text: see register_string()
      return use(text_of(static_cast<const char*>(message)));
    case kUnicode:
      return use(std::string_view(narrow(static_cast<const wchar_t*>(message))));
    default:
      return use(text_of(nullptr));
  }
}

int push_ascii(const char* message) { return push(text_of(message)); }
int push_wide(const wchar_t* message) { return push(narrow(message)); }
int push_attributes(const Attributes* attributes) { return with_message(attributes, push); }
void mark_ascii(const char* message) { mark(text_of(message)); }
void mark_attributes(const Attributes* attributes) { with_message(attributes, mark); }

// Ranges of a domain nest apart from each other, as NVTX says; for a thread's launches what counts
// is what was opened last, whatever its domain.
int domain_push(void*, const Attributes* attributes) { return push_attributes(attributes); }
int domain_pop(void*) { return pop(); }
void domain_mark(void*, const Attributes* attributes) { mark_attributes(attributes); }
// Kept for ever, as NVTX's own tools do: a handle may be used until its domain goes, and programs
// register a few strings.
void* register_string(void*, const char* text) { return ::strdup(text != nullptr ? text : ""); }
void* register_wide(void*, const wchar_t* text) { return ::strdup(narrow(text).c_str()); }
void* create_domain(const char*) { return register_string(nullptr, ""); }

// NVTX's numbers (NvtxCallbackModule, NvtxCallbackIdCore, NvtxCallbackIdCore2).
enum Module { kCore = 1, kCore2 = 5 };
enum Core { kMarkEx = 1, kMarkA = 2, kPushEx = 8, kPushA = 9, kPushW = 10, kPop = 11 };
enum Core2 {
  kDomainMarkEx = 1,
  kDomainPushEx = 4,
  kDomainPop = 5,
  kRegisterA = 10,
  kRegisterW = 11,
  kDomainCreateA = 12,
};
constexpr std::uint32_t kCallbacks = 1;  // NVTX_ETID_CALLBACKS

using Function = void (*)();
struct Callbacks {
  std::size_t size;
  int (*table)(int module, Function*** functions, unsigned* count);
};

template <class F>
void take(Function** functions, unsigned count, unsigned index, F* ours) {
  if (index < count && functions[index] != nullptr)
    *functions[index] = reinterpret_cast<Function>(ours);
}

}  // namespace
}  // namespace vitamin::interpose

// Called once by each copy of NVTX in the process. 0: not initialised, NVTX does without us.
extern "C" [[gnu::visibility("default")]] int InitializeInjectionNvtx2(
    const void* (*get_export_table)(std::uint32_t)) {
  namespace nvtx = vitamin::interpose;
  if (get_export_table == nullptr) return 0;
  const auto* callbacks = static_cast<const nvtx::Callbacks*>(get_export_table(nvtx::kCallbacks));
  if (callbacks == nullptr || callbacks->size < sizeof(nvtx::Callbacks)) return 0;
  nvtx::Function** functions = nullptr;
  unsigned count = 0;
  if (callbacks->table(nvtx::kCore, &functions, &count) != 0) {
    nvtx::take(functions, count, nvtx::kMarkA, &nvtx::mark_ascii);
    nvtx::take(functions, count, nvtx::kMarkEx, &nvtx::mark_attributes);
    nvtx::take(functions, count, nvtx::kPushA, &nvtx::push_ascii);
    nvtx::take(functions, count, nvtx::kPushW, &nvtx::push_wide);
    nvtx::take(functions, count, nvtx::kPushEx, &nvtx::push_attributes);
    nvtx::take(functions, count, nvtx::kPop, &nvtx::pop);
  }
  if (callbacks->table(nvtx::kCore2, &functions, &count) != 0) {
    nvtx::take(functions, count, nvtx::kDomainMarkEx, &nvtx::domain_mark);
    nvtx::take(functions, count, nvtx::kDomainPushEx, &nvtx::domain_push);
    nvtx::take(functions, count, nvtx::kDomainPop, &nvtx::domain_pop);
    nvtx::take(functions, count, nvtx::kRegisterA, &nvtx::register_string);
    nvtx::take(functions, count, nvtx::kRegisterW, &nvtx::register_wide);
    nvtx::take(functions, count, nvtx::kDomainCreateA, &nvtx::create_domain);
  }
  return 1;
}
