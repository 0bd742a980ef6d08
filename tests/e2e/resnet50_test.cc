// ResNet-50 on photographs: two nodes, the final consensus, and torchvision as the judge of what
// they wrote.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

using namespace starling::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// The tar of ten ImageNet classes at 224 pixels; empty where the machine does not have it.
std::string photographs() {
  const char* folder = std::getenv("STARLING_TEST_DATA");
  if (folder == nullptr) return {};
  const fs::path root = fs::path(folder) / "imagenette224";
  if (!fs::is_directory(root)) return {};
  std::string shards;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().extension() != ".tar") continue;
    if (!shards.empty()) shards += ',';
    shards += entry.path().string();
  }
  return shards;
}

}  // namespace

TEST_SUITE("e2e/resnet50") {
  TEST_CASE("two nodes train ResNet-50 on photographs to one model that torchvision takes") {
    const std::string data = photographs();
    if (data.empty()) {
      MESSAGE("skipped: set STARLING_TEST_DATA to a folder with imagenette224/");
      return;
    }
    Swarm swarm({"--data", data, "--model", "resnet50", "--img", "128", "--batch", "8",
                 "--precision", "bf16", "--threads", "1", "--until", "samples=720", "--lr", "0.01",
                 "--set", "eval.every=0"});
    swarm.start(2);

    const auto ends = swarm.wait_all({0, 1}, 1200s);

    INFO(swarm.logs());
    REQUIRE(ends == std::vector<int>{0, 0});
    const fs::path model = swarm.node(0).dir() / "final" / "model.safetensors";
    CHECK(sha256_of(model) == sha256_of(swarm.node(1).dir() / "final" / "model.safetensors"));
    CHECK(swarm.node(0).certificate().at("participants").size() == 2);
    CHECK(swarm.node(0).certificate().at("model") == "resnet50");
    const auto last = nlohmann::json::parse(read_text(swarm.node(0).dir() / "status.json"));
    CHECK(last.at("traffic").at("exchanges").get<int>() > 0);
    for (const std::size_t node : {0U, 1U}) {
      const auto status = nlohmann::json::parse(read_text(swarm.node(node).dir() / "status.json"));
      CHECK(status.at("progress").at("step").get<int>() >= 30);
    }

    // A model that knows nothing has a loss of ln 10 = 2.303 and is right once in ten.
    CHECK(last.at("eval").at("images").get<int>() == 1'000);
    CHECK(last.at("eval").at("loss").get<double>() < 2.25);
    CHECK(last.at("eval").at("accuracy_ratio").get<double>() > 0.15);
  }

  TEST_CASE("a newcomer takes ResNet-50 from a sponsor and answers whoever asks all the while") {
    Swarm swarm({"--data", "synthetic:size=32,channels=3", "--model", "resnet50", "--img", "32",
                 "--batch", "2", "--threads", "1", "--precision", "fp32", "--until",
                 "samples=100000000", "--set", "eval.every=0"});
    swarm.start(1);
    // Before that many steps a newcomer draws its first model itself.
    REQUIRE(eventually(900s, [&] { return swarm.node(0).step() > 110; }));

    swarm.start(1);
    // Its control socket is there from the first answer on.
    REQUIRE(eventually(60s, [&] { return swarm.node(1).status().is_object(); }));
    int unanswered = 0;
    const bool trains = eventually(300s, [&] {
      const auto status = swarm.node(1).status();
      if (!status.is_object()) ++unanswered;
      return status.is_object() && status.at("progress").at("step").get<int>() > 0;
    });

    INFO(swarm.logs());
    CHECK(trains);
    CHECK(unanswered == 0);
    CHECK(contains(read_text(swarm.node(1).dir() / "events.jsonl"), "\"origin\":\"transferred\""));
  }
}
