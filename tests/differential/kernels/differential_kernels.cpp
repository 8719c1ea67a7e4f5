// SPDX-License-Identifier: Apache-2.0
//
// The kernels that the rules launch: as small as the question allows, each with one thread's work.
#include "backends/soft/kernel.h"

// words[0] counts, words[1...] are the values in the order in which the kernels ran.
VITAMIN_KERNEL(append, std::uint32_t* words, std::uint32_t value) {
  VITAMIN_ONCE {
    const std::uint32_t count = vitamin::kernel::atomic_add(&words[0], std::uint32_t{1});
    words[1 + count] = value;
  }
}

VITAMIN_KERNEL(store, std::uint32_t* word, std::uint32_t value) {
  VITAMIN_ONCE { *word = value; }
}

// More parameter bytes than most kernels have (kLargeParameterWords in session.h).
struct ManyWords {
  std::uint32_t words[1000];
};
VITAMIN_KERNEL(store_of_many, std::uint32_t* word, ManyWords many) {
  VITAMIN_ONCE { *word = many.words[999]; }
}

// Takes time, then adds.
VITAMIN_WAITING_KERNEL(slow_add, std::uint32_t* word, std::uint32_t value, std::uint64_t ns) {
  VITAMIN_BUSY_NS(ns);
  VITAMIN_ONCE { vitamin::kernel::atomic_add(word, value); }
}

VITAMIN_KERNEL(copy_word, std::uint32_t* to, const std::uint32_t* from) {
  VITAMIN_ONCE { *to = *from; }
}

struct Triple {
  std::uint64_t a, b, c;
};

// Parameters with holes between them: says what arrived.
VITAMIN_KERNEL(pack, std::uint32_t* out, std::int8_t small, double wide, Triple triple,
               short last) {
  VITAMIN_ONCE {
    out[0] = static_cast<std::uint32_t>(small);
    out[1] = static_cast<std::uint32_t>(wide * 2);
    out[2] = static_cast<std::uint32_t>(triple.a);
    out[3] = static_cast<std::uint32_t>(triple.b);
    out[4] = static_cast<std::uint32_t>(triple.c);
    out[5] = static_cast<std::uint32_t>(last);
  }
}

// Which multiprocessor ran each block.
VITAMIN_KERNEL(mark_sm, std::uint32_t* sm_of_block) {
  VITAMIN_ONCE { sm_of_block[block.linear_index()] = block.sm_id(); }
}

VITAMIN_KERNEL(fault, [[maybe_unused]] std::uint32_t* word) {
  VITAMIN_ONCE { VITAMIN_ILLEGAL_ADDRESS(); }
}
