#include "training/models/network.h"

#include "training/conv.h"

namespace starling::training {

Network::Network(const Model& model) : wiring_(wiring_of(model)) {}

at::Tensor Network::normalised(const Weights& weights, const UnitWiring& unit, const at::Tensor& x,
                               Mode mode) {
  const at::Tensor& weight = weights.parameters[unit.conv];
  // Only LibTorch's own have a backward pass that autograd knows.
  const at::Tensor y =
      mode == Mode::training
          ? at::conv2d(x, weight, {}, {unit.stride, unit.stride}, {unit.padding, unit.padding})
          : conv_forward({weight, {}, unit.stride, unit.padding},
                         x.contiguous(at::MemoryFormat::ChannelsLast));
  return at::batch_norm(y, weights.parameters[unit.norm_weight], weights.parameters[unit.norm_bias],
                        weights.means[unit.norm], weights.variances[unit.norm],
                        /*training=*/mode == Mode::training, kNormMomentum, kNormEpsilon,
                        /*cudnn_enabled=*/true);
}

at::Tensor Network::residual(const Weights& weights, const BlockWiring& block, const at::Tensor& x,
                             Mode mode) {
  at::Tensor y = x;
  for (std::size_t i = 0; i < block.units.size(); ++i) {
    y = normalised(weights, block.units[i], y, mode);
    // In place: the backward pass of a normalisation needs its input, not its output.
    if (i + 1 < block.units.size()) y.relu_();
  }
  const at::Tensor shortcut =
      block.shortcut == Shortcut::projection ? normalised(weights, block.projection, x, mode) : x;
  return y.add_(shortcut).relu_();
}

at::Tensor Network::forward(const Weights& weights, const at::Tensor& images, Mode mode) const {
  const at::ScalarType type = weights.parameters[wiring_.stem.conv].scalar_type();
  at::Tensor x = images.to(type);
  x = normalised(weights, wiring_.stem, x, mode).relu_();
  if (wiring_.stem_kind == Stem::imagenet) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
  for (const BlockWiring& block : wiring_.blocks) x = residual(weights, block, x, mode);
  const at::Tensor features = at::mean(x, {2, 3}, /*keepdim=*/false, at::kFloat);
  return at::linear(features, weights.parameters[wiring_.fc_weight].to(at::kFloat),
                    weights.parameters[wiring_.fc_bias]);
}

}  // namespace starling::training
