// Two ends of one edge with made-up codec outcomes, for walking the table of states step by step.
#pragma once

#include "gossip/exchange/edge.h"
#include "node/base/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::gossip {

inline NodeId node_named(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

// What a codec job that came to nothing returns.
inline std::unexpected<Error> failed_job(Errc code) {
  return fail(code, Doing::reading_delta, "made up");
}

inline SharedBytes some_bytes(std::string_view text) { return share(to_bytes(as_bytes(text))); }

// One end: the edge, what it returned and has not been carried out, and its codec.
struct End {
  End(NodeId self, NodeId peer, EdgeOptions options = {})
      : edge(self, peer, with_blocks(options)) {}

  static EdgeOptions with_blocks(EdgeOptions options) {
    options.blocks = 3;
    return options;
  }

  // Does something with the edge at the end's present time.
  template <class Act>
  void act(Act&& happen) {
    Turn turn{now, node, out};
    happen(turn);
  }
  void receive(ExchangeMessage message, const Admission& admission = {}) {
    act([&](Turn& turn) { edge.receive(turn, std::move(message), admission); });
  }
  void session_up(std::uint64_t instance) {
    act([&](Turn& turn) { edge.session_up(turn, {instance}); });
  }
  void session_down() {
    act([&](Turn& turn) { edge.session_down(turn); });
  }
  void open() {
    act([&](Turn& turn) { edge.open(turn); });
  }
  void close(CloseReason reason) {
    act([&](Turn& turn) { edge.close(turn, reason); });
  }
  // The session could not deliver a message of this end.
  void refused(const ExchangeMessage& message) {
    act([&](Turn& turn) { edge.refused(turn, message); });
  }
  void offer(Purpose purpose = Purpose::regular) {
    act([&](Turn& turn) { edge.offer(turn, {.level = Level::l2, .purpose = purpose}); });
  }
  void tick(Duration later) {
    now += later;
    act([&](Turn& turn) { edge.tick(turn); });
  }

  [[nodiscard]] bool has_job() const { return !out.jobs.empty(); }
  // The oldest job, which must be a Job.
  template <class Job>
  [[nodiscard]] const Job* job() const {
    return out.jobs.empty() ? nullptr : std::get_if<Job>(&out.jobs.front());
  }
  // Carries out the oldest job as a codec would, or fails it.
  void finish_job() { finish_job(done_by_codec(out.jobs.front())); }
  void finish_job(Result<CodecDone> result) {
    out.jobs.erase(out.jobs.begin());
    act([&](Turn& turn) { edge.job_done(turn, CodecOutcome{edge.ends(), std::move(result)}); });
  }
  void finish_jobs() {
    while (has_job()) finish_job();
  }

  // Takes the only message that was sent, which must be a Message.
  template <class Message>
  [[nodiscard]] std::optional<Message> take() {
    if (out.send.empty()) return std::nullopt;
    auto* message = std::get_if<Message>(&out.send.front().message);
    if (message == nullptr) return std::nullopt;
    Message taken = std::move(*message);
    out.send.erase(out.send.begin());
    return taken;
  }
  template <class Event>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(
        std::count_if(out.events.begin(), out.events.end(),
                      [](const auto& event) { return std::holds_alternative<Event>(event); }));
  }
  template <class Event>
  [[nodiscard]] const Event* last() const {
    const Event* found = nullptr;
    for (const auto& event : out.events)
      if (const auto* one = std::get_if<Event>(&event)) found = one;
    return found;
  }

  // What a codec would answer: references and chains as hashes, one byte payloads.
  CodecDone done_by_codec(const CodecJob& work) {
    if (std::holds_alternative<GenesisJob>(work))
      return ReferenceSet{hash_of(as_bytes("genesis")), nullptr};
    if (std::holds_alternative<SnapshotJob>(work))
      return ReferenceSet{hash_of(as_bytes("snapshot")), some_bytes("snapshot")};
    if (const auto* install = std::get_if<InstallJob>(&work))
      return ReferenceSet{install->expected, nullptr};
    if (const auto* made = std::get_if<OfferJob>(&work))
      return OfferDone{{made->level, made->statistics, some_bytes("q")},
                       {made->spot_block, hash_of(as_bytes("spot"))},
                       {}};
    if (const auto* answered = std::get_if<AnswerJob>(&work))
      return ExchangeDone{{answered->own_level, answered->theirs.statistics, some_bytes("a")},
                          next(answered->terms.chain),
                          norm,
                          scale,
                          {},
                          channels_clipped};
    if (const auto* applied = std::get_if<ApplyJob>(&work))
      return ExchangeDone{{}, next(applied->terms.chain), norm, scale, {}, channels_clipped};
    return ReferenceDropped{};
  }
  static Hash next(const Hash& chain) { return hash_of(chain.view()); }

  Edge edge;
  NodeFigures node;
  ExchangeEffects out;
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  float norm = 1;
  float scale = 1;
  std::size_t channels_clipped = 0;
};

// The two ends of an edge between node 1 (lower) and node 2 (higher).
struct Pair {
  explicit Pair(EdgeOptions options = {})
      : low(node_named(1), node_named(2), options), high(node_named(2), node_named(1), options) {}

  void connect() {
    low.session_up(22);
    high.session_up(11);
  }
  void disconnect() {
    low.session_down();
    high.session_down();
  }
  // Carries jobs and messages until nothing is left to do.
  void run() {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto [from, to] : {std::pair{&low, &high}, std::pair{&high, &low}}) {
        busy = busy || from->has_job() || !from->out.send.empty();
        from->finish_jobs();
        auto messages = std::exchange(from->out.send, {});
        for (auto& each : messages) to->receive(std::move(each.message));
      }
    }
  }
  // An open edge at the genesis, events forgotten.
  void open() {
    connect();
    low.open();
    run();
    low.out.events.clear();
    high.out.events.clear();
  }

  End low;
  End high;
};

// Makes an end offer; the encoded offer is taken from its effects.
inline Offer offer_from(End& end) {
  end.offer();
  end.finish_job();
  auto offer = end.take<Offer>();
  REQUIRE(offer.has_value());
  return std::move(*offer);
}

// Gives an end an offer; its answer is taken from its effects.
inline Answer answer_from(End& end, const Offer& offer) {
  end.receive(offer);
  end.finish_job();
  auto answer = end.take<Answer>();
  REQUIRE(answer.has_value());
  return std::move(*answer);
}

}  // namespace starling::gossip
