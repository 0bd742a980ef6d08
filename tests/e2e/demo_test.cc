// The main job in its short form, and what the final model is good for.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>

#include <set>
#include <sstream>
#include <string>

using namespace starling::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// Each evaluation says what it is of: the mean of so many references, or none; the last one is of
// what the final consensus made.
void check_what_was_evaluated(const fs::path& events) {
  CAPTURE(events.string());
  std::string last;
  std::istringstream lines(read_text(events));
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("event", "") != "eval") continue;
    last = event.at("of").get<std::string>();
    const auto references = event.at("references").get<int>();
    CHECK((references > 0) == (last == "neighbourhood"));
    CHECK(references <= 3);
  }
  CHECK(last == "consensus");
}

}  // namespace

TEST_SUITE("e2e/demo") {
  TEST_CASE("a demo of four nodes ends with one model, byte for byte, and says so") {
    const TempDir dir;
    const fs::path demo = dir.path() / "demo";

    const auto finished = run_to_end(
        {starling_binary(), "demo", "--nodes", "4", "--data", "synthetic:size=16,channels=1",
         "--until", "samples=40000", "--set", "eval.every=1s", "--dir", demo.string()},
        300s);

    INFO(finished.out << finished.err);
    REQUIRE(finished.status == 0);
    CHECK(finished.out.find("final consensus: 4/4 replicas identical  blake2b ") !=
          std::string::npos);
    std::set<std::string> sums;
    for (int k = 1; k <= 4; ++k)
      sums.insert(sha256_of(demo / ("node-" + std::to_string(k)) / "final" / "model.safetensors"));
    CHECK(sums.size() == 1);
    for (int k = 1; k <= 4; ++k)
      check_what_was_evaluated(demo / ("node-" + std::to_string(k)) / "events.jsonl");

    const auto evaluated =
        run_to_end({starling_binary(), "eval", (demo / "node-1/final/model.safetensors").string(),
                    "--data", "synthetic:size=16,channels=1", "--json"},
                   120s);
    INFO(evaluated.out << evaluated.err);
    REQUIRE(evaluated.status == 0);
    const auto result = nlohmann::json::parse(evaluated.out);
    CHECK(result.at("accuracy_ratio").get<double>() > 0.3);  // ten classes: chance is 0.1
    CHECK(result.at("images").get<int>() > 0);
  }

  TEST_CASE("chaos tells what each fault did, and the nodes end with one model all the same") {
    const TempDir dir;
    const auto finished =
        run_to_end({starling_binary(), "chaos", "--nodes", "4", "--each", "4s", "--faults",
                    "kill,partition,leave", "--data", "synthetic:size=16,channels=1", "--json",
                    "--dir", (dir.path() / "chaos").string()},
                   300s);

    INFO(finished.out << finished.err);
    REQUIRE(finished.status == 0);
    const auto result = nlohmann::json::parse(finished.out);
    REQUIRE(result.at("faults").size() == 3);
    for (const auto& fault : result.at("faults")) {
      CHECK(fault.at("others_percent").get<double>() > 0);
      CHECK(fault.at("whole_s").is_number());
    }
    CHECK(result.at("consensus").at("identical") == 3);
    CHECK(result.at("consensus").at("of") == 3);
  }

  TEST_CASE("a bench of whole nodes measures them, and leaves neither processes nor files") {
    const TempDir dir;
    const auto bench = [&](const std::vector<std::string>& more) {
      std::vector<std::string> words{starling_binary(),
                                     "bench",
                                     "swarm",
                                     "--nodes",
                                     "3",
                                     "--steps",
                                     "4",
                                     "--repeats",
                                     "1",
                                     "--json",
                                     "--data",
                                     "synthetic:size=16,channels=1"};
      words.insert(words.end(), more.begin(), more.end());
      const auto finished = run_to_end(words, 300s);
      INFO(finished.out << finished.err);
      REQUIRE(finished.status == 0);
      // "starting 3 nodes in FOLDER"
      const std::string before = " nodes in ";
      const auto at = finished.err.find(before) + before.size();
      CHECK_FALSE(fs::exists(finished.err.substr(at, finished.err.find('\n', at) - at)));
      return nlohmann::json::parse(finished.out);
    };

    const auto together = bench({"--finish"});
    CHECK(together.at("images_per_s").at("median") > 0);
    CHECK(together.at("bytes_per_step").at("median") > 0);
    CHECK(together.at("consensus_ms") > 0);

    const auto alone = bench({"--gossip", "off"});
    CHECK(alone.at("images_per_s").at("median") > 0);
    CHECK(alone.at("bytes_per_step").at("median") == 0);

    const auto killed = bench({"--fault", "kill"});
    CHECK(killed.at("longest_pause_ms") > 0);
  }

  TEST_CASE("where the codec would take much of a step, nodes offer less often and say why") {
    // Eleven million parameters for two small images: hardly any arithmetic for as much codec.
    Swarm swarm({"--data", "synthetic:size=32,channels=3", "--model", "resnet18", "--batch", "2",
                 "--until", "samples=100000000", "--threads", "1"});
    swarm.start(2);

    const bool held_back = eventually(180s, [&] {
      const auto status = swarm.node(0).status();
      return status.is_object() && status.at("period").at("steps") >= 8 &&
             status.at("period").at("reason") == "codec_time";
    });

    INFO(swarm.logs());
    CHECK(held_back);
  }

  TEST_CASE("a node alone ends with a certificate of one and never trains again in that folder") {
    const TempDir dir;
    const std::vector<std::string> arguments{"--data",  "synthetic:size=16,channels=1",
                                             "--model", "small",
                                             "--until", "samples=2000",
                                             "--batch", "32"};
    NodeProcess first(dir.path() / "alone", arguments);
    const auto ended = first.process().wait(120s);
    INFO(first.process().standard_error());
    REQUIRE(ended.has_value());
    CHECK(ended->status == 0);
    CHECK(first.certificate().at("participants").size() == 1);
    const auto model = sha256_of(dir.path() / "alone/final/model.safetensors");

    NodeProcess again(dir.path() / "alone", arguments);
    const auto second = again.process().wait(60s);

    INFO(again.process().standard_error());
    REQUIRE(second.has_value());
    CHECK(second->status == 0);
    CHECK(sha256_of(dir.path() / "alone/final/model.safetensors") == model);
  }
}
