// Trends: what the statuses of a node say together that one of them does not: the course of loss
// and speed, and how many bytes a second go where.
#pragma once

#include "node/base/clock.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace starling::node::terminal {

// A figure from its beginning to now in a bounded number of values: where they become too many, two
// neighbours become their mean, and so do those that come.
//
// A value type; one thread.
class Course {
 public:
  static constexpr std::size_t kMost = 512;

  void add(double value);
  // From the first to the newest.
  [[nodiscard]] const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  std::size_t each_ = 1;  // that many added values are one
  std::size_t added_ = 0;
  double sum_ = 0;
};

// Bytes a second.
struct Rates {
  double sent = 0;
  double received = 0;
};

// A value type, told each status once; one thread. Memory: a counter for each neighbour and look of
// the last kWindow.
class Trends {
 public:
  // Rates are averages of so long.
  static constexpr Duration kWindow = std::chrono::seconds(10);

  void take(TimePoint now, const nlohmann::json& status);

  [[nodiscard]] const std::vector<double>& losses() const { return losses_.values(); }
  [[nodiscard]] const std::vector<double>& speeds() const { return speeds_.values(); }
  // Nothing before the second status.
  [[nodiscard]] std::optional<Rates> rates() const;
  [[nodiscard]] std::optional<Rates> rates_of(const std::string& neighbour) const;

 private:
  struct Counters {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  struct Look {
    TimePoint time;
    Counters all;
    std::map<std::string, Counters, std::less<>> neighbours;
  };
  [[nodiscard]] static std::optional<Rates> between(const Counters& old, const Counters& now,
                                                    Duration time);

  Course losses_;
  Course speeds_;
  std::uint64_t step_ = 0;
  std::deque<Look> looks_;
};

}  // namespace starling::node::terminal
