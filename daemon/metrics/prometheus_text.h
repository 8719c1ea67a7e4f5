// SPDX-License-Identifier: Apache-2.0
//
// Writes metrics in Prometheus' text format, version 0.0.4: each family once, followed by its
// samples.
//
// Not prometheus-cpp, because Debian has it as shared C++ libraries only, and vitamind links its
// C++ library statically.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vitamin::daemon {

// Bounds are powers of two from 1 us to 8.4 s; the last bucket has no bound.
class WaitHistogram {
 public:
  static constexpr unsigned kBounds = 24;
  static constexpr double bound_seconds(unsigned i) { return 1e-6 * static_cast<double>(1U << i); }

  void add(std::uint64_t ns) {
    unsigned i = 0;
    while (i < kBounds && ns > (1000ULL << i)) ++i;
    ++counts_[i];
    sum_ns_ += ns;
  }
  std::uint64_t count(unsigned i) const { return counts_[i]; }
  std::uint64_t sum_ns() const { return sum_ns_; }

 private:
  std::array<std::uint64_t, kBounds + 1> counts_{};
  std::uint64_t sum_ns_ = 0;
};

class PrometheusText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  // Begins a family, to which the following samples belong. `type`: counter, gauge, histogram.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(const Labels& labels, double value);
  void sample(const Labels& labels, const WaitHistogram& waits);
  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, const Labels& labels, std::string_view value);

  std::string text_, name_;
};

}  // namespace vitamin::daemon
