// When to give up on a member: deadlines learned from its answers, and how long a suspicion lasts.
//
// Four small pieces that Membership puts together: AnswerDeadline (how long one answer may take),
// LocalHealth (how far this node trusts its own judgement), HeartbeatWatch (one session) and
// suspicion_time (from `suspect` to `dead`). All pure: time comes in, verdicts go out.
#pragma once

#include "node/base/clock.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace starling::gossip {

struct DetectorOptions {
  // How long a session in use may be quiet before a heartbeat asks, and the least between two.
  // Raising it delays every detection by as much.
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  // The same where nothing but heartbeats went over a session since: its peers notice a silence at
  // moments that are spread over this time, and whoever is alone with it waits longer. A heartbeat,
  // its answer and the acknowledgement of TCP are 320 bytes on the line.
  Duration idle_interval = std::chrono::milliseconds(1000);
  // Whoever was answered waits this much longer: the next heartbeat is the other side's. Without
  // it both would ask at once, for ever.
  Duration others_turn = std::chrono::milliseconds(100);
  // A peer that says much is asked this often all the same, to measure the round trip.
  Duration measure_interval = std::chrono::seconds(5);
  // Below this a hiccup of the observer would look like a dead peer.
  Duration min_deadline = std::chrono::milliseconds(300);
  // Before the first answer, and the most that a slow peer can make us wait.
  Duration max_deadline = std::chrono::seconds(8);
  // Deviations above the smoothed round trip (RFC 6298 has the same figure).
  std::int32_t deviations = 4;
  // How long the members asked for an indirect probe have, at least.
  Duration min_indirect = std::chrono::milliseconds(500);
  // A suspicion lasts between these two; independent accusers shorten it.
  Duration min_suspicion = std::chrono::milliseconds(1500);
  Duration max_suspicion = std::chrono::seconds(6);
  // A tick that comes this much too late says that this node did not run: it doubts itself.
  Duration late_tick = std::chrono::milliseconds(400);
};

// How long to wait for the next answer of one peer: smoothed round trip + deviations * mean
// deviation, within [min, max].
//
// Source:  Jacobson & Karels 1988, "Congestion Avoidance and Control", appendix A (gains 1/8, 1/4).
class AnswerDeadline {
 public:
  explicit AnswerDeadline(const DetectorOptions& options) : options_(options) {}

  void on_answer(Duration round_trip);
  [[nodiscard]] Duration wait() const;
  // Smoothed; zero before the first answer.
  [[nodiscard]] Duration round_trip() const { return smoothed_; }

 private:
  DetectorOptions options_;
  Duration smoothed_{0};
  Duration deviation_{0};
  std::int64_t answers_ = 0;
};

// How far this node trusts its own clock and network: 0 (healthy) to 8. Every deadline and
// suspicion of ours is multiplied by 1 + score, so a starved node accuses late and rarely.
//
// Source:  Dadgar, Phillips & Currey 2018, "Lifeguard: Local Health Awareness for More Accurate
//          Failure Detection". Differs: late ticks of our own count, since a starved process
//          notices those first.
class LocalHealth {
 public:
  static constexpr std::int32_t kMax = 8;

  void on_late_tick() { add(2); }
  void on_refuted_accusation() { add(1); }  // somebody we accused was there after all
  void on_accused() { add(1); }             // others do not hear us
  // Called once for each interval that passed on time with an answer.
  void on_good_interval();

  [[nodiscard]] std::int32_t score() const { return score_; }
  [[nodiscard]] Duration stretch(Duration duration) const { return duration * (1 + score_); }

 private:
  void add(std::int32_t points);

  std::int32_t score_ = 0;
  std::int32_t good_ = 0;
};

// From the first `suspect` to `dead`: starts at the maximum and falls with every further accuser.
//
// Rule:    max - (max - min) * log(accusers) / log(quorum + 1), never below min. With a quorum of 1
//          nobody can confirm: the geometric mean of both bounds.
// Source:  Lifeguard, section IV-B ("dynamic suspicion timeouts").
[[nodiscard]] Duration suspicion_time(std::size_t accusers, std::size_t quorum,
                                      const DetectorOptions& options);

// Accusers that `dead` takes in a swarm of `members`: max(1, min(3, members - 2)).
[[nodiscard]] std::size_t death_quorum(std::size_t members);

// What is known of one session from its heartbeats.
//
// | state     | heartbeat due | answer in time | deadline passes       | late own tick     |
// |-----------|---------------|----------------|-----------------------|-------------------|
// | answering | send          | learn          | -> silent             | restart deadlines |
// | silent    | send          | -> answering   | stays                 | -> answering      |
//
// Whatever the peer says puts the next heartbeat off: it answers the question already. For longer
// where it says no more than that it is there.
class HeartbeatWatch {
 public:
  HeartbeatWatch(TimePoint now, const DetectorOptions& options);

  // The sequence number to send, when a heartbeat is due.
  [[nodiscard]] std::optional<std::uint64_t> take_due(TimePoint now);
  // The number of a heartbeat that goes out now, due or not.
  [[nodiscard]] std::uint64_t send_now(TimePoint now);
  // A heartbeat of the peer came: after on_heard().
  void on_asked(TimePoint now);
  // Learns from an answer; unknown numbers (a liar's, or answered already) change nothing.
  void on_answer(TimePoint now, std::uint64_t seq);
  // Anything that arrived proves that the other side runs.
  void on_heard(TimePoint now);
  // Forgets outstanding heartbeats: nobody can answer a node that did not run.
  void forgive(TimePoint now);

  // Whether the oldest unanswered heartbeat is past its deadline, stretched by local health.
  [[nodiscard]] bool silent(TimePoint now, const LocalHealth& health) const;
  // When silent() may change next, or the next heartbeat is due.
  [[nodiscard]] TimePoint next_deadline(const LocalHealth& health) const;
  // When the next heartbeat is due: all that is left to wait for once silent() is true.
  [[nodiscard]] TimePoint next_heartbeat() const;
  [[nodiscard]] Duration round_trip() const { return deadline_.round_trip(); }
  [[nodiscard]] TimePoint last_heard() const { return last_heard_; }

 private:
  struct Outstanding {
    std::uint64_t seq;
    TimePoint sent;
  };
  static constexpr std::size_t kMaxOutstanding = 64;

  DetectorOptions options_;
  AnswerDeadline deadline_;
  std::deque<Outstanding> outstanding_;
  std::uint64_t next_seq_ = 1;
  TimePoint earliest_;     // the next heartbeat goes out no earlier,
  TimePoint quiet_until_;  // nor before the peer was quiet for this long,
  TimePoint measure_at_;   // but now at the latest
  TimePoint last_heard_;
};

}  // namespace starling::gossip
