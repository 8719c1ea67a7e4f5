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
//
// The kernels "..._exact" are the same computations in double precision: what the errors of every
// treatment are measured against.
#include <math.h>
#include <string.h>

#include "backends/soft/kernel.h"
#include "tests/determinism/values.h"

namespace {

using vitamin::determinism::Atom;
using vitamin::determinism::Difference;
using vitamin::determinism::Digest;
using vitamin::determinism::Error;
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

// Of doubles that are not negative the bits are in the order of the values.
VITAMIN_DEVICE unsigned long long double_bits(double value) {
  unsigned long long bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// In [-1, 1), a function of the index and the seed.
VITAMIN_DEVICE float value_at(unsigned i, unsigned seed) {
  return static_cast<float>(mixed(i * 0x9e3779b9u + seed) >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

VITAMIN_DEVICE float loaded(float value) { return value; }
VITAMIN_DEVICE double loaded(double value) { return value; }
VITAMIN_DEVICE float loaded(Bfloat16 value) { return vitamin::kernel::to_float(value); }
VITAMIN_DEVICE float loaded(Half value) { return vitamin::kernel::to_float(value); }
VITAMIN_DEVICE void store(float* to, float value) { *to = value; }
VITAMIN_DEVICE void store(double* to, double value) { *to = value; }
VITAMIN_DEVICE void store(Bfloat16* to, float value) { *to = vitamin::kernel::to_bfloat16(value); }
VITAMIN_DEVICE void store(Half* to, float value) { *to = vitamin::kernel::to_half(value); }

// The binary tree over the block's threads: its shape is the block size.
#define TREE(cells, join)                                          \
  for (unsigned half = block.threads() / 2; half > 0; half /= 2) { \
    VITAMIN_THREADS(t) {                                           \
      if (t < half) cells[t] = join(cells[t], cells[t + half]);    \
    }                                                              \
  }
template <class Real>
VITAMIN_DEVICE Real added(Real a, Real b) {
  return a + b;
}
template <class Real>
VITAMIN_DEVICE Real larger(Real a, Real b) {
  return a > b ? a : b;
}
VITAMIN_DEVICE float root(float x) { return sqrtf(x); }
VITAMIN_DEVICE double root(double x) { return sqrt(x); }
VITAMIN_DEVICE float power_of_e(float x) { return expf(x); }
VITAMIN_DEVICE double power_of_e(double x) { return exp(x); }

// Stage one: a grid of (parts, rows); each block adds one piece of a row.
template <class Real, class Part>
VITAMIN_DEVICE void sum_pieces(Block& block, const float* in, Part* parts, unsigned columns) {
  VITAMIN_SHARED(Real, cells, [vitamin::determinism::kThreadsMax]);
  const unsigned piece = (columns + block.grid().x - 1) / block.grid().x;
  const unsigned begin = piece * block.index().x;
  const unsigned end = begin + piece < columns ? begin + piece : columns;
  const float* const row = in + static_cast<unsigned long long>(block.index().y) * columns;
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = begin + t; i < end; i += block.threads()) sum += row[i];
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_ONCE { store(parts + block.linear_index(), cells[0]); }
}

// Stage two: a grid of rows.
template <class Real, class Part>
VITAMIN_DEVICE void sum_parts(Block& block, const Part* parts, Real* out, unsigned count) {
  VITAMIN_SHARED(Real, cells, [vitamin::determinism::kThreadsMax]);
  const Part* const row = parts + block.index().x * count;
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = t; i < count; i += block.threads()) sum += loaded(row[i]);
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_ONCE { out[block.index().x] = cells[0]; }
}

// Data-parallel and persistent: a block takes every gridDim-th tile; each element's sum is one
// thread's, whatever the grid.
template <class Real>
VITAMIN_DEVICE void gemm_tiles_of(Block& block, const Bfloat16* a, const Bfloat16* b, Real* out,
                                  unsigned rows, unsigned columns, unsigned depth) {
  const unsigned tiles = (rows * columns + block.threads() - 1) / block.threads();
  for (unsigned tile = block.linear_index(); tile < tiles; tile += block.blocks()) {
    VITAMIN_THREADS(t) {
      const unsigned i = tile * block.threads() + t;
      if (i >= rows * columns) continue;
      const unsigned row = i / columns, column = i % columns;
      Real sum = 0;
      for (unsigned k = 0; k < depth; ++k)
        sum += Real{loaded(a[row * depth + k])} * Real{loaded(b[k * columns + column])};
      out[i] = sum;
    }
  }
}

template <class Real>
VITAMIN_DEVICE void layer_norm_of(Block& block, const Bfloat16* in, Real* out, unsigned columns) {
  VITAMIN_SHARED(Real, cells, [vitamin::determinism::kThreadsMax]);
  const Bfloat16* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = t; i < columns; i += block.threads()) sum += Real{loaded(row[i])};
    cells[t] = sum;
  }
  TREE(cells, added)
  vitamin::kernel::PerThread<Real> means(block);
  VITAMIN_THREADS(t) { means[t] = cells[0] / static_cast<Real>(columns); }
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = t; i < columns; i += block.threads()) {
      const Real apart = Real{loaded(row[i])} - means[t];
      sum += apart * apart;
    }
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    const Real scale = Real{1} / root(cells[0] / static_cast<Real>(columns) + Real{1e-5f});
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = (Real{loaded(row[i])} - means[t]) * scale;
  }
}

