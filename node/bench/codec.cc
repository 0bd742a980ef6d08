// `starling bench codec`: what one exchange costs this processor, level by level.
//
// Two replicas of one edge drift apart a little before every repeat, as training would make them,
// so that carried thresholds meet what they meet in a run; making the drift and the neighbour's
// half is outside the clock. Timed, for the own half: encode (x - r to bytes), parse (theirs,
// checked), apply (x and r). Before each encode the same minute's floor is measured: x and r read
// once.
#include "gossip/delta/codec.h"

#include "gossip/delta/exchange.h"
#include "gossip/delta/flat_vector.h"
#include "node/base/random.h"
#include "node/bench/bench.h"
#include "node/bench/device.h"
#include "node/bench/vectors.h"
#include "node/config/values.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace starling::node::bench {

namespace {

using gossip::DeltaView;
using gossip::FlatVector;
using gossip::Isa;
using gossip::kBlock;
using gossip::Layout;
using gossip::Level;

// One end of the edge. The neighbour's end has a reference of its own, which stays equal.
struct End {
  FlatVector x;
  FlatVector r;
  gossip::Carry carry;

  static Result<End> make(std::size_t size) {
    TRY(FlatVector x, FlatVector::make(size));
    TRY(FlatVector r, FlatVector::make(size));
    return End{std::move(x), std::move(r), {}};
  }
  Result<gossip::Encoded> encode(const Layout& layout, Level level, Isa isa) {
    return gossip::encode(layout, {x.values(), r.values()}, {.level = level, .isa = isa}, carry);
  }
};

// In CPU time but for the whole: on a machine that others use, waiting is theirs.
struct CodecTimes {
  Repeats floor, encode, parse, apply, exchange, wall, over_floor;
  void add(const Cost& reading, const Cost& encoding, const Cost& parsing, const Cost& applying) {
    floor.add(1e3 * reading.cpu_s);
    encode.add(1e3 * encoding.cpu_s);
    parse.add(1e3 * parsing.cpu_s);
    apply.add(1e3 * applying.cpu_s);
    exchange.add(1e3 * (encoding.cpu_s + parsing.cpu_s + applying.cpu_s));
    wall.add(1e3 * (encoding.wall_s + parsing.wall_s + applying.wall_s));
    over_floor.add(reading.cpu_s > 0 ? encoding.cpu_s / reading.cpu_s : 0);
  }
};

class CodecBench {
 public:
  struct Options {
    Isa isa = Isa::scalar;
    int repeats = 7;
  };
  CodecBench(const Layout& layout, Options options, End own, End their)
      : layout_(layout), options_(options), own_(std::move(own)), their_(std::move(their)) {}

  Result<Json> measure(Level level) {
    TRY_VOID(start(level));
    CodecTimes times;
    Bytes bytes;
    for (int i = -kWarmUps; i < options_.repeats; ++i) {
      TRY(bytes, repeat(i < 0 ? nullptr : &times));
    }
    const auto view = parse_delta(layout_, level_, bytes);
    const auto [kept_block, kept_all, sent] = energies(*view);
    Json row{{"level", name_of(level)},
             {"bytes", bytes.size()},
             {"bits_per_parameter", rounded(8.0 * static_cast<double>(bytes.size()) /
                                            static_cast<double>(layout_.parameters()))},
             {"encode_cpu_ms", times.encode.json()},
             {"parse_cpu_ms", times.parse.json()},
             {"apply_cpu_ms", times.apply.json()},
             {"exchange_cpu_ms", times.exchange.json()},
             {"exchange_ms", times.wall.json()},
             {"floor_cpu_ms", times.floor.json()},
             {"encode_over_floor", times.over_floor.json()},
             {"gb_per_s", rounded(walked_bytes() / (1e6 * times.encode.median()))},
             {"sent_energy", rounded(sent)}};
    if (is_sparse(level)) {
      row["kept_energy_in_blocks"] = rounded(kept_block);
      row["kept_energy"] = rounded(kept_all);
    }
    return row;
  }

