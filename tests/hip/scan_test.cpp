// SPDX-License-Identifier: Apache-2.0
//
// What lies outside the contract, read out of hipcc's own output: KERNELS is the determinism
// suite's library, PROGRAM one that reads where it runs.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tools/vitamin/verify/scan.h"

namespace vitamin::tools {
namespace {

TEST_CASE("of the suite's kernels only the histogram adds floats in the order of arrival") {
  const ScanResult result = scan_code({std::getenv("KERNELS")});
  REQUIRE_MESSAGE(result.possible, result.why_not);
  CHECK(result.seen.contains("rms_norm"));
  CHECK(result.kernels.at("histogram").contains("float atomics"));
  for (const char* quiet : {"rms_norm", "sum_pieces_bf16", "gemm_split", "decode_join"})
    CHECK_FALSE(result.kernels.contains(quiet));
}

TEST_CASE("a kernel that asks on which processor it runs is named") {
  const ScanResult result = scan_code({std::getenv("PLACES")});
  REQUIRE_MESSAGE(result.possible, result.why_not);
  CHECK(result.kernels.at("places").contains("reads %smid"));
}

}  // namespace
}  // namespace vitamin::tools
