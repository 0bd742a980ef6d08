// ModelPlan: what a model is made of, without any tensor: names, shapes, order of the layers.
//
// The table of tensors, the genesis and the network are all made from the same plan, so none of
// them can name or size a tensor differently.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

// What the settings of a swarm say about its model.
struct ModelSpec {
  std::string name = "resnet50";  // small, resnet18, resnet34, resnet50, resnet101
  std::int64_t classes = 1000;
  std::int64_t channels = 3;      // of an input image
  std::int64_t image_size = 224;  // pixels, height and width
  // Hash of the names of the classes in order, see names_of_classes(): what each output means.
  std::optional<Hash> class_names = std::nullopt;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// What batch normalisation adds to the variance, and how far a step moves the running statistics:
// torchvision's values.
inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kNormMomentum = 0.1;

// A convolution without bias; padding is kernel / 2.
struct ConvPlan {
  std::string name;  // "layer1.0.conv2"
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
};

// A convolution and the batch normalisation behind it.
struct UnitPlan {
  ConvPlan conv;
  std::string norm;  // "layer1.0.bn2"; it has conv.out channels
};

enum class Shortcut : std::uint8_t { identity, projection };

// A residual block: relu(units(x) + shortcut(x)), with relu behind every unit but the last.
struct BlockPlan {
  std::vector<UnitPlan> units;
  Shortcut shortcut = Shortcut::identity;
  UnitPlan projection;  // only where shortcut is Shortcut::projection
};

enum class Stem : std::uint8_t {
  imagenet,  // 7x7 with stride 2, then a 3x3 maximum with stride 2
  small,     // 3x3 with stride 1: keeps the pixels of small images
};

// stem, blocks, mean over the image, linear layer "fc".
struct ModelPlan {
  ModelSpec spec;
  Stem stem_kind = Stem::imagenet;
  UnitPlan stem;
  std::vector<BlockPlan> blocks;
  std::int64_t features = 0;  // inputs of fc
};

// The names that make_plan() knows, smallest first.
[[nodiscard]] std::vector<std::string_view> model_names();

// The plan of a model.
//
// Rule:    ResNet v1.5 (stride on the 3x3) with torchvision's names; `small` is a residual net of
//          three stages of 32, 64 and 128 channels with one block each.
// Errors:  bad_config if the name is unknown, classes or channels are out of range, or the image is
//          too small for the model.
// Source:  He et al. 2016, "Deep Residual Learning for Image Recognition"; torchvision resnet.
[[nodiscard]] Result<ModelPlan> make_plan(const ModelSpec& spec);

// Pixels a side of what the last normalisations see of images of `side` pixels.
[[nodiscard]] std::int64_t last_side(const ModelPlan& plan, std::int64_t side);

}  // namespace starling::training