template <class Real>
VITAMIN_DEVICE void rms_norm_of(Block& block, const Bfloat16* in, Real* out, unsigned columns) {
  VITAMIN_SHARED(Real, cells, [vitamin::determinism::kThreadsMax]);
  const Bfloat16* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = t; i < columns; i += block.threads())
      sum += Real{loaded(row[i])} * Real{loaded(row[i])};
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    const Real scale = Real{1} / root(cells[0] / static_cast<Real>(columns) + Real{1e-6f});
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = Real{loaded(row[i])} * scale;
  }
}

template <class Real>
VITAMIN_DEVICE void soft_max_of(Block& block, const float* in, Real* out, unsigned columns) {
  VITAMIN_SHARED(Real, cells, [vitamin::determinism::kThreadsMax]);
  const float* const row = in + block.index().x * columns;
  VITAMIN_THREADS(t) {
    Real most = -3.0e38f;
    for (unsigned i = t; i < columns; i += block.threads()) most = larger(most, Real{row[i]});
    cells[t] = most;
  }
  TREE(cells, larger)
  vitamin::kernel::PerThread<Real> most(block);
  VITAMIN_THREADS(t) { most[t] = cells[0]; }
  VITAMIN_THREADS(t) {
    Real sum = 0;
    for (unsigned i = t; i < columns; i += block.threads())
      sum += power_of_e(Real{row[i]} - most[t]);
    cells[t] = sum;
  }
  TREE(cells, added)
  VITAMIN_THREADS(t) {
    for (unsigned i = t; i < columns; i += block.threads())
      out[block.index().x * columns + i] = power_of_e(Real{row[i]} - most[t]) / cells[0];
  }
}

// Flash decoding: one query against a context, cut into splits: a grid of (splits, heads), a block
// of `width` threads, one for each key of a chunk and then one for each dimension. What a split
// leaves: the largest score, the sum of exponentials, the weighted values.
template <class Real>
VITAMIN_DEVICE void decode_split_of(Block& block, const Bfloat16* query, const Bfloat16* keys,
                                    const Bfloat16* values, Real* parts, unsigned context) {
  VITAMIN_SHARED(Real, scores, [128]);
  const unsigned width = block.threads(), head = block.index().y;
  const unsigned share = (context + block.grid().x - 1) / block.grid().x;
  const unsigned begin = share * block.index().x;
  const unsigned end = begin + share < context ? begin + share : context;
  const Bfloat16* const head_keys = keys + head * context * width;
  const Bfloat16* const head_values = values + head * context * width;
  vitamin::kernel::PerThread<Real> most(block), sum(block), weighted(block);
  VITAMIN_THREADS(t) { most[t] = -3.0e38f; }
  for (unsigned first = begin; first < end; first += width) {
    const unsigned count = end - first < width ? end - first : width;
    VITAMIN_THREADS(t) {
      Real score = 0;
      for (unsigned d = 0; t < count && d < width; ++d)
        score += Real{loaded(query[head * width + d])} *
                 Real{loaded(head_keys[(first + t) * width + d])};
      scores[t] = score * Real{0.25f};
    }
    VITAMIN_THREADS(t) {
      Real highest = most[t];
      for (unsigned i = 0; i < count; ++i) highest = larger(highest, scores[i]);
      const Real shrink = power_of_e(most[t] - highest);
      Real total = sum[t] * shrink, value = weighted[t] * shrink;
      for (unsigned i = 0; i < count; ++i) {
        const Real weight = power_of_e(scores[i] - highest);
        total += weight;
        value += weight * Real{loaded(head_values[(first + i) * width + t])};
      }
      most[t] = highest;
      sum[t] = total;
      weighted[t] = value;
    }
  }
  VITAMIN_THREADS(t) {
    Real* const part = parts + (head * block.grid().x + block.index().x) * (width + 2);
    part[2 + t] = weighted[t];
    if (t == 0) {
      part[0] = most[t];
      part[1] = sum[t];
    }
  }
}

