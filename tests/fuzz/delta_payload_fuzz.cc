// Arbitrary bytes as the payload of a neighbour, with or without statistics, applied to a reference
// from both sides of an edge: refused, or the same reference at both ends.
#include "gossip/delta/exchange.h"
#include "tests/fuzz/delta_fuzz.h"

#include <algorithm>
#include <limits>

using namespace starling;
using namespace starling::gossip;

namespace {

std::vector<float> make_values(const Layout& layout) {
  std::vector<float> x(layout.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    if (layout.is_real(i / kBlock, i % kBlock)) x[i] = static_cast<float>(i % 13) - 6.0F;
  return x;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Layout layout = fuzzing::make_layout();
  fuzzing::Input input(data, size);
  const Level own_level = input.level();
  Payload theirs{.level = input.level(),
                 .statistics = input.byte() % 2 == 0 ? Statistics::without : Statistics::with,
                 .bytes = nullptr};
  const Weight weight{static_cast<std::uint8_t>(1 + input.byte() % 64)};
  theirs.bytes = share(input.rest());
  const auto their_view = parse_payload(layout, theirs);
  if (!their_view) {
    STARLING_CHECK(their_view.error().code == Errc::bad_message);
    return 0;
  }
  STARLING_CHECK(theirs.bytes->size() <=
                 max_payload_bytes(layout, theirs.level, theirs.statistics));

  static const std::vector<float> own_values = make_values(layout);
  std::vector<float> x = own_values;
  Carry carry;
  auto own = encode(layout, {x, {}}, {.level = own_level}, carry);
  STARLING_CHECK(own.has_value());
  const auto own_view = parse_delta(layout, own_level, own->bytes);
  STARLING_CHECK(own_view.has_value());

  std::vector<float> lower(layout.size());
  std::vector<float> higher(layout.size());
  std::vector<float> y = x;
  const DeltaPair here{*own_view, their_view->delta, Side::lower};
  const DeltaPair there{their_view->delta, *own_view, Side::higher};
  const double norm = difference_norm(here, Isa::scalar);
  const Isa isa = detected_isa();
  // A difference beyond all floats has an infinite norm; its bound is beyond them, too.
  STARLING_CHECK(difference_norm_bound(here) >=
                 std::min(norm, static_cast<double>(std::numeric_limits<float>::max())));
  STARLING_CHECK(apply_exchange(here, weight.value(), {x, lower}, Isa::scalar) == norm);
  STARLING_CHECK(apply_exchange(there, weight.value(), {y, higher}, isa) == norm);
  STARLING_CHECK(std::memcmp(lower.data(), higher.data(), lower.size() * sizeof(float)) == 0);

  for (const float value : x) STARLING_CHECK(std::isfinite(value));
  if (their_view->statistics.empty()) return 0;
  std::vector<float> mean(layout.bn_channels(), 0.5F);
  std::vector<float> variance(layout.bn_channels(), 1.0F);
  pool_statistics(their_view->statistics, weight, {mean, variance});
  for (const float value : variance) STARLING_CHECK(value >= 0 && std::isfinite(value));

  return 0;
}
