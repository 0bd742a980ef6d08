// How many joiners a node serves at a time.
#include "bootstrap/state_transfer.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <variant>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

// A node that holds one snapshot.
struct Donor {
  StateSponsor sponsor;
  StateSponsor::Stock stock;
  Hash held;

  explicit Donor(std::size_t chunks = 1, Duration shared = 30min)
      : sponsor(TransferOptions{.shared = shared}) {
    stock.fingerprint = hash_of(as_bytes("settings"));
    stock.phase = RunPhase::training;
    Manifest about;
    about.fingerprint = stock.fingerprint;
    const Bytes model((chunks - 1) * kChunkBytes + 10);
    // Owners: see SharedSnapshot.
    auto snapshot = std::make_shared<const Snapshot>(*cut_snapshot({model}, about));
    held = snapshot->manifest.id();
    sponsor.hold(kStart, std::move(snapshot));
  }
  // The answer to somebody who wants the rest of this very snapshot.
  BootstrapMessage ask(std::uint64_t asker) {
    const auto effects = sponsor.on_request(kStart, id_of(asker), {stock.fingerprint, held}, stock);
    REQUIRE(effects.send.size() == 1);
    return effects.send[0].message;
  }
  bool gives(std::uint64_t asker) { return std::holds_alternative<StateManifest>(ask(asker)); }
};

}  // namespace