 private:
  // What an encode reads: x and r.
  [[nodiscard]] double walked_bytes() const { return 8.0 * static_cast<double>(layout_.size()); }

  // A fresh edge: x is apart from r by the scale of the noise.
  Result<void> start(Level level) {
    level_ = level;
    own_.carry = {};
    their_.carry = {};
    for (const auto vector :
         {own_.x.values(), own_.r.values(), their_.x.values(), their_.r.values()})
      std::ranges::fill(vector, 0.0F);
    add_noise(layout_, rng_, 20 * kScale, own_.r.values());
    for (const auto vector : {own_.x.values(), their_.x.values(), their_.r.values()})
      std::ranges::copy(own_.r.values(), vector.begin());
    add_noise(layout_, rng_, kScale, own_.x.values());
    add_noise(layout_, rng_, kScale, their_.x.values());
    return {};
  }

  // One exchange; the bytes of the own delta.
  Result<Bytes> repeat(CodecTimes* times) {
    add_noise(layout_, rng_, kDrift * kScale, own_.x.values());
    add_noise(layout_, rng_, kDrift * kScale, their_.x.values());
    TRY(const gossip::Encoded theirs, their_.encode(layout_, level_, options_.isa));
    const Cost floor = cost_of([&] { unused_ += read_two(own_.x.values(), own_.r.values()); });

    Result<gossip::Encoded> own = fail(Errc::internal, Doing::encoding_delta, "not encoded");
    const Cost encoding = cost_of([&] { own = own_.encode(layout_, level_, options_.isa); });
    if (!own) return fail(own.error());
    const DeltaView own_view = own_delta(layout_, level_, own->bytes, std::move(own->offsets));
    Result<DeltaView> their_view = fail(Errc::internal, Doing::reading_delta, "not parsed");
    const Cost parsing = cost_of([&] { their_view = parse_delta(layout_, level_, theirs.bytes); });
    if (!their_view) return fail(their_view.error());
    // What the last encode left is looked at before it is applied.
    if (times != nullptr) last_d_from(own_);
    const Cost applying = cost_of([&] {
      (void)apply_exchange({own_view, *their_view, gossip::Side::lower}, 0.5F,
                           {own_.x.values(), own_.r.values()}, options_.isa);
    });
    (void)apply_exchange({*their_view, own_view, gossip::Side::higher}, 0.5F,
                         {their_.x.values(), their_.r.values()}, options_.isa);
    if (times != nullptr) times->add(floor, encoding, parsing, applying);
    return std::move(own->bytes);
  }

  void last_d_from(const End& end) {
    d_.resize(layout_.size());
    for (std::size_t i = 0; i < d_.size(); ++i) d_[i] = end.x.values()[i] - end.r.values()[i];
  }

  struct Energies {
    double kept_in_blocks = 0;  // of the exact largest k_b of each block, k_b as it came out
    double kept = 0;            // of the exact largest k of all blocks together
    double sent = 0;            // 1 - |d - q|^2 / |d|^2
  };

  // How good the selection of the last delta was, by exact selection of as many values.
  Energies energies(const DeltaView& view) {
    double all = 0;
    double unsent = 0;
    double kept = 0;
    double best_in_blocks = 0;
    std::size_t count = 0;
    std::vector<float> q(kBlock);
    std::vector<float> squares;
    squares.reserve(layout_.size());
    for (std::size_t block = 0; block < layout_.blocks(); ++block) {
      const std::span<const float> d(d_.data() + block * kBlock, layout_.width(block));
      decode_block(view, block, q, options_.isa);
      std::vector<float> here(d.size());
      std::size_t selected = 0;
      const bool selects = is_sparse(view.level()) && !layout_.is_small(block);
      for (std::size_t i = 0; i < d.size(); ++i) {
        here[i] = d[i] * d[i];
        all += static_cast<double>(here[i]);
        const double rest = static_cast<double>(d[i]) - static_cast<double>(q[i]);
        unsent += rest * rest;
        if (!selects || q[i] == 0) continue;
        kept += static_cast<double>(here[i]);
        ++selected;
      }
      if (!selects) continue;
      count += selected;
      squares.insert(squares.end(), here.begin(), here.end());
      best_in_blocks += sum_of_largest(here, selected);
    }
    const double best = sum_of_largest(squares, count);
    return {best_in_blocks > 0 ? kept / best_in_blocks : 1, best > 0 ? kept / best : 1,
            all > 0 ? 1 - unsent / all : 0};
  }

