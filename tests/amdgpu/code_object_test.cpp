// SPDX-License-Identifier: Apache-2.0
//
// gfx942 and gfx1100 without a runtime, because none of Debian 12 knows them, and gfx908: the
// kernels of kernels.hip.cpp and masks.hip.cpp, built by hipcc. amdgpu_test.py checks those of
// gfx90a and gfx1030 against the host under the real runtime; here those of gfx908 and gfx942 give
// the bits of gfx90a, and those of gfx1100 the bits of gfx1030. LLVM 15 calls the instructions of
// gfx942 gfx940.
#include <doctest/doctest.h>
#include <elf.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/dispatch.h"
#include "backends/soft/amdgpu/machine.h"

namespace vitamin::soft::amdgpu {
namespace {

// Loaded as the runtime loads it: segments at their addresses, relative to one page.
class CodeObject {
 public:
  explicit CodeObject(const std::string& name) {
    const char* const directory = std::getenv("CODE_OBJECTS");
    REQUIRE(directory != nullptr);
    std::ifstream file(std::string(directory) + "/" + name, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    REQUIRE(bytes.size() > sizeof(Elf64_Ehdr));
    const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
    processor_ = header.e_flags & 0xff;
    const auto* const segments = reinterpret_cast<const Elf64_Phdr*>(bytes.data() + header.e_phoff);
    for (unsigned at = 0; at < header.e_phnum; ++at)
      bytes_ = std::max<std::size_t>(bytes_, segments[at].p_vaddr + segments[at].p_memsz);
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    begin_ = static_cast<char*>(memory);
    for (unsigned at = 0; at < header.e_phnum; ++at)
      if (segments[at].p_type == PT_LOAD)
        std::memcpy(begin_ + segments[at].p_vaddr, bytes.data() + segments[at].p_offset,
                    segments[at].p_filesz);
    find_symbols();
  }
  ~CodeObject() { ::munmap(begin_, bytes_); }
  CodeObject(const CodeObject&) = delete;
  CodeObject& operator=(const CodeObject&) = delete;

  std::uint64_t begin() const { return reinterpret_cast<std::uint64_t>(begin_); }
  std::size_t bytes() const { return bytes_; }
  unsigned processor() const { return processor_; }  // EF_AMDGPU_MACH
  // The descriptor of the kernel with this word in its mangled name.
  std::uint64_t kernel(const std::string& name) const {
    const std::string word = std::to_string(name.size()) + name;
    for (std::uint32_t at = 1; at < symbols_; ++at) {
      const std::string symbol = strings_ + table_[at].st_name;
      if (symbol.find(word) != std::string::npos && symbol.ends_with(".kd"))
        return begin() + table_[at].st_value;
    }
    FAIL("no kernel is called " << name);
    return 0;
  }

 private:
  void find_symbols() {
    const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(begin_);
    const auto* const segments = reinterpret_cast<const Elf64_Phdr*>(begin_ + header.e_phoff);
    for (unsigned at = 0; at < header.e_phnum; ++at) {
      if (segments[at].p_type != PT_DYNAMIC) continue;
      const auto* entry = reinterpret_cast<const Elf64_Dyn*>(begin_ + segments[at].p_vaddr);
      for (; entry->d_tag != DT_NULL; ++entry) {
        char* const address = begin_ + entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) table_ = reinterpret_cast<const Elf64_Sym*>(address);
        if (entry->d_tag == DT_STRTAB) strings_ = address;
        if (entry->d_tag == DT_HASH) symbols_ = reinterpret_cast<const std::uint32_t*>(address)[1];
        REQUIRE(entry->d_tag != DT_RELA);  // nothing here would apply them
      }
    }
    REQUIRE((table_ != nullptr && strings_ != nullptr && symbols_ > 1));
  }

