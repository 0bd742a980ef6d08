// The model of a lab node, in place of training/models/plan.cc, and its device: a vector of a
// million parameters and a few channels of statistics, dressed as a stem and a last layer.
#include "tests/net/lab.h"
#include "training/device.h"
#include "training/models/plan.h"

namespace starling::lab {

LabOptions& lab_options() {
  static LabOptions options;
  return options;
}

}  // namespace starling::lab

namespace starling::training {

namespace {

constexpr std::int64_t kChannels = 32;
constexpr std::int64_t kFeatures = 100'000;  // with ten classes: 10^6 parameters

}  // namespace

std::vector<std::string_view> model_names() { return {lab::kModelName}; }

Result<ModelPlan> make_plan(const ModelSpec& spec) {
  if (spec.name != lab::kModelName)
    return fail(Errc::bad_config, Doing::building_model,
                "a lab node trains nothing but \"" + std::string(lab::kModelName) + "\", not \"" +
                    spec.name + "\"");
  ModelPlan plan;
  plan.spec = spec;
  plan.stem_kind = Stem::small;
  plan.stem = {{"conv1", spec.channels, kChannels, 1, 1}, "bn1"};
  plan.features = kFeatures;
  return plan;
}

Result<ResolvedDevice> resolve_device(const DeviceOptions&) { return ResolvedDevice{}; }
Result<void> suit_loader(LoaderOptions&, const DeviceOptions&) { return {}; }

bool cpu_has_bf16() { return false; }
bool cpu_hides_tiles() { return false; }

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is training/device.h's.
Result<PrecisionCost> measure_precisions(const ModelSpec&, std::size_t, int, std::stop_token) {
  return fail(Errc::unsupported, Doing::training, "a node of the net lab computes in fp32");
}

std::string_view name_of(Precision) { return "fp32"; }
std::string name_of(const ResolvedDevice&) { return "lab"; }

std::string libtorch_version() { return "none: a node of the net lab"; }

}  // namespace starling::training
