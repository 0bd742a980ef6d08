#include "node/access/spread.h"

#include "transport/message.h"

#include <algorithm>
#include <utility>

namespace starling::node {

namespace {

namespace limits = transport::limits;

SecretMark mark_of(const transport::SwarmSecret& secret) {
  return {secret.epoch(), transport::SwarmKey::of(secret).current()->id};
}

transport::SwarmSecret copy_of(const transport::SwarmSecret& secret) {
  auto text = secret.print();
  auto copy = transport::SwarmSecret::parse(text);
  transport::wipe(std::as_writable_bytes(std::span(text)));
  return std::move(*copy);  // what print() wrote parses
}

// Each was made without the other, so one of them names nodes that the other lets in.
bool differ(const transport::Revocations& one, const transport::Revocations& other) {
  return one.number == other.number && one != other;
}

SpreadWarning two_lists(std::string_view where, std::uint64_t number, bool taken) {
  return {"revocations.differ",
          std::string(where) + " another list with the number " + std::to_string(number) +
              " than the one in force, and " + (taken ? "takes its place" : "counts for nothing") +
              ": make the next list with all that was revoked in either (`starling key revoke`)"};
}

}  // namespace

Spread::Spread(SpreadSelf self) : self_(self) {}

AccessFacts Spread::facts() const { return {self_.admin, list_.number, newest_, rotating()}; }

std::string_view Spread::phase() const {
  if (is_next_) return "spreading";
  return secret_ && previous_ ? "promoted" : "steady";
}

void Spread::tell_facts(SpreadEffects& out) const {
  for (const auto& [id, peer] : peers_)
    out.emplace_back(SendAccess{id, transport::kAccessFactsMessage, encode_facts(facts())});
}

// What the peer lacks, as far as it said what it has.
void Spread::offer(TimePoint now, const NodeId& id, Peer& peer, SpreadEffects& out) {
  if (!peer.facts || peer.facts->admin != self_.admin) return;
  if (now - peer.sent_at >= kOfferAgain) {
    peer.list_sent = 0;
    peer.secret_sent = {};
  }
  if (list_.number > std::max(peer.facts->revocations, peer.list_sent)) {
    if (auto bytes = transport::encode_revocations(list_)) {
      out.emplace_back(SendAccess{id, transport::kRevocationsMessage, std::move(*bytes)});
      peer.list_sent = list_.number;
      peer.sent_at = now;
    }
  }
  if (!secret_ || newest_.epoch <= peer.facts->newest.epoch || newest_ == peer.secret_sent) return;
  // Whoever was revoked by then has no session with a node that has the list.
  if (list_.number < secret_->order()->revocations) return;
  auto text = secret_->print();
  out.emplace_back(SendAccess{id, transport::kNextSecretMessage, to_bytes(as_bytes(text))});
  transport::wipe(std::as_writable_bytes(std::span(text)));
  peer.secret_sent = newest_;
  peer.sent_at = now;
}

void Spread::offer_all(TimePoint now, SpreadEffects& out) {
  for (auto& [id, peer] : peers_) offer(now, id, peer, out);
}

void Spread::tell_holders(const NodeId& to, SpreadEffects& out) const {
  if (writing_) return;  // the holders are already those of that secret
  SecretHeld held{newest_, {}};
  for (const auto& holder : holders_) {
    held.holders.emplace_back(holder);
    if (held.holders.size() < limits::kSecretHeldMany) continue;
    out.emplace_back(SendAccess{to, transport::kSecretHeldMessage, encode_held(held)});
    held.holders.clear();
  }
  if (!held.holders.empty())
    out.emplace_back(SendAccess{to, transport::kSecretHeldMessage, encode_held(held)});
}

// The next ones in turn, to everybody: what was said before somebody knew of a member is said
// again.
void Spread::remind(SpreadEffects& out) {
  if (writing_ || holders_.empty()) return;
  SecretHeld held{newest_, {}};
  auto at = holders_.upper_bound(reminded_of_);
  const auto many = std::min(holders_.size(), limits::kSecretHeldMany);
  for (std::size_t i = 0; i < many; ++i, ++at) {
    if (at == holders_.end()) at = holders_.begin();
    held.holders.emplace_back(*at);
  }
  reminded_of_ = held.holders.back().first;
  for (const auto& [id, peer] : peers_)
    out.emplace_back(SendAccess{id, transport::kSecretHeldMessage, encode_held(held)});
}

void Spread::begin_secret(TimePoint now, const SecretsInFiles& secrets) {
  const auto mark = mark_of(secrets.newest);
  if (writing_ != mark) holders_.clear();
  writing_.reset();
  newest_ = mark;
  since_ = now;
  secret_.reset();
  if (!secrets.newest.ordered_by(self_.admin)) return;
  secret_ = copy_of(secrets.newest);
  hold_newest();
}

void Spread::hold_newest() {
  holders_[self_.signer.id()] = self_.signer.sign(kHeldDomain, held_part(self_.swarm, newest_));
}

SpreadEffects Spread::on_files(TimePoint now, transport::Revocations list,
                               const SecretsInFiles& secrets) {
  SpreadEffects out;
  asked_ = false;
  const auto before = facts();
  const bool older = list_.replaces(list);
  if (differ(list, list_)) out.emplace_back(two_lists("the file has", list.number, !older));
  if (list.number < list_.number)
    out.emplace_back(
        SpreadWarning{"revocations.older", "the file has list " + std::to_string(list.number) +
                                               ", list " + std::to_string(list_.number) +
                                               " is in force: make the next one from that"});
  if (older)
    out.emplace_back(UseRevocations{list_});
  else
    list_ = std::move(list);
  const bool promoted = is_next_ && !secrets.is_next;
  const bool dropped = previous_ && !secrets.previous;
  is_next_ = secrets.is_next;
  previous_ = secrets.previous;
  const bool is_new = mark_of(secrets.newest) != newest_;
  if (is_new) begin_secret(now, secrets);
  if (is_new || promoted) complete_since_.reset();
  // Anything else that was read says nothing about the secret's folder.
  if (is_new || promoted || dropped) {
    pause_ = {};
    paused_until_ = {};
  }
  if (facts() != before) tell_facts(out);
  offer_all(now, out);
  if (is_new && secret_)
    for (const auto& [id, peer] : peers_) tell_holders(id, out);
  return out;
}

Duration Spread::on_files_failed(TimePoint now) {
  asked_ = false;
  if (writing_) {
    // Those who hold the secret that is not here are no holders of the newest one that is.
    holders_.clear();
    if (secret_) hold_newest();
  }
  writing_.reset();
  pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  paused_until_ = now + pause_;
  return pause_;
}

SpreadEffects Spread::on_session_up(TimePoint, const NodeId& peer) {
  peers_[peer] = {};
  SpreadEffects out;
  out.emplace_back(SendAccess{peer, transport::kAccessFactsMessage, encode_facts(facts())});
  return out;
}

void Spread::on_session_down(const NodeId& peer) { peers_.erase(peer); }

SpreadEffects Spread::on_message(TimePoint now, const NodeId& from, std::uint16_t type,
                                 ByteView body) {
  SpreadEffects out;
  const auto found = peers_.find(from);
  if (found == peers_.end()) return out;
  auto& peer = found->second;
  if (type == transport::kAccessFactsMessage) on_facts(now, from, peer, body, out);
  if (type == transport::kRevocationsMessage) on_list(now, from, peer, body, out);
  if (type == transport::kNextSecretMessage) on_next_secret(now, from, peer, body, out);
  if (type == transport::kSecretHeldMessage) on_held(from, body, out);
  return out;
}

void Spread::on_facts(TimePoint now, const NodeId& from, Peer& peer, ByteView body,
                      SpreadEffects& out) {
  const auto facts = decode_facts(body);
  if (!facts) {
    out.emplace_back(EndSession{from, facts.error()});
    return;
  }
  const bool is_first = !peer.facts || peer.facts->admin != facts->admin;
  peer.facts = *facts;
  if (is_first)
    out.emplace_back(SendAccess{from, transport::kAccessFactsMessage, encode_facts(this->facts())});
  if (facts->admin != self_.admin) {
    if (!std::exchange(peer.warned, true))
      out.emplace_back(SpreadWarning{
          "admin.differs", "node " + short_form(from) + " obeys the admin " +
                               short_form(facts->admin) + ", this one " + short_form(self_.admin)});
    return;
  }
  if (facts->newest.epoch == newest_.epoch && facts->newest != newest_ && secret_ &&
      !std::exchange(peer.warned, true))
    out.emplace_back(SpreadWarning{"secret.differs",
                                   "node " + short_form(from) + " has another secret of epoch " +
                                       std::to_string(newest_.epoch) +
                                       ": the admin ordered two; rotate once more"});
  offer(now, from, peer, out);
  // It has just got the secret, or comes back: it has to hear who else holds that.
  if (!secret_ || !facts->rotating || facts->newest != newest_ || peer.holders_told == newest_)
    return;
  peer.holders_told = newest_;
  tell_holders(from, out);
}

void Spread::on_list(TimePoint now, const NodeId& from, Peer& peer, ByteView body,
                     SpreadEffects& out) {
  if (!peer.lists.try_take(now)) {
    ++figures_.unread;
    return;
  }
  auto list = transport::decode_revocations(body);
  if (!list) {
    out.emplace_back(EndSession{from, list.error()});
    return;
  }
  const bool replaces = list->replaces(list_);
  const bool differs = differ(*list, list_);
  if ((replaces || differs) && !transport::signed_by(self_.admin, *list, self_.swarm))
    return end_forged(from, "a list of revocations that the admin did not sign", out);
  if (differs)
    out.emplace_back(two_lists("node " + short_form(from) + " has", list->number, replaces));
  if (!replaces) {
    ++figures_.lists_stale;
    return;
  }
  ++figures_.lists_taken;
  list_ = std::move(*list);
  if (peer.facts) peer.facts->revocations = std::max(peer.facts->revocations, list_.number);
  // In force first: who is on it gets nothing of what follows.
  out.emplace_back(UseRevocations{list_});
  tell_facts(out);
  offer_all(now, out);
}

void Spread::on_next_secret(TimePoint now, const NodeId& from, Peer& peer, ByteView body,
                            SpreadEffects& out) {
  if (!peer.secrets.try_take(now)) {
    ++figures_.unread;
    return;
  }
  auto secret = transport::SwarmSecret::parse(as_text(body));
  if (!secret || secret->swarm() != self_.swarm)
    return end_forged(from, "a next secret that is none of this swarm", out);
  if (!secret->ordered_by(self_.admin))
    return end_forged(from, "a next secret that the admin did not order", out);
  const auto mark = mark_of(*secret);
  const auto held = writing_ ? std::max(newest_.epoch, writing_->epoch) : newest_.epoch;
  if (peer.facts) peer.facts->newest = mark;
  if (mark.epoch <= held || now < paused_until_) return;
  ++figures_.secrets_taken;
  writing_ = mark;
  holders_.clear();
  out.emplace_back(KeepNextSecret{to_bytes(body)});
}

void Spread::on_held(const NodeId& from, ByteView body, SpreadEffects& out) {
  auto held = decode_held(body);
  if (!held) {
    out.emplace_back(EndSession{from, held.error()});
    return;
  }
  if (held->secret != (writing_ ? *writing_ : newest_)) return;
  const auto part = held_part(self_.swarm, held->secret);
  SecretHeld fresh{held->secret, {}};
  for (const auto& [id, signature] : held->holders) {
    if (holders_.contains(id) || holders_.size() >= kMaxHolders) continue;
    // Of a node that nobody knows yet it is heard again.
    if (id != from && !members_.contains(id)) continue;
    if (self_.verifier.verify(id, kHeldDomain, part, signature) != Verdict::valid)
      return end_forged(from, "a holder of the secret that did not say so", out);
    holders_[id] = signature;
    fresh.holders.emplace_back(id, signature);
  }
  if (fresh.holders.empty()) return;
  for (const auto& [id, peer] : peers_)
    if (id != from)
      out.emplace_back(SendAccess{id, transport::kSecretHeldMessage, encode_held(fresh)});
}

void Spread::end_forged(const NodeId& from, std::string what, SpreadEffects& out) {
  ++figures_.forged;
  out.emplace_back(
      EndSession{from, {Errc::bad_signature, Doing::reading_message, std::move(what)}});
}

bool Spread::company(const std::set<NodeId>& members) const {
  return std::ranges::any_of(members,
                             [this](const NodeId& id) { return !list_.nodes.contains(id); });
}

std::size_t Spread::missing(const std::set<NodeId>& members) const {
  return static_cast<std::size_t>(std::ranges::count_if(members, [this](const NodeId& id) {
    return !holders_.contains(id) && !list_.nodes.contains(id);
  }));
}

// Asks for the promotion of the next secret, if its time has come.
void Spread::promote(TimePoint now, bool alone, SpreadEffects& out) {
  const bool late = now - since_ >= self_.overlap;
  // A node without the list would hand the secret to nobody, and so wait with the rest.
  const bool complete = waiting_for_ == 0 && list_.number >= secret_->order()->revocations &&
                        (!alone || now - since_ >= kAlone);
  if (!complete && !late) return;
  asked_ = true;
  std::string why = "every member holds it";
  if (!complete)
    why = "its time has come, although " + std::to_string(waiting_for_) + " members do not hold it";
  else if (alone)
    why = "no other member is there";
  out.emplace_back(PromoteSecret{std::move(why)});
}

SpreadEffects Spread::on_tick(TimePoint now, const SpreadMembers& members) {
  SpreadEffects out;
  members_ = members.known;
  waiting_for_ = 0;
  offer_all(now, out);
  if (!secret_ || !rotating()) return out;
  const bool alone = !company(members.alive);
  waiting_for_ = missing(is_next_ && !alone ? members.alive : members.known);
  if (now - reminded_ >= kRemind) {
    reminded_ = now;
    remind(out);
  }
  if (asked_ || now < paused_until_) return out;
  if (is_next_) {
    promote(now, alone, out);
    return out;
  }
  if (waiting_for_ > 0 || !company(members.known)) {
    complete_since_.reset();
    return out;
  }
  if (!complete_since_) complete_since_ = now;
  if (now - *complete_since_ < kSettle) return out;
  asked_ = true;
  out.emplace_back(DropPreviousSecret{});
  return out;
}

}  // namespace starling::node
