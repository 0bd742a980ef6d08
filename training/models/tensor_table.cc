#include "training/models/tensor_table.h"

#include <algorithm>
#include <utility>

namespace starling::training {
namespace {

// Every convolution with its normalisation, in the order in which torchvision registers them: the
// units of a block, then its projection.
template <class Visit>
void for_each_unit(const ModelPlan& plan, Visit visit) {
  visit(plan.stem);
  for (const BlockPlan& block : plan.blocks) {
    for (const UnitPlan& unit : block.units) visit(unit);
    if (block.shortcut == Shortcut::projection) visit(block.projection);
  }
}

}  // namespace

std::vector<gossip::TensorSpec> parameter_specs(const ModelPlan& plan) {
  std::vector<gossip::TensorSpec> specs;
  for_each_unit(plan, [&specs](const UnitPlan& unit) {
    const ConvPlan& conv = unit.conv;
    specs.push_back({conv.name + ".weight", {conv.out, conv.in, conv.kernel, conv.kernel}});
    specs.push_back({unit.norm + ".weight", {conv.out}});
    specs.push_back({unit.norm + ".bias", {conv.out}});
  });
  specs.push_back({"fc.weight", {plan.spec.classes, plan.features}});
  specs.push_back({"fc.bias", {plan.spec.classes}});
  return specs;
}

Result<Model> make_model(const ModelSpec& spec) {
  TRY(ModelPlan plan, make_plan(spec));
  std::vector<NormSpec> norms;
  for_each_unit(plan,
                [&norms](const UnitPlan& unit) { norms.push_back({unit.norm, unit.conv.out, 0}); });
  std::ranges::sort(norms, {}, &NormSpec::name);
  std::int64_t channels = 0;
  for (NormSpec& norm : norms) norm.offset = std::exchange(channels, channels + norm.channels);

  auto layout = gossip::Layout::make(parameter_specs(plan), static_cast<std::size_t>(channels));
  if (!layout) return fail(std::move(layout).error());
  return Model{std::move(plan), *std::move(layout), std::move(norms), channels};
}

}  // namespace starling::training
