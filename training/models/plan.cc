#include "training/models/plan.h"

#include <algorithm>
#include <array>
#include <span>

namespace starling::training {
namespace {

enum class BlockKind : std::uint8_t { basic, bottleneck };

struct Family {
  std::string_view name;
  Stem stem;
  BlockKind block;
  std::array<std::int64_t, 4> depths;  // blocks of each stage; 0: no such stage
  std::int64_t width;                  // channels of the first stage; each further stage doubles it
  std::int64_t min_image_size;
};

constexpr std::array kFamilies{
    Family{"small", Stem::small, BlockKind::basic, {1, 1, 1, 0}, 32, 8},
    Family{"resnet18", Stem::imagenet, BlockKind::basic, {2, 2, 2, 2}, 64, 32},
    Family{"resnet34", Stem::imagenet, BlockKind::basic, {3, 4, 6, 3}, 64, 32},
    Family{"resnet50", Stem::imagenet, BlockKind::bottleneck, {3, 4, 6, 3}, 64, 32},
    Family{"resnet101", Stem::imagenet, BlockKind::bottleneck, {3, 4, 23, 3}, 64, 32},
};

// A bottleneck's last convolution has this many times the channels of its 3x3.
constexpr std::int64_t kExpansion = 4;

// Bounds that keep every product of sizes far inside 63 bits.
constexpr std::int64_t kMaxClasses = 1'000'000;
constexpr std::int64_t kMaxImageSize = 4'096;

struct Shape {
  std::int64_t in;
  std::int64_t out;
  std::int64_t kernel;
  std::int64_t stride;
};

UnitPlan unit(const std::string& prefix, int number, Shape shape) {
  const std::string digit = std::to_string(number);
  return {{prefix + "conv" + digit, shape.in, shape.out, shape.kernel, shape.stride},
          prefix + "bn" + digit};
}

// A block whose input has `in` channels; the stride is on its (first) 3x3.
BlockPlan block(BlockKind kind, const std::string& prefix, Shape shape) {
  BlockPlan plan;
  const std::int64_t width = shape.out;
  std::int64_t out = width;
  if (kind == BlockKind::basic) {
    plan.units.push_back(unit(prefix, 1, {shape.in, width, 3, shape.stride}));
    plan.units.push_back(unit(prefix, 2, {width, width, 3, 1}));
  } else {
    out = kExpansion * width;
    plan.units.push_back(unit(prefix, 1, {shape.in, width, 1, 1}));
    plan.units.push_back(unit(prefix, 2, {width, width, 3, shape.stride}));
    plan.units.push_back(unit(prefix, 3, {width, out, 1, 1}));
  }
  if (shape.stride != 1 || shape.in != out) {
    plan.shortcut = Shortcut::projection;
    plan.projection = {{prefix + "downsample.0", shape.in, out, 1, shape.stride},
                       prefix + "downsample.1"};
  }
  return plan;
}

std::string known_names() {
  std::string text;
  for (const Family& family : kFamilies) {
    text += (text.empty() ? "" : ", ") + std::string(family.name);
  }
  return text;
}

Result<void> check_sizes(const Family& family, const ModelSpec& spec) {
  const auto refuse = [](const std::string& what) {
    return fail(Errc::bad_config, Doing::building_model, what);
  };
  if (spec.classes < 2 || spec.classes > kMaxClasses) {
    return refuse("classes is " + std::to_string(spec.classes) + ", expected 2 to " +
                  std::to_string(kMaxClasses));
  }
  if (spec.channels != 1 && spec.channels != 3) {
    return refuse("image channels is " + std::to_string(spec.channels) + ", expected 1 or 3");
  }
  if (spec.image_size < family.min_image_size || spec.image_size > kMaxImageSize) {
    const Family& smallest = kFamilies.front();
    const bool smallest_takes_it =
        spec.image_size >= smallest.min_image_size && spec.image_size < family.min_image_size;
    return refuse("image size is " + std::to_string(spec.image_size) + " pixels, but " + spec.name +
                  " takes " + std::to_string(family.min_image_size) + " to " +
                  std::to_string(kMaxImageSize) + ": choose another with --img" +
                  (smallest_takes_it ? ", or take --model " + std::string(smallest.name) : ""));
  }
  return {};
}

}  // namespace

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

Result<ModelPlan> make_plan(const ModelSpec& spec) {
  const auto* family = std::ranges::find(kFamilies, spec.name, &Family::name);
  if (family == kFamilies.end()) {
    return fail(Errc::bad_config, Doing::building_model,
                "no model is called \"" + spec.name + "\"; there are " + known_names());
  }
  TRY_VOID(check_sizes(*family, spec));

  ModelPlan plan;
  plan.spec = spec;
  plan.stem_kind = family->stem;
  const bool small_stem = family->stem == Stem::small;
  plan.stem = unit("", 1, {spec.channels, family->width, small_stem ? 3 : 7, small_stem ? 1 : 2});

  std::int64_t channels = family->width;
  for (std::size_t stage = 0; stage < family->depths.size(); ++stage) {
    const std::int64_t width = family->width << stage;
    for (std::int64_t index = 0; index < family->depths[stage]; ++index) {
      const std::string prefix =
          "layer" + std::to_string(stage + 1) + "." + std::to_string(index) + ".";
      const std::int64_t stride = (stage > 0 && index == 0) ? 2 : 1;
      plan.blocks.push_back(block(family->block, prefix, {channels, width, 3, stride}));
      channels = plan.blocks.back().units.back().conv.out;
    }
  }
  plan.features = channels;
  return plan;
}

std::int64_t last_side(const ModelPlan& plan, std::int64_t side) {
  // Paddings are half a kernel, and kernels are odd.
  const auto stride_over = [&side](std::int64_t stride) { side = (side + stride - 1) / stride; };
  stride_over(plan.stem.conv.stride);
  if (plan.stem_kind == Stem::imagenet) stride_over(2);  // the pool
  for (const BlockPlan& block : plan.blocks)
    for (const UnitPlan& unit : block.units) stride_over(unit.conv.stride);
  return side;
}

}  // namespace starling::training
