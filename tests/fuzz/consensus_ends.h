// A node in whose memory the jobs of a consensus are really done, and certificates as somebody
// without the keys of others may make them.
#pragma once

#include "gossip/consensus/certificate.h"
#include "gossip/consensus/contribution.h"
#include "gossip/consensus/merge.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"
#include "tests/gossip/consensus/fake_signing.h"
#include "tests/gossip/consensus/signed_certificate.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace starling::gossip::consensus::testing {

constexpr ModelShape kSmallShape{
    .parameters = kBlockValues + 20, .channels = 3, .counters = 2, .chunk_blocks = 1};

inline Hash our_fingerprint() { return hash_of(as_bytes("settings")); }
inline Hash our_manifest() { return hash_of(as_bytes("manifest")); }

// The own contribution and the result of one run.
struct RunMemory {
  explicit RunMemory(float value)
      : y(kSmallShape.parameters, value),
        mean(kSmallShape.channels, value),
        variance(kSmallShape.channels, 1.0F),
        counters(kSmallShape.counters, 9),
        x(kSmallShape.parameters),
        x_mean(kSmallShape.channels),
        x_variance(kSmallShape.channels),
        x_counters(kSmallShape.counters) {}

  JobOutcome run(const ConsensusJob& job) {
    return run_job(job, ChunkPlan(kSmallShape),
                   {y, mean, variance, counters, x, x_mean, x_variance, x_counters, tensors});
  }
  [[nodiscard]] ByteView chunk(std::uint32_t index) const {
    const ChunkPlan plan(kSmallShape);
    switch (plan.kind(index)) {
      case ChunkKind::mean:
        return std::as_bytes(std::span(x_mean));
      case ChunkKind::variance:
        return std::as_bytes(std::span(x_variance));
      case ChunkKind::counters:
        return std::as_bytes(std::span(x_counters));
      case ChunkKind::parameters:
        break;
    }
    return std::as_bytes(std::span(x).subspan(plan.first(index), plan.values(index)));
  }
  [[nodiscard]] std::vector<Hash> hashes() const {
    std::vector<Hash> hashes;
    for (std::uint32_t k = 0; k < ChunkPlan(kSmallShape).count(); ++k)
      hashes.push_back(tree_hash_of(chunk(k)));
    return hashes;
  }
  [[nodiscard]] Hash hash() const { return model_hash(our_manifest(), hashes()); }

  std::vector<float> y, mean, variance;
  std::vector<std::int64_t> counters;
  std::vector<float> x, x_mean, x_variance;
  std::vector<std::int64_t> x_counters;
  std::vector<TensorLimit> tensors{{0, kSmallShape.parameters, 1.0F}};
};

// A model that no swarm made.
struct InventedModel {
  explicit InventedModel(float value) : memory(0) {
    std::ranges::fill(memory.x, value);
    hashes = memory.hashes();
  }
  RunMemory memory;
  std::vector<Hash> hashes;
};
inline const std::array<InventedModel, 4>& invented_models() {
  static const std::array kModels{InventedModel(0), InventedModel(1), InventedModel(2),
                                  InventedModel(3)};
  return kModels;
}
// The bytes behind a hash of one of them.
inline std::optional<Bytes> find_invented(std::uint32_t chunk, const Hash& hash) {
  for (const auto& model : invented_models())
    if (model.hashes[chunk] == hash) return to_bytes(model.memory.chunk(chunk));
  return std::nullopt;
}

// All that the maker of a certificate may choose.
struct Claimed {
  std::size_t model = 0;
  std::vector<NodeId> participants;
  std::uint64_t epoch = 1;
};

// Signed by all of them.
inline CertificateMessage certificate_of(const Claimed& claimed) {
  CertificateMessage message{{}, our_manifest(), invented_models()[claimed.model].hashes};
  Certificate& certificate = message.certificate;
  certificate.epoch = Epoch{claimed.epoch};
  certificate.fingerprint = our_fingerprint();
  certificate.hash = model_hash(message.manifest, message.chunks);
  certificate.model = "small";
  certificate.participants = claimed.participants;
  sign_by_participants(certificate);
  return message;
}

// Signed by as many as cost their maker nothing.
inline const CertificateMessage& certificate_of_crowd(std::size_t which) {
  static const auto kTwo = [] {
    std::array<CertificateMessage, 2> two;
    for (std::size_t k = 0; k < two.size(); ++k) {
      Claimed claimed{.model = k, .participants = {}, .epoch = 1};
      for (std::uint64_t id = 0; id < 1000; ++id)
        claimed.participants.push_back(node_id(1000 + id));
      two[k] = certificate_of(claimed);
    }
    return two;
  }();
  return kTwo[which % 2];
}

// One way in which a certificate may be false.
inline void damage(CertificateMessage& message, std::uint8_t how) {
  Certificate& certificate = message.certificate;
  switch (how % 10) {
    case 0:
      certificate.fingerprint = our_manifest();
      return;
    case 1:
      message.manifest = our_fingerprint();
      return;
    case 2:
      message.chunks.back() = our_fingerprint();
      return;
    case 3:
      message.chunks.pop_back();
      return;
    case 4:
      certificate.signatures.back() = {};
      return;
    case 5:
      certificate.participants.push_back(certificate.participants.back());
      certificate.signatures.push_back(certificate.signatures.back());
      return;
    case 6:
      certificate.epoch = certificate.epoch.next();
      return;
    case 7:
      certificate.samples += 1;
      return;
    case 8:
      certificate.participants.pop_back();
      certificate.signatures.pop_back();
      return;
    default:
      message.chunks.front() = our_fingerprint();
      certificate.hash = model_hash(message.manifest, message.chunks);
      return;
  }
}

// A node under test, what its shell keeps for it, and what was told to it.
struct Node {
  Node(std::uint64_t number, const ConsensusOptions& options, const Verifier& verifier)
      : signer(node_id(number)),
        end(std::make_unique<FinalConsensus>(options, signer, verifier)),
        merge(options, signer, verifier) {}

  RunMemory& memory(const RunId& run) {
    return memories.try_emplace(run, signer.id() == node_id(0) ? 1.0F : 2.0F).first->second;
  }

  FakeSigner signer;
  std::unique_ptr<FinalConsensus> end;
  Merge merge;
  std::map<RunId, RunMemory> memories;
  std::deque<ConsensusJob> jobs;
  std::set<NodeId> sessions;
  std::map<NodeId, bool> trains;              // whom membership knows
  std::set<std::pair<NodeId, Hash>> holders;  // who said that it has such a model
  std::set<Hash> held_back;
  bool freezes = false;
  bool froze = false;
  bool snapshots = false;
  RunId merging;
  bool finished = false;
  bool gave_up = false;      // a certificate whose model nobody has
  std::optional<Hash> held;  // of the certificate
  std::map<Epoch, Hash> signed_hashes;
  // Signatures of certificates by who showed them, and how many of them were verified.
  std::map<NodeId, std::size_t> shown, verified;
};

}  // namespace starling::gossip::consensus::testing
