#include "bootstrap/state_transfer.h"

#include "node/base/hash.h"
#include "node/base/random.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <limits>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

const NodeId kJoiner = id_of(100);
const Hash kFingerprint = hash_of(as_bytes("settings"));

Bytes model_of(std::size_t bytes, std::uint64_t seed) {
  Rng rng(seed);
  Bytes model(bytes);
  for (auto& byte : model) byte = static_cast<std::byte>(rng());
  return model;
}

SharedSnapshot snapshot_of(const Bytes& model) {
  Manifest about;
  about.fingerprint = kFingerprint;
  about.step = 500;
  about.age = 500;
  // Owners: see SharedSnapshot.
  return std::make_shared<const Snapshot>(*cut_snapshot({model}, about));
}

Bytes joined(const Snapshot& snapshot) {
  Bytes bytes;
  for (const auto& chunk : snapshot.chunks) bytes.insert(bytes.end(), chunk->begin(), chunk->end());
  return bytes;
}

// One receiver and several sponsors; messages take a millisecond, chunks chunk_time more.
struct Stage {
  StateReceiver receiver{kFingerprint, 64 << 20, {}};
  std::map<NodeId, StateSponsor> sponsors;
  std::map<NodeId, SharedSnapshot> models;  // what each would cut
  std::set<NodeId> gone;
  std::deque<std::pair<NodeId, BootstrapMessage>> to_receiver;
  std::function<void(Chunk&, const NodeId&)> tamper = [](Chunk&, const NodeId&) {};
  TimePoint now = kStart;
  Duration chunk_time{0};  // on the receiver's line, which all donors share
  bool in_turn = false;    // each donor has its part of that line, or all stand in one queue
  std::map<NodeId, TimePoint> last_from;
  SharedSnapshot complete;
  std::string failed;
  std::size_t offences = 0;
  std::map<NodeId, std::size_t> served;
  StateSponsor::Stock stock;

  Stage() {
    stock.fingerprint = kFingerprint;
    stock.phase = RunPhase::training;
  }
  void add(std::uint64_t number, SharedSnapshot model) {
    sponsors.emplace(id_of(number), TransferOptions{});
    models[id_of(number)] = std::move(model);
  }
  void take(ReceiverEffects effects) {
    offences += effects.offences.size();
    if (effects.complete) complete = effects.complete;
    if (effects.failed) failed = effects.why;
    for (const auto& outgoing : effects.send) deliver(outgoing.to, outgoing.message);
  }
  void answer(const NodeId& sponsor, SponsorEffects effects) {
    for (auto& outgoing : effects.send)
      to_receiver.emplace_back(sponsor, std::move(outgoing.message));
    if (effects.take_snapshot)
      answer(sponsor, sponsors.at(sponsor).on_snapshot(now, models[sponsor], stock));
  }
  void deliver(const NodeId& to, const BootstrapMessage& message) {
    const auto at = sponsors.find(to);
    if (at == sponsors.end() || gone.contains(to)) return;
    if (const auto* request = std::get_if<StateRequest>(&message))
      answer(to, at->second.on_request(now, kJoiner, *request, stock));
    if (const auto* request = std::get_if<ChunkRequest>(&message)) {
      ++served[to];
      answer(to, at->second.on_chunk_request(now, kJoiner, *request));
    }
    if (const auto* done = std::get_if<StateDone>(&message))
      at->second.on_done(now, kJoiner, *done);
  }
  void step() {
    now += 1ms;
    if (to_receiver.empty()) {
      now += 500ms;
      take(receiver.on_tick(now));
      return;
    }
    const auto next =
        in_turn ? std::ranges::min_element(to_receiver, {},
                                           [&](const auto& item) { return last_from[item.first]; })
                : to_receiver.begin();
    auto [from, message] = std::move(*next);
    to_receiver.erase(next);
    last_from[from] = now;
    if (gone.contains(from)) return;
    if (std::holds_alternative<Chunk>(message))
      for (const TimePoint end = now + chunk_time; now < end; now += 500ms)
        take(receiver.on_tick(now));
    if (auto* manifest = std::get_if<StateManifest>(&message))
      take(receiver.on_manifest(now, from, *manifest));
    if (auto* refused = std::get_if<StateRefused>(&message))
      take(receiver.on_refused(now, from, *refused));
    if (auto* chunk = std::get_if<Chunk>(&message)) {
      tamper(*chunk, from);
      take(receiver.on_chunk(now, from, *chunk));
    }
  }
  void run(std::size_t steps = 20000) {
    while (!complete && failed.empty() && steps-- > 0) step();
  }
  void die(std::uint64_t number) {
    gone.insert(id_of(number));
    take(receiver.on_session_down(now, id_of(number)));
  }
};

}  // namespace

