// SPDX-License-Identifier: Apache-2.0
#include "tests/determinism/subjects.h"

#include <algorithm>
#include <bit>

namespace vitamin::determinism {
namespace {

unsigned quotient(unsigned a, unsigned b) { return (a + b - 1) / b; }
Extent covering(unsigned elements) { return {std::min(quotient(elements, kBlock), 1024u)}; }

std::uint64_t floats(Launcher& launch, unsigned count) {
  return launch.machine().allocate(std::size_t{count} * 4);
}
std::uint64_t doubles(Launcher& launch, unsigned count) {
  return launch.machine().allocate(std::size_t{count} * 8);
}
std::uint64_t halves(Launcher& launch, unsigned count) {
  return launch.machine().allocate(std::size_t{count} * 2);
}
void draw_floats(Launcher& launch, std::uint64_t where, unsigned count, unsigned seed) {
  launch("make_floats", covering(count), {kBlock}, where, count, seed);
}
void draw_bfloats(Launcher& launch, std::uint64_t where, unsigned count, unsigned seed) {
  launch("make_bfloats", covering(count), {kBlock}, where, count, seed);
}

// Two-stage reduction of rows; partial sums in the working type. Knob: blocks for each row, as many
// as fill the SMs twice.
class Sum final : public Subject {
 public:
  explicit Sum(const std::string& type)
      : Subject("sum, " + type + " partials", "grid", "sum_pieces_" + type, Expect::kDrift),
        type_(type) {}
  void prepare(Launcher& launch, Scale scale) override {
    columns_ = scale == Scale::kFull ? 1u << 21 : 1u << 12;
    in_ = floats(launch, kRows * columns_);
    parts_ = doubles(launch, kRows * kPiecesMax);
  }
  void draw(Launcher& launch, unsigned seed) override {
    draw_floats(launch, in_, kRows * columns_, seed);
  }
  unsigned setting(unsigned sms) const override {
    return std::clamp(2 * sms / kRows, 1u, kPiecesMax);
  }
  void run(Launcher& launch, std::uint64_t out, unsigned pieces) override {
    sum(launch, type_, out, pieces);
  }
  void exact(Launcher& launch, std::uint64_t out) override { sum(launch, "exact", out, 64); }
  unsigned outputs() const override { return kRows; }

 private:
  void sum(Launcher& launch, const std::string& type, std::uint64_t out, unsigned pieces) {
    launch(("sum_pieces_" + type).c_str(), {pieces, kRows}, {kBlock}, in_, parts_, columns_);
    launch(("sum_parts_" + type).c_str(), {kRows}, {kBlock}, parts_, out, pieces);
  }
  static constexpr unsigned kRows = 8, kPiecesMax = 256;
  std::string type_;
  unsigned columns_ = 0;
  std::uint64_t in_ = 0, parts_ = 0;
};

// Skinny GEMM. Knob: the number of splits of K, as many as fill the SMs.
class SplitK final : public Subject {
 public:
  SplitK() : Subject("split-K GEMM, ordered reduction", "splits", "gemm_split", Expect::kDrift) {}
  void prepare(Launcher& launch, Scale scale) override {
    const bool full = scale == Scale::kFull;
    rows_ = full ? 16 : 2;
    columns_ = full ? 1024 : 256;
    depth_ = full ? 4096 : 256;
    a_ = halves(launch, rows_ * depth_);
    b_ = halves(launch, depth_ * columns_);
    partial_ = floats(launch, kSplitsMax * rows_ * columns_);
  }
  void draw(Launcher& launch, unsigned seed) override {
    draw_bfloats(launch, a_, rows_ * depth_, seed);
    draw_bfloats(launch, b_, depth_ * columns_, seed + 1);
  }
  unsigned setting(unsigned sms) const override {
    // 8 blocks of 256 threads fill a processor; 16 rows × 4 column tiles are 64 blocks a split.
    return std::clamp(sms / 8, 1u, kSplitsMax);
  }
  void run(Launcher& launch, std::uint64_t out, unsigned splits) override {
    launch("gemm_split", {quotient(columns_, kBlock), rows_, splits}, {kBlock}, a_, b_, partial_,
           columns_, depth_);
    launch("gemm_join", {quotient(rows_ * columns_, kBlock)}, {kBlock}, partial_, out,
           rows_ * columns_, splits);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch("gemm_exact", covering(rows_ * columns_), {kBlock}, a_, b_, out, rows_, columns_,
           depth_);
  }
  unsigned outputs() const override { return rows_ * columns_; }

