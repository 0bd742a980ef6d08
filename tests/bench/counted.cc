// The work whose instructions `count` counts under callgrind: the codec level by level on its AVX2
// path (valgrind knows no AVX-512), and the framing of a session. Prints the name of every piece of
// work in the order in which it is done; exit status 77: this processor cannot do it.
#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "node/base/check.h"
#include "node/base/random.h"
#include "transport/channel.h"
#include "transport/record.h"

#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

// callgrind collects between its begin and its end, and knows it by this name.
extern "C" [[gnu::noinline]] void starling_counted(const std::function<void()>& work) { work(); }

namespace starling {

namespace {

using namespace gossip;
using namespace transport;

void counted(const std::string& name, const std::function<void()>& work) {
  std::cout << name << '\n';
  starling_counted(work);
}

// Adds noise of about the scale to the real values; whole numbers only, so that every machine draws
// the same.
void add_noise(const Layout& layout, Rng& rng, float scale, std::vector<float>& values) {
  for (const auto& tensor : layout.tensors())
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      std::int64_t sum = 0;
      for (int n = 0; n < 4; ++n) sum += static_cast<std::int64_t>(rng.below(2'001)) - 1'000;
      values[i] += scale * 1e-3F * static_cast<float>(sum);
    }
}

// One end of an edge. Both ends keep the reference, here as two copies that stay equal.
struct EdgeEnd {
  EdgeEnd(const Layout& layout, Rng& rng) : x(layout.size()), r(layout.size()) {
    add_noise(layout, rng, 1e-3F, x);
  }
  Bytes encode(const Layout& layout, Level level) {
    auto encoded = gossip::encode(layout, {x, r}, {.level = level, .isa = Isa::avx2}, carry);
    STARLING_CHECK(encoded.has_value());
    return std::move(encoded->bytes);
  }
  std::vector<float> x;
  std::vector<float> r;
  Carry carry;
};

// Three exchanges of one edge; the last one is counted, its thresholds being carried.
void count_level(const Layout& layout, Level level) {
  const std::string name(name_of(level));
  Rng rng(static_cast<std::uint64_t>(level));
  EdgeEnd own(layout, rng);
  EdgeEnd their(layout, rng);
  std::vector<float> q(kBlock);
  for (int exchange = 0; exchange < 3; ++exchange) {
    const auto step = [&](const char* what, const std::function<void()>& work) {
      if (exchange == 2)
        counted(what + ("." + name), work);
      else
        work();
    };
    add_noise(layout, rng, 2.5e-4F, own.x);
    add_noise(layout, rng, 2.5e-4F, their.x);
    const Bytes theirs = their.encode(layout, level);
    Bytes bytes;
    step("encode", [&] { bytes = own.encode(layout, level); });
    step("decode", [&] {
      const auto view = parse_delta(layout, level, bytes);
      STARLING_CHECK(view.has_value());
      for (std::size_t block = 0; block < layout.blocks(); ++block)
        decode_block(*view, block, q, Isa::avx2);
    });
    const auto own_view = parse_delta(layout, level, bytes);
    const auto their_view = parse_delta(layout, level, theirs);
    STARLING_CHECK(own_view.has_value());
    STARLING_CHECK(their_view.has_value());
    const DeltaPair pair{*own_view, *their_view, Side::lower};
    step("apply", [&] { (void)apply_exchange(pair, 0.5F, {own.x, own.r}, Isa::avx2); });
    const DeltaPair mirrored{*their_view, *own_view, Side::higher};
    (void)apply_exchange(mirrored, 0.5F, {their.x, their.r}, Isa::avx2);
  }
}

class AdmitAll final : public Admitter {
 public:
  bool admit(std::uint16_t, ByteView, std::size_t) override { return true; }
};

// One end of a session without its socket.
struct SessionEnd {
  SessionEnd(End end, TransferBudget& budget, const noise::CipherState& cipher)
      : channel(end, budget), sealer(cipher), opener(cipher) {}

  // Moves all records that may go now to the other end; false if there was none.
  bool send_to(SessionEnd& other, TimePoint now) {
    bytes.clear();
    while (bytes.size() < limits::kBulkChunk) {
      const auto record = channel.next_record(now, limits::kMaxBulkRecord);
      if (!record) break;
      sealer.seal(*record, bytes);
    }
    other.opener.feed(bytes);
    while (true) {
      const auto opened = other.opener.next();
      STARLING_CHECK(opened.has_value());
      if (!*opened) break;
      STARLING_CHECK(other.channel.on_record(now, **opened, admitter, other.events).has_value());
    }
    return !bytes.empty();
  }

  Channel channel;
  RecordSealer sealer;
  RecordOpener opener;
  AdmitAll admitter;
  std::vector<ChannelEvent> events;
  Bytes bytes;
};

void count_framing() {
  constexpr std::uint16_t kType = 0x0201;
  constexpr TimePoint kNow{std::chrono::seconds(1)};
  noise::CipherState cipher;
  cipher.set_key({});
  TransferBudget budget;
  SessionEnd left(End::initiator, budget, cipher);
  SessionEnd right(End::responder, budget, cipher);
  right.channel.say_welcome();
  const auto settle = [&] {
    left.events.clear();
    right.events.clear();
    while (left.send_to(right, kNow) || right.send_to(left, kNow)) {
    }
  };
  settle();

  const auto attachment = share(Bytes(std::size_t{4} << 20, std::byte{0x22}));
  counted("frame.attachment", [&] {
    STARLING_CHECK(left.channel.send({kType, Bytes(100), attachment}).has_value());
    settle();
  });
  STARLING_CHECK(right.events.size() == 1);
  counted("frame.messages", [&] {
    for (int i = 0; i < 1'000; ++i) {
      STARLING_CHECK(left.channel.send({kType, Bytes(100), nullptr}).has_value());
      settle();
    }
  });
  STARLING_CHECK(right.events.size() == 1);
}

int count_all() {
  if (!is_available(Isa::avx2)) {
    std::cerr << "counted: this processor has no AVX2, whose instructions would be counted\n";
    return 77;
  }
  // 128 whole blocks, a part of one, and small tensors.
  const auto layout = Layout::make({{"whole", {128, static_cast<std::int64_t>(kBlock)}},
                                    {"part", {40, 33}},
                                    {"norm.weight", {1'000}},
                                    {"norm.bias", {1'000}}},
                                   1'000);
  STARLING_CHECK(layout.has_value());
  for (const Level level :
       {Level::l0, Level::l1, Level::l2, Level::l3, Level::l4, Level::l5, Level::l6})
    count_level(*layout, level);
  count_framing();
  return 0;
}

}  // namespace

}  // namespace starling

int main() { return starling::count_all(); }
