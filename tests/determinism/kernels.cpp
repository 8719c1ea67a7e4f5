// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the determinism suite, one source for every device (backends/soft/kernel.h).
//
// Every kernel has a fixed structure: which thread adds what in which order follows from the launch
// alone. `histogram` is the exception that the suite must tell apart. What a controller that
// reshapes launches would turn (grid, block, number of splits) is a launch parameter here, so that
// the same code shows both the bits that stay and the bits that drift.
//
// Every kernel takes an Atom first: the range of block indices that works in this launch. The
// others return at once. An ordinary launch has the whole range; cut into several launches, a grid
// runs as the atoms of LithOS, with each block's work and index untouched.
#include <math.h>

#include "backends/soft/kernel.h"
#include "tests/determinism/values.h"

namespace {

using vitamin::determinism::Atom;
using vitamin::determinism::Difference;
using vitamin::determinism::Digest;
using vitamin::kernel::Bfloat16;
using vitamin::kernel::Half;

#if defined(VITAMIN_KERNEL_ON_GPU)
using Block = const vitamin::kernel::Block;
#else
using Block = vitamin::kernel::Block;
#endif

VITAMIN_DEVICE bool outside(const Block& block, Atom atom) {
  return block.linear_index() < atom.first || block.linear_index() >= atom.last;
}

VITAMIN_DEVICE unsigned mixed(unsigned x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// In [-1, 1), a function of the index and the seed.
VITAMIN_DEVICE float value_at(unsigned i, unsigned seed) {
  return static_cast<float>(mixed(i * 0x9e3779b9u + seed) >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

VITAMIN_DEVICE float loaded(float value) { return value; }
VITAMIN_DEVICE float loaded(Bfloat16 value) { return vitamin::kernel::to_float(value); }
VITAMIN_DEVICE float loaded(Half value) { return vitamin::kernel::to_float(value); }
VITAMIN_DEVICE void store(float* to, float value) { *to = value; }
VITAMIN_DEVICE void store(Bfloat16* to, float value) { *to = vitamin::kernel::to_bfloat16(value); }
VITAMIN_DEVICE void store(Half* to, float value) { *to = vitamin::kernel::to_half(value); }

// The binary tree over the block's threads: its shape is the block size.
#define TREE(cells, join)                                          \
  for (unsigned half = block.threads() / 2; half > 0; half /= 2) { \
    VITAMIN_THREADS(t) {                                           \
      if (t < half) cells[t] = join(cells[t], cells[t + half]);    \
    }                                                              \
  }
VITAMIN_DEVICE float added(float a, float b) { return a + b; }
VITAMIN_DEVICE float larger(float a, float b) { return a > b ? a : b; }

// Stage one: a grid of (parts, rows); each block adds one piece of a row.
template <class Part>
VITAMIN_DEVICE void sum_pieces(Block& block, const float* in, Part* parts, unsigned columns) {
  VITAMIN_SHARED(float, cells, [vitamin::determinism::kThreadsMax]);
  const unsigned piece = (columns + block.grid().x - 1) / block.grid().x;
  const unsigned begin = piece * block.index().x;
  const unsigned end = begin + piece < columns ? begin + piece : columns;
  const float* const row = in + static_cast<unsigned long long>(block.index().y) * columns;
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = begin + t; i < end; i += block.threads()) sum += row[i];
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_ONCE { store(parts + block.linear_index(), cells[0]); }
}

// Stage two: a grid of rows.
template <class Part>
VITAMIN_DEVICE void sum_parts(Block& block, const Part* parts, float* out, unsigned count) {
  VITAMIN_SHARED(float, cells, [vitamin::determinism::kThreadsMax]);
  const Part* const row = parts + block.index().x * count;
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < count; i += block.threads()) sum += loaded(row[i]);
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_ONCE { out[block.index().x] = cells[0]; }
}

}  // namespace

#define SHARED_CELLS .static_shared = vitamin::determinism::kThreadsMax * 4

// --- inputs, poison, comparison ----------------------------------------------------------------

VITAMIN_KERNEL_WITH((.block_ns = 2'000), make_floats, Atom atom, float* out, unsigned count,
                    unsigned seed) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      out[i] = value_at(i, seed);
  }
}

