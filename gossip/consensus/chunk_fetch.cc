#include "gossip/consensus/chunk_fetch.h"

#include "node/base/fault.h"

#include <algorithm>
#include <iterator>

namespace starling::gossip::consensus {

void ChunkFetch::begin(std::vector<Hash> hashes) {
  hashes_ = std::move(hashes);
  requests_.clear();
  sources_.clear();
  holders_.clear();
  proven_.clear();
}

bool ChunkFetch::complete() const { return missing() == 0; }

std::uint32_t ChunkFetch::missing() const {
  std::uint32_t count = 0;
  for (std::uint32_t chunk = 0; chunk < hashes_.size(); ++chunk)
    if (!store_.holds(chunk, hashes_[chunk])) ++count;
  return count;
}

FetchEffects ChunkFetch::add_holder(TimePoint now, const NodeId& peer) {
  sources_.insert(peer);
  // What somebody was asked for who may have been waiting for it himself: nobody answers such a
  // request, neither those who still wait nor this peer, which waited until now.
  std::erase_if(requests_,
                [&](const auto& entry) { return !holders_.contains(entry.second.source); });
  holders_.insert(peer);
  return ask(now);
}

void ChunkFetch::forget(const NodeId& peer) {
  sources_.erase(peer);
  holders_.erase(peer);
  proven_.erase(peer);
}

FetchEffects ChunkFetch::remove_source(TimePoint now, const NodeId& peer) {
  forget(peer);
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.source == peer; });
  return ask(now);
}

FetchEffects ChunkFetch::on_chunk(TimePoint now, const NodeId& from, const Chunk& message) {
  const auto at = requests_.find(message.chunk);
  // Late answers of a source that was given up are as good as any other, but nothing that was
  // never asked for is looked at.
  if (at == requests_.end() || message.hash != hashes_[message.chunk]) return {};
  requests_.erase(at);
  if (sources_.contains(from)) proven_.insert(from);
  const bool twice = fault::planted("consensus.chunks_fetched_twice");
  if (!twice) store_.begin_write(message.chunk);  // or it would be asked for again
  FetchEffects effects = ask(now);
  if (twice) store_.begin_write(message.chunk);
  effects.jobs.emplace_back(StoreJob{.target = {{run_, Epoch{0}}, message.chunk},
                                     .from = from,
                                     .hash = message.hash,
                                     .bytes = message.values});
  return effects;
}

FetchEffects ChunkFetch::on_job_done(TimePoint now, const JobOutcome& outcome) {
  FetchEffects effects;
  if (outcome.culprit) {
    effects.misbehaved.push_back(*outcome.culprit);
    forget(*outcome.culprit);
  }
  auto more = ask(now);
  effects.send = std::move(more.send);
  return effects;
}

FetchEffects ChunkFetch::on_tick(TimePoint now) {
  std::erase_if(requests_, [&](const auto& entry) {
    const auto& [source, asked] = entry.second;
    if (now < asked + kPatience) return false;
    proven_.erase(source);
    return true;
  });
  return ask(now);
}

TimePoint ChunkFetch::next_deadline() const {
  TimePoint next = kNever;
  for (const auto& [chunk, request] : requests_) next = std::min(next, request.asked + kPatience);
  return next;
}

FetchEffects ChunkFetch::ask(TimePoint now) {
  FetchEffects effects;
  const auto request = [&](std::uint32_t chunk, const NodeId& source) {
    requests_.insert_or_assign(chunk, Request{source, now});
    effects.send.emplace_back(
        source, ChunkRequest{.round = {run_, Epoch{1}}, .chunk = chunk, .hash = hashes_[chunk]});
  };
  for (std::uint32_t chunk = 0; chunk < hashes_.size(); ++chunk) {
    if (requests_.contains(chunk) || store_.is_being_written(chunk) ||
        store_.holds(chunk, hashes_[chunk]))
      continue;
    const auto source = next_source();
    if (!source) return effects;
    request(chunk, *source);
  }
  // All is asked for. Who has answered before and has nothing to do takes over from those who have
  // not: their sessions may be long dead.
  for (const auto& [chunk, owed] : requests_) {
    if (proven_.contains(owed.source)) continue;
    const auto idle = std::ranges::find_if(proven_, [&](const NodeId& id) {
      return requests_to(id) == 0 && may_be_asked(id) && candidates().contains(id);
    });
    if (idle == proven_.end()) break;
    request(chunk, *idle);
  }
  return effects;
}

std::size_t ChunkFetch::requests_to(const NodeId& source) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      requests_, [&](const auto& entry) { return entry.second.source == source; }));
}

bool ChunkFetch::may_be_asked(const NodeId& source) const {
  if (!proven_.contains(source)) return requests_to(source) == 0;
  return std::ranges::count_if(requests_, [&](const auto& entry) {
           return proven_.contains(entry.second.source);
         }) < static_cast<std::ptrdiff_t>(kOutstanding);
}

// The next in turn that may be asked.
std::optional<NodeId> ChunkFetch::next_source() {
  const auto& from = candidates();
  auto at = last_source_ ? from.upper_bound(*last_source_) : from.begin();
  for (std::size_t tried = 0; tried < from.size(); ++tried, ++at) {
    if (at == from.end()) at = from.begin();
    if (!may_be_asked(*at)) continue;
    last_source_ = *at;
    return last_source_;
  }
  return std::nullopt;
}

}  // namespace starling::gossip::consensus