TEST_SUITE("bootstrap/state_transfer") {
  TEST_CASE("a snapshot comes over byte for byte, whatever its size") {
    for (const std::size_t bytes :
         {std::size_t{1}, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1, 10 * kChunkBytes + 77}) {
      CAPTURE(bytes);
      const auto model = model_of(bytes, bytes);
      Stage stage;
      stage.add(1, snapshot_of(model));
      stage.take(stage.receiver.start(stage.now, id_of(1)));
      stage.run();
      REQUIRE(stage.complete != nullptr);
      CHECK(joined(*stage.complete) == model);
      CHECK(stage.complete->manifest.step == 500);
      const auto progress = stage.receiver.progress(stage.now);
      CHECK(progress.bytes_done == bytes);
      CHECK(progress.bytes_total == bytes);
      CHECK(stage.sponsors.at(id_of(1)).load() == 0);
    }
  }

  TEST_CASE("a snapshot of several parts is their bytes in a row") {
    const auto a = model_of(kChunkBytes - 3, 1);
    const auto b = model_of(kChunkBytes, 2);
    const auto snapshot = cut_snapshot({a, ByteView(), b}, {});
    REQUIRE(snapshot.has_value());
    Bytes both = a;
    both.insert(both.end(), b.begin(), b.end());
    CHECK(joined(*snapshot) == both);
    CHECK(snapshot->manifest.chunks() == 2);
    CHECK(check_manifest(snapshot->manifest).has_value());
    CHECK(!cut_snapshot({}, {}).has_value());
  }

  TEST_CASE("when a donor dies in the middle, another holder of the same snapshot goes on") {
    const auto model = model_of(40 * kChunkBytes, 4);
    const auto snapshot = snapshot_of(model);
    Stage stage;
    stage.add(1, snapshot);
    stage.add(2, snapshot);
    stage.sponsors.at(id_of(2)).hold(stage.now, snapshot);
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_done < 15 * kChunkBytes) stage.step();
    stage.die(1);
    CHECK(stage.receiver.orphaned());
    stage.take(stage.receiver.offer_donor(stage.now, id_of(2)));
    stage.run();
    REQUIRE(stage.complete != nullptr);
    CHECK(joined(*stage.complete) == model);
    // What had come was not asked again.
    CHECK(stage.served[id_of(2)] <= 25);
  }

  TEST_CASE("two donors share the work") {
    const auto snapshot = snapshot_of(model_of(64 * kChunkBytes, 5));
    Stage stage;
    stage.add(1, snapshot);
    stage.add(2, snapshot);
    stage.sponsors.at(id_of(2)).hold(stage.now, snapshot);
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_done < 2 * kChunkBytes) stage.step();
    stage.take(stage.receiver.offer_donor(stage.now, id_of(2)));
    stage.run();
    REQUIRE(stage.complete != nullptr);
    CHECK(stage.served[id_of(1)] + stage.served[id_of(2)] == 64);
    CHECK(stage.served[id_of(2)] > 16);
  }

  TEST_CASE("a flipped bit is refused and fetched again, and a donor that goes on lying is left") {
    const auto model = model_of(20 * kChunkBytes, 6);
    const auto snapshot = snapshot_of(model);
    Stage once;
    once.add(1, snapshot);
    bool flipped = false;
    once.tamper = [&](Chunk& chunk, const NodeId&) {
      if (chunk.index != 7 || std::exchange(flipped, true)) return;
      Bytes bytes = *chunk.bytes;
      bytes[1000] ^= std::byte{4};
      chunk.bytes = share(std::move(bytes));
    };
    once.take(once.receiver.start(once.now, id_of(1)));
    once.run();
    REQUIRE(once.complete != nullptr);
    CHECK(joined(*once.complete) == model);
    CHECK(once.offences == 1);

    Stage always;
    always.add(1, snapshot);
    always.add(2, snapshot);
    always.sponsors.at(id_of(2)).hold(always.now, snapshot);
    always.tamper = [&](Chunk& chunk, const NodeId& from) {
      if (from != id_of(1)) return;
      Bytes bytes = *chunk.bytes;
      bytes[0] ^= std::byte{1};
      chunk.bytes = share(std::move(bytes));
    };
    always.take(always.receiver.start(always.now, id_of(1)));
    for (int i = 0; i < 3; ++i) always.step();
    always.take(always.receiver.offer_donor(always.now, id_of(2)));
    always.run();
    REQUIRE(always.complete != nullptr);
    CHECK(joined(*always.complete) == model);
    CHECK(always.offences <= 4);
  }

  TEST_CASE("a donor that stops answering is left for another, and alone it ends the transfer") {
    const auto snapshot = snapshot_of(model_of(30 * kChunkBytes, 7));
    Stage stage;
    stage.add(1, snapshot);
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_done < 5 * kChunkBytes) stage.step();
    stage.gone.insert(id_of(1));  // silent, its session stays
    stage.run();
    CHECK(stage.complete == nullptr);
    CHECK(stage.failed == "nobody holds this snapshot any more");
    CHECK(stage.now < kStart + 2min);
  }

  TEST_CASE("a slow line costs no donor, and brings nothing twice") {
    const auto model = model_of(40 * kChunkBytes, 12);
    const auto snapshot = snapshot_of(model);
    // From 1 Mbit/s, where the windows of four donors take longer than the patience, to 84 kbit/s,
    // where one chunk does: then those that were asked for before one came may come twice.
    for (const Duration chunk_time : {2s, 5s, 12s, 25s}) {
      for (const std::uint64_t donors : {1U, 2U, 4U}) {
        for (const bool in_turn : {false, true}) {
          CAPTURE(seconds(chunk_time));
          CAPTURE(donors);
          CAPTURE(in_turn);
          Stage stage;
          stage.chunk_time = chunk_time;
          stage.in_turn = in_turn;
          for (std::uint64_t donor = 1; donor <= donors; ++donor) {
            stage.add(donor, snapshot);
            stage.sponsors.at(id_of(donor)).hold(stage.now, snapshot);
          }
          stage.take(stage.receiver.start(stage.now, id_of(1)));
          stage.step();
          for (std::uint64_t donor = 2; donor <= donors; ++donor)
            stage.take(stage.receiver.offer_donor(stage.now, id_of(donor)));
          stage.run();
          REQUIRE(stage.complete != nullptr);
          CHECK(joined(*stage.complete) == model);
          std::size_t served = 0;
          for (const auto& [id, chunks] : stage.served) served += chunks;
          CHECK(served <= 40 + (chunk_time < 10s ? 0 : 16 * (donors - 1)));
          CHECK(stage.now - kStart <= (chunk_time < 10s ? 41 : 50) * chunk_time);
        }
      }
    }
  }

  TEST_CASE("a donor that falls silent beside one that does not holds up nothing for long") {
    const auto snapshot = snapshot_of(model_of(64 * kChunkBytes, 15));
    for (const Duration chunk_time : {0s, 2s}) {
      CAPTURE(seconds(chunk_time));
      Stage stage;
      stage.chunk_time = chunk_time;
      for (const std::uint64_t donor : {1U, 2U}) {
        stage.add(donor, snapshot);
        stage.sponsors.at(id_of(donor)).hold(stage.now, snapshot);
      }
      stage.take(stage.receiver.start(stage.now, id_of(1)));
      stage.step();
      stage.take(stage.receiver.offer_donor(stage.now, id_of(2)));
      while (stage.receiver.progress(stage.now).bytes_done < 20 * kChunkBytes) stage.step();
      stage.gone.insert(id_of(2));
      stage.run();
      REQUIRE(stage.complete != nullptr);
      CHECK(stage.now - kStart < 64 * chunk_time + 15s);
    }
  }

  TEST_CASE("a donor that falls silent late on a slow line is left as soon as one at the start") {
    Stage stage;
    stage.chunk_time = 5s;
    stage.add(1, snapshot_of(model_of(40 * kChunkBytes, 14)));
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_done < 30 * kChunkBytes) stage.step();
    const TimePoint silent = stage.now;
    stage.gone.insert(id_of(1));
    stage.run();
    CHECK(stage.failed == "nobody holds this snapshot any more");
    CHECK(stage.now - silent > 60s);
    CHECK(stage.now - silent < 80s);
  }

  TEST_CASE("chunks that were lost on the way are asked for again") {
    const auto model = model_of(30 * kChunkBytes, 13);
    Stage stage;
    stage.add(1, snapshot_of(model));
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_done < 5 * kChunkBytes) stage.step();
    std::erase_if(stage.to_receiver,
                  [](const auto& item) { return std::holds_alternative<Chunk>(item.second); });
    stage.run();
    REQUIRE(stage.complete != nullptr);
    CHECK(joined(*stage.complete) == model);
    CHECK(stage.now < kStart + 15s);
  }

  TEST_CASE("an empty chunk costs a donor its turn, and only empty chunks the transfer") {
    const auto model = model_of(12 * kChunkBytes, 9);
    const auto snapshot = snapshot_of(model);
    const auto run = [&](Stage& stage) {
      stage.add(1, snapshot);
      stage.take(stage.receiver.start(stage.now, id_of(1)));
      for (int i = 0; i < 30000 && !stage.complete && stage.failed.empty(); ++i) {
        stage.step();
        // As Join does: everybody who might hold it is asked, this one too.
        if (stage.receiver.orphaned()) stage.take(stage.receiver.offer_donor(stage.now, id_of(1)));
      }
    };
    Stage readmitted;  // idle for too long, twice
    std::set<std::uint32_t> emptied{2, 3};
    readmitted.tamper = [&](Chunk& chunk, const NodeId&) {
      if (emptied.erase(chunk.index) > 0) chunk.bytes = nullptr;
    };
    run(readmitted);
    REQUIRE(readmitted.complete != nullptr);
    CHECK(joined(*readmitted.complete) == model);

    Stage empty;
    empty.tamper = [](Chunk& chunk, const NodeId&) { chunk.bytes = nullptr; };
    run(empty);
    CHECK(empty.failed == "nobody holds this snapshot any more");
    CHECK(empty.now < kStart + 20s);
    CHECK(empty.served[id_of(1)] <= 3 * TransferOptions{}.window);
  }

  TEST_CASE("a donor that takes its manifest back again and again ends the transfer") {
    StateReceiver receiver(kFingerprint, 64 << 20, {});
    const auto snapshot = snapshot_of(model_of(5 * kChunkBytes, 3));
    StateManifest manifest;
    manifest.manifest = snapshot->manifest;
    const Hash id = snapshot->manifest.id();
    TimePoint now = kStart;
    (void)receiver.start(now, id_of(1));
    bool failed = false;
    std::size_t manifests = 0;
    for (int round = 0; round < 100 && !failed; ++round) {
      now += 1s;
      if (receiver.was_asked(id_of(1))) {
        ++manifests;
        (void)receiver.on_manifest(now, id_of(1), manifest);
        (void)receiver.on_refused(now, id_of(1), {id, RefusalReason::not_held});
      }
      (void)receiver.offer_donor(now, id_of(1));
      failed = receiver.on_tick(now).failed;
    }
    CHECK(failed);
    CHECK(manifests == 3);
  }

  TEST_CASE("a manifest whose age no run can reach is refused") {
    auto manifest = snapshot_of(model_of(10, 1))->manifest;
    for (const double age : {-1.0, 1e16, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(age);
      manifest.age = age;
      CHECK(check_manifest(manifest).error().code == Errc::bad_message);
    }
    manifest.age = 1e12;
    CHECK(check_manifest(manifest).has_value());
  }

  TEST_CASE("a chunk that every donor sent wrong once is asked for once more") {
    const auto snapshot = snapshot_of(model_of(40 * kChunkBytes, 9));
    Stage stage;
    for (const std::uint64_t number : {1U, 2U}) {
      stage.add(number, snapshot);
      stage.sponsors.at(id_of(number)).hold(stage.now, snapshot);
    }
    std::set<NodeId> lied;
    stage.tamper = [&](Chunk& chunk, const NodeId& from) {
      if (chunk.index == 39 && lied.insert(from).second) chunk.bytes = share(Bytes(kChunkBytes));
    };
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    while (stage.receiver.progress(stage.now).bytes_total == 0) stage.step();
    stage.take(stage.receiver.offer_donor(stage.now, id_of(2)));
    stage.run();
    CHECK(lied.size() == 2);
    CHECK(stage.complete != nullptr);
  }

  TEST_CASE("a model of another size or of other settings is not taken") {
    Stage stage;
    stage.receiver = StateReceiver(kFingerprint, 1000, {});
    stage.add(1, snapshot_of(model_of(1001, 8)));
    stage.take(stage.receiver.start(stage.now, id_of(1)));
    stage.run();
    CHECK(!stage.failed.empty());
    CHECK(stage.offences == 1);
    Stage other;
    other.stock.fingerprint = hash_of(as_bytes("others"));
    other.add(1, snapshot_of(model_of(10, 8)));
    other.take(other.receiver.start(other.now, id_of(1)));
    other.run();
    CHECK(other.failed == "the sponsor refused: it trains other settings");
  }

  TEST_CASE("all joiners of the moment share one snapshot, and the next ones get a fresh one") {
    StateSponsor sponsor({});
    StateSponsor::Stock stock;
    stock.fingerprint = kFingerprint;
    stock.phase = RunPhase::training;
    const StateRequest any{kFingerprint, Hash{}};
    CHECK(sponsor.on_request(kStart, id_of(1), any, stock).take_snapshot);
    CHECK(!sponsor.on_request(kStart, id_of(2), any, stock).take_snapshot);
    const auto made = sponsor.on_snapshot(kStart + 1s, snapshot_of(model_of(5, 1)), stock);
    CHECK(made.send.size() == 2);
    CHECK(sponsor.load() == 2);
    CHECK(sponsor.on_request(kStart + 30s, id_of(3), any, stock).send.size() == 1);
    for (std::uint64_t i = 1; i <= 3; ++i)
      sponsor.on_done(kStart + 40s, id_of(i),
                      {std::get<StateManifest>(made.send[0].message).manifest.id()});
    CHECK(sponsor.load() == 0);
    CHECK(sponsor.on_request(kStart + 90s, id_of(4), any, stock).take_snapshot);
  }

  TEST_CASE("a snapshot of settings that were left meanwhile is given to nobody") {
    StateSponsor sponsor({});
    StateSponsor::Stock stock{
        .fingerprint = kFingerprint, .phase = RunPhase::training, .run_age_ms = 0, .counters = {}};
    CHECK(sponsor.on_request(kStart, id_of(1), {kFingerprint, Hash{}}, stock).take_snapshot);
    sponsor.drop();
    stock.fingerprint = hash_of(as_bytes("others"));
    CHECK(sponsor.on_request(kStart, id_of(2), {stock.fingerprint, Hash{}}, stock).take_snapshot);

    CHECK(sponsor.on_snapshot(kStart, snapshot_of(model_of(5, 1)), stock).send.empty());

    Snapshot wanted = *snapshot_of(model_of(5, 2));
    wanted.manifest.fingerprint = stock.fingerprint;
    // Owners: see SharedSnapshot.
    const auto made = sponsor.on_snapshot(kStart, std::make_shared<const Snapshot>(wanted), stock);
    REQUIRE(made.send.size() == 1);
    CHECK(std::get<StateManifest>(made.send[0].message).manifest == wanted.manifest);
  }

  TEST_CASE("a sponsor with enough joiners refuses more, and drops what nobody wants") {
    StateSponsor sponsor({});
    StateSponsor::Stock stock;
    stock.fingerprint = kFingerprint;
    stock.phase = RunPhase::training;
    const StateRequest any{kFingerprint, Hash{}};
    for (std::uint64_t i = 0; i < 8; ++i) (void)sponsor.on_request(kStart, id_of(i), any, stock);
    const auto refused = sponsor.on_request(kStart, id_of(9), any, stock);
    REQUIRE(refused.send.size() == 1);
    const auto& refusal = std::get<StateRefused>(refused.send[0].message);
    CHECK(refusal.reason == RefusalReason::busy);
    (void)sponsor.on_snapshot(kStart, snapshot_of(model_of(5, 1)), stock);
    CHECK(sponsor.next_deadline() != kNever);
    sponsor.on_tick(kStart + 11min);
    CHECK(sponsor.next_deadline() == kNever);
    stock.phase = RunPhase::leaving;
    const auto leaving = sponsor.on_request(kStart + 12min, id_of(1), any, stock);
    CHECK(std::get<StateRefused>(leaving.send[0].message).reason == RefusalReason::ending);
  }
}
