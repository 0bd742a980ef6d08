// What the final consensus works on and what it leaves behind: a frozen contribution, a result of
// the same size, and the files of DIR/final.
#pragma once

#include "gossip/consensus/contribution.h"
#include "gossip/consensus/messages.h"
#include "gossip/delta/master.h"
#include "node/base/result.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// The shape of a model as the consensus counts it: one counter, because every BatchNorm layer of a
// replica has seen the same number of batches.
[[nodiscard]] gossip::consensus::ModelShape shape_of(const training::Model& model);

// Memory of one run of the consensus.
//
// Owned by the node from the freeze (or a merge's snapshot) to the end of the run, and by whoever
// still reads the result; jobs run on the codec lane. Cost: two vectors of the model's size.
class ConsensusMemory {
 public:
  // `limit`: the largest |q_their - q_own| that this node measured in its last 100 exchanges; 0:
  // none.
  //
  // A tensor's share of a difference is at most the whole, so the whole bounds every tensor's.
  ConsensusMemory(const training::Model& model, double limit);

  // The own contribution y. Called before the run's first job that reads it.
  void contribute(training::Replica contribution);
  // A result that another process computed: a finished node serves it.
  void restore(training::Replica result);

  // Thread: the codec lane.
  [[nodiscard]] gossip::consensus::JobOutcome run(const gossip::consensus::ConsensusJob& job);

  [[nodiscard]] const training::Replica& contribution() const { return contribution_; }
  // The result x*, once the run said so; nothing changes it from then on.
  [[nodiscard]] const training::Replica& result() const { return result_; }

 private:
  // By the first job, because the io thread has no time for its page faults.
  void make_result();

  gossip::consensus::ChunkPlan plan_;
  std::vector<gossip::consensus::TensorLimit> limits_;
  training::Replica contribution_;
  training::Replica result_;
};

// Owners: the node until the run ends or fails, each job of it that still has to be done, and each
// SharedReplica of its result.
using SharedConsensusMemory = std::shared_ptr<ConsensusMemory>;

// The result, and with it the memory that it lies in.
[[nodiscard]] inline training::SharedReplica result_of(const SharedConsensusMemory& memory) {
  return {memory, &memory->result()};
}

// The own contribution, likewise.
[[nodiscard]] inline training::SharedReplica contribution_of(const SharedConsensusMemory& memory) {
  return {memory, &memory->contribution()};
}

// master += x* - y, statistics likewise: what a merge adds to a replica that has trained on
// meanwhile.
//
// Cost: one pass over the model under the lease. Thread: the codec lane.
void add_difference(gossip::MasterPort& master, const training::Replica& result,
                    const training::Replica& contribution);

// Writes DIR/final/model.safetensors and then certificate.json, which names its hash: where there
// is a certificate, there is the model, after a power cut too. The pair of an earlier run is
// replaced in one step, by a folder "final.partial" that changes names with it; on a file system
// without that step, the old certificate goes first.
//
// Errors:  those of a file operation (node/base/posix_file.h).
[[nodiscard]] Result<void> write_final(const std::filesystem::path& folder,
                                       const training::Model& model,
                                       const training::Replica& result,
                                       const gossip::consensus::CertificateMessage& held);

// certificate.json: hash, epoch, participants, signatures, samples, model, and what a node needs to
// serve the model again (fingerprint, set, manifest, chunks).
[[nodiscard]] std::string format_certificate(const gossip::consensus::CertificateMessage& held);
// Errors:  corrupt, naming the field; unsupported for a newer program's. Signatures are not checked
//          here.
[[nodiscard]] Result<gossip::consensus::CertificateMessage> parse_certificate(
    std::string_view text);

// The error, with what a person can do about that file of the folder. Only what is damaged or lost
// is to be moved away: what cannot be read today may be whole.
[[nodiscard]] std::unexpected<Error> unusable_final(const std::filesystem::path& folder, Error why);

// The certificate of a folder.
//
// Errors:  not_found without one; corrupt, unsupported, and those of read_whole(); with the remedy.
[[nodiscard]] Result<gossip::consensus::CertificateMessage> read_certificate(
    const std::filesystem::path& folder);

// The certified model of a folder, in memory from which it can be served.
//
// Errors:  not_found without a model; corrupt where the model is not the one that `held` names;
//          those of a file that cannot be read; with the remedy.
// Cost:    reads and hashes the model once.
[[nodiscard]] Result<std::unique_ptr<ConsensusMemory>> restore_final(
    const std::filesystem::path& folder, const training::Model& model,
    const gossip::consensus::CertificateMessage& held);

// "final consensus: 4/4 replicas identical  blake2b <hex>", as stdout shows it at the end.
[[nodiscard]] std::string final_line(const gossip::consensus::Certificate& certificate);

}  // namespace starling::node
