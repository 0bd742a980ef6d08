#include "node/cli/exit_code.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "training/genesis.h"
#include "training/model_file.h"

#include <doctest/doctest.h>

#include <string>

using namespace starling;
using namespace starling::node;
using starling::node::testing::contains;
using starling::node::testing::Said;
using starling::node::testing::Words;

namespace {

// A small net of three classes and images of eight pixels, as it was drawn.
struct ModelFile {
  ModelFile() {
    const auto model =
        training::make_model({.name = "small", .classes = 3, .channels = 3, .image_size = 8});
    REQUIRE(model.has_value());
    REQUIRE(training::write_model(path, *model, training::genesis_replica(*model, 1), {}));
  }

  [[nodiscard]] Said evaluate(const Words& more) const {
    Words words{"eval", path.string(), "--data", "synthetic:classes=3,size=8,train=30,val=6"};
    words.insert(words.end(), more.begin(), more.end());
    return node::testing::said_by(words, VerbHooks{.eval = &eval_verb},
                                  {{"STARLING_TRAIN__MODEL", "resnet18"}});
  }

  TempFolder folder;
  std::filesystem::path path = folder.path() / "m.safetensors";
};

}  // namespace

TEST_SUITE("node/eval_verb") {
  TEST_CASE("a file is evaluated as what it is, and a flag that calls it something else refused") {
    const ModelFile file;
    for (const Words& right : {Words{}, Words{"--model", "small"}, Words{"--img", "8"}}) {
      const Said said = file.evaluate(right);
      INFO(said.err);
      CHECK(said.code == number_of(ExitCode::good));
      CHECK(contains(said.out, "small on "));
    }
    for (const Words& wrong : {Words{"--model", "resnet50"}, Words{"--img", "16"}}) {
      const Said said = file.evaluate(wrong);
      INFO(said.err);
      CHECK(said.code == number_of(ExitCode::usage));
      CHECK(contains(said.err, wrong[0]));
      CHECK(contains(said.err, wrong[1]));
      CHECK(contains(said.err, file.path.string()));
    }
  }
}
