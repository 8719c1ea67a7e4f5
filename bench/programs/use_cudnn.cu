// SPDX-License-Identifier: Apache-2.0
//
// cuDNN: a convolution with its two gradients in bf16 and fp32, batch normalisation, softmax, with
// deterministic algorithms only.
#include <cuda_bf16.h>
#include <cudnn.h>

#include "bench.h"

namespace {

constexpr int kBatch = 16;
constexpr int kIn = 64;
constexpr int kOut = 128;
constexpr int kSide = 28;
constexpr std::size_t kInputs = std::size_t{kBatch} * kIn * kSide * kSide;
constexpr std::size_t kOutputs = std::size_t{kBatch} * kOut * kSide * kSide;
constexpr std::size_t kWeights = std::size_t{kOut} * kIn * 9;

void* filled(cudnnDataType_t type, std::size_t count, std::uint64_t seed) {
  const std::vector<float> values = bench::random_floats(count, seed);
  if (type == CUDNN_DATA_FLOAT) return bench::device_copy(values);
  std::vector<__nv_bfloat16> host(count);
  for (std::size_t i = 0; i < count; ++i) host[i] = __float2bfloat16(values[i]);
  return bench::device_copy(host);
}

std::size_t size_of(cudnnDataType_t type) { return type == CUDNN_DATA_FLOAT ? 4 : 2; }

class Convolution {
 public:
  Convolution(cudnnHandle_t handle, cudnnDataType_t type, cudnnTensorFormat_t format)
      : handle_(handle), type_(type) {
    BENCH_CHECK(cudnnCreateTensorDescriptor(&x_));
    BENCH_CHECK(cudnnCreateTensorDescriptor(&y_));
    BENCH_CHECK(cudnnCreateFilterDescriptor(&w_));
    BENCH_CHECK(cudnnCreateConvolutionDescriptor(&convolution_));
    BENCH_CHECK(cudnnSetTensor4dDescriptor(x_, format, type, kBatch, kIn, kSide, kSide));
    BENCH_CHECK(cudnnSetTensor4dDescriptor(y_, format, type, kBatch, kOut, kSide, kSide));
    BENCH_CHECK(cudnnSetFilter4dDescriptor(w_, type, format, kOut, kIn, 3, 3));
    BENCH_CHECK(cudnnSetConvolution2dDescriptor(convolution_, 1, 1, 1, 1, 1, 1,
                                                CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    BENCH_CHECK(cudnnSetConvolutionMathType(
        convolution_, type == CUDNN_DATA_FLOAT ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH));
    BENCH_CHECK(cudaMalloc(&workspace_, kWorkspace));
  }

  void run(const std::string& name) {
    const float one = 1;
    const float zero = 0;
    void* x = filled(type_, kInputs, 1);
    void* w = filled(type_, kWeights, 2);
    void* dy = filled(type_, kOutputs, 3);
    void* y = filled(type_, kOutputs, 4);
    void* dx = filled(type_, kInputs, 5);
    void* dw = filled(type_, kWeights, 6);
    BENCH_CHECK(cudnnConvolutionForward(handle_, &one, x_, x, w_, w, convolution_, forward(),
                                        workspace_, kWorkspace, &zero, y_, y));
    bench::tell_bytes((name + " forward").c_str(), y, kOutputs * size_of(type_));
    BENCH_CHECK(cudnnConvolutionBackwardData(handle_, &one, w_, w, y_, dy, convolution_,
                                             CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace_,
                                             kWorkspace, &zero, x_, dx));
    bench::tell_bytes((name + " data gradient").c_str(), dx, kInputs * size_of(type_));
    BENCH_CHECK(cudnnConvolutionBackwardFilter(handle_, &one, x_, x, y_, dy, convolution_,
                                               CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace_,
                                               kWorkspace, &zero, w_, dw));
    bench::tell_bytes((name + " filter gradient").c_str(), dw, kWeights * size_of(type_));
    if (type_ == CUDNN_DATA_FLOAT) normalise(name, x);
    BENCH_CHECK(cudnnSoftmaxForward(handle_, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL,
                                    &one, y_, dy, &zero, y_, y));
    bench::tell_bytes((name + " softmax").c_str(), y, kOutputs * size_of(type_));
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{256} << 20;

  cudnnConvolutionFwdAlgo_t forward() const {
    return CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  }

  void normalise(const std::string& name, const void* x) {
    cudnnTensorDescriptor_t statistics = nullptr;
    BENCH_CHECK(cudnnCreateTensorDescriptor(&statistics));
    BENCH_CHECK(cudnnDeriveBNTensorDescriptor(statistics, x_, CUDNN_BATCHNORM_SPATIAL));
    const float one = 1;
    const float zero = 0;
    auto* out = bench::device_zeros<float>(kInputs);
    float* scale = bench::device_copy(bench::random_floats(kIn, 7));
    float* bias = bench::device_copy(bench::random_floats(kIn, 8));
    auto* mean = bench::device_zeros<float>(kIn);
    auto* variance = bench::device_zeros<float>(kIn);
    BENCH_CHECK(cudnnBatchNormalizationForwardTraining(
        handle_, CUDNN_BATCHNORM_SPATIAL, &one, &zero, x_, x, x_, out, statistics, scale, bias, 0.1,
        mean, variance, 1e-5, nullptr, nullptr));
    bench::tell_bytes((name + " batch normalisation").c_str(), out, kInputs * sizeof(float));
    bench::tell_bytes((name + " running mean").c_str(), mean, kIn * sizeof(float));
  }

  cudnnHandle_t handle_;
  cudnnDataType_t type_;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t w_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace

int main() {
  cudnnHandle_t handle = nullptr;
  BENCH_CHECK(cudnnCreate(&handle));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (cudaStream_t on : {static_cast<cudaStream_t>(nullptr), stream}) {
    BENCH_CHECK(cudnnSetStream(handle, on));
    const std::string where = on == nullptr ? ", default stream" : ", own stream";
    Convolution(handle, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW).run("fp32" + where);
    Convolution(handle, CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NHWC).run("bf16" + where);
  }
  BENCH_CHECK(cudnnDestroy(handle));
}
