#include "training/models/plan.h"

#include "training/models/tensor_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>

using namespace starling;
using namespace starling::training;

namespace {

Model model_of(const ModelSpec& spec) {
  auto model = make_model(spec);
  REQUIRE(model.has_value());
  return *std::move(model);
}

}  // namespace

TEST_SUITE("training/models/plan") {
  TEST_CASE("every model has the parameters and tensors that torchvision counts") {
    struct Row {
      const char* name;
      std::size_t parameters;
      std::size_t tensors;
      std::size_t norms;
      std::int64_t bn_channels;
    };
    // From torchvision 0.26: sum of numel, len(parameters()), BatchNorm2d modules and channels.
    for (const Row& row :
         {Row{"resnet18", 11'689'512, 62, 20, 4'800}, Row{"resnet34", 21'797'672, 110, 36, 8'512},
          Row{"resnet50", 25'557'032, 161, 53, 26'560},
          Row{"resnet101", 44'549'160, 314, 104, 52'672}}) {
      CAPTURE(row.name);
      const Model model = model_of({row.name, 1'000, 3, 224});

      CHECK(model.layout.parameters() == row.parameters);
      CHECK(model.layout.tensors().size() == row.tensors);
      CHECK(model.norms.size() == row.norms);
      CHECK(model.bn_channels == row.bn_channels);
    }
  }

  TEST_CASE("the small model for Fashion-MNIST has 308,074 parameters") {
    CHECK(model_of({"small", 10, 1, 28}).layout.parameters() == 308'074);
  }

  TEST_CASE("ResNet-50 fills 6,227 and 14 blocks") {
    const Model model = model_of({"resnet50", 1'000, 3, 224});

    CHECK(model.layout.first_small_block() == 6'227);
    CHECK(model.layout.blocks() == 6'227 + 14);
  }

  TEST_CASE("tensors come in the order and with the shapes of torchvision's resnet50") {
    const auto plan = make_plan({"resnet50", 1'000, 3, 224});
    REQUIRE(plan.has_value());
    const auto specs = parameter_specs(*plan);

    const auto shape_of = [&specs](const std::string& name) {
      const auto found = std::ranges::find(specs, name, &gossip::TensorSpec::name);
      return found == specs.end() ? std::vector<std::int64_t>{} : found->dims;
    };
    using Shape = std::vector<std::int64_t>;
    CHECK(specs[0].name == "conv1.weight");
    CHECK(specs[1].name == "bn1.weight");
    CHECK(specs[2].name == "bn1.bias");
    CHECK(specs[3].name == "layer1.0.conv1.weight");
    CHECK(specs[12].name == "layer1.0.downsample.0.weight");
    CHECK(specs.back().name == "fc.bias");
    CHECK(shape_of("conv1.weight") == Shape{64, 3, 7, 7});
    CHECK(shape_of("layer1.0.downsample.0.weight") == Shape{256, 64, 1, 1});
    CHECK(shape_of("layer3.5.conv2.weight") == Shape{256, 256, 3, 3});
    CHECK(shape_of("layer4.2.bn3.bias") == Shape{2'048});
    CHECK(shape_of("fc.weight") == Shape{1'000, 2'048});
  }

  TEST_CASE("the stride of a bottleneck is on its 3x3") {
    const auto plan = make_plan({"resnet50", 1'000, 3, 224});
    REQUIRE(plan.has_value());
    const BlockPlan& first_of_layer2 = plan->blocks[3];

    CHECK(first_of_layer2.units[0].conv.stride == 1);
    CHECK(first_of_layer2.units[1].conv.stride == 2);
    CHECK(first_of_layer2.projection.conv.stride == 2);
  }

  TEST_CASE("of an image so many pixels a side are left at the end as strides and a pool leave") {
    const auto last = [](const std::string& name, std::int64_t side) {
      return last_side(*make_plan({name, 10, 3, 64}), side);
    };

    CHECK(last("small", 28) == 7);
    CHECK(last("small", 9) == 3);
    CHECK(last("resnet18", 32) == 1);
    CHECK(last("resnet18", 33) == 2);
    CHECK(last("resnet50", 224) == 7);
    CHECK(last("resnet101", 160) == 5);
  }

  TEST_CASE("statistics lie in bytewise order of the layers' names, without gaps") {
    const Model model = model_of({"resnet101", 10, 3, 224});

    CHECK(std::ranges::is_sorted(model.norms, {}, &NormSpec::name));
    std::int64_t at = 0;
    for (const NormSpec& norm : model.norms) {
      CHECK(norm.offset == at);
      at += norm.channels;
    }
    CHECK(at == model.bn_channels);
  }

  TEST_CASE("a model that does not exist is refused with the names of those that do") {
    const auto plan = make_plan({"resnet51", 1'000, 3, 224});

    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().code == Errc::bad_config);
    CHECK(plan.error().detail.find("resnet50") != std::string::npos);
    CHECK(plan.error().detail.find("resnet51") != std::string::npos);
  }

  TEST_CASE("sizes that a model cannot take are refused") {
    for (const ModelSpec& spec :
         {ModelSpec{"small", 1, 3, 32}, ModelSpec{"small", 10, 2, 32}, ModelSpec{"small", 10, 3, 4},
          ModelSpec{"resnet50", 10, 3, 28}, ModelSpec{"small", 10, 3, 1'000'000},
          ModelSpec{"small", -1, 3, 32}}) {
      CAPTURE(spec.name);
      CAPTURE(spec.classes);
      CAPTURE(spec.image_size);
      CHECK_FALSE(make_plan(spec).has_value());
    }
  }
}
