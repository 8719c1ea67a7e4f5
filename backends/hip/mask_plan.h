// SPDX-License-Identifier: Apache-2.0
//
// Which bits of a CU mask make one allocation unit: pure, from the shape of a device.
//
// Bits. The kernel driver deals the bits of a mask to the compute units so that neighbouring bits
// are as far apart as they can be: bit i belongs to XCC i mod n, and within an XCC the shader
// engine changes fastest, then the array, then the CU; a CU that was fused off has no bit. Where
// CUs work in pairs (gfx10 and later: workgroup processors) a pair has two neighbouring bits, which
// must agree. Source: Linux, kfd_mqd_manager.c, mqd_symmetrically_map_cu_mask.
//
// Units. The dispatcher of the hardware deals workgroups to XCCs and engines in turn whatever the
// mask says, so a set that leaves one out waits for it (or hangs), and one with fewer CUs there is
// as slow as that one. A unit therefore is a row: one CU (or pair) of every engine of every XCC. A
// row that is not complete, because some engines have fewer CUs than others, is added to a complete
// one, to the last first: every unit and so every union of units covers every engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hal/compute_set.h"
#include "hal/result.h"

namespace vitamin::hip {

struct DeviceShape {
  std::uint32_t xccs = 1;
  std::uint32_t engines = 1;  // shader engines of each XCC
  std::uint32_t arrays = 1;   // shader arrays of each engine
  // Active CUs of each array: [(xcc * engines + engine) * arrays + array].
  std::vector<std::uint32_t> cus;
  bool pairs = false;  // gfx10 and later

  std::uint32_t total() const;
  std::uint32_t& at(std::uint32_t xcc, std::uint32_t engine, std::uint32_t array) {
    return cus[(xcc * engines + engine) * arrays + array];
  }
  std::uint32_t at(std::uint32_t xcc, std::uint32_t engine, std::uint32_t array) const {
    return cus[(xcc * engines + engine) * arrays + array];
  }
  // The shape of a device of which only the sums are known: CUs dealt evenly, the odd ones to the
  // first engines. Masks made from it are disjoint and complementary even where the part was
  // harvested otherwise, since both hold bit by bit; only the balance is a guess then.
  static DeviceShape even(std::uint32_t xccs, std::uint32_t engines, std::uint32_t arrays,
                          std::uint32_t cus, bool pairs);
};

struct CuPosition {
  std::uint32_t xcc = 0, engine = 0, array = 0, cu = 0;
  friend bool operator==(const CuPosition&, const CuPosition&) = default;
};

// Element i: the CU that bit i of the driver's mask enables. `real` is false for a bit without a CU
// (the XCC whose turn it is has none left).
struct MaskBit {
  CuPosition place;
  bool real = false;
};
std::vector<MaskBit> mask_order(const DeviceShape& shape);

class MaskPlan {
 public:
  // `hip_version`: what a bit means to hipExtStreamCreateWithCUMask on a part with pairs: one CU up
  // to 5.2, one pair from 5.6; kUnavailable in between, of which it is not known. kUnsupported: no
  // CU at all.
  static hal::Result<MaskPlan> make(const DeviceShape& shape, int hip_version);

  unsigned units() const { return static_cast<unsigned>(units_.size()); }
  // Multiprocessors as hipDeviceAttributeMultiprocessorCount counts them: CUs, or pairs.
  std::vector<std::uint32_t> sms_per_unit() const;
  // The driver's bits of one unit, ascending.
  const std::vector<std::uint32_t>& bits(unsigned unit) const { return units_[unit]; }
  // The words of hipExtStreamCreateWithCUMask. `set` must name units of this plan and not be empty.
  std::vector<std::uint32_t> mask(hal::ComputeSet set) const;

 private:
  std::vector<std::vector<std::uint32_t>> units_;
  std::uint32_t bits_ = 0;  // of the driver's mask
  bool pairs_ = false;
  bool bit_is_pair_ = false;  // to the runtime
};

}  // namespace vitamin::hip
