// What one of several neighbours can say instead of the truth.
#pragma once

#include "tests/gossip/virtual_swarm.h"

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace starling::liars {

// What a liar sends instead of a replica of its own; it knows all others'.
enum class Lie : std::uint8_t {
  sign_flip,   // what all learned, with the other sign
  random,      // noise four times as large as what all learned, fresh each time
  little,      // the mean less one and a half deviations of each coordinate ("ALIE")
  inner,       // a tenth of what all learned, with the other sign: its size looks sane ("IPM")
  dissensus,   // to each neighbour its own replica, pushed away from the others'
  delay,       // what all knew many steps ago
  huge,        // 1e30
  label_flip,  // its own replica, trained on wrong labels
};
[[nodiscard]] std::string_view name_of(Lie lie);

// Five nodes that all are neighbours; the last one is the liar, if there is one.
inline constexpr std::size_t kNodes = 5;
inline constexpr std::size_t kLiar = 4;

// The last node of a swarm, which gives lies for its replica.
//
// Made before the swarm runs, and used by it from then on: the swarm's `before_job` is the liar's.
// Whoever owns the swarm owns it, too, for as long. Costs one or two vectors of the model's size,
// and twenty more for Lie::delay.
// Source:  ALIE: Baruch et al. 2019, "A Little Is Enough". IPM: Xie et al. 2019, "Fall of Empires".
//          Dissensus: He et al. 2022, "Byzantine-Robust Decentralized Learning via ClippedGossip",
//          with epsilon 1.5: x_i - epsilon * sum over the other honest k of (x_k - x_i).
class Liar {
 public:
  // `delay_steps` of Lie::delay; up to then what all knew at the start.
  Liar(gossip::testing::VirtualSwarm& swarm, Lie lie, std::uint64_t delay_steps);
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;

 private:
  void tell(gossip::testing::SimNode& node, const gossip::CodecJob& job);
  [[nodiscard]] std::vector<float> mean() const;
  // Of a coordinate over the honest nodes, about its mean.
  [[nodiscard]] float deviation(std::size_t coordinate, float mean) const;
  void remember(std::uint64_t step, const std::vector<float>& mean);
  [[nodiscard]] float lie_about(std::size_t coordinate, float mean, float size, Rng& rng) const;
  void push_away(std::size_t victim, std::vector<float>& told,
                 const std::vector<float>& mean) const;

  gossip::testing::VirtualSwarm& swarm_;
  Lie lie_;
  std::uint64_t delay_steps_;
  std::map<std::uint64_t, std::vector<float>> past_;  // by step
};

}  // namespace starling::liars