 private:
  static constexpr unsigned kSplitsMax = 16;
  unsigned rows_ = 0, columns_ = 0, depth_ = 0;
  std::uint64_t a_ = 0, b_ = 0, partial_ = 0;
};

// One block a row. Knob: threads of a block, more where there are more SMs.
class Rows final : public Subject {
 public:
  enum class Input { kFloat, kBfloat16 };
  Rows(std::string name, const char* kernel, Input input)
      : Subject(std::move(name), "block", kernel, Expect::kDrift), input_(input) {}
  void prepare(Launcher& launch, Scale scale) override {
    rows_ = scale == Scale::kFull ? 256 : 16;
    columns_ = scale == Scale::kFull ? 8192 : 1500;
    in_ = floats(launch, rows_ * columns_);
  }
  void draw(Launcher& launch, unsigned seed) override {
    (input_ == Input::kFloat ? draw_floats : draw_bfloats)(launch, in_, rows_ * columns_, seed);
  }
  unsigned setting(unsigned sms) const override {
    return std::clamp(std::bit_floor(8 * sms), 64u, 1024u);
  }
  void run(Launcher& launch, std::uint64_t out, unsigned threads) override {
    launch(kernel().c_str(), {rows_}, {threads}, in_, out, columns_);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch((kernel() + "_exact").c_str(), {rows_}, {kBlock}, in_, out, columns_);
  }
  unsigned outputs() const override { return rows_ * columns_; }

 private:
  Input input_;
  unsigned rows_ = 0, columns_ = 0;
  std::uint64_t in_ = 0;
};

// One query a head. Knob: splits of the context.
class FlashDecoding final : public Subject {
 public:
  FlashDecoding()
      : Subject("flash decoding, fixed splits", "splits", "decode_split", Expect::kDrift) {}
  void prepare(Launcher& launch, Scale scale) override {
    heads_ = scale == Scale::kFull ? 32 : 2;
    width_ = scale == Scale::kFull ? 128 : 32;
    context_ = scale == Scale::kFull ? 4096 : 512;
    query_ = halves(launch, heads_ * width_);
    keys_ = halves(launch, heads_ * context_ * width_);
    values_ = halves(launch, heads_ * context_ * width_);
    parts_ = doubles(launch, heads_ * kSplitsMax * (width_ + 2));
  }
  void draw(Launcher& launch, unsigned seed) override {
    draw_bfloats(launch, query_, heads_ * width_, seed);
    draw_bfloats(launch, keys_, heads_ * context_ * width_, seed + 1);
    draw_bfloats(launch, values_, heads_ * context_ * width_, seed + 2);
  }
  unsigned setting(unsigned sms) const override { return std::clamp(sms / 8, 1u, kSplitsMax); }
  void run(Launcher& launch, std::uint64_t out, unsigned splits) override {
    launch("decode_split", {splits, heads_}, {width_}, query_, keys_, values_, parts_, context_);
    launch("decode_join", {heads_}, {width_}, parts_, out, splits);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch("decode_split_exact", {kSplitsMax, heads_}, {width_}, query_, keys_, values_, parts_,
           context_);
    launch("decode_join_exact", {heads_}, {width_}, parts_, out, kSplitsMax);
  }
  unsigned outputs() const override { return heads_ * width_; }