VITAMIN_KERNEL_WITH((.block_ns = 2'000), make_bfloats, Atom atom, Bfloat16* out, unsigned count,
                    unsigned seed) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      store(out + i, value_at(i, seed));
  }
}

VITAMIN_KERNEL_WITH((.block_ns = 2'000), set_words, Atom atom, unsigned* out, unsigned count,
                    unsigned word) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      out[i] = word;
  }
}

// Two sums over the words, each times an odd number that depends on its place. Integer sums do not
// depend on their order, so the digest is deterministic where its atomics are not ordered.
VITAMIN_KERNEL_WITH((.block_ns = 2'000), digest_words, Atom atom, const unsigned* words,
                    unsigned count, Digest* digest) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    unsigned long long low = 0, high = 0;
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads()) {
      low += words[i] * (i * 0x9e3779b97f4a7c15ULL | 1);
      high += (words[i] + 1ULL) * (mixed(i) * 0xbf58476d1ce4e5b9ULL | 1);
    }
    vitamin::kernel::atomic_add(&digest->low, low);
    vitamin::kernel::atomic_add(&digest->high, high);
  }
}

VITAMIN_KERNEL_WITH((.block_ns = 2'000), compare_floats, Atom atom, const unsigned* a,
                    const unsigned* b, unsigned count, Difference* difference) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads()) {
      if (a[i] == b[i]) continue;
      // Floats in the order of their values, as integers.
      const unsigned x = a[i] >> 31 != 0 ? ~a[i] : a[i] | 0x80000000u;
      const unsigned y = b[i] >> 31 != 0 ? ~b[i] : b[i] | 0x80000000u;
      const unsigned ulps = x > y ? x - y : y - x;
      const float apart = vitamin::kernel::bits_float(a[i]) - vitamin::kernel::bits_float(b[i]);
      vitamin::kernel::atomic_add(&difference->elements, 1ULL);
      vitamin::kernel::atomic_add(&difference->ulp_sum, static_cast<unsigned long long>(ulps));
      vitamin::kernel::atomic_max(&difference->ulp_max, ulps);
      vitamin::kernel::atomic_max(&difference->abs_max_bits,
                                  vitamin::kernel::float_bits(apart < 0 ? -apart : apart));
    }
  }
}

// --- two-stage reduction -----------------------------------------------------------------------

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_bf16, Atom atom, const float* in,
                    Bfloat16* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_fp16, Atom atom, const float* in,
                    Half* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_fp32, Atom atom, const float* in,
                    float* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_bf16, Atom atom,
                    const Bfloat16* parts, float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts(block, parts, out, count);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_fp16, Atom atom,
                    const Half* parts, float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts(block, parts, out, count);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_fp32, Atom atom,
                    const float* parts, float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts(block, parts, out, count);
}

// --- GEMM --------------------------------------------------------------------------------------

// Split-K: a grid of (columns / threads, rows, splits); each split adds its range of k.
VITAMIN_KERNEL_WITH((.block_ns = 30'000), gemm_split, Atom atom, const Bfloat16* a,
                    const Bfloat16* b, float* partial, unsigned columns, unsigned depth) {
  if (outside(block, atom)) return;
  const unsigned row = block.index().y, split = block.index().z;
  const unsigned share = (depth + block.grid().z - 1) / block.grid().z;
  const unsigned begin = share * split;
  const unsigned end = begin + share < depth ? begin + share : depth;
  VITAMIN_THREADS(t) {
    const unsigned column = block.index().x * block.threads() + t;
    if (column >= columns) continue;
    float sum = 0.0f;
    for (unsigned k = begin; k < end; ++k)
      sum += loaded(a[row * depth + k]) * loaded(b[k * columns + column]);
    partial[(split * block.grid().y + row) * columns + column] = sum;
  }
}

// The splits of each element, in their order.
VITAMIN_KERNEL_WITH((.block_ns = 5'000), gemm_join, Atom atom, const float* partial, float* out,
                    unsigned count, unsigned splits) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    const unsigned i = block.linear_index() * block.threads() + t;
    if (i >= count) continue;
    float sum = 0.0f;
    for (unsigned split = 0; split < splits; ++split) sum += partial[split * count + i];
    out[i] = sum;
  }
}