TEST_SUITE("bootstrap/state_transfer") {
  TEST_CASE("a donor gives the rest of a snapshot to its own joiners and as many others") {
    const std::uint64_t places = 2 * TransferOptions{}.max_joiners;
    Donor donor;
    for (std::uint64_t joiner = 1; joiner <= places; ++joiner) CHECK(donor.gives(joiner));

    const auto refused = donor.ask(places + 1);
    REQUIRE(std::holds_alternative<StateRefused>(refused));
    CHECK(std::get<StateRefused>(refused) == StateRefused{donor.held, RefusalReason::busy});
    CHECK(donor.sponsor.load() == places);
    CHECK(donor.gives(1));  // has its place

    donor.sponsor.on_done(kStart, id_of(1), {donor.held});
    CHECK(donor.gives(places + 1));
  }

  TEST_CASE("to ask again and again keeps no place for whoever loads nothing") {
    Donor donor;
    const auto asks = [&](TimePoint now, std::uint64_t asker) {
      donor.sponsor.on_tick(now);
      return donor.sponsor.on_request(now, id_of(asker), {donor.stock.fingerprint, donor.held},
                                      donor.stock);
    };
    const std::uint64_t places = 2 * TransferOptions{}.max_joiners;
    for (std::uint64_t joiner = 1; joiner <= places; ++joiner) (void)asks(kStart, joiner);
    (void)donor.sponsor.on_chunk_request(kStart + 20s, id_of(1), {donor.held, 0});
    for (std::uint64_t joiner = 2; joiner <= places; ++joiner) (void)asks(kStart + 20s, joiner);
    CHECK(donor.sponsor.load() == places);

    const auto answer = asks(kStart + 31s, 99);
    CHECK(std::holds_alternative<StateManifest>(answer.send.at(0).message));
    CHECK(donor.sponsor.load() == 2);  // with the one that loads
  }

  TEST_CASE(
      "those who take a little for ever leave a place to who comes, and those who load do not") {
    struct Pace {
      Duration chunk_each;
      Duration shared;
      Duration busy_for;  // at least so long, and not much longer
    };
    // 13 KB/s; 1 Mbit/s; and so fast that all of it has come twice within 20 s.
    for (const auto& [each, shared, busy_for] :
         {Pace{20s, 30min, 1min}, Pace{2s, 5min, 5min}, Pace{100ms, 30min, 19s}}) {
      CAPTURE(each.count());
      Donor donor(100, shared);
      const auto comes = [&](TimePoint now, std::uint64_t newcomer) {
        donor.sponsor.on_tick(now);
        const auto effects = donor.sponsor.on_request(now, id_of(newcomer),
                                                      {donor.stock.fingerprint, {}}, donor.stock);
        return effects.take_snapshot ||
               !std::holds_alternative<StateRefused>(effects.send.at(0).message);
      };
      for (std::uint64_t joiner = 1; joiner <= TransferOptions{}.max_joiners; ++joiner)
        CHECK(donor.gives(joiner));
      std::optional<Duration> place_after;
      for (Duration after{0}; after < 2h && !place_after; after += each) {
        for (std::uint64_t joiner = 1; joiner <= TransferOptions{}.max_joiners; ++joiner)
          (void)donor.sponsor.on_chunk_request(kStart + after, id_of(joiner), {donor.held, 0});
        if (comes(kStart + after, 99)) place_after = after;
      }
      REQUIRE(place_after);
      CHECK(*place_after > busy_for);
      CHECK(*place_after < busy_for + 30s);
    }
  }

  TEST_CASE(
      "a joiner that had to give up its place takes none from a newcomer when it comes back") {
    Donor donor(100);
    const std::uint64_t places = TransferOptions{}.max_joiners;
    for (std::uint64_t joiner = 1; joiner <= places; ++joiner) CHECK(donor.gives(joiner));
    for (Duration after{0}; after <= 80s; after += 20s)
      for (std::uint64_t joiner = 1; joiner <= places; ++joiner)
        (void)donor.sponsor.on_chunk_request(kStart + after, id_of(joiner), {donor.held, 0});
    const auto asks = [&](std::uint64_t asker, const Hash& snapshot) {
      return donor.sponsor.on_request(kStart + 81s, id_of(asker),
                                      {donor.stock.fingerprint, snapshot}, donor.stock);
    };
    const auto newcomer = asks(99, {});
    CHECK(std::holds_alternative<StateManifest>(newcomer.send.at(0).message));
    std::size_t without = 0;
    for (std::uint64_t joiner = 1; joiner <= places; ++joiner) {
      const auto chunk =
          donor.sponsor.on_chunk_request(kStart + 81s, id_of(joiner), {donor.held, 0});
      if (std::get<Chunk>(chunk.send.at(0).message).bytes) continue;
      ++without;
      (void)asks(joiner, donor.held);
    }
    CHECK(without == 1);
    CHECK(donor.sponsor.load() <= places);
  }

  TEST_CASE("a joiner without a place at a second donor loads on from the first") {
    Donor donor;
    StateReceiver receiver(donor.stock.fingerprint, 100, {});
    (void)receiver.start(kStart, id_of(1));
    const auto manifest = std::get<StateManifest>(donor.ask(9));
    CHECK(receiver.on_manifest(kStart, id_of(1), manifest).send.size() == 1);
    (void)receiver.offer_donor(kStart, id_of(2));

    const StateRefused busy{donor.held, RefusalReason::busy};
    CHECK(!receiver.on_refused(kStart, id_of(2), busy).failed);

    const auto chunk = donor.sponsor.on_chunk_request(kStart, id_of(9), {donor.held, 0});
    const auto last =
        receiver.on_chunk(kStart, id_of(1), std::get<Chunk>(chunk.send.at(0).message));
    CHECK(last.complete != nullptr);
  }

  TEST_CASE("a joiner whose donor is gone asks once more who had no place before") {
    Donor donor;
    StateReceiver receiver(donor.stock.fingerprint, 100, {});
    (void)receiver.start(kStart, id_of(1));
    (void)receiver.on_manifest(kStart, id_of(1), std::get<StateManifest>(donor.ask(9)));
    CHECK(receiver.offer_donor(kStart, id_of(2)).send.size() == 1);
    (void)receiver.on_refused(kStart, id_of(2), {donor.held, RefusalReason::busy});
    CHECK(receiver.offer_donor(kStart, id_of(2)).send.empty());

    (void)receiver.on_session_down(kStart, id_of(1));
    CHECK(receiver.offer_donor(kStart, id_of(2)).send.size() == 1);
    (void)receiver.on_refused(kStart, id_of(2), {donor.held, RefusalReason::busy});
    CHECK(receiver.offer_donor(kStart, id_of(2)).send.empty());
  }

  TEST_CASE("who loads the rest of a snapshot takes a place that no newcomer gets") {
    Donor donor;
    for (std::uint64_t joiner = 1; joiner <= TransferOptions{}.max_joiners; ++joiner)
      CHECK(donor.gives(joiner));
    const auto newcomer =
        donor.sponsor.on_request(kStart, id_of(99), {donor.stock.fingerprint, {}}, donor.stock);
    REQUIRE(newcomer.send.size() == 1);
    CHECK(std::get<StateRefused>(newcomer.send[0].message).reason == RefusalReason::busy);
  }
}
