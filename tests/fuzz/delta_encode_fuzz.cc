// Arbitrary values through encode() and back: alike on every path, never longer than promised,
// never refused by the parser, never further from x - r than r was.
#include "tests/fuzz/delta_fuzz.h"

using namespace starling;
using namespace starling::gossip;

namespace {

struct Values {
  std::vector<float> x;
  std::vector<float> r;
};

// The input's floats, again and again with steps in size, so that few bytes fill the model.
Values draw(const Layout& layout, fuzzing::Input& input) {
  Values values{std::vector<float>(layout.size()), std::vector<float>(layout.size())};
  std::vector<float> pool;
  const unsigned stride = 1U + input.byte();
  const bool with_reference = input.byte() % 2 == 1;
  while (!input.empty()) pool.push_back(input.value());
  if (pool.empty()) return values;
  for (const TensorPlace& tensor : layout.tensors())
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      values.x[i] = pool[i * stride % pool.size()];
      if (with_reference) values.r[i] = pool[(i + 1) * stride % pool.size()];
    }
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Layout small = fuzzing::make_small_layout();
  static const Layout whole_block = fuzzing::make_layout();
  fuzzing::Input input(data, size);
  const std::uint8_t choice = input.byte();
  const Level level = static_cast<Level>(choice % 7);
  const Layout& layout = choice >= 252 ? whole_block : small;
  const float threshold = input.value();
  const Values values = draw(layout, input);

  std::optional<Encoded> first;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (!is_available(isa)) continue;
    Carry carry;
    if (threshold > 0) carry.thresholds.assign(layout.first_small_block(), threshold);
    auto encoded = encode(layout, {values.x, values.r}, {.level = level, .isa = isa}, carry);
    if (isa == Isa::scalar) {
      if (!encoded) {
        const Errc code = encoded.error().code;
        STARLING_CHECK(code == Errc::diverged || code == Errc::corrupt);
        return 0;
      }
      first = std::move(*encoded);
    } else {
      STARLING_CHECK(encoded.has_value());
      STARLING_CHECK(encoded->bytes == first->bytes);
    }
  }

  STARLING_CHECK(first->bytes.size() <= max_bytes(layout, level));
  const auto view = parse_delta(layout, level, first->bytes);
  STARLING_CHECK(view.has_value());
  const std::vector<float> q = fuzzing::decode_everywhere(*view);
  double before = 0;
  double after = 0;
  for (const TensorPlace& tensor : layout.tensors())
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      const auto d = static_cast<double>(values.x[i] - values.r[i]);
      before += d * d;
      after += (d - static_cast<double>(q[i])) * (d - static_cast<double>(q[i]));
    }
  // bf16 has too few bits where d is denormal; elsewhere it costs 2^-16 of a group's energy
  STARLING_CHECK(before < 1e-70 || after <= before * 1.001);
  return 0;
}
