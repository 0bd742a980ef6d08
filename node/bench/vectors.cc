#include "node/bench/vectors.h"

#include "node/bench/bench.h"
#include "node/printable.h"
#include "training/models/tensor_table.h"

#include <fmt/format.h>

#include <cstdint>

namespace starling::node::bench {

using gossip::Layout;
using gossip::Level;

Result<Layout> layout_of(const Arguments& arguments) {
  TRY(const auto n, count_of(arguments, {"--n", 0, 1, std::uint64_t{1} << 30}));
  if (n == 0) {
    TRY(const auto model, training::make_model({}));
    return model.layout;
  }
  return Layout::make({{"weight", {1, static_cast<std::int64_t>(n)}}}, 0);
}

Result<Level> level_of(const Arguments& arguments, Level fallback) {
  const auto given = arguments.given.find("--level");
  if (given == arguments.given.end()) return fallback;
  for (int i = 0; i <= static_cast<int>(Level::l6); ++i) {
    const auto level = static_cast<Level>(i);
    if (given->second == gossip::name_of(level)) return level;
  }
  return fail(
      Errc::bad_argument, Doing::parsing_arguments,
      fmt::format("--level {} is none of L0 to L6", escape_value(given->second.substr(0, 80))));
}

// Sums of four 16-bit numbers, two multiplications a value, because 25 million of them are drawn
// again for every repeat.
void add_noise(const Layout& layout, Rng& rng, float sigma, std::span<float> values) {
  // A sum of four has the deviation 65,536 / sqrt(3).
  const float unit = sigma * 1.7320508F / 65'536.0F;
  for (const auto& tensor : layout.tensors()) {
    for (float& value : values.subspan(tensor.offset, tensor.count)) {
      const std::uint64_t bits = rng();
      const auto sum = static_cast<std::int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                                 (bits >> 32 & 0xffff) + (bits >> 48)) -
                       2 * 65'535;
      value += unit * static_cast<float>(sum);
    }
  }
}

}  // namespace starling::node::bench