 private:
  static constexpr unsigned kSplitsMax = 16;
  unsigned heads_ = 0, width_ = 0, context_ = 0;
  std::uint64_t query_ = 0, keys_ = 0, values_ = 0, parts_ = 0;
};

class DataParallelGemm final : public Subject {
 public:
  DataParallelGemm() : Subject("data-parallel GEMM", "grid", "gemm_tiles", Expect::kNone) {}
  void prepare(Launcher& launch, Scale scale) override {
    const bool full = scale == Scale::kFull;
    rows_ = full ? 128 : 4;
    columns_ = full ? 1024 : 256;
    depth_ = full ? 512 : 64;
    a_ = halves(launch, rows_ * depth_);
    b_ = halves(launch, depth_ * columns_);
  }
  void draw(Launcher& launch, unsigned seed) override {
    draw_bfloats(launch, a_, rows_ * depth_, seed);
    draw_bfloats(launch, b_, depth_ * columns_, seed + 1);
  }
  unsigned setting(unsigned sms) const override { return sms; }
  void run(Launcher& launch, std::uint64_t out, unsigned blocks) override {
    launch("gemm_tiles", {blocks}, {kBlock}, a_, b_, out, rows_, columns_, depth_);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch("gemm_exact", covering(rows_ * columns_), {kBlock}, a_, b_, out, rows_, columns_,
           depth_);
  }
  unsigned outputs() const override { return rows_ * columns_; }

 private:
  unsigned rows_ = 0, columns_ = 0, depth_ = 0;
  std::uint64_t a_ = 0, b_ = 0;
};

class ElementWise final : public Subject {
 public:
  ElementWise() : Subject("element-wise", "grid", "element_wise", Expect::kNone) {}
  void prepare(Launcher& launch, Scale scale) override {
    count_ = scale == Scale::kFull ? 1u << 20 : 1u << 12;
    a_ = floats(launch, count_);
    b_ = floats(launch, count_);
  }
  void draw(Launcher& launch, unsigned seed) override {
    draw_floats(launch, a_, count_, seed);
    draw_floats(launch, b_, count_, seed + 1);
  }
  unsigned setting(unsigned sms) const override { return 2 * sms; }
  void run(Launcher& launch, std::uint64_t out, unsigned blocks) override {
    launch("element_wise", {blocks}, {kBlock}, a_, b_, out, count_);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch("element_wise_exact", covering(count_), {kBlock}, a_, b_, out, count_);
  }
  unsigned outputs() const override { return count_; }

 private:
  unsigned count_ = 0;
  std::uint64_t a_ = 0, b_ = 0;
};

class Histogram final : public Subject {
 public:
  Histogram() : Subject("float-atomic histogram", "grid", "histogram", Expect::kExcluded) {}
  void prepare(Launcher& launch, Scale scale) override {
    count_ = scale == Scale::kFull ? 1u << 20 : 1u << 13;
    in_ = floats(launch, count_);
  }
  void draw(Launcher& launch, unsigned seed) override { draw_floats(launch, in_, count_, seed); }
  unsigned setting(unsigned sms) const override { return 2 * sms; }
  void run(Launcher& launch, std::uint64_t out, unsigned blocks) override {
    launch("set_words", {1}, {kBlock}, out, kBins, 0u);
    launch("histogram", {blocks}, {kBlock}, in_, out, kBins, count_);
  }
  void exact(Launcher& launch, std::uint64_t out) override {
    launch("set_words", {1}, {kBlock}, out, 2 * kBins, 0u);
    launch("histogram_exact", covering(count_), {kBlock}, in_, out, kBins, count_);
  }
  unsigned outputs() const override { return kBins; }

 private:
  static constexpr unsigned kBins = 64;
  unsigned count_ = 0;
  std::uint64_t in_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Subject>> all_subjects() {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const char* type : {"bf16", "fp16", "fp32"}) subjects.push_back(std::make_unique<Sum>(type));
  subjects.push_back(std::make_unique<SplitK>());
  subjects.push_back(std::make_unique<Rows>("LayerNorm", "layer_norm", Rows::Input::kBfloat16));
  subjects.push_back(std::make_unique<Rows>("RMSNorm", "rms_norm", Rows::Input::kBfloat16));
  subjects.push_back(std::make_unique<Rows>("softmax", "soft_max", Rows::Input::kFloat));
  subjects.push_back(std::make_unique<FlashDecoding>());
  subjects.push_back(std::make_unique<DataParallelGemm>());
  subjects.push_back(std::make_unique<ElementWise>());
  subjects.push_back(std::make_unique<Histogram>());
  return subjects;
}

}  // namespace vitamin::determinism
