// SPDX-License-Identifier: Apache-2.0
//
// What the unwinder of GCC 12 and newer calls that glibc has since 2.35. Linked into the preloaded
// libraries, and into programs that RHEL 9 (glibc 2.34) runs, too. Hidden: no call of another
// library ends here.
#include <dlfcn.h>
#include <link.h>

#include <cstddef>

extern "C" {

// The unwinder asks where an object keeps its frames.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  struct Search {
    ElfW(Addr) address;
    dl_find_object* result;
  } search{reinterpret_cast<ElfW(Addr)>(address), result};
  const auto look = [](dl_phdr_info* info, std::size_t, void* data) -> int {
    const auto& wanted = *static_cast<Search*>(data);
    const ElfW(Phdr)* frames = nullptr;
    bool inside = false;
    for (const ElfW(Phdr)* header = info->dlpi_phdr; header != info->dlpi_phdr + info->dlpi_phnum;
         ++header) {
      const ElfW(Addr) begin = info->dlpi_addr + header->p_vaddr;
      if (header->p_type == PT_GNU_EH_FRAME) frames = header;
      if (header->p_type != PT_LOAD || wanted.address < begin ||
          wanted.address - begin >= header->p_memsz)
        continue;
      inside = true;
      wanted.result->dlfo_map_start = reinterpret_cast<void*>(begin);
      wanted.result->dlfo_map_end = reinterpret_cast<void*>(begin + header->p_memsz);
    }
    if (!inside || frames == nullptr) return 0;
    wanted.result->dlfo_flags = 0;
    wanted.result->dlfo_link_map = nullptr;
    wanted.result->dlfo_eh_frame = reinterpret_cast<void*>(info->dlpi_addr + frames->p_vaddr);
    return 1;
  };
  return ::dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

}  // extern "C"
