#include "transport/session_table.h"

#include <string>
#include <utility>

namespace starling::transport {
namespace {

DecisionWithReason refuse(Errc code, std::string detail) {
  return {Decision::refuse, Error{code, Doing::handshaking, std::move(detail)}};
}

}  // namespace

DecisionWithReason SessionTable::decide(TimePoint now, const Candidate& candidate) const {
  if (candidate.peer == self_)
    return refuse(Errc::duplicate_identity, "another process runs with this node's identity");
  const auto* existing = find(candidate.peer);
  const bool ours_is_smaller = self_ < candidate.peer;
  const bool renews = candidate.purpose == Purpose::renew;
  if (existing == nullptr && renews)
    return refuse(Errc::closed, "the session to be renewed has ended");
  if (existing == nullptr) {
    if (ours_is_smaller && dials_.contains(candidate.peer))
      return refuse(Errc::already_exists, "our own dial to you stays: the smaller id's");
    return {Decision::accept, {}};
  }
  using Probe = Candidate::Probe;
  const bool same_process = existing->instance == candidate.instance;
  if (same_process && renews && candidate.probe == Probe::ending)
    return refuse(Errc::closed, "the session to be renewed is ending");
  if (same_process && renews && candidate.waits_its_turn)
    return refuse(Errc::closed, "the session to be renewed has only just been renewed");
  if (candidate.probe == Probe::silent || candidate.probe == Probe::ending)
    return {Decision::replace, {}};
  if (same_process && renews) return {Decision::replace, {}};
  if (same_process && existing->direction == Direction::dialled &&
      now - existing->since < limits::kSimultaneousDial) {
    if (!ours_is_smaller) return {Decision::replace, {}};
    return refuse(Errc::already_exists, "our own dial to you stays: the smaller id's");
  }
  if (candidate.probe == Candidate::Probe::not_tried) return {Decision::probe, {}};
  if (same_process) return refuse(Errc::already_exists, "a session between us is alive");
  return refuse(Errc::duplicate_identity, "this identity already runs");
}

const TableEntry* SessionTable::find(const NodeId& peer) const {
  const auto found = sessions_.find(peer);
  return found == sessions_.end() ? nullptr : &found->second;
}

TableEntry SessionTable::insert(const NodeId& peer, TableEntry entry) {
  return std::exchange(sessions_[peer], entry);
}

bool SessionTable::erase(const NodeId& peer, const Session* session) {
  const auto found = sessions_.find(peer);
  if (found == sessions_.end() || found->second.session != session) return false;
  sessions_.erase(found);
  return true;
}

void SessionTable::end_dial(const NodeId& peer) {
  if (const auto found = dials_.find(peer); found != dials_.end()) dials_.erase(found);
}

}  // namespace starling::transport
