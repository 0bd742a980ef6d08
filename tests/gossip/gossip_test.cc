#include "gossip/gossip.h"

#include "gossip/exchange/message_codec.h"
#include "tests/gossip/virtual_swarm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

std::size_t alive_seen_by(VirtualSwarm& swarm, std::size_t node) {
  return swarm.node(node).gossip->membership().alive_count();
}

}  // namespace

TEST_SUITE("gossip/gossip") {
  TEST_CASE("four nodes train, average and end with the same bits") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed});
      swarm.connect_all();

      REQUIRE(swarm.run_until(120s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));

      CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
      CHECK(swarm.node(0).finished->certificate.participants.size() == 4);
      CHECK(swarm.distance_to_optimum(0) < 0.1);
      CHECK(swarm.run_until(60s, [&] { return swarm.node(0).may_exit && swarm.node(3).may_exit; }));
    }
  }

  TEST_CASE("a node alone ends with a certificate of one") {
    VirtualSwarm swarm({.nodes = 1, .budget_samples = 400});

    REQUIRE(swarm.run_until(60s, [&] { return swarm.node(0).finished.has_value(); }));

    CHECK(swarm.node(0).finished->certificate.participants.size() == 1);
    CHECK(swarm.run_until(60s, [&] { return swarm.node(0).may_exit; }));
  }

  TEST_CASE("averaging keeps replicas close that noise would drive apart") {
    VirtualSwarm averaging({.seed = 3, .nodes = 6, .budget_samples = 0});
    VirtualSwarm apart({.seed = 3, .nodes = 6, .budget_samples = 0});
    averaging.connect_all();

    averaging.run_for(20s);
    apart.run_for(20s);

    CAPTURE(averaging.disagreement());
    CAPTURE(apart.disagreement());
    // Every step pulls a twentieth of the way to the optimum, so replicas that never meet are not
    // far apart either.
    CHECK(averaging.disagreement() < 0.7 * apart.disagreement());
  }

  TEST_CASE("what one member claims to have processed is no progress of the swarm") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = std::uint64_t{1} << 62});
      // The others hear of it before anybody knows how fast anybody is.
      (void)swarm.node(3).gossip->on_steps(swarm.now(), {.samples = std::uint64_t{1} << 61});
      swarm.connect_all();

      swarm.run_for(20s);

      for (const std::size_t node : {0U, 1U, 2U}) {
        const std::uint64_t samples = swarm.node(node).gossip->swarm_samples(swarm.now());
        CHECK(samples > 3 * 8 * 50 * 18);
        CHECK(samples < 4 * 8 * 50 * 20 + 16 * 8 * 50 * 3);
      }
    }
  }

  TEST_CASE("a killed node is noticed by all and missing from the certificate") {
    for (std::uint64_t seed = 11; seed <= 14; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = 16'000});
      swarm.connect_all();
      swarm.run_for(3s);

      swarm.kill(2);
      const auto killed = swarm.now();
      CHECK(swarm.run_until(10s, [&] {
        return alive_seen_by(swarm, 0) == 3 && alive_seen_by(swarm, 1) == 3 &&
               alive_seen_by(swarm, 3) == 3;
      }));
      CAPTURE(seconds(swarm.now() - killed));

      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1, 3}); }));
      CHECK(results(swarm, {0, 1, 3}).size() == 1);
      CHECK(swarm.node(0).finished->certificate.participants.size() == 3);
    }
  }

  TEST_CASE("any message of a suspect is a sign of life, whatever it is about") {
    for (const bool by_exchange : {true, false}) {
      CAPTURE(by_exchange);
      VirtualSwarm swarm({.seed = 22, .budget_samples = 80'000});
      swarm.connect_all();
      std::optional<transport::Message> delta;
      const NodeId other = swarm.node(2).id();
      swarm.on_send = [&](std::size_t from, const Outgoing& outgoing) {
        if (from == 2 && outgoing.to == swarm.node(0).id() &&
            outgoing.message.room() == transport::Room::exchange)
          delta = outgoing.message;
      };
      swarm.run_for(3s);
      REQUIRE(delta.has_value());
      swarm.freeze(2);
      auto& gossip = *swarm.node(0).gossip;
      const auto state = [&] { return gossip.membership().state_of(other); };
      REQUIRE(swarm.run_until(10s, [&] { return state() == MemberState::suspect; }));

      (void)(by_exchange ? gossip.on_message(swarm.now(), other, *delta)
                         : gossip.on_heard(swarm.now(), other, Traffic::upkeep));

      CHECK(state() == MemberState::alive);
    }
  }

  TEST_CASE("a frozen node holds nobody up and comes back by itself") {
    VirtualSwarm swarm({.seed = 21, .budget_samples = 80'000});
    swarm.connect_all();
    swarm.run_for(3s);
    const auto before = swarm.node(0).gossip->mixer()->exchanges();

    swarm.freeze(1);
    swarm.run_for(20s);
    const auto meanwhile = swarm.node(0).gossip->mixer()->exchanges();
    swarm.resume(1);

    CHECK(meanwhile > before + 100);
    CHECK(swarm.run_until(30s, [&] { return alive_seen_by(swarm, 0) == 4; }));
    REQUIRE(swarm.run_until(400s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));
    CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
    CHECK(swarm.node(0).finished->certificate.participants.size() == 4);
  }

  TEST_CASE("a merge ends no session with a node of other settings") {
    VirtualSwarm swarm({.seed = 44, .nodes = 3, .budget_samples = 0, .strangers = {2}});
    swarm.connect_all();
    swarm.run_for(3s);
    std::size_t requests = 0;
    swarm.on_send = [&](std::size_t, const Outgoing& outgoing) {
      requests += outgoing.message.room() == transport::Room::consensus ? 1 : 0;
    };

    swarm.merge(0);
    swarm.run_for(5s);

    CHECK(requests > 0);
    CHECK(swarm.closed() == 0);
  }

  TEST_CASE("a member of other settings brings nobody nearer to the end") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .nodes = 3, .strangers = {2}});
      swarm.connect_all();

      REQUIRE(swarm.run_until(120s, [&] { return all_finished(swarm, {0, 1}); }));

      // What is extrapolated for the other one may be ahead of it by a report.
      const std::uint64_t own = 8 * (swarm.node(0).steps + swarm.node(1).steps);
      CHECK(own >= 4'000 - 8 * 50 * 2);
      CHECK(own <= 4'000 + 8 * 50 * 4);
      CHECK(swarm.node(0).finished->certificate.participants.size() == 2);
    }
  }

  TEST_CASE("what members of other settings have done keeps nobody from beginning") {
    VirtualSwarm swarm({.seed = 46, .nodes = 3, .strangers = {1, 2}});
    swarm.restart(0);
    swarm.connect(1, 2);
    REQUIRE(swarm.run_until(60s, [&] { return all_finished(swarm, {1, 2}); }));
    for (const std::size_t other : {1UL, 2UL}) swarm.connect(0, other);
    swarm.run_for(1s);
    REQUIRE(swarm.node(0).gossip->swarm_samples(swarm.now()) >= 4'000);

    swarm.begin(0, {});

    REQUIRE(swarm.run_until(60s, [&] { return swarm.node(0).finished.has_value(); }));
    CHECK(8 * swarm.node(0).steps >= 4'000);
  }

  TEST_CASE("whoever takes other settings counts by the run that it joins") {
    VirtualSwarm swarm({.seed = 45, .nodes = 4, .budget_samples = 0, .strangers = {0, 1}});
    swarm.connect_all();
    swarm.run_for(10s);
    const auto counted = [&](std::size_t node) {
      return static_cast<double>(swarm.node(node).gossip->swarm_samples(swarm.now()));
    };
    const double each = 8 * 50 * 10;
    CHECK(counted(3) == doctest::Approx(2 * each).epsilon(0.15));

    (void)swarm.node(3).gossip->end_averaging(swarm.now());
    CHECK(counted(3) == doctest::Approx(4 * each).epsilon(0.2));  // it knows of no run
    ModelFacts other = swarm.node(3).gossip->model();
    other.fingerprint = swarm.node(0).gossip->model().fingerprint;
    (void)swarm.node(3).gossip->begin_averaging(swarm.now(), other, {});
    CHECK(counted(3) == doctest::Approx(3 * each).epsilon(0.2));  // its own samples included
  }

  TEST_CASE("nodes that know one address each become one swarm") {
    VirtualSwarm swarm({.seed = 51, .nodes = 8, .budget_samples = 0});
    for (std::size_t i = 1; i < 8; ++i) swarm.connect(0, i);

    CHECK(swarm.run_until(20s, [&] {
      for (std::size_t i = 0; i < 8; ++i)
        if (alive_seen_by(swarm, i) != 8) return false;
      return true;
    }));
  }

  TEST_CASE("a node without a replica never takes part, even where nobody answers it") {
    VirtualSwarm swarm({.seed = 81, .nodes = 2});
    swarm.restart(0);
    swarm.restart(1);
    swarm.connect(0, 1);

    swarm.follow(0);
    swarm.run_for(30s);

    CHECK(swarm.node(0).gossip->final_consensus()->state().phase == consensus::Phase::following);
    CHECK(swarm.run_until(300s, [&] { return swarm.node(0).failed.has_value(); }));
  }

  TEST_CASE("who opens an edge says who it is") {
    VirtualSwarm swarm({.seed = 91, .nodes = 2});
    std::vector<MemberRecord> shown;
    std::vector<std::size_t> by;
    swarm.on_send = [&](std::size_t from, const Outgoing& outgoing) {
      if (outgoing.message.room() != transport::Room::exchange) return;
      const auto message = decode_exchange(outgoing.message);
      REQUIRE(message.has_value());
      if (const auto* open = std::get_if<EdgeOpen>(&*message)) {
        const auto record = parse_record(open->record);
        REQUIRE(record.has_value());
        shown.push_back(*record);
        by.push_back(from);
      }
    };
    swarm.connect_all();
    swarm.run_for(5s);

    REQUIRE_FALSE(shown.empty());
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const SimNode& proposer = swarm.node(by[i]);
      CHECK(shown[i] == proposer.gossip->membership().self());
      CHECK(shown[i].state == RecordState::alive);
    }
  }

  TEST_CASE("a node that falls behind again after it caught up is told again") {
    VirtualSwarm swarm({.seed = 111, .nodes = 2, .budget_samples = 0, .step_time = 1s});
    double ahead = 0;             // of the age that node 1 states
    std::map<Hash, Hash> offers;  // its own name of an offer by the one that node 0 got
    swarm.on_send = [&](std::size_t from, Outgoing& outgoing) {
      if (outgoing.message.room() != transport::Room::exchange) return;
      auto message = decode_exchange(outgoing.message);
      REQUIRE(message.has_value());
      const double stated = swarm.node(0).gossip->mixer()->age() + ahead;
      if (auto* busy = std::get_if<Busy>(&*message);
          busy != nullptr && offers.contains(busy->offer))
        busy->offer = offers.at(busy->offer);
      if (auto* offer = std::get_if<Offer>(&*message); offer != nullptr && from == 1 && ahead > 0) {
        const Hash own = name_of_offer(*offer);
        offer->figures.age = stated;
        offers[name_of_offer(*offer)] = own;
      }
      if (auto* answer = std::get_if<Answer>(&*message);
          answer != nullptr && from == 1 && ahead > 0)
        answer->figures.age = stated;
      outgoing.message = encode_exchange(*message);
    };
    swarm.connect_all();
    swarm.run_for(3s);
    const std::size_t& told = swarm.node(0).far_behind_told;
    CHECK(told == 0);

    ahead = 4'000;  // of which an exchange takes some hundreds
    swarm.run_for(64s);
    CHECK(told == 1);
    ahead = 1'200;  // 700 after it: between the bound and half of it nothing is new
    swarm.run_for(6s);
    CHECK_FALSE(swarm.node(0).gossip->mixer()->lag().far_behind);
    ahead = 4'000;
    swarm.run_for(6s);
    CHECK(swarm.node(0).gossip->mixer()->lag().far_behind);
    CHECK(told == 1);
    ahead = 0;
    swarm.run_for(10s);
    CHECK(swarm.node(0).gossip->mixer()->lag().caught_up);
    ahead = 4'000;
    swarm.run_for(6s);

    CHECK(told == 2);
  }

  TEST_CASE("the degree of the settings decides how many neighbours a node has") {
    for (const std::uint32_t degree : {2U, 6U}) {
      CAPTURE(degree);
      VirtualSwarm swarm({.seed = 101, .nodes = 10, .budget_samples = 0, .degree = degree});
      swarm.connect_all();
      swarm.run_for(10s);
      for (std::size_t i = 0; i < swarm.size(); ++i) {
        const auto wanted = swarm.node(i).gossip->membership().neighbours().size();
        CHECK(wanted <= degree);
        CHECK(wanted >= 2);
        const auto views = swarm.node(i).gossip->mixer()->neighbours();
        const auto open = std::ranges::count_if(
            views, [](const NeighbourView& view) { return view.state == EdgeState::open; });
        CHECK(open >= 2);
        CHECK(open <= degree + 2);
      }
    }
  }

  TEST_CASE("a neighbour whose deltas do not decode is dropped after three, the others go on") {
    VirtualSwarm swarm({.seed = 71, .nodes = 5, .budget_samples = 0});
    constexpr std::size_t kLiar = 4;
    swarm.connect_all();
    swarm.run_for(5s);
    const auto exchange = [](std::size_t number, const Outgoing& outgoing) {
      return number == kLiar && outgoing.message.room() == transport::Room::exchange &&
             outgoing.message.attachment != nullptr;
    };
    swarm.on_send = [&](std::size_t from, Outgoing& outgoing) {
      if (!exchange(from, outgoing)) return;
      Bytes poison = *outgoing.message.attachment;
      poison.resize(poison.size() - 1);
      outgoing.message.attachment = share(std::move(poison));
    };
    swarm.run_for(40s);

    const NodeId liar = swarm.node(kLiar).id();
    for (std::size_t i = 0; i < kLiar; ++i) {
      CAPTURE(i);
      for (const auto& view : swarm.node(i).gossip->mixer()->neighbours()) {
        if (view.peer == liar) {
          CHECK(view.refused == 3);
          CHECK(view.refused_why != "");
          CHECK(view.drops == 1);
          CHECK(view.state == EdgeState::closed);
          CHECK(view.closed_until > swarm.now());
        } else if (view.state == EdgeState::open) {
          CHECK(view.refused == 0);
          CHECK(swarm.now() - *view.last_exchange < 2s);
        }
      }
      for (const float x : swarm.node(i).master.parameters) REQUIRE(std::isfinite(x));
      // What it did on its edges says nothing about whether it lives.
      CHECK(swarm.node(i).gossip->membership().state_of(liar) == MemberState::alive);
    }
  }

  TEST_CASE("bytes that are no message end the session they came on and nothing else") {
    VirtualSwarm swarm({.seed = 61, .nodes = 2});
    swarm.connect_all();
    swarm.run_for(1s);
    transport::Message broken{.type = 0x0203, .body = Bytes(40), .attachment = nullptr};

    const auto effects = swarm.node(0).gossip->on_message(swarm.now(), swarm.node(1).id(), broken);

    REQUIRE(effects.size() == 1);
    CHECK(std::holds_alternative<CloseSession>(effects.front()));
  }
}
