// Which edges a whole node keeps: in a large swarm, and where it or its neighbour averages no more.
#include "gossip/exchange/message_codec.h"
#include "gossip/gossip.h"
#include "gossip/membership/message_codec.h"
#include "tests/gossip/virtual_swarm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>

namespace starling::gossip::testing {
namespace {

using namespace std::chrono_literals;

const EdgeClose* closing_in(const ExchangeMessage& message) {
  return std::get_if<EdgeClose>(&message);
}

TEST_SUITE("gossip/gossip_edges") {
  TEST_CASE("in a swarm of 70 a node has room for two edges beside the six of its topology") {
    VirtualSwarm swarm({.seed = 131, .nodes = 70, .parameters = 64, .budget_samples = 0});
    Gossip& gossip = *swarm.node(0).gossip;
    for (std::size_t i = 1; i < swarm.size(); ++i) {
      const NodeId peer = swarm.node(i).id();
      Facts facts;
      facts.records.push_back({swarm.node(i).gossip->membership().self(), 0});
      (void)gossip.on_session_up(swarm.now(), peer, swarm.node(i).instance);
      (void)gossip.on_message(swarm.now(), peer, encode(facts));
      (void)gossip.on_same_settings(swarm.now(), peer);
    }
    REQUIRE(gossip.membership().neighbours().size() == 6);

    const auto open_from = [&](const NodeId& peer) {
      EdgeOpen open;
      open.generation = {100};
      (void)gossip.on_message(swarm.now(), peer, encode_exchange(open));
    };
    for (const NodeId& peer : gossip.membership().neighbours()) open_from(peer);
    for (std::size_t i = 1; i < swarm.size(); ++i) open_from(swarm.node(i).id());

    const auto views = gossip.mixer()->neighbours();
    const auto taken = [&](bool wanted) {
      return std::ranges::count_if(views, [wanted](const NeighbourView& view) {
        return view.wanted == wanted && view.state != EdgeState::closed;
      });
    };
    CHECK(taken(true) == 6);
    CHECK(taken(false) == 2);
  }

  TEST_CASE("who takes other settings tells its neighbours that their edges are over") {
    VirtualSwarm swarm({.seed = 133, .nodes = 3, .budget_samples = 0});
    swarm.connect_all();
    swarm.run_for(5s);
    std::map<NodeId, CloseReason> told;

    for (const auto& effect : swarm.node(0).gossip->end_averaging(swarm.now())) {
      CHECK_FALSE(std::holds_alternative<CodecJob>(effect));  // nobody waits for an outcome
      const auto* outgoing = std::get_if<Outgoing>(&effect);
      if (outgoing == nullptr || outgoing->message.room() != transport::Room::exchange) continue;
      const auto message = decode_exchange(outgoing->message);
      REQUIRE(message.has_value());
      REQUIRE(closing_in(*message) != nullptr);
      told[outgoing->to] = closing_in(*message)->reason;
    }

    CHECK(told == std::map<NodeId, CloseReason>{{swarm.node(1).id(), CloseReason::not_wanted},
                                                {swarm.node(2).id(), CloseReason::not_wanted}});
  }

  TEST_CASE("who opens an edge with a node that averages no more hears so at once") {
    VirtualSwarm swarm({.seed = 137, .nodes = 2, .budget_samples = 0});
    swarm.connect_all();
    swarm.run_for(5s);
    Gossip& gossip = *swarm.node(0).gossip;
    const NodeId peer = swarm.node(1).id();
    const auto told = [&](const ExchangeMessage& message) -> std::optional<EdgeClose> {
      for (const auto& effect : gossip.on_message(swarm.now(), peer, encode_exchange(message))) {
        const auto* outgoing = std::get_if<Outgoing>(&effect);
        if (outgoing == nullptr || outgoing->message.room() != transport::Room::exchange) continue;
        const auto answer = decode_exchange(outgoing->message);
        REQUIRE(answer.has_value());
        REQUIRE(closing_in(*answer) != nullptr);
        return *closing_in(*answer);
      }
      return std::nullopt;
    };
    EdgeOpen open;
    open.generation = {7};
    Resume resume;
    resume.generation = {8};
    EdgeOpenAck ack;
    ack.generation = {9};
    const auto check = [&] {
      REQUIRE(told(open).has_value());
      CHECK(told(open)->generation == open.generation);
      CHECK(told(open)->reason == CloseReason::not_wanted);
      REQUIRE(told(resume).has_value());
      CHECK(told(resume)->generation == resume.generation);
      CHECK_FALSE(told(ack).has_value());
      CHECK_FALSE(told(EdgeClose{{10}, CloseReason::not_wanted}).has_value());
    };

    const ModelFacts facts = gossip.model();
    (void)gossip.end_averaging(swarm.now());
    check();
    // Built again: of the peer's settings nothing is known yet.
    (void)gossip.begin_averaging(swarm.now(), facts, {});
    check();
  }
}

}  // namespace
}  // namespace starling::gossip::testing
