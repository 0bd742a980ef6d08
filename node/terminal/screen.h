// The live screen: a node and its swarm at one moment, as a frame. Nothing here knows a terminal.
#pragma once

#include "node/terminal/frame.h"
#include "node/terminal/trends.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace starling::node::terminal {

// What there is to show. Outlives the call.
struct View {
  const nlohmann::json& status;  // as `starling status --json` prints it
  const Trends& trends;
  std::span<const std::string> events;  // lines of events.jsonl, the newest last
  std::string trouble;                  // why this status is not a new one; empty: it is
};

enum class Table : std::uint8_t { neighbours, members };

// How a person wants to see it.
struct Look {
  Size size;
  bool unicode = true;  // otherwise bars are made of ASCII
  Table table = Table::neighbours;
  std::size_t first_row = 0;  // of the table; one beyond its end shows the end
};

// At most size.rows lines of at most size.columns characters each. What has no place is left out:
// first events, then rows of the table.
//
// Thread:  any; pure.
// Tested:  tests/node/screen_test.cc.
[[nodiscard]] Frame draw(const View& view, const Look& look);

// How far a table can be scrolled: how many rows it has.
[[nodiscard]] std::size_t rows_of(const nlohmann::json& status, Table table);

// A bar of so many characters, filled to a share in [0, 1].
[[nodiscard]] std::string bar(double share, std::size_t width, bool unicode);
// Values as a row of at most so many columns, the lowest to the highest; values that share a column
// are averaged.
[[nodiscard]] std::string spark_line(std::span<const double> values, std::size_t width,
                                     bool unicode);

}  // namespace starling::node::terminal
