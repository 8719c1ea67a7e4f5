// SPDX-License-Identifier: Apache-2.0
//
// The kernel language on the software device: layouts, conversions, modules.
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"

namespace vitamin::soft {
namespace {

struct alignas(64) Map {
  unsigned char bytes[128];
};

VITAMIN_KERNEL(mixed_parameters, char a, double b, std::uint16_t c, const void* d, char e, Map f,
               char g) {
  VITAMIN_ONCE {
    *static_cast<double*>(const_cast<void*>(d)) =
        a + b + c + e + f.bytes[127] + g + static_cast<double>(block.dim().x);
  }
}
VITAMIN_KERNEL(no_parameters) {}

TEST_CASE("parameter layout follows the types: natural alignment, in order") {
  const KernelDescriptor& kernel = *VITAMIN_SOFT_KERNEL(mixed_parameters);
  CHECK(std::string(kernel.name) == "mixed_parameters");
  REQUIRE(kernel.parameter_count == 7);
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> expected = {
      {0, 1}, {8, 8}, {16, 2}, {24, 8}, {32, 1}, {64, 128}, {192, 1}};
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(kernel.parameters[i].offset == expected[i].first);
    CHECK(kernel.parameters[i].size == expected[i].second);
  }
  CHECK(kernel.parameter_bytes == 193);
  CHECK(VITAMIN_SOFT_KERNEL(no_parameters)->parameter_bytes == 0);
  CHECK(VITAMIN_SOFT_KERNEL(grid_barrier)->waiting);
  CHECK_FALSE(kernel.waiting);
}

TEST_CASE("a kernel gets its parameters by value in the right places") {
  auto engine = make_engine(DeviceDescription::uniform(1, 1));
  Queue* queue = make_queue(*engine);
  double out = 0;
  Map map{};
  map.bytes[127] = 32;
  Call call(VITAMIN_SOFT_KERNEL(mixed_parameters), {}, {64, 1, 1}, char{1}, 2.5, std::uint16_t{4},
            static_cast<const void*>(&out), char{8}, map, char{16});
  REQUIRE(engine->launch(queue, *call) == kOk);
  CHECK(engine->synchronize(queue) == kOk);
  CHECK(out == 1 + 2.5 + 4 + 8 + 32 + 16 + 64);
}

VITAMIN_KERNEL(note_indices, std::uint32_t* out) {
  VITAMIN_THREADS(t) {
    const auto thread = block.thread(t);
    const std::uint32_t x = block.index().x * block.dim().x + thread.x;
    const std::uint32_t y = block.index().y * block.dim().y + thread.y;
    const std::uint32_t z = block.index().z * block.dim().z + thread.z;
    const std::uint32_t width = block.grid().x * block.dim().x;
    const std::uint32_t height = block.grid().y * block.dim().y;
    out[(z * height + y) * width + x] += 1 + x + 100 * y + 10'000 * z;
  }
}

TEST_CASE("every thread of a three-dimensional grid runs once with its own index") {
  auto engine = make_engine(DeviceDescription::uniform(2, 2));
  Queue* queue = make_queue(*engine);
  std::vector<std::uint32_t> out(6 * 8 * 10);
  Call call(VITAMIN_SOFT_KERNEL(note_indices), {3, 2, 5}, {2, 4, 2}, out.data());
  REQUIRE(engine->launch(queue, *call) == kOk);
  REQUIRE(engine->synchronize(queue) == kOk);
  for (std::uint32_t z = 0; z < 10; ++z)
    for (std::uint32_t y = 0; y < 8; ++y)
      for (std::uint32_t x = 0; x < 6; ++x)
        CHECK(out[(z * 8 + y) * 6 + x] == 1 + x + 100 * y + 10'000 * z);
}

VITAMIN_WAITING_KERNEL_WITH((.static_shared = 256 * sizeof(std::uint32_t)), keep_over_waits,
                            std::uint32_t* out) {
  VITAMIN_SHARED(std::uint32_t, fixed, [2][128]);
  VITAMIN_DYNAMIC_SHARED(std::uint32_t, dynamic);
  PerThread<std::uint32_t> mine(block);
  VITAMIN_THREADS(t) {
    fixed[t / 128][t % 128] = block.linear_index() * 1000 + t;
    dynamic[t] = t;
    mine[t] = t * 3;
  }
  VITAMIN_BUSY_NS(100 + block.linear_index() * 10);
  VITAMIN_THREADS(t) {
    out[block.linear_index() * 256 + t] = fixed[t / 128][t % 128] + dynamic[255 - t] + mine[t];
  }
}

TEST_CASE("shared memory and per-thread values are the block's own and last over a wait") {
  auto engine = make_engine(DeviceDescription::uniform(2, 2));
  Queue* queue = make_queue(*engine);
  std::vector<std::uint32_t> out(64 * 256);
  Call call(VITAMIN_SOFT_KERNEL(keep_over_waits), {64, 1, 1}, {256, 1, 1}, out.data());
  call->dynamic_shared = 1024;
  REQUIRE(engine->launch(queue, *call) == kOk);
  REQUIRE(engine->synchronize(queue) == kOk);
  for (std::uint32_t b = 0; b < 64; ++b)
    for (std::uint32_t t = 0; t < 256; ++t)
      CHECK(out[b * 256 + t] == b * 1000 + t + (255 - t) + t * 3);
}

TEST_CASE("bfloat16 rounds to nearest even and keeps every value that it can hold") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const kernel::Bfloat16 value{static_cast<std::uint16_t>(bits)};
    const float wide = kernel::to_float(value);
    if (std::isnan(wide))
      CHECK(std::isnan(kernel::to_float(kernel::to_bfloat16(wide))));
    else
      CHECK(kernel::to_bfloat16(wide).bits == bits);
  }
  CHECK(kernel::to_bfloat16(kernel::bits_float(0x3f808000)).bits == 0x3f80);  // tie: even below
  CHECK(kernel::to_bfloat16(kernel::bits_float(0x3f818000)).bits == 0x3f82);  // tie: even above
  CHECK(kernel::to_bfloat16(kernel::bits_float(0x3f808001)).bits == 0x3f81);
  CHECK(kernel::to_bfloat16(kernel::bits_float(0x7f7fffff)).bits == 0x7f80);  // to infinity
}

