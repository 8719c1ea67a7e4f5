// SPDX-License-Identifier: Apache-2.0
//
// Copies of rectangles and boxes between pinned memory and the device, which the runtime gives to
// copy engines.
#include <algorithm>
#include <utility>

#include "program.h"

namespace {

void rectangles() {
  struct Box {
    std::size_t from_pitch, to_pitch, width, rows;
  };
  bool right = true;
  for (const Box box : {Box{512, 256, 128, 16}, Box{96, 160, 71, 9}, Box{80, 80, 33, 5}}) {
    const std::size_t bytes = 512 * 16;
    unsigned char *from = nullptr, *back = nullptr;
    HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&from), bytes, 0));
    HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&back), bytes, 0));
    std::vector<unsigned char> expected(bytes, 0x11);
    for (std::size_t at = 0; at < bytes; ++at) from[at] = at * 31 % 251, back[at] = 0x11;
    DeviceArray<unsigned char> device(std::vector<unsigned char>(bytes, 0x22));
    HIP_OK(hipMemcpy2D(device.data(), box.to_pitch, from, box.from_pitch, box.width, box.rows,
                       hipMemcpyHostToDevice));
    std::vector<unsigned char> on_device(bytes, 0x22);
    for (std::size_t row = 0; row < box.rows; ++row) {
      std::copy_n(from + row * box.from_pitch, box.width, &on_device[row * box.to_pitch]);
      std::copy_n(from + row * box.from_pitch, box.width, &expected[row * box.from_pitch]);
    }
    right &= device.host() == on_device;
    HIP_OK(hipMemcpy2DAsync(back, box.from_pitch, device.data(), box.to_pitch, box.width, box.rows,
                            hipMemcpyDeviceToHost, test_stream()));
    HIP_OK(hipStreamSynchronize(test_stream()));
    right &= std::equal(expected.begin(), expected.end(), back);
    HIP_OK(hipHostFree(from));
    HIP_OK(hipHostFree(back));
  }
  report("rectangles between pinned memory and the device", right);
}

void boxes() {
  constexpr std::size_t kPitch = 96, kRows = 10, kSlices = 4, kBytes = kPitch * kRows * kSlices;
  unsigned char *from = nullptr, *back = nullptr;
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&from), kBytes, 0));
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&back), kBytes, 0));
  for (std::size_t at = 0; at < kBytes; ++at) from[at] = at * 29 % 241, back[at] = 0;
  DeviceArray<unsigned char> device(std::vector<unsigned char>(kBytes, 0));
  hipMemcpy3DParms in{};
  in.srcPtr = make_hipPitchedPtr(from, kPitch, kPitch, kRows);
  in.dstPtr = make_hipPitchedPtr(device.data(), kPitch, kPitch, kRows);
  in.srcPos = make_hipPos(4, 2, 1);
  in.dstPos = make_hipPos(8, 1, 0);
  in.extent = make_hipExtent(50, 6, 3);
  in.kind = hipMemcpyHostToDevice;
  HIP_OK(hipMemcpy3D(&in));
  hipMemcpy3DParms out = in;
  std::swap(out.srcPtr, out.dstPtr);
  std::swap(out.srcPos, out.dstPos);
  out.dstPtr.ptr = back;
  out.kind = hipMemcpyDeviceToHost;
  HIP_OK(hipMemcpy3DAsync(&out, test_stream()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  bool right = true;
  for (std::size_t at = 0; at < kBytes; ++at) {
    const std::size_t x = at % kPitch, y = at / kPitch % kRows, z = at / kPitch / kRows;
    const bool inside = x >= 4 && x < 54 && y >= 2 && y < 8 && z >= 1 && z < 4;
    right &= back[at] == (inside ? from[at] : 0);
  }
  report("boxes between pinned memory and the device", right);
  HIP_OK(hipHostFree(from));
  HIP_OK(hipHostFree(back));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"rectangles", rectangles}, {"boxes", boxes}}, count, arguments);
}