// Data-parallel and persistent: a block takes every gridDim-th tile; each element's sum is one
// thread's, whatever the grid. A control that must not drift.
VITAMIN_KERNEL_WITH((.block_ns = 30'000), gemm_tiles, Atom atom, const Bfloat16* a,
                    const Bfloat16* b, float* out, unsigned rows, unsigned columns,
                    unsigned depth) {
  if (outside(block, atom)) return;
  const unsigned tiles = (rows * columns + block.threads() - 1) / block.threads();
  for (unsigned tile = block.linear_index(); tile < tiles; tile += block.blocks()) {
    VITAMIN_THREADS(t) {
      const unsigned i = tile * block.threads() + t;
      if (i >= rows * columns) continue;
      const unsigned row = i / columns, column = i % columns;
      float sum = 0.0f;
      for (unsigned k = 0; k < depth; ++k)
        sum += loaded(a[row * depth + k]) * loaded(b[k * columns + column]);
      out[i] = sum;
    }
  }
}

// --- rows --------------------------------------------------------------------------------------

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), layer_norm, Atom atom, const Bfloat16* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  VITAMIN_SHARED(float, cells, [vitamin::determinism::kThreadsMax]);
  const Bfloat16* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < columns; i += block.threads()) sum += loaded(row[i]);
    cells[t] = sum;
  }
  TREE(cells, added)
  vitamin::kernel::PerThread<float> means(block);
  VITAMIN_THREADS(t) { means[t] = cells[0] / static_cast<float>(columns); }
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < columns; i += block.threads()) {
      const float apart = loaded(row[i]) - means[t];
      sum += apart * apart;
    }
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    const float scale = 1.0f / sqrtf(cells[0] / static_cast<float>(columns) + 1e-5f);
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = (loaded(row[i]) - means[t]) * scale;
  }
}

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), rms_norm, Atom atom, const Bfloat16* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  VITAMIN_SHARED(float, cells, [vitamin::determinism::kThreadsMax]);
  const Bfloat16* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < columns; i += block.threads()) sum += loaded(row[i]) * loaded(row[i]);
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    const float scale = 1.0f / sqrtf(cells[0] / static_cast<float>(columns) + 1e-6f);
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = loaded(row[i]) * scale;
  }
}

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), soft_max, Atom atom, const float* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  VITAMIN_SHARED(float, cells, [vitamin::determinism::kThreadsMax]);
  const float* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    float most = -3.0e38f;
    for (unsigned i = t; i < columns; i += block.threads()) most = larger(most, row[i]);
    cells[t] = most;
  }
  TREE(cells, larger)
  vitamin::kernel::PerThread<float> most(block);
  VITAMIN_THREADS(t) { most[t] = cells[0]; }
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < columns; i += block.threads()) sum += expf(row[i] - most[t]);
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = expf(row[i] - most[t]) / cells[0];
  }
}

// --- flash decoding ----------------------------------------------------------------------------