// The nearest half by search over all finite halves: independent of the conversion under test.
std::uint16_t nearest_half(double value) {
  std::uint32_t low = 0, high = 0x7c00;  // 0 and infinity, in order of magnitude
  const double magnitude = std::fabs(value);
  const auto of = [](std::uint32_t bits) {
    return bits == 0x7c00 ? 65536.0
                          : static_cast<double>(
                                kernel::to_float(kernel::Half{static_cast<std::uint16_t>(bits)}));
  };
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - of(low), above = of(high) - magnitude;
  const std::uint32_t chosen = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>(chosen | (std::signbit(value) ? 0x8000u : 0u));
}

TEST_CASE("half values are exact in float and float rounds to the nearest half") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const kernel::Half half{static_cast<std::uint16_t>(bits)};
    const std::uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float wide = kernel::to_float(half);
    if (exponent == 31) {
      CHECK((mantissa == 0 ? std::isinf(wide) : std::isnan(wide)));
    } else {
      const double expected = exponent == 0
                                  ? std::ldexp(mantissa, -24)
                                  : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
      CHECK(std::fabs(static_cast<double>(wide)) == expected);
      CHECK(std::signbit(wide) == (bits >> 15 != 0));
      CHECK(kernel::to_half(wide).bits == bits);
    }
  }
  std::uint64_t state = 1;
  for (int i = 0; i < 200'000; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    // Exponents around the range of halves, any mantissa.
    const auto bits = static_cast<std::uint32_t>(state >> 32);
    const std::uint32_t exponent = 95 + (bits >> 23 & 0xff) % 55;
    const float value = kernel::bits_float((bits & 0x807fffffu) | exponent << 23);
    CHECK(kernel::to_half(value).bits == nearest_half(static_cast<double>(value)));
  }
}

TEST_CASE("a shared object of kernels shows its table and its kernels run") {
  const char* path = std::getenv("VITAMIN_SOFT_TEST_MODULE");
  REQUIRE(path != nullptr);
  void* module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(module != nullptr, dlerror());
  const auto entry = reinterpret_cast<ModuleEntry>(dlsym(module, kModuleSymbol));
  REQUIRE((entry != nullptr));
  const ModuleTable* table = entry();
  REQUIRE(table != nullptr);
  CHECK(table->version == kModuleVersion);
  const KernelDescriptor* found = nullptr;
  for (std::uint32_t i = 0; i < table->kernel_count; ++i)
    if (std::string(table->kernels[i]->name) == "grid_barrier") found = table->kernels[i];
  REQUIRE(found != nullptr);
  CHECK(found != VITAMIN_SOFT_KERNEL(grid_barrier));  // the module's own, not this program's
  {
    auto engine = make_engine(DeviceDescription::uniform(2, 2));
    Queue* queue = make_queue(*engine);
    std::uint32_t arrived = 0;
    std::vector<std::uint32_t> seen(4);
    Call call(found, {4, 1, 1}, {32, 1, 1}, &arrived, seen.data());
    REQUIRE(engine->launch(queue, *call) == kOk);
    CHECK(engine->synchronize(queue) == kOk);
    CHECK(seen == std::vector<std::uint32_t>(4, 8));
  }
  dlclose(module);
}

}  // namespace
}  // namespace vitamin::soft