// The splits of each head, in their order.
template <class Real>
VITAMIN_DEVICE void decode_join_of(Block& block, const Real* parts, Real* out, unsigned splits) {
  const unsigned width = block.threads(), head = block.index().x;
  VITAMIN_THREADS(t) {
    Real most = -3.0e38f, sum = 0, value = 0;
    for (unsigned split = 0; split < splits; ++split)
      most = larger(most, parts[(head * splits + split) * (width + 2)]);
    for (unsigned split = 0; split < splits; ++split) {
      const Real* const part = parts + (head * splits + split) * (width + 2);
      const Real weight = power_of_e(part[0] - most);
      sum += part[1] * weight;
      value += part[2 + t] * weight;
    }
    out[head * width + t] = value / sum;
  }
}

template <class Real>
VITAMIN_DEVICE void element_wise_of(Block& block, const float* a, const float* b, Real* out,
                                    unsigned count) {
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads()) {
      const Real x = a[i];
      out[i] = x / (Real{1} + power_of_e(Real{-1.702f} * x)) + Real{b[i]};
    }
  }
}

// Added in the order of arrival: the one kernel here that is not deterministic.
template <class Real>
VITAMIN_DEVICE void histogram_of(Block& block, const float* in, Real* bins, unsigned bin_count,
                                 unsigned count) {
  VITAMIN_THREADS(t) {
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads())
      vitamin::kernel::atomic_add(&bins[mixed(i) % bin_count], Real{in[i]});
  }
}

}  // namespace

#define SHARED_CELLS .static_shared = vitamin::determinism::kThreadsMax * 4
#define EXACT_CELLS .static_shared = vitamin::determinism::kThreadsMax * 8

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

