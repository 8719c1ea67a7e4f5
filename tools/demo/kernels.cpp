// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the demo programs: a small multilayer perceptron, forward and backward. One source for
// the GPU and for the software device (backends/soft/kernel.h). Sums have one order each, so that
// the bits of the result depend on nothing but the input.
#include "backends/soft/kernel.h"

namespace {

constexpr unsigned kThreads = 256;  // of every launch

VITAMIN_DEVICE unsigned first_of(const vitamin::kernel::Block& block, unsigned t) {
  return block.linear_index() * block.threads() + t;
}

}  // namespace

// Pseudo-random values in [-scale, scale), the same everywhere.
VITAMIN_KERNEL_WITH((.block_ns = 50'000), make_values, float* out, unsigned count, unsigned seed,
                    float scale) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i >= count) continue;
    unsigned x = i * 0x9e3779b9u + seed * 0x85ebca6bu + 1u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    out[i] = (static_cast<float>(x >> 8) * (1.0f / 8388608.0f) - 1.0f) * scale;
  }
}

// out[rows][outputs] = in[rows][inputs] · weights[inputs][outputs], negative values cut off when
// `rectify`.
VITAMIN_KERNEL_WITH((.block_ns = 200'000), layer, const float* in, const float* weights, float* out,
                    unsigned rows, unsigned inputs, unsigned outputs, unsigned rectify) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i >= rows * outputs) continue;
    const unsigned row = i / outputs, column = i % outputs;
    float sum = 0.0f;
    for (unsigned k = 0; k < inputs; ++k)
      sum += in[row * inputs + k] * weights[k * outputs + column];
    out[i] = rectify != 0 && sum < 0.0f ? 0.0f : sum;
  }
}

// Mean squared error: its gradient, and one partial sum for each block.
VITAMIN_KERNEL_WITH((.static_shared = kThreads * 4, .block_ns = 100'000), loss_gradient,
                    const float* out, const float* wanted, float* gradient, float* partial,
                    unsigned count) {
  VITAMIN_SHARED(float, sums, [kThreads]);
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    const float difference = i < count ? out[i] - wanted[i] : 0.0f;
    if (i < count) gradient[i] = 2.0f * difference / static_cast<float>(count);
    sums[t] = difference * difference;
  }
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    VITAMIN_THREADS(t) {
      if (t < half) sums[t] += sums[t + half];
    }
  }
  VITAMIN_ONCE { partial[block.linear_index()] = sums[0]; }
}

// One block: *result = sum(partial) / divisor.
VITAMIN_KERNEL_WITH((.static_shared = kThreads * 4, .block_ns = 50'000), reduce,
                    const float* partial, unsigned count, float divisor, float* result) {
  VITAMIN_SHARED(float, sums, [kThreads]);
  VITAMIN_THREADS(t) {
    float sum = 0.0f;
    for (unsigned i = t; i < count; i += kThreads) sum += partial[i];
    sums[t] = sum;
  }
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    VITAMIN_THREADS(t) {
      if (t < half) sums[t] += sums[t + half];
    }
  }
  VITAMIN_ONCE { *result = sums[0] / divisor; }
}

// change[inputs][outputs] = in^T · gradient
VITAMIN_KERNEL_WITH((.block_ns = 200'000), weight_gradient, const float* in, const float* gradient,
                    float* change, unsigned rows, unsigned inputs, unsigned outputs) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i >= inputs * outputs) continue;
    const unsigned input = i / outputs, output = i % outputs;
    float sum = 0.0f;
    for (unsigned row = 0; row < rows; ++row)
      sum += in[row * inputs + input] * gradient[row * outputs + output];
    change[i] = sum;
  }
}

// change[rows][inputs] = gradient · weights^T, where the layer's input was not cut off.
VITAMIN_KERNEL_WITH((.block_ns = 200'000), input_gradient, const float* gradient,
                    const float* weights, const float* in, float* change, unsigned rows,
                    unsigned inputs, unsigned outputs) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i >= rows * inputs) continue;
    const unsigned row = i / inputs, input = i % inputs;
    float sum = 0.0f;
    for (unsigned output = 0; output < outputs; ++output)
      sum += gradient[row * outputs + output] * weights[input * outputs + output];
    change[i] = in[i] > 0.0f ? sum : 0.0f;
  }
}

// Gradient descent with momentum.
VITAMIN_KERNEL_WITH((.block_ns = 50'000), descend, float* weights, float* momentum,
                    const float* change, unsigned count, float rate) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i >= count) continue;
    momentum[i] = 0.9f * momentum[i] + change[i];
    weights[i] -= rate * momentum[i];
  }
}

// Exponentially decaying average of what the requests answered, in the order of the requests.
VITAMIN_KERNEL_WITH((.block_ns = 50'000), blend, const float* answer, float* average,
                    unsigned count) {
  VITAMIN_THREADS(t) {
    const unsigned i = first_of(block, t);
    if (i < count) average[i] = 0.875f * average[i] + 0.125f * answer[i];
  }
}
