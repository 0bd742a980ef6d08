// TrainingSettings: what all nodes of a swarm train, as values; and its text, which is what the
// swarm's fingerprint is made of.
#pragma once

#include "gossip/gossip.h"
#include "node/base/result.h"
#include "node/config/config.h"
#include "training/data/dataset.h"
#include "training/models/plan.h"
#include "training/trainer.h"
#include "transport/member_certificate.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::node {

// Values of the settings. A copy of the swarm's truth; the same on every member.
struct TrainingSettings {
  training::ModelSpec model;
  training::ScheduleOptions schedule;
  training::OptimizerOptions optimizer;
  double label_smoothing = 0.1;
  std::vector<training::ImageStage> resize;
  std::uint64_t seed = 1;
  std::uint32_t degree = 0;  // neighbours of a node; 0: by the number of members
  gossip::Budget budget;
  gossip::consensus::Rule rule = gossip::consensus::Rule::mean;  // of the final consensus
  FinishBy finish_by = FinishBy::any;
  std::uint32_t extension = 0;  // > 0: the run goes on from a certified model (rulings 40)

  friend bool operator==(const TrainingSettings&, const TrainingSettings&);
};

using SettingsText = std::map<std::string, std::string>;

// What a local batch is where nobody chose one: 64 for small images, else 16.
[[nodiscard]] std::uint32_t batch_of(const Config& config, const training::ModelSpec& model);

// The settings of a swarm that this node makes: configuration first, then the data.
//
// Rule:    epochs and steps become samples of the swarm here, once (rulings 24): epochs x images of
// this
//          node's data, steps x its batch. Without train.lr the peak is 0.1 for a batch of 64 or
//          more and in proportion below.
// Errors:  bad_config naming the key where a budget comes out as nothing or as parts of a second,
//          or images become smaller than the model takes, or larger than train.img.
[[nodiscard]] Result<TrainingSettings> settings_of(const Config& config,
                                                   const training::Dataset& train);

// Key and value of each setting; `genesis` is the hash of the parameters that they draw.
[[nodiscard]] SettingsText to_text(const TrainingSettings& settings, const Hash& genesis);

// The settings of another node. Its genesis hash is compared by whoever draws the genesis.
//
// Errors:  bad_message naming the key, if one is missing, unknown or out of its bounds.
[[nodiscard]] Result<TrainingSettings> parse_settings(const SettingsText& text);

// Whether a label of `data` means the class that `model` knows by it. Data whose classes are named
// by their labels may lack the last ones; no other may lack any, or its labels would shift.
//
// Errors:  data_failed with what differs and what to do about it.
[[nodiscard]] Result<void> check_classes(const training::ModelSpec& model,
                                         const training::Dataset& data, Doing doing);

// Whose order alone ends a run of these settings by command, for ModelFacts::admin: the admin that
// this node's certificate names. Nothing where any member may end it; zeros, and so nobody, where
// the node has no certificate (yet).
[[nodiscard]] std::optional<NodeId> ends_by_order_of(
    const TrainingSettings& settings, const std::optional<transport::Membership>& membership);
// Whether `node` can be a member of a run of these settings: where the admin ends it, a node
// without a certificate would not know whom to believe.
//
// Errors:  bad_config with what to do about it.
[[nodiscard]] Result<void> check_ends_by_order(
    const TrainingSettings& settings, const std::optional<transport::Membership>& membership,
    const NodeId& node, Doing doing);

// Whether a budget is resolved with the data or the batch of one node: in epochs or steps.
[[nodiscard]] bool is_local(const Until& until);

// Keys of the settings that a person chose at this node.
[[nodiscard]] std::set<std::string> settings_by_hand(const Config& config);

// Those of them that are never given up for a peer's (rulings 23). A budget in epochs or steps is
// not among them: the node that made the swarm resolved it, with its own data and batch (rulings
// 24).
[[nodiscard]] std::set<std::string> forced_settings(const Config& config);

}  // namespace starling::node
