// SPDX-License-Identifier: Apache-2.0
//
// Copies between arrays and memory, which are kernels that load and store images, and kernels that
// read textures.
#include "program.h"

namespace {

template <class T>
std::vector<T> counted(std::size_t count) {
  std::vector<T> values(count);
  auto* const bytes = reinterpret_cast<unsigned char*>(values.data());
  for (std::size_t at = 0; at < count * sizeof(T); ++at) bytes[at] = at * 37 % 127;
  return values;
}

// Through a flat array and back.
template <class T>
bool array_keeps(std::size_t width, std::size_t rows) {
  const hipChannelFormatDesc format = hipCreateChannelDesc<T>();
  const std::vector<T> from = counted<T>(width * rows);
  std::vector<T> back(width * rows);
  const std::size_t bytes = width * sizeof(T);
  hipArray* array = nullptr;
  HIP_OK(hipMallocArray(&array, &format, width, rows, hipArrayDefault));
  HIP_OK(hipMemcpy2DToArray(array, 0, 0, from.data(), bytes, bytes, rows, hipMemcpyHostToDevice));
  HIP_OK(hipMemcpy2DFromArray(back.data(), bytes, array, 0, 0, bytes, rows, hipMemcpyDeviceToHost));
  HIP_OK(hipFreeArray(array));
  return std::memcmp(back.data(), from.data(), bytes * rows) == 0;
}

// A part of a box of memory through an array of three dimensions, on the test's stream.
bool box_array_keeps() {
  constexpr std::size_t kWidth = 17, kRows = 6, kSlices = 3, kAll = kWidth * kRows * kSlices;
  const hipChannelFormatDesc format = hipCreateChannelDesc<int>();
  std::vector<int> from = counted<int>(kAll), back(kAll);
  hipArray* array = nullptr;
  HIP_OK(hipMalloc3DArray(&array, &format, make_hipExtent(kWidth, kRows, kSlices), 0));
  hipMemcpy3DParms in{};
  in.srcPtr = make_hipPitchedPtr(from.data(), kWidth * sizeof(int), kWidth, kRows);
  in.dstArray = array;
  in.extent = make_hipExtent(kWidth, kRows, kSlices);
  in.kind = hipMemcpyHostToDevice;
  HIP_OK(hipMemcpy3DAsync(&in, test_stream()));
  hipMemcpy3DParms out{};
  out.srcArray = array;
  out.srcPos = make_hipPos(2, 1, 1);
  out.dstPtr = make_hipPitchedPtr(back.data(), kWidth * sizeof(int), kWidth, kRows);
  out.extent = make_hipExtent(kWidth - 2, kRows - 1, kSlices - 1);
  out.kind = hipMemcpyDeviceToHost;
  HIP_OK(hipMemcpy3DAsync(&out, test_stream()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  HIP_OK(hipFreeArray(array));
  bool right = true;
  for (std::size_t z = 0; z < kSlices - 1; ++z)
    for (std::size_t y = 0; y < kRows - 1; ++y)
      for (std::size_t x = 0; x < kWidth - 2; ++x)
        right &=
            back[(z * kRows + y) * kWidth + x] == from[((z + 1) * kRows + y + 1) * kWidth + x + 2];
  return right;
}

void arrays() {
  report("arrays of bytes", array_keeps<unsigned char>(71, 9));
  report("arrays of halves of words", array_keeps<short2>(33, 7));
  report("arrays of real numbers", array_keeps<float>(130, 5));
  report("arrays of four words", array_keeps<uint4>(20, 3));
  report("arrays of three dimensions", box_array_keeps());
}

__global__ void read_texture(int2* to, hipTextureObject_t texture, int width, float x_step,
                             float y_step) {
  const int x = threadIdx.x, y = blockIdx.x;
  to[y * width + x] = tex2D<int2>(texture, (x + 0.5f) * x_step, (y + 0.5f) * y_step);
}

// Reads a texture of the array's elements, beyond its last one on both axes.
bool texture_reads(bool normalized) {
  constexpr int kWidth = 48, kRows = 16, kBeyond = 8;
  const hipChannelFormatDesc format = hipCreateChannelDesc<int2>();
  const std::vector<int2> from = counted<int2>(kWidth * kRows);
  hipResourceDesc resource{};
  resource.resType = hipResourceTypeArray;
  hipArray*& array = resource.res.array.array;
  constexpr std::size_t kBytes = kWidth * sizeof(int2);
  HIP_OK(hipMallocArray(&array, &format, kWidth, kRows, hipArrayDefault));
  HIP_OK(
      hipMemcpy2DToArray(array, 0, 0, from.data(), kBytes, kBytes, kRows, hipMemcpyHostToDevice));
  hipTextureDesc description{};
  description.filterMode = hipFilterModePoint;
  description.normalizedCoords = normalized ? 1 : 0;
  for (auto& mode : description.addressMode)
    mode = normalized ? hipAddressModeWrap : hipAddressModeClamp;
  hipTextureObject_t texture = nullptr;
  HIP_OK(hipCreateTextureObject(&texture, &resource, &description, nullptr));
  constexpr int kWide = kWidth + kBeyond, kHigh = kRows + kBeyond;
  DeviceArray<int2> device(kWide * kHigh);
  read_texture<<<kHigh, kWide, 0, test_stream()>>>(
      device.data(), texture, kWide, normalized ? 1.0f / kWidth : 1, normalized ? 1.0f / kRows : 1);
  HIP_OK(hipGetLastError());
  HIP_OK(hipStreamSynchronize(test_stream()));
  const std::vector<int2> read = device.host();
  bool right = true;
  for (int y = 0; y < kHigh; ++y)
    for (int x = 0; x < kWide; ++x) {
      const int column = normalized ? x % kWidth : std::min(x, kWidth - 1);
      const int row = normalized ? y % kRows : std::min(y, kRows - 1);
      const int2 wanted = from[row * kWidth + column];
      right &= read[y * kWide + x].x == wanted.x && read[y * kWide + x].y == wanted.y;
    }
  HIP_OK(hipDestroyTextureObject(texture));
  HIP_OK(hipFreeArray(array));
  return right;
}

void textures() {
  report("textures that repeat", texture_reads(true));
  report("textures that end with their last element", texture_reads(false));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"arrays", arrays}, {"textures", textures}}, count, arguments);
}