  char* begin_ = nullptr;
  std::size_t bytes_ = 0;
  unsigned processor_ = 0;
  const Elf64_Sym* table_ = nullptr;
  const char* strings_ = nullptr;
  std::uint32_t symbols_ = 0;
};

// Explicit arguments, each aligned to its size, and room for the runtime's.
template <class... A>
std::vector<std::uint8_t> pack(A... arguments) {
  std::vector<std::uint8_t> bytes;
  const auto add = [&](auto argument) {
    bytes.resize((bytes.size() + sizeof argument - 1) / sizeof argument * sizeof argument);
    const auto* const from = reinterpret_cast<const std::uint8_t*>(&argument);
    bytes.insert(bytes.end(), from, from + sizeof argument);
  };
  (add(arguments), ...);
  bytes.resize((bytes.size() + 7) / 8 * 8 + 256);
  return bytes;
}

struct Shape {
  std::uint32_t blocks_x = 1, blocks_y = 1, threads_x = 64, threads_y = 1;
};

// One GPU, one queue without a thread, code objects.
class Device {
 public:
  explicit Device(const char* part) : machine_(settings_of(part)) {
    shared_.group_segment_aperture_base_hi = 0x10000;
    shared_.private_segment_aperture_base_hi = 0x20000;
  }

  void load(const CodeObject& code) { machine_.memory.add(code.begin(), code.bytes()); }
  const Part& part() const { return machine_.part; }
  void set_mask(std::vector<std::uint32_t> mask) { queue_.set_mask(std::move(mask)); }

  template <class... A>
  DispatchOutcome run(const CodeObject& code, const char* kernel, const Shape& shape,
                      A... arguments) {
    std::vector<std::uint8_t> kernarg = pack(arguments...);
    hsa_kernel_dispatch_packet_t packet{};
    packet.setup = 2;
    packet.workgroup_size_x = static_cast<std::uint16_t>(shape.threads_x);
    packet.workgroup_size_y = static_cast<std::uint16_t>(shape.threads_y);
    packet.workgroup_size_z = 1;
    packet.grid_size_x = shape.blocks_x * shape.threads_x;
    packet.grid_size_y = shape.blocks_y * shape.threads_y;
    packet.grid_size_z = 1;
    packet.kernel_object = code.kernel(kernel);
    const auto* const sizes = reinterpret_cast<const std::uint32_t*>(packet.kernel_object);
    packet.group_segment_size = sizes[0];
    packet.private_segment_size = sizes[1];
    packet.kernarg_address = kernarg.data();
    return run_dispatch(machine_, queue_, shared_, packet);
  }

 private:
  static Settings settings_of(const char* part) {
    Settings settings;
    settings.part = find_part(part);
    REQUIRE(settings.part != nullptr);
    return settings;
  }

