#include "training/models/network.h"

#include "node/base/check.h"

#include <algorithm>

namespace starling::training {
namespace {

std::size_t parameter_index(const Model& model, const std::string& name) {
  const auto tensors = model.layout.tensors();
  const auto found = std::ranges::find(tensors, name, &gossip::TensorPlace::name);
  STARLING_CHECK(found != tensors.end());
  return static_cast<std::size_t>(found - tensors.begin());
}

std::size_t norm_index(const Model& model, const std::string& name) {
  const auto found = std::ranges::find(model.norms, name, &NormSpec::name);
  STARLING_CHECK(found != model.norms.end());
  return static_cast<std::size_t>(found - model.norms.begin());
}

}  // namespace

Network::Network(const Model& model)
    : stem_kind_(model.plan.stem_kind),
      stem_(unit_of(model, model.plan.stem)),
      fc_weight_(parameter_index(model, "fc.weight")),
      fc_bias_(parameter_index(model, "fc.bias")) {
  for (const BlockPlan& plan : model.plan.blocks) {
    Block block;
    for (const UnitPlan& unit : plan.units) block.units.push_back(unit_of(model, unit));
    block.shortcut = plan.shortcut;
    if (plan.shortcut == Shortcut::projection) block.projection = unit_of(model, plan.projection);
    blocks_.push_back(std::move(block));
  }
}

Network::Unit Network::unit_of(const Model& model, const UnitPlan& plan) {
  return {parameter_index(model, plan.conv.name + ".weight"),
          parameter_index(model, plan.norm + ".weight"),
          parameter_index(model, plan.norm + ".bias"),
          norm_index(model, plan.norm),
          plan.conv.stride,
          plan.conv.kernel / 2};
}

at::Tensor Network::normalised(const Weights& weights, const Unit& unit, const at::Tensor& x,
                               Mode mode) {
  const at::Tensor y = at::conv2d(x, weights.parameters[unit.conv], {}, {unit.stride, unit.stride},
                                  {unit.padding, unit.padding});
  return at::batch_norm(y, weights.parameters[unit.norm_weight], weights.parameters[unit.norm_bias],
                        weights.means[unit.norm], weights.variances[unit.norm],
                        /*training=*/mode == Mode::training, kNormMomentum, kNormEpsilon,
                        /*cudnn_enabled=*/true);
}

at::Tensor Network::residual(const Weights& weights, const Block& block, const at::Tensor& x,
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
  const at::ScalarType type = weights.parameters[stem_.conv].scalar_type();
  at::Tensor x = images.to(type);
  x = normalised(weights, stem_, x, mode).relu_();
  if (stem_kind_ == Stem::imagenet) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
  for (const Block& block : blocks_) x = residual(weights, block, x, mode);
  const at::Tensor features = at::mean(x, {2, 3}, /*keepdim=*/false, at::kFloat);
  return at::linear(features, weights.parameters[fc_weight_].to(at::kFloat),
                    weights.parameters[fc_bias_]);
}

}  // namespace starling::training