// One query against a context, cut into splits: a grid of (splits, heads), a block of `width`
// threads, one for each key of a chunk and then one for each dimension. What a split leaves: the
// largest score, the sum of exponentials, the weighted values.
VITAMIN_KERNEL_WITH((.static_shared = 128 * 4, .block_ns = 20'000), decode_split, Atom atom,
                    const Bfloat16* query, const Bfloat16* keys, const Bfloat16* values,
                    float* parts, unsigned context) {
  if (outside(block, atom)) return;
  VITAMIN_SHARED(float, scores, [128]);
  const unsigned width = block.threads(), head = block.index().y;
  const unsigned share = (context + block.grid().x - 1) / block.grid().x;
  const unsigned begin = share * block.index().x;
  const unsigned end = begin + share < context ? begin + share : context;
  const Bfloat16* const head_keys = keys + head * context * width;
  const Bfloat16* const head_values = values + head * context * width;
  vitamin::kernel::PerThread<float> most(block), sum(block), weighted(block);
  VITAMIN_THREADS(t) { most[t] = -3.0e38f; }
  for (unsigned first = begin; first < end; first += width) {
    const unsigned count = end - first < width ? end - first : width;
    VITAMIN_THREADS(t) {
      float score = 0.0f;
      for (unsigned d = 0; t < count && d < width; ++d)
        score += loaded(query[head * width + d]) * loaded(head_keys[(first + t) * width + d]);
      scores[t] = score * 0.25f;
    }
    VITAMIN_THREADS(t) {
      float highest = most[t];
      for (unsigned i = 0; i < count; ++i) highest = larger(highest, scores[i]);
      const float shrink = expf(most[t] - highest);
      float total = sum[t] * shrink, value = weighted[t] * shrink;
      for (unsigned i = 0; i < count; ++i) {
        const float weight = expf(scores[i] - highest);
        total += weight;
        value += weight * loaded(head_values[(first + i) * width + t]);
      }
      most[t] = highest;
      sum[t] = total;
      weighted[t] = value;
    }
  }
  VITAMIN_THREADS(t) {
    float* const part = parts + (head * block.grid().x + block.index().x) * (width + 2);
    part[2 + t] = weighted[t];
    if (t == 0) {
      part[0] = most[t];
      part[1] = sum[t];
    }
  }
}

// The splits of each head, in their order.
VITAMIN_KERNEL_WITH((.block_ns = 5'000), decode_join, Atom atom, const float* parts, float* out,
                    unsigned splits) {
  if (outside(block, atom)) return;
  const unsigned width = block.threads(), head = block.index().x;
  VITAMIN_THREADS(t) {
    float most = -3.0e38f, sum = 0.0f, value = 0.0f;
    for (unsigned split = 0; split < splits; ++split)
      most = larger(most, parts[(head * splits + split) * (width + 2)]);
    for (unsigned split = 0; split < splits; ++split) {
      const float* const part = parts + (head * splits + split) * (width + 2);
      const float weight = expf(part[0] - most);
      sum += part[1] * weight;
      value += part[2 + t] * weight;
    }
    out[head * width + t] = value / sum;
  }
}

// --- controls ----------------------------------------------------------------------------------

VITAMIN_KERNEL_WITH((.block_ns = 5'000), element_wise, Atom atom, const float* a, const float* b,
                    float* out, unsigned count) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      out[i] = a[i] / (1.0f + expf(-1.702f * a[i])) + b[i];
  }
}

// Floats added by whoever comes first: the one kernel here that is not deterministic.
VITAMIN_KERNEL_WITH((.block_ns = 5'000), histogram, Atom atom, const float* in, float* bins,
                    unsigned bin_count, unsigned count) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      vitamin::kernel::atomic_add(&bins[mixed(i) % bin_count], in[i]);
  }
}

// What a tenant runs beside the subjects.
VITAMIN_KERNEL_WITH((.block_ns = 40'000), interfere, Atom atom, unsigned* cell, unsigned rounds) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    unsigned x = t + block.linear_index();
    for (unsigned i = 0; i < rounds; ++i) x = mixed(x + i);
    if (x == 0x12345678u) vitamin::kernel::atomic_add(cell, 1u);
  }
}