// How far `a` lies from the exact values, and how large those are.
VITAMIN_KERNEL_WITH((.block_ns = 2'000), measure_error, Atom atom, const float* a,
                    const double* exact, unsigned count, Error* error) {
  if (outside(block, atom)) return;
  VITAMIN_THREADS(t) {
    double apart = 0, largest = 0;
    for (unsigned i = block.linear_index() * block.threads() + t; i < count;
         i += block.blocks() * block.threads()) {
      apart = larger(apart, fabs(static_cast<double>(a[i]) - exact[i]));
      largest = larger(largest, fabs(exact[i]));
      if (a[i] != a[i]) apart = HUGE_VAL;  // a NaN is larger than nothing
    }
    vitamin::kernel::atomic_max(&error->apart_bits, double_bits(apart));
    vitamin::kernel::atomic_max(&error->largest_bits, double_bits(largest));
  }
}

// --- two-stage reduction -----------------------------------------------------------------------

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_bf16, Atom atom, const float* in,
                    Bfloat16* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces<float>(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_fp16, Atom atom, const float* in,
                    Half* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces<float>(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 20'000), sum_pieces_fp32, Atom atom, const float* in,
                    float* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces<float>(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_bf16, Atom atom,
                    const Bfloat16* parts, float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts<float>(block, parts, out, count);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_fp16, Atom atom, const Half* parts,
                    float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts<float>(block, parts, out, count);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 5'000), sum_parts_fp32, Atom atom,
                    const float* parts, float* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts<float>(block, parts, out, count);
}

VITAMIN_KERNEL_WITH((EXACT_CELLS, .block_ns = 20'000), sum_pieces_exact, Atom atom, const float* in,
                    double* parts, unsigned columns) {
  if (outside(block, atom)) return;
  sum_pieces<double>(block, in, parts, columns);
}
VITAMIN_KERNEL_WITH((EXACT_CELLS, .block_ns = 5'000), sum_parts_exact, Atom atom,
                    const double* parts, double* out, unsigned count) {
  if (outside(block, atom)) return;
  sum_parts<double>(block, parts, out, count);
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

// A control that must not drift.
VITAMIN_KERNEL_WITH((.block_ns = 30'000), gemm_tiles, Atom atom, const Bfloat16* a,
                    const Bfloat16* b, float* out, unsigned rows, unsigned columns,
                    unsigned depth) {
  if (outside(block, atom)) return;
  gemm_tiles_of(block, a, b, out, rows, columns, depth);
}
VITAMIN_KERNEL_WITH((.block_ns = 30'000), gemm_exact, Atom atom, const Bfloat16* a,
                    const Bfloat16* b, double* out, unsigned rows, unsigned columns,
                    unsigned depth) {
  if (outside(block, atom)) return;
  gemm_tiles_of(block, a, b, out, rows, columns, depth);
}

// --- rows: a grid of one block a row -------------------------------------------------------------

VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), layer_norm, Atom atom, const Bfloat16* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  layer_norm_of(block, in, out, columns);
}
VITAMIN_KERNEL_WITH((EXACT_CELLS, .block_ns = 10'000), layer_norm_exact, Atom atom,
                    const Bfloat16* in, double* out, unsigned columns) {
  if (outside(block, atom)) return;
  layer_norm_of(block, in, out, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), rms_norm, Atom atom, const Bfloat16* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  rms_norm_of(block, in, out, columns);
}
VITAMIN_KERNEL_WITH((EXACT_CELLS, .block_ns = 10'000), rms_norm_exact, Atom atom,
                    const Bfloat16* in, double* out, unsigned columns) {
  if (outside(block, atom)) return;
  rms_norm_of(block, in, out, columns);
}
VITAMIN_KERNEL_WITH((SHARED_CELLS, .block_ns = 10'000), soft_max, Atom atom, const float* in,
                    float* out, unsigned columns) {
  if (outside(block, atom)) return;
  soft_max_of(block, in, out, columns);
}
VITAMIN_KERNEL_WITH((EXACT_CELLS, .block_ns = 10'000), soft_max_exact, Atom atom, const float* in,
                    double* out, unsigned columns) {
  if (outside(block, atom)) return;
  soft_max_of(block, in, out, columns);
}

// --- flash decoding ----------------------------------------------------------------------------

VITAMIN_KERNEL_WITH((.static_shared = 128 * 4, .block_ns = 20'000), decode_split, Atom atom,
                    const Bfloat16* query, const Bfloat16* keys, const Bfloat16* values,
                    float* parts, unsigned context) {
  if (outside(block, atom)) return;
  decode_split_of(block, query, keys, values, parts, context);
}
VITAMIN_KERNEL_WITH((.block_ns = 5'000), decode_join, Atom atom, const float* parts, float* out,
                    unsigned splits) {
  if (outside(block, atom)) return;
  decode_join_of(block, parts, out, splits);
}
VITAMIN_KERNEL_WITH((.static_shared = 128 * 8, .block_ns = 20'000), decode_split_exact, Atom atom,
                    const Bfloat16* query, const Bfloat16* keys, const Bfloat16* values,
                    double* parts, unsigned context) {
  if (outside(block, atom)) return;
  decode_split_of(block, query, keys, values, parts, context);
}
VITAMIN_KERNEL_WITH((.block_ns = 5'000), decode_join_exact, Atom atom, const double* parts,
                    double* out, unsigned splits) {
  if (outside(block, atom)) return;
  decode_join_of(block, parts, out, splits);
}

// --- controls ----------------------------------------------------------------------------------

VITAMIN_KERNEL_WITH((.block_ns = 5'000), element_wise, Atom atom, const float* a, const float* b,
                    float* out, unsigned count) {
  if (outside(block, atom)) return;
  element_wise_of(block, a, b, out, count);
}
VITAMIN_KERNEL_WITH((.block_ns = 5'000), histogram, Atom atom, const float* in, float* bins,
                    unsigned bin_count, unsigned count) {
  if (outside(block, atom)) return;
  histogram_of(block, in, bins, bin_count, count);
}
VITAMIN_KERNEL_WITH((.block_ns = 5'000), element_wise_exact, Atom atom, const float* a,
                    const float* b, double* out, unsigned count) {
  if (outside(block, atom)) return;
  element_wise_of(block, a, b, out, count);
}
VITAMIN_KERNEL_WITH((.block_ns = 5'000), histogram_exact, Atom atom, const float* in, double* bins,
                    unsigned bin_count, unsigned count) {
  if (outside(block, atom)) return;
  histogram_of(block, in, bins, bin_count, count);
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
