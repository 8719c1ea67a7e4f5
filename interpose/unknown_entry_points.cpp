// SPDX-License-Identifier: Apache-2.0
#include "interpose/unknown_entry_points.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "interpose/entry_points.h"
#include "interpose/process_state.h"

namespace vitamin::interpose {
namespace {

constexpr std::string_view kClassified[] = {
#define VITAMIN_HOOK(symbol, since, ...) #symbol,
#define VITAMIN_PASS(symbol, reason) #symbol,
#include VITAMIN_ENTRY_POINTS
};
bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

bool is_new(std::string_view name) {
  if (!may_be_ordered(name)) return false;
  if (std::find(std::begin(kClassified), std::end(kClassified), name) != std::end(kClassified))
    return false;
  // Another version of a function that we override, or a name that speaks of streams.
  const std::string_view base = base_name(name);
  if (std::any_of(std::begin(kHarmlessWords), std::end(kHarmlessWords),
                  [&](std::string_view word) { return contains(name, word); }))
    return false;
  return std::any_of(std::begin(kClassified), std::end(kClassified),
                     [&](std::string_view known) { return base_name(known) == base; }) ||
         std::any_of(std::begin(kOrderedWords), std::end(kOrderedWords),
                     [&](std::string_view word) { return contains(name, word); });
}

// The dynamic symbols of a loaded object. Its count is not stored: string and symbol table lie next
// to each other in every object that a linker writes, symbols first.
template <class Visit>
void for_each_export(const link_map& object, Visit visit) {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  }
  if (symbols == nullptr || reinterpret_cast<const char*>(symbols) >= names) return;
  for (; reinterpret_cast<const char*>(symbols + 1) <= names; ++symbols)
    if (symbols->st_shndx != SHN_UNDEF) visit(names + symbols->st_name);
}

}  // namespace

void report_drift(bool driver_is_newer) {
  static constinit std::atomic<bool> done{false};
  const bool debug = std::getenv("VITAMIN_DEBUG") != nullptr;
  if ((!debug && !driver_is_newer) || done.exchange(true)) return;
  const link_map* driver = nullptr;
  void* handle = nullptr;
  for (const char* library : kLibraries)
    if (handle == nullptr) handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &driver) != 0) return;
  constexpr std::size_t kNamed = 5;  // without VITAMIN_DEBUG
  std::string found;
  std::size_t count = 0;
  for_each_export(*driver, [&](const char* name) {
    if (is_new(name) && (++count <= kNamed || debug))
      found.append(found.empty() ? "" : " ").append(name);
  });
  if (count == 0 && debug)
    note("the driver exports no stream-ordered function that is not classified");
  if (count == 0) return;
  if (count > kNamed && !debug) found.append(" ...");
  warn(Problem::kUnclassified, "%snot classified, passed unordered if called: %zu function%s (%s)",
       driver_is_newer ? "the driver is newer than this release knows; " : "", count,
       count == 1 ? "" : "s", found.c_str());
}

}  // namespace vitamin::interpose
