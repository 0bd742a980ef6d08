#include "node/observe/status.h"

#include "node/observe/fields.h"
#include "node/printable.h"
#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <tuple>
#include <vector>

using namespace starling::node;

TEST_SUITE("node/status") {
  TEST_CASE("the JSON has every field of the outside contract") {
    const auto json = to_json(busy_snapshot());

    CHECK(json.at("schema") == 1);
    for (const auto* field : {"id", "name", "version", "instance"})
      CHECK(json.at("node").contains(field));
    CHECK(json.at("phase") == "training");
    CHECK(json.at("address") == "127.0.0.1:7700");
    for (const auto* field : {"id", "mode"}) CHECK(json.at("swarm").contains(field));
    for (const auto* field : {"name", "parameters"}) CHECK(json.at("model").contains(field));
    for (const auto* field : {"step", "samples", "swarm_samples", "budget_samples"}) {
      CAPTURE(field);
      CHECK(json.at("progress").at(field).is_number_unsigned());
    }
    CHECK(json.at("progress").at("last_step_s") == 0.4);
    for (const auto* field : {"loss", "images_per_second", "gossip_wait_ratio"}) {
      CAPTURE(field);
      CHECK(json.at("train").at(field).is_number());
    }
    for (const auto* field : {"id", "name", "state", "address", "samples"}) {
      CAPTURE(field);
      for (const auto& member : json.at("members")) CHECK(member.contains(field));
    }
    for (const auto* field : {"id", "name", "state", "edge", "rtt_ms", "level", "level_reason",
                              "exchanges", "bytes_sent", "bytes_received", "queued_bytes",
                              "disagreement_ratio", "last_exchange_s"}) {
      CAPTURE(field);
      for (const auto& neighbour : json.at("neighbours")) CHECK(neighbour.contains(field));
    }
    CHECK(json.at("neighbours")[0].at("level_reason") == "enough");
    for (const auto* field : {"state", "epoch", "hash", "participants"}) {
      CAPTURE(field);
      CHECK(json.at("consensus").contains(field));
    }
    CHECK(json.at("consensus").at("participants").is_array());
    CHECK(json.at("consensus").at("missing").empty());
    auto ending = busy_snapshot();
    ending.consensus.participants = {std::string(64, 'a'), std::string(64, 'c'),
                                     std::string(64, 'd')};
    const auto missing = to_json(ending).at("consensus").at("missing");
    REQUIRE(missing.size() == 1);
    CHECK(missing[0].at("id") == std::string(64, 'd'));
    CHECK(missing[0].at("state") == "suspect");
  }

  TEST_CASE(
      "a figure has its first digits, those before its point, and an exponent when it is small") {
    for (const auto& [value, four, three] :
         std::vector<std::tuple<double, std::string, std::string>>{
             {0, "0", "0"},
             {0.6, "0.6", "0.6"},
             {2.41749, "2.417", "2.42"},
             {3.7e-3, "0.0037", "0.0037"},
             {1.23456e-4, "0.0001235", "0.000123"},
             {9.99996e-5, "0.0001", "0.0001"},
             {3.7e-5, "3.7e-5", "3.7e-5"},
             {-1.0e-9, "-1e-9", "-1e-9"},
             {1234.5678, "1235", "1235"},
             {24'300.4, "24300", "24300"},
             {999.96, "1000", "1000"},
             {99.996, "100", "100"},
             {1e15, "1e15", "1e15"}}) {
      CHECK(fields::show_figure(value, 4) == four);
      CHECK(fields::show_figure(value, 3) == three);
    }
  }

  TEST_CASE("a field keeps its place when its value is not known yet") {
    const auto json = to_json(StatusSnapshot{});
    CHECK(json.at("train").at("loss").is_null());
    CHECK(json.at("progress").at("last_step_s").is_null());
    CHECK(json.at("eval").is_null());
    CHECK(json.at("members").is_array());
    CHECK(json.at("neighbours").is_array());
    CHECK(json.at("phase") == "starting");
    CHECK(json.at("traffic").at("queued_bytes") == 0);
    CHECK(json.at("period").at("steps") == 0);
    StatusSnapshot parted;
    parted.neighbours.emplace_back();
    CHECK(to_json(parted).at("neighbours")[0].at("queued_bytes").is_null());
  }

  TEST_CASE("an evaluation says what was evaluated") {
    StatusSnapshot status;
    status.eval = StatusSnapshot::Eval{.accuracy_ratio = 0.9,
                                       .loss = 0.3,
                                       .images = 10,
                                       .step = 7,
                                       .of = Evaluated::neighbourhood,
                                       .references = 3};

    const auto json = to_json(status);
    CHECK(json.at("eval").at("of") == "neighbourhood");
    CHECK(json.at("eval").at("references") == 3);
    status.eval->of = Evaluated::replica;
    CHECK(to_json(status).at("eval").at("of") == "replica");
    status.eval->of = Evaluated::consensus;
    CHECK(to_json(status).at("eval").at("of") == "consensus");
  }

  TEST_CASE("bytes of a name that are not UTF-8 never break the JSON") {
    auto status = busy_snapshot();
    status.members[1].name = "\xff\xfe broken \xc3";
    const auto text = json_text(to_json(status));
    CHECK(nlohmann::json::parse(text, nullptr, false).is_object());
  }

  TEST_CASE("tables show one line a row and no control character of a peer") {
    const auto members = members_table(members_json(busy_snapshot()));
    const auto neighbours = neighbours_table(neighbours_json(busy_snapshot()));
    CHECK(std::ranges::count(members, '\n') == 5);
    CHECK(std::ranges::count(neighbours, '\n') == 3);
    CHECK(members.find('\x1b') == std::string::npos);
    CHECK(members.find("this node") != std::string::npos);
    CHECK(members.find("3 probes unanswered") != std::string::npos);
    CHECK(neighbours.find("4.2 ms") != std::string::npos);
    CHECK(neighbours.find("36.0 kB") != std::string::npos);
  }

  TEST_CASE("tables of an answer that is not what was expected are short, not wrong") {
    for (const auto* text : {"null", "{}", "[]", "{\"members\":3}", "{\"members\":[1,{}]}",
                             "{\"progress\":[],\"warnings\":[1],\"neighbours\":{}}"}) {
      CAPTURE(text);
      const auto json = nlohmann::json::parse(text);
      CHECK_FALSE(status_table(json).empty());
      CHECK_FALSE(members_table(json).empty());
      CHECK_FALSE(neighbours_table(json).empty());
    }
  }

  TEST_CASE("a status says what a person wants to know first") {
    const auto text = status_table(to_json(busy_snapshot()));
    CHECK(text.find("mossy-otter") != std::string::npos);
    CHECK(text.find("35.0 %") != std::string::npos);
    CHECK(text.find("every 8 steps: codec jobs take their share") != std::string::npos);
    CHECK(text.find("2 alive, 1 suspect, 1 left") != std::string::npos);
    CHECK(text.find("sent 3.0 MB") != std::string::npos);
    CHECK(text.find("2100000 of 6000000 samples  left 1h38m") != std::string::npos);
  }

  TEST_CASE("the status of a run that ends by time names no budget of samples") {
    auto status = busy_snapshot();
    status.progress.budget_samples = 0;
    CHECK(status_table(to_json(status)).find("2100000 samples  left 1h38m") != std::string::npos);
  }

  TEST_CASE("a node that waits for a model says how much of it has come, and from whom") {
    CHECK(to_json(busy_snapshot()).at("join").is_null());
    CHECK(status_table(to_json(busy_snapshot())).find("\njoin ") == std::string::npos);
    StatusSnapshot status;
    status.join = {.phase = "choosing", .sponsor = "", .bytes_done = 0, .bytes_total = 0};
    CHECK(status_table(to_json(status)).find("\njoin        choosing\n") != std::string::npos);

    status.join = {.phase = "loading",
                   .sponsor = std::string(64, 'a'),
                   .bytes_done = 61'000'000,
                   .bytes_total = 205'000'000};
    const auto json = to_json(status);
    CHECK(json.at("join").at("bytes_total") == 205'000'000);
    CHECK(status_table(json).find("loading  61.0 MB of 205 MB from aaaaaaaa\n") !=
          std::string::npos);
  }

  TEST_CASE("what the admin decided is told where there is one") {
    auto status = busy_snapshot();
    CHECK(to_json(status).at("access").is_null());
    CHECK(status_table(to_json(status)).find("revocations") == std::string::npos);
    const CertificateStatus certificate{"inviter", "00000000000003e8", "2027-01-01T00:00:00Z"};
    status.access = {.admin = std::string(64, 'f'),
                     .certificate = certificate,
                     .revocations = 3,
                     .revoked_nodes = 2,
                     .revoked_serials = 1,
                     .secret_epoch = 4,
                     .rotation = "spreading",
                     .rotation_waits_for = 5};
    status.neighbours[0].certificate = certificate;
    const auto json = to_json(status);
    CHECK(json.at("access").at("certificate").at("role") == "inviter");
    CHECK(json.at("access").at("rotation_waits_for") == 5);
    CHECK(json.at("neighbours")[0].at("certificate").at("serial") == "00000000000003e8");
    CHECK(json.at("neighbours")[1].at("certificate").is_null());
    const auto text = status_table(json);
    CHECK(text.find("inviter until 2027") != std::string::npos);
    CHECK(text.find("revocations 3 (2 nodes, 1 serials)") != std::string::npos);
    CHECK(text.find("epoch 4  spreading  waits for 5 members") != std::string::npos);
    CHECK(neighbours_table(neighbours_json(status)).find("00000000000003e8") != std::string::npos);
  }

  TEST_CASE("a node is healthy when it does its work and nothing is wrong") {
    auto status = busy_snapshot();
    CHECK(status.healthy());
    status.warnings.emplace_back("disk full");
    CHECK_FALSE(status.healthy());
    CHECK_FALSE(StatusSnapshot{}.healthy());
  }

  TEST_CASE("a reader keeps its snapshot while a newer one takes its place") {
    SnapshotBox box;
    CHECK(box.get()->phase == Phase::starting);
    box.put(busy_snapshot());
    const auto before = box.get();
    box.put(StatusSnapshot{});
    CHECK(before->phase == Phase::training);
    CHECK(box.get()->phase == Phase::starting);
  }

  TEST_CASE("each trouble is a warning, and none is none") {
    CHECK(warnings_of({}).empty());
    const auto all = warnings_of({.no_step_s = 661,
                                  .checkpoint = "disk full",
                                  .certificate = "this node's certificate is valid until tomorrow",
                                  .isolated = true,
                                  .cloned = true,
                                  .events_lost = 3});
    REQUIRE(all.size() == 6);
    CHECK(
        all[0].starts_with("no step for 11m01s: data that cannot be read, or a device that hangs"));
    CHECK(all[1].ends_with("disk full"));
    CHECK(all[2] == "this node's certificate is valid until tomorrow");
    CHECK(all[5].starts_with("3 lines"));
  }

  TEST_CASE("a node that nobody can dial says which port to open") {
    auto status = busy_snapshot();
    CHECK(status_table(to_json(status)).contains("\nreachable   unknown\n"));
    status.reachable = "yes";
    CHECK(status_table(to_json(status)).contains("\nreachable   yes\n"));
    status.reachable = "no";
    status.address = "[::]:7701";
    CHECK(status_table(to_json(status))
              .contains("\nreachable   no: open or forward TCP 7701, or --advertise HOST:PORT"));
  }
}
