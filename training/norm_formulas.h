// From the sums of a channel to the numbers of batch normalisation: the same for CPU and GPU.
//
// C++20 without dependencies, so that .cu files can include it. Doubles throughout: a few
// operations a channel.
#pragma once

#include "training/cuda/crew.h"

#include <cmath>

namespace starling::training {

// What a forward pass finds in one channel.
struct ChannelFound {
  float mean;
  float variance;  // unbiased: what running statistics are made of
  float inverse;   // 1 / sqrt(biased variance + epsilon)
  float scale;     // weight * inverse
  float shift;     // bias - mean * scale
};

// Of n values: sum and squares are those of their deviations from the pivot.
struct ChannelSums {
  double n;
  double pivot;
  double sum;
  double squares;
};

struct ChannelLearned {
  double weight;
  double bias;
};

STARLING_BOTH inline ChannelFound found_in(const ChannelSums& sums, const ChannelLearned& learned,
                                           double epsilon) {
  const double offset = sums.sum / sums.n;
  const double rest = sums.squares - sums.n * offset * offset;
  const double squares = rest > 0 ? rest : 0.0;
  const double mean = sums.pivot + offset;
  const double inverse = 1 / sqrt(squares / sums.n + epsilon);
  const double scale = learned.weight * inverse;
  const double but_one = sums.n - 1;
  return {static_cast<float>(mean), static_cast<float>(squares / (but_one > 1 ? but_one : 1.0)),
          static_cast<float>(inverse), static_cast<float>(scale),
          static_cast<float>(learned.bias - mean * scale)};
}

// The gradients of a channel's learned values, and the line dx = a g + b x + c.
struct ChannelGradient {
  float weight;
  float bias;
  float a;
  float b;
  float c;
};

// With z = (x - mean) inverse: dx = weight inverse (g - mean(g) - z mean(g z)).
struct GradientSums {
  double n;
  double sum;     // of g
  double with_x;  // of g (x - mean)
};

STARLING_BOTH inline ChannelGradient gradient_of(const GradientSums& sums, double weight,
                                                 double mean, double inverse) {
  const double with_z = sums.with_x * inverse;
  const double a = weight * inverse;
  const double b = -a * with_z / sums.n * inverse;
  return {static_cast<float>(with_z), static_cast<float>(sums.sum), static_cast<float>(a),
          static_cast<float>(b), static_cast<float>(-a * sums.sum / sums.n - b * mean)};
}

}  // namespace starling::training
