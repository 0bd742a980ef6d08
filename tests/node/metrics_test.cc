#include "node/observe/metrics.h"

#include "tests/node/said.h"
#include "tests/node/snapshots.h"
#include "tests/support/temp_folder.h"
#include "tests/transport/harness.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

using namespace starling::node;
using testing::contains;

namespace {

// Everything set once, so that the text holds every family.
void fill(Metrics& metrics) {
  metrics.set(Metric::build_info, 1, {"0.1.0", "2.11.0"});
  metrics.set(Metric::run_info, 1, {"small", "secret", "cpu"});
  metrics.update(busy_snapshot());
  HostSampler sampler;
  metrics.update(sampler.sample(starling::TimePoint(std::chrono::seconds(1))));
  metrics.update(sampler.sample(starling::TimePoint(std::chrono::seconds(2))));
  metrics.observe(Metric::train_step_duration, 0.02, {"compute"});
  metrics.observe(Metric::peer_rtt, 0.004);
  metrics.update(starling::transport::TransportTotals{});
  metrics.add(Metric::gossip_errors, 1, {"timed_out"});
  metrics.set(Metric::reachable, 1);
  metrics.set(Metric::eval_accuracy, 0.6, {"1"});
  metrics.set(Metric::checkpoint_last_success, 1.7e9);
  metrics.set(Metric::certificate_expiry, 1.8e9);
}

}  // namespace

