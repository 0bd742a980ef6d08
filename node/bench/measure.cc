#include "node/bench/measure.h"

#include "gossip/delta/isa.h"
#include "node/base/check.h"
#include "node/base/cores.h"
#include "node/base/cpu_time.h"
#include "node/base/wide_loops.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

namespace starling::node::bench {

namespace {

Cost cost_so_far(double cpu_s, int who) {
  rusage usage{};
  (void)::getrusage(who, &usage);
  return {seconds(SteadyClock().now().time_since_epoch()), cpu_s,
          static_cast<std::uint64_t>(usage.ru_minflt)};
}

// Bits of the largest |a - b|: integers, so that the loop may be reordered and vectorises.
STARLING_WIDE std::uint32_t largest_difference(const float* a, const float* b, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(a[i] - b[i]) & 0x7fffffffU);
  return largest;
}

STARLING_WIDE void add_half(float* __restrict a, const float* __restrict b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) a[i] += 0.5F * b[i];
}

}  // namespace

Cost thread_cost() { return cost_so_far(thread_cpu_seconds(), RUSAGE_THREAD); }
Cost process_cost() { return cost_so_far(process_cpu_seconds(), RUSAGE_SELF); }

double Repeats::quantile(double share) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::ranges::sort(sorted);
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double rest = place - static_cast<double>(below);
  return sorted[below] * (1 - rest) + sorted[above] * rest;
}

Json Repeats::json() const {
  return {{"median", rounded(median())},
          {"q1", rounded(quantile(0.25))},
          {"q3", rounded(quantile(0.75))},
          {"min", rounded(quantile(0))},
          {"max", rounded(quantile(1))}};
}

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

float read_two(std::span<const float> a, std::span<const float> b) {
  STARLING_CHECK_OP(a.size(), ==, b.size());
  return std::bit_cast<float>(largest_difference(a.data(), b.data(), a.size()));
}

void triad(std::span<float> a, std::span<const float> b) {
  STARLING_CHECK_OP(a.size(), ==, b.size());
  add_half(a.data(), b.data(), a.size());
}

Json machine_json() {
  return {{"cpu", cpu_model()},
          {"cores", usable_cores()},
          {"isa", gossip::name_of(gossip::detected_isa())}};
}

}  // namespace starling::node::bench
