// One mixer at the bench: the test plays its peers, its codec and its trainer.
#pragma once

#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace starling::gossip {

// One mixer against peers that the test plays; jobs are done by a made-up codec.
struct Bench {
  explicit Bench(const MixerOptions& options = {}, std::uint8_t self = 10)
      : mixer(node_named(self), options, 3, Rng(1)), codec(node_named(self), node_named(99)) {}

  void take(ExchangeEffects effects) {
    for (auto& each : effects.send) sent.push_back(std::move(each));
    for (auto& each : effects.jobs) jobs.push_back(std::move(each));
    for (auto& each : effects.events) events.push_back(std::move(each));
  }
  void finish_jobs() {
    while (!jobs.empty()) {
      const CodecJob job = jobs.front();
      jobs.erase(jobs.begin());
      const auto ends = std::visit(
          [](const auto& one) {
            if constexpr (requires { one.terms; }) {
              return one.terms.edge;
            } else {
              return one.edge;
            }
          },
          job);
      take(mixer.on_job_done(now, {ends, codec.done_by_codec(job), job_cost}));
    }
  }
  void message(std::uint8_t from, ExchangeMessage message) {
    take(mixer.on_message(now, node_named(from), std::move(message)));
  }
  // The last message of this kind to a peer.
  template <class Message>
  const Message* to(std::uint8_t peer) const {
    const Message* found = nullptr;
    for (const auto& each : sent)
      if (each.to == node_named(peer))
        if (const auto* one = std::get_if<Message>(&each.message)) found = one;
    return found;
  }
  template <class Message>
  std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(sent.begin(), sent.end(), [](const auto& each) {
      return std::holds_alternative<Message>(each.message);
    }));
  }
  // An open edge with a peer of a higher id: this end proposes.
  void open(std::uint8_t peer) {
    wanted.push_back(node_named(peer));
    take(mixer.on_neighbours(now, wanted));
    take(mixer.on_session_up(now, node_named(peer), {peer}));
    finish_jobs();
    const auto* proposal = to<EdgeOpen>(peer);
    REQUIRE(proposal != nullptr);
    message(peer, EdgeOpenAck{proposal->generation, proposal->reference, age});
    REQUIRE(mixer.find_edge(node_named(peer))->state() == EdgeState::open);
  }
  // An edge that a peer opens although nobody here asked for it.
  void accept(std::uint8_t peer, Generation generation = {1}) {
    take(mixer.on_session_up(now, node_named(peer), {peer}));
    EdgeOpen proposal;
    proposal.generation = generation;
    proposal.reference = hash_of(as_bytes("genesis"));
    message(peer, proposal);
    finish_jobs();
  }
  void steps(std::uint64_t count) {
    training.steps += count;
    training.samples += 32 * count;
    training.step_time = step_time;
    now += count * training.step_time;
    take(mixer.on_steps(now, training));
  }
  // Lets the peer answer the offer that it got.
  void answer(std::uint8_t peer) {
    const Offer* offer = to<Offer>(peer);
    REQUIRE(offer != nullptr);
    Answer reply{offer->generation,
                 offer->seq,
                 offer->chain8,
                 {64},
                 {},
                 {Level::l2, offer->payload.statistics, some_bytes("a")}};
    reply.figures.age = age;
    message(peer, reply);
    finish_jobs();
  }
  // The peer to which an own offer is out; 0: none.
  [[nodiscard]] std::uint8_t offered_to() const {
    for (const std::uint8_t peer :
         std::initializer_list<std::uint8_t>{20, 21, 22, 23, 24, 25, 26, 27, 28})
      if (const Edge* edge = mixer.find_edge(node_named(peer)))
        if (edge->blocks_node()) return peer;
    return 0;
  }

  Mixer mixer;
  End codec;
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  TrainingState training;
  double age = 0;
  Duration job_cost{};
  Duration step_time = std::chrono::milliseconds(100);
  std::vector<NodeId> wanted;
  std::vector<OutgoingExchange> sent;
  std::vector<CodecJob> jobs;
  std::vector<ExchangeEvent> events;
};

}  // namespace starling::gossip
