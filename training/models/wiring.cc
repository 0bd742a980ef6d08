#include "training/models/wiring.h"

#include "node/base/check.h"

#include <algorithm>
#include <string>
#include <utility>

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

UnitWiring unit_of(const Model& model, const UnitPlan& plan) {
  return {parameter_index(model, plan.conv.name + ".weight"),
          parameter_index(model, plan.norm + ".weight"),
          parameter_index(model, plan.norm + ".bias"),
          norm_index(model, plan.norm),
          plan.conv.stride,
          plan.conv.kernel / 2};
}

}  // namespace

Wiring wiring_of(const Model& model) {
  Wiring wiring;
  wiring.stem_kind = model.plan.stem_kind;
  wiring.stem = unit_of(model, model.plan.stem);
  for (const BlockPlan& plan : model.plan.blocks) {
    BlockWiring block;
    for (const UnitPlan& unit : plan.units) block.units.push_back(unit_of(model, unit));
    block.shortcut = plan.shortcut;
    if (plan.shortcut == Shortcut::projection) block.projection = unit_of(model, plan.projection);
    wiring.blocks.push_back(std::move(block));
  }
  wiring.fc_weight = parameter_index(model, "fc.weight");
  wiring.fc_bias = parameter_index(model, "fc.bias");
  return wiring;
}

}  // namespace starling::training