  Machine machine_;
  std::array<std::uint64_t, 2> doorbells_{}, indices_{};
  Queue queue_{*machine_.gpus[0], 1, Queue::Kind::kCompute,
               QueueMemory{.ring = {.packets = nullptr, .bytes = 0, .active = true},
                           .read_index = &indices_[0],
                           .write_index = &indices_[1],
                           .doorbells = doorbells_.data(),
                           .doorbell_count = doorbells_.size()}};
  amd_queue_t shared_{};
};

std::vector<float> numbers(std::size_t count, std::uint32_t seed, float scale = 1) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = scale * (static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

// What kernels wrote, one after the other.
class Results {
 public:
  template <class T>
  void keep(const std::vector<T>& values) {
    const auto* const from = reinterpret_cast<const std::uint8_t*>(values.data());
    results_.emplace_back(from, from + values.size() * sizeof(T));
  }
  const std::vector<std::vector<std::uint8_t>>& all() const { return results_; }

 private:
  std::vector<std::vector<std::uint8_t>> results_;
};

constexpr int kCount = 3000;
constexpr Shape kRow{.blocks_x = 12, .threads_x = 256};

// Kernels that read floats and write floats.
void run_real(Device& device, const CodeObject& code, Results& results) {
  const auto a = numbers(kCount, 1, 20), b = numbers(kCount, 2, 20);
  const auto run = [&](const char* kernel, const Shape& shape, auto... behind) {
    std::vector<float> out(kCount, -1);
    CHECK(device.run(code, kernel, shape, a.data(), out.data(), behind...) ==
          DispatchOutcome::kDone);
    results.keep(out);
  };
  std::vector<float> c(kCount, -1);
  CHECK(device.run(code, "add_vectors", kRow, a.data(), b.data(), c.data(), kCount - 1) ==
        DispatchOutcome::kDone);
  results.keep(c);
  CHECK(c[7] == a[7] + b[7]);
  CHECK(c[kCount - 1] == -1);
  const Shape tiles{.blocks_x = 4, .blocks_y = 3, .threads_x = 16, .threads_y = 16};
  CHECK(device.run(code, "multiply_matrices", tiles, a.data(), b.data(), c.data(), 40, 50, 45) ==
        DispatchOutcome::kDone);
  results.keep(c);
  run("reduce_blocks", kRow, kCount);
  const std::uint32_t wave = device.part().wave_width;
  run("softmax_rows", Shape{.blocks_x = 20, .threads_x = wave}, 133);
  run("normalise_rows", Shape{.blocks_x = 15, .threads_x = wave}, 200);
  std::vector<double> precise(kCount);
  std::vector<float> single(kCount);
  CHECK(device.run(code, "functions", kRow, a.data(), single.data(), precise.data(), kCount) ==
        DispatchOutcome::kDone);
  results.keep(single);
  results.keep(precise);
  std::vector<std::uint16_t> halves(kCount), bfloats(kCount);
  std::vector<float> back(kCount);
  std::vector<std::uint32_t> pairs(kCount);
  CHECK(device.run(code, "convert", kRow, a.data(), halves.data(), bfloats.data(), back.data(),
                   pairs.data(), kCount) == DispatchOutcome::kDone);
  results.keep(halves);
  results.keep(bfloats);
  results.keep(back);
  results.keep(pairs);
}

// Integers, atomics, lanes, waits of workgroups for one another, private memory.
void run_rest(Device& device, const CodeObject& code, Results& results) {
  std::vector<std::uint64_t> in(kCount), mixed(kCount), moved(4), votes(8);
  std::uint64_t seed = 9;
  for (auto& value : in) value = (seed = seed * 6364136223846793005 + 1442695040888963407) | 4;
  CHECK(device.run(code, "mix_integers", kRow, in.data(), mixed.data(), kCount) ==
        DispatchOutcome::kDone);
  results.keep(mixed);
  std::vector<std::uint64_t> counters(7);  // bits_and begins with all ones
  counters[1] = 0xffffffff00000000;
  std::vector<int> histogram(16), words(300 * 32), out(300 * 32), sums(300), ready(300);
  CHECK(device.run(code, "count", Shape{.blocks_x = 12, .threads_x = 96}, counters.data(),
                   histogram.data()) == DispatchOutcome::kDone);
  results.keep(counters);
  results.keep(histogram);
  for (std::size_t at = 0; at < words.size(); ++at) words[at] = static_cast<int>(at * 37 % 100);
  CHECK(device.run(code, "exchange", Shape{.threads_x = 256}, words.data(), out.data(),
                   votes.data()) == DispatchOutcome::kDone);
  results.keep(out);
  results.keep(votes);
  CHECK(device.run(code, "scan_with_lookback", Shape{.blocks_x = 300, .threads_x = 32},
                   words.data(), out.data(), sums.data(), ready.data()) == DispatchOutcome::kDone);
  results.keep(out);
  CHECK(device.run(code, "private_memory", Shape{.threads_x = 128}, out.data(), 100) ==
        DispatchOutcome::kDone);
  results.keep(out);
  CHECK(device.run(code, "move_halves", Shape{.threads_x = 1}, std::uint64_t{0x1111111122222222},
                   std::uint64_t{0x3333333344444444}, moved.data()) == DispatchOutcome::kDone);
  results.keep(moved);
  CHECK(moved[1] == 0x4444444411111111);
}

Results results_on(const char* part, const std::string& code_object, unsigned processor) {
  const CodeObject code(code_object);
  CHECK(code.processor() == processor);
  Device device(part);
  device.load(code);
  Results results;
  run_real(device, code, results);
  run_rest(device, code, results);
  return results;
}

void compare(const Results& older, const Results& newer) {
  REQUIRE(older.all().size() == newer.all().size());
  for (std::size_t at = 0; at < older.all().size(); ++at) {
    INFO("result " << at);
    CHECK(older.all()[at] == newer.all()[at]);
  }
}

// Of e_flags.
constexpr unsigned kMachineGfx908 = 0x30, kMachineGfx90a = 0x3f, kMachineGfx940 = 0x40;
constexpr unsigned kMachineGfx1030 = 0x36, kMachineGfx1100 = 0x41;

TEST_CASE("kernels that hipcc built for gfx908 give the bits of those for gfx90a") {
  compare(results_on("gfx90a", "kernels_gfx90a.hsaco", kMachineGfx90a),
          results_on("gfx908", "kernels_gfx908.hsaco", kMachineGfx908));
}

TEST_CASE("kernels that hipcc built for gfx942 give the bits of those for gfx90a") {
  compare(results_on("gfx90a", "kernels_gfx90a.hsaco", kMachineGfx90a),
          results_on("gfx942", "kernels_gfx940.hsaco", kMachineGfx940));
}

TEST_CASE("kernels that hipcc built for gfx1100 give the bits of those for gfx1030") {
  compare(results_on("gfx1030", "kernels_gfx1030.hsaco", kMachineGfx1030),
          results_on("gfx1100", "kernels_gfx1100.hsaco", kMachineGfx1100));
}

// Names of CUs as `where` sees them.
std::set<unsigned> places_seen(Device& device, const CodeObject& code) {
  std::vector<unsigned> seen(512);
  CHECK(device.run(code, "where", Shape{.blocks_x = 512}, seen.data()) == DispatchOutcome::kDone);
  return {seen.begin(), seen.end()};
}

unsigned name_of(const Part& part, const isa::WorkgroupPlace& place) {
  if (part.major >= 10) return place.engine << 6 | place.array << 5 | place.cu;
  return place.xcc << 8 | place.engine << 5 | place.array << 4 | place.cu;
}

TEST_CASE("kernels of gfx942 see the XCC, engine and CU of each bit of their mask") {
  const CodeObject code("masks_gfx940.hsaco");
  Device device("gfx942");
  device.load(code);
  const auto order = mask_order(device.part());
  CHECK(places_seen(device, code).size() == 304);
  for (const unsigned bit : {0u, 1u, 7u, 8u, 31u, 32u, 287u, 288u, 303u}) {
    std::vector<std::uint32_t> mask(10);
    mask[bit / 32] = 1u << bit % 32;
    device.set_mask(mask);
    CHECK(places_seen(device, code) == std::set<unsigned>{name_of(device.part(), order[bit])});
  }
  device.set_mask({0xff});
  const auto first = places_seen(device, code);
  CHECK(first.size() == 8);
  for (const unsigned name : first) CHECK((name & 0xff) == 0);  // the first CU of every XCC
}

TEST_CASE("kernels of gfx1100 see the engine, array and CU of each pair of bits of their mask") {
  const CodeObject code("masks_gfx1100.hsaco");
  Device device("gfx1100");
  device.load(code);
  const auto order = mask_order(device.part());
  CHECK(places_seen(device, code).size() == 96);
  for (unsigned bit = 0; bit < order.size(); bit += 2) {
    std::vector<std::uint32_t> mask(3);
    mask[bit / 32] = 3u << bit % 32;
    device.set_mask(mask);
    CHECK(places_seen(device, code) == std::set<unsigned>{name_of(device.part(), order[bit]),
                                                          name_of(device.part(), order[bit + 1])});
  }
}

// `masks` has an instruction that is not known, `older` is code of another GPU.
void check_refused(const char* part, const CodeObject& masks, const CodeObject& older) {
  Device device(part);
  device.load(masks);
  device.load(older);
  std::vector<float> out(128);
  CHECK(device.run(masks, "unknown_instruction", Shape{}, out.data()) == DispatchOutcome::kFaulted);
  CHECK(device.run(older, "private_memory", Shape{.threads_x = 128}, out.data(), 100) ==
        DispatchOutcome::kFaulted);
}

TEST_CASE("what is not known of gfx1100 and code of another GPU fail their dispatch") {
  check_refused("gfx1100", CodeObject("masks_gfx1100.hsaco"), CodeObject("kernels_gfx1030.hsaco"));
}

TEST_CASE("what is not known of gfx942 and code of another GPU fail their dispatch") {
  check_refused("gfx942", CodeObject("masks_gfx940.hsaco"), CodeObject("kernels_gfx90a.hsaco"));
}

}  // namespace
}  // namespace vitamin::soft::amdgpu
