#include "node/bench/bench.h"

#include "node/bench/swarm_nodes.h"
#include "tests/node/bench_support.h"
#include "tests/support/temp_folder.h"
#include "transport/limits.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

using namespace starling::node;
using namespace starling::node::testing;
using starling::TempFolder;
namespace fs = std::filesystem;

namespace {

int measure(const Arguments& arguments, const Terminal& terminal) {
  const std::array table{bench::kCodecBench, bench::kOptimBench, bench::kDataBench,
                         bench::kWireBench,  bench::kRoundBench, bench::kSwarmBench};
  return bench::carry_out(table, arguments, terminal);
}

Said say(const Words& words) { return testing::say(&measure, words); }
nlohmann::json figures_of(const Words& words) { return testing::figures_of(&measure, words); }

}  // namespace

TEST_SUITE("node/bench") {
  TEST_CASE("codec reports times, bytes and kept energy of every level") {
    const auto json = figures_of({"bench", "codec", "--n", "400000", "--repeats", "3", "--json"});
    CHECK(json.at("params").at("n") == 400'000);
    REQUIRE(json.at("levels").size() == 7);
    double bytes_before = 0;
    double sent_before = 0;
    for (const auto& row : json.at("levels")) {
      CAPTURE(row.dump());
      for (const auto* stage : {"encode_cpu_ms", "apply_cpu_ms", "exchange_cpu_ms", "exchange_ms",
                                "floor_cpu_ms", "encode_over_floor"})
        check_spread(row.at(stage));
      CHECK(row.at("bytes") > bytes_before);
      CHECK(row.at("sent_energy") > sent_before);
      CHECK(row.at("sent_energy") < 1);
      bytes_before = row.at("bytes");
      sent_before = row.at("sent_energy");
      if (row.at("level") > "L2") continue;
      // Within a block a threshold takes exactly the largest ones.
      CHECK(row.at("kept_energy_in_blocks") == doctest::Approx(1).epsilon(1e-4));
      CHECK(row.at("kept_energy") > 0.98);
      CHECK(row.at("kept_energy") <= doctest::Approx(1));
    }
  }

  TEST_CASE("codec measures one level on the path that was asked for") {
    const auto json = figures_of({"bench", "codec", "--n", "8192", "--repeats", "1", "--level",
                                  "L2", "--isa", "scalar", "--json"});
    CHECK(json.at("params").at("isa") == "scalar");
    REQUIRE(json.at("levels").size() == 1);
    CHECK(json.at("levels").at(0).at("level") == "L2");
  }

  TEST_CASE("optim reports both types of working copy") {
    const auto json = figures_of({"bench", "optim", "--n", "200000", "--repeats", "5", "--json"});
    for (const auto* type : {"bf16", "fp32"}) {
      CAPTURE(type);
      for (const auto* figure : {"step_ms", "floor_cpu_ms", "over_floor"})
        check_spread(json.at(type).at(figure));
    }
    CHECK(json.at("bf16").at("bytes") == 200'000 * 20);
    CHECK(json.at("fp32").at("bytes") == 200'000 * 24);
  }

  TEST_CASE("an optimizer pass reads x, v and every slice of g, and writes x, v and w") {
    CHECK(bench::optimizer_pass_bytes(1'000, 4) == 24'000);
    CHECK(bench::optimizer_pass_bytes(1'000, 2) == 20'000);
    CHECK(bench::optimizer_pass_bytes(1'000, 2, 3) == 24'000);
  }

  TEST_CASE("data counts whole batches of the threads and the size that were asked for") {
    const auto json = figures_of(
        {"bench", "data", "--data", "synthetic:classes=3,size=12,channels=1,train=50", "--set",
         "data.threads=2", "--batch", "8", "--steps", "2", "--repeats", "3", "--json"});
    CHECK(json.at("params").at("threads") == 2);
    CHECK(json.at("params").at("samples") == 50);
    CHECK(json.at("params").at("img") == 12);
    CHECK(json.at("batch_bytes") == 8 * 12 * 12 * 4);
    CHECK(json.at("bad_samples") == 0);
    for (const auto* figure : {"images_per_s", "images_per_cpu_s", "image_cpu_ms"})
      check_spread(json.at(figure));
  }

  TEST_CASE("plain sockets and the cipher by itself are what a session is compared with") {
    const auto json = figures_of(
        {"bench", "wire", "--cipher", "none", "--bytes", "3000000", "--repeats", "3", "--json"});
    CHECK(json.at("params").at("cipher") == "none");
    CHECK(json.at("mb_per_s").at("min") > 0);
    CHECK(json.at("idle_round_trip_us").at("p50") > 0);
    const double plain = json.at("cpu_s_per_gb").at("median");
    CHECK(json.at("and_cipher_cpu_s_per_gb").at("median") > plain);
  }

  TEST_CASE("wire sends every byte both ways, and a small message waits for few records") {
    const auto json =
        figures_of({"bench", "wire", "--bytes", "3000000", "--repeats", "3", "--json"});
    CHECK(json.at("params").at("bytes") == 3'000'000);
    CHECK(json.at("wire_bytes") > 3'000'000);
    CHECK(json.at("wire_bytes") < 3'100'000);
    for (const auto* figure : {"exchange_ms", "mb_per_s", "cpu_s_per_gb"})
      check_spread(json.at(figure));
    for (const auto* tail : {"idle_round_trip_us", "busy_round_trip_us"}) {
      CHECK(json.at(tail).at("p50") > 0);
      CHECK(json.at(tail).at("p50") <= json.at(tail).at("p99"));
      CHECK(json.at(tail).at("p99") <= json.at(tail).at("max"));
    }
    // No more than the two bulk records that were being sealed.
    CHECK(json.at("busy_bulk_before_bytes").at("max") <=
          2 * (starling::transport::limits::kLengthPrefix +
               starling::transport::limits::kMaxCiphertext));
  }

  TEST_CASE("round carries out whole exchanges of the level and size that were asked for") {
    const auto json = figures_of(
        {"bench", "round", "--n", "400000", "--level", "L3", "--repeats", "4", "--json"});
    CHECK(json.at("params").at("n") == 400'000);
    CHECK(json.at("params").at("level") == "L3");
    for (const auto* figure :
         {"exchange_ms", "own_cpu_ms", "their_cpu_ms", "own_codec_cpu_ms", "their_codec_cpu_ms"})
      check_spread(json.at(figure));
    // 1.01 bits a value each way, and records of the session around them.
    for (const auto* way : {"bytes_sent", "bytes_received"}) {
      check_spread(json.at(way));
      CHECK(json.at(way).at("min") > 50'000);
      CHECK(json.at(way).at("max") < 51'500);
      CHECK(json.at(std::string("wire_") + way).at("min") > json.at(way).at("max"));
    }
  }

  TEST_CASE("without --json a bench prints a table") {
    const auto said = say({"bench", "codec", "--n", "8192", "--repeats", "1", "--level", "L3"});
    CHECK(said.code == 0);
    CHECK(said.out.find("encode_cpu_ms") != std::string::npos);
    CHECK(said.out.find("L3") != std::string::npos);
    CHECK(said.out.find('{') == std::string::npos);
  }

  TEST_CASE("a flag that a bench does not look at is exit 2 and names those that it takes") {
    for (const auto& words :
         std::vector<Words>{{"bench", "optim", "--level", "L2"},
                            {"bench", "codec", "--batch", "16"},
                            {"bench", "codec", "--level", "L7"},
                            {"bench", "codec", "--isa", "neon"},
                            {"bench", "codec", "--isa", "scalar", "--device", "cuda"},
                            {"bench", "codec", "--n", "0"},
                            {"bench", "optim", "--repeats", "none"},
                            {"bench", "data"},
                            {"bench", "data", "--data", "synthetic:size=0"},
                            {"bench", "data", "--data", "synthetic", "--n", "9"},
                            {"bench", "data", "--data", "synthetic", "--steps", "0"},
                            {"bench", "wire", "--bytes", "0"},
                            {"bench", "wire", "--cipher", "rot13"},
                            {"bench", "wire", "--bytes", "300000000"},
                            {"bench", "wire", "--level", "L2"},
                            {"bench", "round", "--level", "L9"},
                            {"bench", "round", "--n", "0"},
                            {"bench", "round", "--repeats", "501"},
                            {"bench", "round", "--bytes", "5"},
                            {"bench", "swarm", "--nodes", "0"},
                            {"bench", "swarm", "--gossip", "maybe"},
                            {"bench", "swarm", "--fault", "flood"},
                            {"bench", "swarm", "--nodes", "1", "--fault", "stop"},
                            {"bench", "swarm", "--gossip", "off", "--finish"},
                            {"bench", "swarm", "--level", "L2"},
                            {"bench", "quantum"},
                            {"bench"}})
      (void)refusal_of(&measure, words);
    CHECK(say({"bench", "optim", "--level", "L2"}).err.find("--n") != std::string::npos);
    CHECK(say({"bench", "quantum"}).err.find("codec") != std::string::npos);
  }

  TEST_CASE("a key that a bench does not look at is refused wherever it was set") {
    const TempFolder folder;
    const auto file = folder.write("node.toml", "[gossip]\ntau = 4\n");
    const VerbHooks hooks{.bench = &measure};
    const Words codec{"bench", "codec", "--n", "8192", "--level", "L3", "--repeats", "1"};

    const auto by_variable = said_by(codec, hooks, {{"STARLING_TRAIN__BATCH", "64"}});
    CHECK(by_variable.code == 2);
    CHECK(contains(by_variable.err,
                   "does not look at train.batch (64, set by env STARLING_TRAIN__BATCH)"));

    Words with_file = codec;
    with_file.insert(with_file.end(), {"--config", file.string()});
    const auto by_file = said_by(with_file, hooks);
    CHECK(by_file.code == 2);
    CHECK(contains(by_file.err, "gossip.tau (4, set by " + file.string()));

    const auto by_flag = said_by({"bench", "swarm", "--set", "eval.every=5s"}, hooks);
    CHECK(by_flag.code == 2);
    CHECK(contains(by_flag.err, "eval.every (5s, set by --set eval.every)"));

    const auto invite =
        said_by(codec, hooks, {{"STARLING_SWARM__INVITE", "starling1:whoever-reads-this"}});
    CHECK(invite.code == 2);
    CHECK_FALSE(contains(invite.err, "whoever-reads-this"));

    const auto folder_by_flag = said_by({"bench", "optim", "--dir", "/nowhere"}, hooks);
    CHECK(folder_by_flag.code == 2);
    CHECK(contains(folder_by_flag.err, "node.dir (/nowhere, set by --dir)"));

    // What it does look at, the folder that an image sets for all, and what is nobody's key, stops
    // nothing.
    CHECK(said_by(codec, hooks,
                  {{"STARLING_TRAIN__DEVICE", "cpu"},
                   {"STARLING_NODE__DIR", "/nowhere"},
                   {"STARLING_PORT", "1"}})
              .code == 0);
  }

  TEST_CASE("a swarm says what its nodes were told, and what became of what was left to them") {
    const std::vector<std::string> words{"--set", "train.batch=32", "--set", "data.train=synthetic",
                                         "--set", "node.threads=1", "--set", "gossip.tau=16",
                                         "--set", "gossip.tau=8"};
    const auto untold = bench::settings_of({}, {});
    CHECK(untold.at("model") == "resnet50");
    CHECK(untold.at("batch") == "auto");
    const nlohmann::json early{{"model", {{"name", "small"}, {"img", 0}}},
                               {"train", {{"batch", 0}, {"device", ""}}}};
    CHECK(bench::settings_of(words, early).at("img") == "auto");
    CHECK(bench::settings_of(words, early).at("batch") == 32);

    const nlohmann::json status{
        {"model", {{"name", "small"}, {"img", 28}}},
        {"train", {{"batch", 32}, {"device", "cpu"}, {"precision", "fp32"}}}};
    const bench::Json expected{
        {"model", "small"}, {"img", 28},    {"batch", 32},         {"precision", "fp32"},
        {"device", "cpu"},  {"threads", 1}, {"data", "synthetic"}, {"data_threads", "auto"},
        {"codec", "auto"},  {"tau", 8},     {"degree", "auto"}};
    CHECK(bench::settings_of(words, status).dump() == expected.dump());
  }

  TEST_CASE("a swarm that is told to stop says by its exit code by what, and leaves no folder") {
    const TempFolder folder;
    const char* before = std::getenv("TMPDIR");
    const std::string kept = before != nullptr ? before : "";
    ::setenv("TMPDIR", folder.path().c_str(), 1);
    for (const int number : {SIGTERM, SIGINT}) {
      CAPTURE(number);
      // Held back already, and there before the first node is started.
      sigset_t set;
      ::sigemptyset(&set);
      ::sigaddset(&set, number);
      ::sigprocmask(SIG_BLOCK, &set, nullptr);
      ::raise(number);

      const auto said = say({"bench", "swarm", "--nodes", "2", "--json"});

      CHECK(said.code == 128 + number);
      CHECK(said.out.empty());
      CHECK(contains(said.err, folder.path().string()));  // it had one
      CHECK(fs::is_empty(folder.path()));
    }
    if (before != nullptr)
      ::setenv("TMPDIR", kept.c_str(), 1);
    else
      ::unsetenv("TMPDIR");
  }

  TEST_CASE("the slowest step of the first nodes is of those that there are") {
    bench::Window window;
    window.step_ms = {20, 30, 50};
    CHECK(window.slowest_step_ms(3) == 50);
    CHECK(window.slowest_step_ms(2) == 30);
    window.step_ms.pop_back();  // the slow one is not looked at
    CHECK(window.slowest_step_ms(3) == 30);
    CHECK(window.slowest_step_ms(0) == 0);
  }

  TEST_CASE("rates of a window of a swarm belong to the clock of what they count") {
    // 20 steps of 8 images in 2 s; the status of its end is a second younger than that of its
    // begin, and the look that saw it was late.
    bench::NodeReading fast{.step = 10, .step_at_s = 5, .status_at_s = 5.5, .batch = 8};
    fast.cpu_s = 3;
    fast.bytes_sent = 1000;
    fast.exchanges = 4;
    bench::NodeReading fast_after = fast;
    fast_after.step = 30;
    fast_after.step_at_s = 7;
    fast_after.status_at_s = 6.5;
    fast_after.at += std::chrono::seconds(4);
    fast_after.cpu_s = 5;
    fast_after.bytes_sent = 3000;
    fast_after.exchanges = 6;
    fast_after.rss_bytes = 100 << 20;
    // Ten times slower, and silent.
    bench::NodeReading slow{.step = 1, .step_at_s = 1, .status_at_s = 1, .batch = 8};
    bench::NodeReading slow_after = slow;
    slow_after.step = 3;
    slow_after.step_at_s = 3;
    slow_after.status_at_s = 3;
    slow_after.at += std::chrono::seconds(2);
    slow_after.cpu_s = 1;
    slow_after.rss_bytes = 50 << 20;

    const auto window = bench::window_of({fast, slow}, {fast_after, slow_after});

    CHECK(window.images_per_s == doctest::Approx(80 + 8));
    CHECK(window.slowest_step_ms(2) == doctest::Approx(1000));
    // Half a core for steps of 100 ms, and half a core for steps of a second.
    CHECK(window.cpu_ms == doctest::Approx((50 + 500) / 2.0));
    // 2,000 bytes and two exchanges in the second between the statuses, which is ten steps.
    CHECK(window.bytes == doctest::Approx(200 / 2.0));
    CHECK(window.exchanges == doctest::Approx(0.2 / 2.0));
    CHECK(window.rss_mib == doctest::Approx(100));
  }
}