TEST_SUITE("node/metrics") {
  TEST_CASE("every mode of a swarm has its place in the facts of the run") {
    Metrics metrics;
    for (const auto* mode : {"secret", "open", "closed"})
      metrics.set(Metric::run_info, 1, {"small", mode, "cpu"});
    CHECK(contains(metrics.render(), "mode=\"closed\""));
  }

  TEST_CASE("what a snapshot says appears in the text for Prometheus") {
    Metrics metrics;
    metrics.update(busy_snapshot());
    const auto text = metrics.render();
    CHECK(contains(text, "# TYPE starling_train_steps_total counter"));
    CHECK(contains(text, "\nstarling_train_step 8412\n"));
    CHECK(contains(text, "\nstarling_swarm_samples 2100000\n"));
    CHECK(contains(text, "starling_swarm_members{state=\"alive\"} 2"));
    CHECK(contains(text, "starling_gossip_bytes_total{direction=\"sent\",kind=\"delta\"} 2500000"));
    CHECK(contains(text, "starling_gossip_bytes_total{direction=\"sent\",kind=\"other\"} 500000"));
    CHECK(contains(text, "starling_gossip_queued_bytes 36000"));
    CHECK(contains(text, "starling_gossip_period_steps 8"));
    CHECK_FALSE(contains(text, "brisk-wren"));
  }

  TEST_CASE(
      "what an operator is woken for is there: phase, warnings, how long ago the last step was") {
    auto status = busy_snapshot();
    status.warnings = {"disk full", "no other member is in reach"};
    Metrics metrics;
    metrics.update(status);
    const auto text = metrics.render();
    CHECK(contains(text, "starling_phase{phase=\"training\"} 1\n"));
    CHECK(contains(text, "starling_phase{phase=\"joining\"} 0\n"));
    CHECK(contains(text, "starling_warnings 2\n"));
    CHECK(contains(text, "starling_last_step_age_seconds 0.4"));
    CHECK(contains(text, "starling_checkpoint_failures_total 0\n"));

    metrics.update(StatusSnapshot{});
    CHECK(contains(metrics.render(), "starling_phase{phase=\"training\"} 0\n"));
    CHECK(contains(metrics.render(), "starling_phase{phase=\"starting\"} 1\n"));
    CHECK(contains(metrics.render(), "starling_warnings 0\n"));
  }

  TEST_CASE("a first step that does not end is as old as the training that waits for it") {
    Metrics metrics;
    StatusSnapshot status;
    status.phase = Phase::joining;
    metrics.update(status);
    CHECK_FALSE(contains(metrics.render(), "\nstarling_last_step_age_seconds "));
    status.phase = Phase::training;
    status.progress.since_step_s = 700;
    metrics.update(status);
    CHECK(contains(metrics.render(), "\nstarling_last_step_age_seconds 700\n"));
  }

  TEST_CASE("counters begin at nothing in a process that goes on from a checkpoint") {
    Metrics metrics;
    metrics.update(StatusSnapshot{});
    metrics.update(busy_snapshot());
    const auto text = metrics.render();
    CHECK(contains(text, "\nstarling_train_steps_total 0\n"));
    CHECK(contains(text, "\nstarling_train_samples_total 0\n"));
    CHECK(contains(text, "\nstarling_data_bad_samples_total 0\n"));
  }

  TEST_CASE("what is not known any more is not told any more") {
    auto status = busy_snapshot();
    status.eval = StatusSnapshot::Eval{};
    Metrics metrics;
    metrics.update(status);
    for (const auto* name :
         {"starling_swarm_disagreement_ratio ", "starling_train_loss ", "starling_train_step ",
          "starling_eval_references ", "starling_eval_accuracy_ratio{k=\"1\"} "})
      CHECK(contains(metrics.render(), '\n' + std::string(name)));
    metrics.update(StatusSnapshot{});
    for (const auto* name :
         {"starling_swarm_disagreement_ratio", "starling_train_loss", "starling_train_step ",
          "starling_eval_references", "starling_eval_accuracy_ratio"})
      CHECK_FALSE(contains(metrics.render(), '\n' + std::string(name)));
    metrics.update(status);
    CHECK(contains(metrics.render(), "\nstarling_train_loss 2.417\n"));
  }

  TEST_CASE("one set of labels says what runs, also after one of them changed") {
    Metrics metrics;
    metrics.set_only(Metric::run_info, 1, {"small", "secret", "cpu"});
    metrics.set_only(Metric::run_info, 1, {"small", "closed", "cpu"});
    const auto of = [](std::string_view mode, int value) {
      return "starling_run_info{device=\"cpu\",mode=\"" + std::string(mode) +
             "\",model=\"small\"} " + std::to_string(value) + "\n";
    };
    CHECK(contains(metrics.render(), of("secret", 0)));
    CHECK(contains(metrics.render(), of("closed", 1)));
    metrics.set_only(Metric::run_info, 0, {"small", "closed", "cpu"});
    CHECK(contains(metrics.render(), of("closed", 0)));
  }

  TEST_CASE("a report of several steps counts as so many") {
    Metrics metrics;
    metrics.observe(Metric::train_step_duration, 0.5, {"compute"}, 3);
    const auto text = metrics.render();
    CHECK(contains(text, "starling_train_step_duration_seconds_count{phase=\"compute\"} 3\n"));
    CHECK(contains(text, "starling_train_step_duration_seconds_sum{phase=\"compute\"} 1.5\n"));
  }

  TEST_CASE("both accuracies of an evaluation are there") {
    auto status = busy_snapshot();
    status.eval = StatusSnapshot::Eval{};
    status.eval->accuracy_ratio = 0.75;
    status.eval->accuracy_top5_ratio = 0.9375;
    Metrics metrics;
    metrics.update(status);
    const auto text = metrics.render();
    CHECK(contains(text, "starling_eval_accuracy_ratio{k=\"1\"} 0.75"));
    CHECK(contains(text, "starling_eval_accuracy_ratio{k=\"5\"} 0.9375"));
  }

  TEST_CASE("counters never fall") {
    Metrics metrics;
    metrics.raise_to(Metric::train_steps, 10);
    metrics.raise_to(Metric::train_steps, 4);
    metrics.add(Metric::train_steps, -3);
    CHECK(contains(metrics.render(), "starling_train_steps_total 10\n"));
  }

  TEST_CASE("a label that anybody could fill has at most 64 series") {
    Metrics metrics;
    for (int i = 0; i < 1'000; ++i)
      metrics.add(Metric::gossip_errors, 1, {"reason-" + std::to_string(i)});
    const auto text = metrics.render();
    std::size_t series = 0;
    for (std::size_t at = text.find("starling_gossip_errors_total{"); at != std::string::npos;
         at = text.find("starling_gossip_errors_total{", at + 1))
      ++series;
    CHECK(series == 64);
    // Those that are there go on counting.
    metrics.add(Metric::gossip_errors, 1, {"reason-7"});
    CHECK(contains(metrics.render(), "starling_gossip_errors_total{reason=\"reason-7\"} 2\n"));
  }

  TEST_CASE("a dial with another secret is counted by its reason at both ends") {
    starling::assert_io_thread();
    starling::transport::TestWorld world;
    auto& node = world.add();
    auto& stranger =
        world.add(starling::transport::SwarmKey::of(starling::transport::SwarmSecret::generate()));
    stranger.transport->dial({node.transport->listen({"127.0.0.1", 0}).value(), {}});
    REQUIRE(world.run_until([&] { return !stranger.events.dial_failed.empty(); }));

    for (auto* end : {&node, &stranger}) {
      Metrics metrics;
      metrics.update(end->transport->totals());
      const auto text = metrics.render();
      CHECK(contains(text, "starling_handshakes_total{result=\"wrong_swarm\"} 1\n"));
      CHECK(contains(text, "starling_handshakes_total{result=\"ok\"} 0\n"));
      CHECK(contains(text, "starling_handshakes_total{result=\"refused\"} 0\n"));
    }
  }

  TEST_CASE("names are unique, counters end in _total, and every metric says what it means") {
    std::set<std::string_view> names;
    for (const auto& metric : all_metrics()) {
      CAPTURE(metric.name);
      CHECK(names.insert(metric.name).second);
      CHECK(metric.name.ends_with("_total") == (metric.type == MetricType::counter));
      CHECK(metric.help.ends_with('.'));
    }
  }

  TEST_CASE("promtool finds nothing to complain about") {
    if (std::string_view(STARLING_PROMTOOL).empty()) {
      MESSAGE("skipped: no promtool; deploy/setup --tests brings it");
      return;
    }
    Metrics metrics;
    fill(metrics);
    const starling::TempFolder scratch;
    const auto file = scratch.write("metrics", metrics.render());
    const auto log = scratch.path() / "log";
    const std::string command = std::string(STARLING_PROMTOOL) + " check metrics < " +
                                file.string() + " > " + log.string() + " 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream in(log);
    const std::string complaints{std::istreambuf_iterator<char>(in),
                                 std::istreambuf_iterator<char>()};
    CHECK(complaints == "");
    CHECK(status == 0);
  }
}
