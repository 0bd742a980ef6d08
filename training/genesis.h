// Genesis: the first parameters of a run, the same on every machine, bit for bit.
#pragma once

#include "node/base/ids.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"

#include <cstdint>
#include <span>

namespace starling::training {

struct Genesis {
  Replica replica;  // statistics: mean 0, variance 1
  Hash hash;        // tree hash of the padded canonical vector, little-endian fp32
};

// Draws the parameters from the seed in the settings into a zeroed span of Layout::size() values;
// padding stays zero.
//
// Rule:    every tensor has its own Rng, seeded with the first eight bytes of BLAKE2b("starling
//          genesis 1" | seed | name), and is drawn in canonical order (O,H,W,I). A normal deviate
//          is (sum of 12 u16 - 6 x 65,535) as int32 (three Rng words, low half-words first), times
//          std / 65,536 in one rounded fp32 multiplication. Convolutions: std = sqrt(2 / fan_out),
//          fan_out = O x H x W of the kernel (Kaiming for relu, as torchvision). fc: std = sqrt(1 /
//          (3 fan_in)), the spread of torch's default uniform. Normalisations: weight 1, bias 0,
//          but weight 0 for the last one of every bottleneck block (resnet50, resnet101); fc bias
//          0. Only integer operations and IEEE 754's exact ones: no libm, no order of sums.
// Cost:    0.15 s for ResNet-50, plus its hash.
// Thread:  any; pure.
// Source:  He et al. 2015, "Delving deep into rectifiers", for the spread; Goyal et al. 2017,
//          "Accurate, large minibatch SGD", section 5.1, for the zeros.
void draw_genesis(const Model& model, std::uint64_t seed, std::span<float> out);

// The same as a replica.
[[nodiscard]] Replica genesis_replica(const Model& model, std::uint64_t seed);
// The same with its hash: a third more of the time.
[[nodiscard]] Genesis make_genesis(const Model& model, std::uint64_t seed);

}  // namespace starling::training
