// From a dial to a session: connecting, the handshake in outline, and the decision which of two
// connections stays (the real one).
#include "tests/sim/sessions.h"

#include <utility>

namespace starling::sim {

namespace limits = transport::limits;
using transport::Candidate;
using transport::Decision;
using transport::Direction;
using transport::End;
using transport::Leave;

namespace {

// The waits before SYN, or a segment of a handshake, is sent again.
constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr int kTries = 6;
// A probe may find that the session that it asked was replaced meanwhile.
constexpr int kDecisions = 3;

}  // namespace

// Runs `action` in the process of `to` when a segment from `from` has got there.
void Sessions::hop(Host from, Host to, int tries, std::uint64_t process, Action action) {
  if (wire_.passes(from, to)) {
    schedule_.after(wire_.travel(from, to),
                    [&hosts = hosts_, to, process, action = std::move(action)]() mutable {
                      hosts.run(to, process, std::move(action));
                    });
    return;
  }
  if (tries == 0) return;
  // The sending process may be gone by then: its kernel goes on for a while, we do not.
  schedule_.after(kFirstRetry, [&hosts = hosts_, process = self_.process, host = self_.host, this,
                                from, to, tries, other = process,
                                action = std::move(action)]() mutable {
    hosts.run(host, process, [this, from, to, tries, other, action = std::move(action)]() mutable {
      hop(from, to, tries - 1, other, std::move(action));
    });
  });
}

void Sessions::dial(const transport::DialTarget& target) {
  const std::uint64_t attempt = ++numbers_;
  attempts_.emplace(attempt, Attempt{target, 0, now(), false});
  const auto fails = [&](Duration delay, Errc code, const char* detail) {
    schedule_.after(delay, [&hosts = hosts_, host = self_.host, process = self_.process, this,
                            attempt, why = Error{code, Doing::connecting, detail}] {
      hosts.run(host, process, [this, attempt, why] { fail_dial(attempt, why); });
    });
  };
  if (pending_dials_ >= limits::kMaxPendingDials)
    return fails(Duration(1), Errc::too_many, "too many dials are under way");
  const auto to = hosts_.find(target.endpoint);
  if (!to) return fails(std::chrono::milliseconds(3), Errc::connect_failed, "no route");
  if (*to == self_.host)
    return fails(std::chrono::milliseconds(1), Errc::already_exists, "this node itself");
  ++pending_dials_;
  attempts_.at(attempt).to = *to;
  attempts_.at(attempt).dialling = true;
  syn(attempt, kFirstRetry);
}

void Sessions::syn(std::uint64_t number, Duration patience) {
  const auto at = attempts_.find(number);
  if (at == attempts_.end()) return;
  const Host to = at->second.to;
  if (now() - at->second.began >= limits::kConnectDeadline)
    return fail_dial(number, {Errc::timed_out, Doing::connecting, "no answer"});
  const auto here = [this](auto&& then) {
    return [&hosts = hosts_, host = self_.host, process = self_.process,
            then = std::forward<decltype(then)>(then)]() mutable {
      hosts.run(host, process, std::move(then));
    };
  };
  const bool through =
      hosts_.is_dialable(to) && wire_.passes(self_.host, to) && wire_.passes(to, self_.host);
  if (!through) {
    schedule_.after(patience, here([this, number, patience] { syn(number, 2 * patience); }));
    return;
  }
  const Duration there = wire_.travel(self_.host, to);
  const Duration back = wire_.travel(to, self_.host);
  schedule_.after(there, [this, &hosts = hosts_, &schedule = schedule_, to, back, number,
                          host = self_.host, process = self_.process] {
    const bool listens = hosts.process(to) != nullptr;
    schedule.after(back, [this, &hosts, number, listens, host, process] {
      hosts.run(host, process, [this, number, listens] {
        if (listens) return shake_hands(number);
        fail_dial(number, {Errc::connect_refused, Doing::connecting, "nobody listens"});
      });
    });
  });
}

void Sessions::fail_dial(std::uint64_t number, const Error& why) {
  const auto at = attempts_.find(number);
  if (at == attempts_.end()) return;
  const auto target = at->second.target;
  if (at->second.dialling) --pending_dials_;
  attempts_.erase(at);
  if (!stopping_) shell_.on_dial_failed(target.endpoint, why);
}

// Message 1 goes there and comes back as message 2: what it costs to know who answers.
void Sessions::shake_hands(std::uint64_t number) {
  const auto at = attempts_.find(number);
  if (at == attempts_.end()) return;
  Sessions* peer = hosts_.process(at->second.to);
  if (peer == nullptr)
    return fail_dial(number, {Errc::closed, Doing::handshaking, "closed without a reply"});
  schedule_.after(limits::kHandshakeDeadline,
                  [this, &hosts = hosts_, number, host = self_.host, process = self_.process] {
                    hosts.run(host, process, [this, number] {
                      const auto late = attempts_.find(number);
                      if (late != attempts_.end() && late->second.dialling)
                        fail_dial(number, {Errc::timed_out, Doing::handshaking, "no answer"});
                    });
                  });
  const ProcessIdentity them = peer->identity();
  hop(self_.host, them.host, kTries, them.process, [peer, me = self_, number, them] {
    peer->hop(them.host, me.host, kTries, me.process, [number, them, &hosts = peer->hosts_, me] {
      if (Sessions* dialler = hosts.process(me.host)) dialler->on_hello(number, them);
    });
  });
}

void Sessions::on_hello(std::uint64_t number, const ProcessIdentity& peer) {
  const auto at = attempts_.find(number);
  if (at == attempts_.end()) return;
  if (at->second.target.pin && *at->second.target.pin != peer.id)
    return fail_dial(number, {Errc::wrong_identity, Doing::handshaking, "another identity"});
  if (at->second.dialling) --pending_dials_;
  at->second.dialling = false;
  if (has_session(peer.id)) {  // the dial has its purpose
    const auto target = at->second.target;
    attempts_.erase(at);
    if (!stopping_) shell_.on_dial_met(target.endpoint, peer.id);
    return;
  }
  table_.begin_dial(peer.id);
  Knock knock;
  knock.candidate.peer = self_.id;
  knock.candidate.instance = self_.instance;
  knock.from = self_;
  knock.attempt = number;
  hop(self_.host, peer.host, kTries, peer.process, [&hosts = hosts_, host = peer.host, knock] {
    Sessions* listener = hosts.process(host);
    if (listener == nullptr) return;
    const std::uint64_t id = ++listener->numbers_;
    listener->knocks_.emplace(id, knock);
    listener->on_knock(id);
  });
  // The session that waits for its welcome has a deadline of its own.
  schedule_.after(limits::kHandshakeDeadline, [this, &hosts = hosts_, number, peer,
                                               host = self_.host, process = self_.process] {
    hosts.run(host, process, [this, number, peer] {
      if (!attempts_.contains(number)) return;
      for (const auto& [id, session] : sessions_)
        if (session->attempt == number && !session->welcomed) return;
      table_.end_dial(peer.id);
      fail_dial(number, {Errc::timed_out, Doing::handshaking, "no welcome"});
    });
  });
}

// ---- the side that was dialled

void Sessions::on_knock(std::uint64_t number) {
  decide(number, table_.decide(now(), knocks_.at(number).candidate));
}

void Sessions::decide(std::uint64_t number, transport::DecisionWithReason decision) {
  Knock& knock = knocks_.at(number);
  if (decision.decision == Decision::probe) {
    if (++knock.decisions > kDecisions)
      return admit_session(
          number, Error{Errc::too_many, Doing::handshaking, "too many connections at once"});
    return probe(number);
  }
  if (stopping_)
    return admit_session(number, Error{Errc::closed, Doing::handshaking, "the node stops"});
  if (decision.decision == Decision::refuse) return admit_session(number, std::move(decision.why));
  admit_session(number, std::nullopt);
}

void Sessions::probe(std::uint64_t number) {
  const auto current = current_.find(knocks_.at(number).candidate.peer);
  if (current == current_.end()) return on_probed(number, false);
  Session& asked = *sessions_.at(current->second);
  asked.probes.push_back(number);
  asked.channel.ping(0);
  pump(asked);
  schedule_.after(limits::kDuplicateProbe,
                  [&hosts = hosts_, host = self_.host, process = self_.process, this, number] {
                    hosts.run(host, process, [this, number] { on_probed(number, false); });
                  });
}

void Sessions::on_probed(std::uint64_t number, bool answered) {
  const auto at = knocks_.find(number);
  if (at == knocks_.end()) return;
  for (auto& [id, session] : sessions_) std::erase(session->probes, number);
  at->second.candidate.probe = answered ? Candidate::Probe::answered : Candidate::Probe::silent;
  decide(number, table_.decide(now(), at->second.candidate));
}

// Both ends get their session; the one that was dialled accepts or says why not.
void Sessions::admit_session(std::uint64_t number, std::optional<Error> refusal) {
  const Knock knock = std::move(knocks_.extract(number).mapped());
  Sessions* dialler = hosts_.process(knock.from.host);
  if (dialler == nullptr || dialler->identity().process != knock.from.process) return;
  const auto attempt = dialler->attempts_.find(knock.attempt);
  if (attempt == dialler->attempts_.end()) return;  // it gave up
  const auto hear_as = [&hosts = hosts_](const ProcessIdentity& who) -> Hear {
    return [&hosts, who](ConnectionId id, WireEvent event) {
      hosts.run(who.host, who.process, [&hosts, who, id, event = std::move(event)]() mutable {
        hosts.process(who.host)->hear(id, std::move(event));
      });
    };
  };
  const ConnectionId id =
      wire_.connect(knock.from.host, self_.host, hear_as(knock.from), hear_as(self_));
  transport::SessionInfo theirs;
  theirs.peer = self_.id;
  theirs.instance = self_.instance;
  theirs.remote = attempt->second.target.endpoint;
  theirs.direction = Direction::dialled;
  Session& dialled = dialler->add_session(id, std::move(theirs), End::initiator);
  dialled.attempt = knock.attempt;
  transport::SessionInfo info;
  info.peer = knock.from.id;
  info.instance = knock.from.instance;
  info.remote = knock.from.endpoint;
  info.direction = Direction::accepted;
  Session& accepted = add_session(id, std::move(info), End::responder);
  if (refusal) {
    begin_close(accepted, *refusal, Leave::at_once);
    return;
  }
  accepted.channel.say_welcome();
  install(accepted);
  if (Session* still = find(id)) pump(*still);
}

// The peer keeps another connection between us, which may still be in its handshake.
void Sessions::await_other_session(std::uint64_t number, const Error& why) {
  schedule_.after(limits::kSimultaneousDial,
                  [&hosts = hosts_, host = self_.host, process = self_.process, this, number, why] {
                    hosts.run(host, process, [this, number, why] {
                      const auto at = attempts_.find(number);
                      if (at == attempts_.end()) return;
                      // Whoever answered at that address is the peer of the refused session.
                      const auto to = hosts_.find(at->second.target.endpoint);
                      Sessions* peer = to ? hosts_.process(*to) : nullptr;
                      if (peer != nullptr && has_session(peer->identity().id))
                        attempts_.erase(at);
                      else
                        fail_dial(number, why);
                    });
                  });
}

}  // namespace starling::sim
