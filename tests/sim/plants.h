// The planted bugs of this project: each is in the code under its name (node/base/fault.h), and the
// simulator has to find it.
#pragma once

#include "tests/sim/plan.h"
#include "tests/sim/world.h"

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::sim {

struct Plant {
  const char* name;
  const char* what;
  std::uint64_t seed;  // one that is known to catch it, the cheapest of the ordinary ones
};

[[nodiscard]] std::span<const Plant> all_plants();
// Null: there is none of this name.
[[nodiscard]] const Plant* find_plant(std::string_view name);

struct Catch {
  std::uint64_t reached = 0;  // how often the code came by, in all seeds that ran
  std::optional<std::uint64_t> seed;
  std::string checker;
  std::string what;
};

// Runs the seeds in this order with the bug in place, until a checker reports something.
// `trace`: where the lines of the traces go; null: nowhere.
[[nodiscard]] Catch hunt(const Plant& plant, std::span<const std::uint64_t> seeds,
                         std::ostream* trace);

// The seeds first, first + 1, ..., those of small swarms in front.
[[nodiscard]] std::vector<std::uint64_t> small_first(std::uint64_t first, std::uint64_t count);

}  // namespace starling::sim
