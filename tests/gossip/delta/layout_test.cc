#include "gossip/delta/layout.h"

#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

namespace starling::gossip {

using testing::make_layout;
using testing::resnet50;
using testing::uneven_layout;

TEST_SUITE("gossip/delta/layout") {
  TEST_CASE("ResNet-50 has 161 tensors in 6,227 blocks of weights and 14 of small tensors") {
    const auto model = resnet50();

    const Layout layout = make_layout(model);

    CHECK(model.tensors.size() == 161);
    CHECK(layout.parameters() == 25'557'032);
    CHECK(layout.first_small_block() == 6'227);
    CHECK(layout.blocks() == 6'227 + 14);
    CHECK(layout.size() == 6'241 * 4'096);
    CHECK(layout.bn_channels() == 26'560);
  }

  TEST_CASE("weights come first, each part is in bytewise order of names") {
    const Layout layout = make_layout(
        {{{"b", {16}}, {"a.weight", {4, 4}}, {"Z.weight", {4, 4}}, {"a", {3}}, {"scalar", {}}}, 0});

    std::vector<std::string> names;
    for (const TensorPlace& tensor : layout.tensors()) names.push_back(tensor.name);
    CHECK(names == std::vector<std::string>{"Z.weight", "a.weight", "a", "b", "scalar"});
    CHECK(layout.find("a.weight")->offset == 16);
    CHECK(layout.find("a")->offset == kBlock);
    CHECK(layout.find("b")->offset == kBlock + 16);
    CHECK(layout.find("scalar")->count == 1);
    CHECK(layout.find("nothing") == nullptr);
  }

  TEST_CASE("the order in which tensors are given does not matter") {
    auto model = resnet50();
    const Hash manifest = make_layout(model).manifest();

    std::ranges::reverse(model.tensors);

    CHECK(make_layout(model).manifest() == manifest);
  }

  TEST_CASE("the manifest changes with every name, dimension and number of channels") {
    const std::vector<TensorSpec> tensors{{"a", {4, 6}}, {"b", {5}}};
    const Hash manifest = make_layout({tensors, 7}).manifest();

    CHECK(make_layout({{{"c", {4, 6}}, {"b", {5}}}, 7}).manifest() != manifest);
    CHECK(make_layout({{{"a", {6, 4}}, {"b", {5}}}, 7}).manifest() != manifest);
    CHECK(make_layout({{{"a", {4, 6}}, {"b", {5, 1}}}, 7}).manifest() != manifest);
    CHECK(make_layout({tensors, 8}).manifest() != manifest);
  }

  TEST_CASE("every value is either in exactly one tensor or padding") {
    const Layout layout = uneven_layout();
    std::vector<int> owners(layout.size());

    for (const TensorPlace& tensor : layout.tensors()) {
      CHECK(tensor.offset % kTensorAlignment == 0);
      for (std::size_t i = 0; i < tensor.count; ++i) ++owners[tensor.offset + i];
    }

    std::size_t real = 0;
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      std::size_t in_block = 0;
      for (std::size_t i = 0; i < kBlock; ++i) {
        const int owner_count = owners[block * kBlock + i];
        CHECK(owner_count == (layout.is_real(block, i) ? 1 : 0));
        in_block += static_cast<std::size_t>(owner_count);
      }
      CHECK(in_block == layout.real_count(block));
      CHECK(layout.width(block) % kTensorAlignment == 0);
      real += in_block;
    }
    CHECK(real == layout.parameters());
  }

  TEST_CASE("a block without padding has no mask") {
    const Layout layout = make_layout(resnet50());

    std::size_t masks = 0;
    for (std::size_t block = 0; block < layout.blocks(); ++block)
      masks += layout.real_mask(block).empty() ? 0U : 1U;

    CHECK(masks == 1);  // behind fc.bias, 1,000 values
  }

  TEST_CASE("models of one kind of tensor have one part") {
    CHECK(make_layout({{{"w", {64, 64}}}, 0}).blocks() == 1);
    CHECK(make_layout({{{"w", {64, 64}}}, 0}).first_small_block() == 1);
    CHECK(make_layout({{{"b", {64}}}, 0}).first_small_block() == 0);
  }

  TEST_CASE("tensors that cannot be laid out are refused") {
    CHECK_FALSE(Layout::make({}, 0));
    CHECK_FALSE(Layout::make({{"", {4}}}, 0));
    CHECK_FALSE(Layout::make({{"a", {4}}, {"a", {4, 4}}}, 0));
    CHECK_FALSE(Layout::make({{"a", {4, 0}}}, 0));
    CHECK_FALSE(Layout::make({{"a", {-4}}}, 0));
    CHECK_FALSE(Layout::make({{"a", {1 << 20, 1 << 20, 1 << 20, 1 << 20}}}, 0));
  }

  TEST_CASE("file order and canonical order are inverse, rank 4 lies as O, H, W, I") {
    const Layout layout = make_layout({{{"w", {2, 3, 2, 2}}, {"v", {2, 5}}}, 0});
    for (const char* name : {"w", "v"}) {
      const TensorPlace& place = *layout.find(name);
      std::vector<float> file(place.count);
      std::iota(file.begin(), file.end(), 0.0F);
      std::vector<float> canonical(place.count);
      std::vector<float> back(place.count);

      to_canonical(place, file, canonical);
      to_file_order(place, canonical, back);

      CHECK(back == file);
      if (place.dims.size() == 2) CHECK(canonical == file);
      if (place.dims.size() == 4) {
        CHECK(canonical[0] == 0.0F);
        CHECK(canonical[1] == 4.0F);  // the next input channel, same place
        CHECK(canonical[3] == 1.0F);  // the next place, first input channel
      }
    }
  }
}

}  // namespace starling::gossip
