#include "gossip/consensus/chunk_fetch.h"

#include <algorithm>
#include <iterator>

namespace starling::gossip::consensus {

void ChunkFetch::begin(std::vector<Hash> hashes) {
  hashes_ = std::move(hashes);
  requests_.clear();
}

bool ChunkFetch::complete() const { return missing() == 0; }

std::uint32_t ChunkFetch::missing() const {
  std::uint32_t count = 0;
  for (std::uint32_t chunk = 0; chunk < hashes_.size(); ++chunk)
    if (!store_.holds(chunk, hashes_[chunk])) ++count;
  return count;
}

FetchEffects ChunkFetch::remove_source(TimePoint now, const NodeId& peer) {
  sources_.erase(peer);
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.source == peer; });
  return ask(now);
}

FetchEffects ChunkFetch::on_chunk(TimePoint now, const NodeId& from, const Chunk& message) {
  const auto at = requests_.find(message.chunk);
  // Late answers of a source that was given up are as good as any other, but nothing that was
  // never asked for is looked at.
  if (at == requests_.end() || message.hash != hashes_[message.chunk]) return {};
  requests_.erase(at);
  FetchEffects effects = ask(now);
  store_.begin_write(message.chunk);
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
    sources_.erase(*outcome.culprit);
  }
  auto more = ask(now);
  effects.send = std::move(more.send);
  return effects;
}

FetchEffects ChunkFetch::on_tick(TimePoint now) {
  std::erase_if(requests_,
                [&](const auto& entry) { return now >= entry.second.asked + kPatience; });
  return ask(now);
}

TimePoint ChunkFetch::next_deadline() const {
  TimePoint next = kNever;
  for (const auto& [chunk, request] : requests_) next = std::min(next, request.asked + kPatience);
  return next;
}

FetchEffects ChunkFetch::ask(TimePoint now) {
  FetchEffects effects;
  if (sources_.empty()) return effects;
  for (std::uint32_t chunk = 0; chunk < hashes_.size() && requests_.size() < kOutstanding;
       ++chunk) {
    if (requests_.contains(chunk) || store_.is_being_written(chunk) ||
        store_.holds(chunk, hashes_[chunk]))
      continue;
    const auto source = next_source();
    requests_.emplace(chunk, Request{*source, now});
    effects.send.emplace_back(
        *source, ChunkRequest{.round = {run_, Epoch{1}}, .chunk = chunk, .hash = hashes_[chunk]});
  }
  return effects;
}

std::optional<NodeId> ChunkFetch::next_source() {
  auto at = last_source_ ? sources_.upper_bound(*last_source_) : sources_.begin();
  if (at == sources_.end()) at = sources_.begin();
  last_source_ = *at;
  return last_source_;
}

}  // namespace starling::gossip::consensus
