// SPDX-License-Identifier: Apache-2.0
//
// The exported overrides: for each row of the vendor's table a symbol whose code is one jump
// through a slot. The slot is filled at compile time with an instance of Hook, whose type comes
// from the vendor's header, so no signature is written a second time and a call costs one jump.
#include VITAMIN_VENDOR_HOOKS
#include "interpose/call_wrappers.h"
#include "interpose/hook.h"

namespace vitamin::interpose {

void* const hook_addresses[kSymbols] = {
#define VITAMIN_HOOK(symbol, since, ...) \
  reinterpret_cast<void*>(&Hook<Symbol::symbol, __VA_ARGS__, decltype(symbol)>::call),
#define VITAMIN_PASS(symbol, reason)
#include VITAMIN_ENTRY_POINTS
};

// One jump through the slot of `symbol`.
#if defined(__x86_64__)
#define VITAMIN_JUMP(symbol) "  endbr64\n  jmp *vitamin_slot_" #symbol "(%rip)\n"
#elif defined(__aarch64__)
#define VITAMIN_JUMP(symbol)                      \
  "  hint #34  // bti c\n"                        \
  "  adrp x16, vitamin_slot_" #symbol             \
  "\n"                                            \
  "  ldr x16, [x16, #:lo12:vitamin_slot_" #symbol \
  "]\n"                                           \
  "  br x16\n"
#else
#error "the exported jumps are written for x86-64 and arm64"
#endif

#define VITAMIN_HOOK(symbol, since, ...)                                                   \
  extern "C" {                                                                             \
  [[gnu::visibility("hidden")]] extern decltype(&symbol) const vitamin_slot_##symbol;      \
  [[gnu::used]] decltype(&symbol) const vitamin_slot_##symbol =                            \
      &Hook<Symbol::symbol, __VA_ARGS__, decltype(symbol)>::call;                          \
  }                                                                                        \
  asm(".pushsection vitamin_exports, \"ax\", %progbits\n"                                  \
      ".p2align 4\n"                                                                       \
      ".globl " #symbol                                                                    \
      "\n"                                                                                 \
      ".type " #symbol ", %function\n" #symbol ":\n" VITAMIN_JUMP(symbol) ".size " #symbol \
                                                                          ", .-" #symbol   \
                                                                          "\n"             \
                                                                          ".popsection");
#define VITAMIN_PASS(symbol, reason)
#include VITAMIN_ENTRY_POINTS

}  // namespace vitamin::interpose