  static double sum_of_largest(std::vector<float>& squares, std::size_t count) {
    if (count < squares.size())
      std::ranges::nth_element(squares, squares.begin() + static_cast<std::ptrdiff_t>(count),
                               std::greater<>());
    double sum = 0;
    for (const float square : std::span(squares).first(std::min(count, squares.size())))
      sum += static_cast<double>(square);
    return sum;
  }

  const Layout& layout_;
  Options options_;
  Level level_ = Level::l0;
  End own_;
  End their_;
  Rng rng_{20'260'101};
  std::vector<float> d_;
  float unused_ = 0;
};

Result<std::vector<Level>> levels_of(const Arguments& arguments) {
  if (arguments.given.contains("--level")) {
    TRY(const Level level, level_of(arguments, Level::l2));
    return std::vector{level};
  }
  std::vector<Level> levels;
  for (int i = 0; i <= static_cast<int>(Level::l6); ++i) levels.push_back(static_cast<Level>(i));
  return levels;
}

Result<Isa> isa_of(const Arguments& arguments) {
  const auto given = arguments.given.find("--isa");
  if (given == arguments.given.end()) return gossip::detected_isa();
  const auto isa = gossip::parse_isa(given->second);
  if (!isa)
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                fmt::format("--isa {} is none of scalar, avx2, avx512",
                            escape_value(given->second.substr(0, 80))));
  if (!gossip::is_available(*isa))
    return fail(Errc::unsupported, Doing::parsing_arguments,
                fmt::format("this processor has no {}", given->second));
  return *isa;
}

Result<Json> measure_codec(const Arguments& arguments, const Terminal& /*terminal*/) {
  TRY(const Layout layout, layout_of(arguments));
  TRY(const auto levels, levels_of(arguments));
  TRY(const Isa isa, isa_of(arguments));
  TRY(const auto repeats, count_of(arguments, {"--repeats", 7, 1, 10'000}));
  if (const auto device = device_asked_for(arguments)) {
    if (arguments.has("--isa"))
      return fail(Errc::bad_argument, Doing::parsing_arguments,
                  fmt::format("--isa is about this processor and --device {} is not: leave one out",
                              arguments.config.train.device));
    return measure_device_codec(*device, layout, levels, repeats);
  }
  TRY(End own, End::make(layout.size()));
  TRY(End their, End::make(layout.size()));
  CodecBench bench(layout, {isa, static_cast<int>(repeats)}, std::move(own), std::move(their));
  Json rows = Json::array();
  for (const Level level : levels) {
    TRY(const Json row, bench.measure(level));
    rows.push_back(row);
  }
  return Json{{"params",
               {{"n", layout.parameters()},
                {"blocks", layout.blocks()},
                {"isa", name_of(isa)},
                {"repeats", repeats},
                {"threads", 1}}},
              {"levels", rows}};
}

constexpr std::array<std::string_view, 4> kCodecFlags{"--n", "--level", "--isa", "--repeats"};
constexpr std::array<std::string_view, 1> kCodecKeys{"train.device"};

}  // namespace

constinit const Bench kCodecBench{"codec",
                                  "Encode, check and apply deltas, by level; one thread, or a GPU.",
                                  kCodecFlags, kCodecKeys, &measure_codec};

}  // namespace starling::node::bench
