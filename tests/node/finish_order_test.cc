// finish.by = admin, as a person meets it: the order that `key finish` prints, and what a node says
// to `starling finish`.
#include "node/base/hash.h"
#include "node/control/request.h"
#include "tests/node/control_rig.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "transport/admin_key.h"
#include "transport/identity.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::testing;

namespace {

const Hash kRun = hash_of(as_bytes("settings"));
const std::string kFingerprint = to_hex(kRun.view());

// An admin key of a swarm, without a node.
struct AdminKeyFile {
  AdminKeyFile() {
    const auto dir = (scratch.path() / "node").string();
    REQUIRE(said_by({"key", "new", "--dir", dir}).code == 0);
    REQUIRE(said_by({"key", "admin", file, "--dir", dir}).code == 0);
    key.emplace(transport::AdminKey::load(file).value());
  }
  [[nodiscard]] RunToEnd run() const { return {key->swarm, kRun, key->key.id()}; }
  [[nodiscard]] transport::FinishOrder order() const {
    return transport::order_finish(key->swarm, kRun, key->key);
  }

  TempFolder scratch;
  std::string file = (scratch.path() / "admin.key").string();
  std::optional<transport::AdminKey> key;
};

// A node that tells what it was asked.
class Asked final : public ControlHandler {
 public:
  void on_request(const ControlRequest& request, ControlReply reply) override {
    if (const auto* finish = std::get_if<FinishRequest>(&request)) {
      order = finish->order;
      reply.done({{"message", "ended"}});
    }
  }
  void drop_held() {}

  std::optional<transport::FinishOrder> order;
};

std::string why_not(const Result<void>& may_end) {
  return may_end ? std::string() : may_end.error().detail;
}

}  // namespace

TEST_SUITE("node/finish_order") {
  TEST_CASE("key finish prints an order of this admin for that run, and nothing else") {
    const AdminKeyFile admin;
    const auto said = said_by({"key", "finish", kFingerprint, "--admin-key", admin.file});
    REQUIRE(said.code == 0);
    const auto order = transport::parse_finish_order(said.out).value();
    CHECK(order == admin.order());
    CHECK(contains(said.err, "starling finish --order FILE"));
  }

  TEST_CASE("key finish names what is wrong and prints no order") {
    const AdminKeyFile admin;
    for (const auto& [words, what] :
         {std::pair<std::vector<std::string>, std::string>{{"--admin-key", admin.file},
                                                           "takes one word"},
          {{kFingerprint.substr(1), "--admin-key", admin.file}, "is no fingerprint"},
          {{kFingerprint, kFingerprint, "--admin-key", admin.file}, "takes one word"},
          {{kFingerprint}, "--admin-key is missing"},
          {{kFingerprint, "--admin-key", admin.file, "--ttl", "1d"}, "--ttl belongs to"}}) {
      auto line = words;
      line.insert(line.begin(), {"key", "finish"});
      const auto said = said_by(line);
      CHECK(said.code == 2);
      CHECK(said.out.empty());
      CAPTURE(said.err);
      CHECK(contains(said.err, what));
    }
  }

  TEST_CASE("finish gives the order in a file to the running node") {
    const AdminKeyFile admin;
    const TempFolder scratch;
    const auto dir = scratch.path().string();
    const auto asked = [&](std::vector<std::string> words) {
      ControlRig<Asked> rig(scratch.path());
      words.insert(words.end(), {"--dir", dir});
      CHECK(said_by(words).code == 0);
      rig.stop();
      return rig.handler.order;
    };
    const auto file = admin.scratch.write("order", print_finish_order(admin.order())).string();

    CHECK(asked({"finish", "--order", file}) == admin.order());
    CHECK_FALSE(asked({"finish"}).has_value());
  }

  TEST_CASE("finish says of a file that holds no order what it is, before it asks a node") {
    const TempFolder scratch;
    const auto finish = [&](const std::string& text) {
      const auto file = scratch.write("order", text).string();
      return said_by({"finish", "--order", file, "--dir", scratch.path().string()});
    };
    const auto wrong = finish("starling-revoked AAAA\n");
    CHECK(wrong.code == 2);
    CHECK(contains(wrong.err, "--order: this is no order to finish"));
    CHECK(contains(wrong.err, "starling key finish"));
    CHECK(finish(std::string(transport::kMaxFinishOrderText + 1, 'x')).code != 0);
    const auto missing = (scratch.path() / "missing").string();
    const auto said = said_by({"finish", "--order", missing, "--dir", scratch.path().string()});
    CHECK(said.code == 3);
    CHECK(contains(said.err, missing));
  }

  TEST_CASE("a request carries the order, and is refused with anything else in its place") {
    const AdminKeyFile admin;
    const ControlRequest request = FinishRequest{admin.order()};
    auto line = encode_request(request);
    line.pop_back();
    const auto parsed = parse_request(line);
    REQUIRE(parsed.has_value());
    CHECK(std::get<FinishRequest>(*parsed).order == admin.order());
    for (const auto* wrong :
         {R"({"verb":"finish","args":{"order":""}})", R"({"verb":"finish","args":{"order":7}})",
          R"({"verb":"finish","args":{"order":null}})",
          R"({"verb":"finish","args":{"orders":"x"}})",
          R"({"verb":"finish","args":{"order":"starling-finish AAAA"}})"}) {
      CAPTURE(wrong);
      const auto refused = parse_request(wrong);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().code == Errc::bad_argument);
    }
  }

  TEST_CASE("where only the admin ends the run, finish without an order says how to get one") {
    const AdminKeyFile admin;
    const auto refused = check_finish({}, admin.run());
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::refused);
    CHECK(contains(refused.error().detail, "starling key finish " + kFingerprint));
    CHECK(contains(refused.error().detail, "starling finish --order finish.order"));
    CHECK(contains(refused.error().detail, "the run goes on"));
    CHECK(check_finish({admin.order()}, admin.run()).has_value());
  }

  TEST_CASE("an order for another swarm, other settings or by somebody else is named as such") {
    const AdminKeyFile admin;
    auto other_swarm = admin.run();
    other_swarm.swarm = SwarmId{};
    CHECK(check_finish({admin.order()}, other_swarm).error().code == Errc::wrong_swarm);
    CHECK(contains(why_not(check_finish({admin.order()}, other_swarm)), "in swarm 00000000"));

    auto other_run = admin.run();
    other_run.settings = Hash{};
    CHECK(check_finish({admin.order()}, other_run).error().code == Errc::settings_mismatch);
    CHECK(contains(why_not(check_finish({admin.order()}, other_run)),
                   "starling key finish " + std::string(64, '0')));

    const auto thief = transport::Identity::generate();
    const FinishRequest forged{transport::order_finish(admin.key->swarm, kRun, thief)};
    CHECK(check_finish(forged, admin.run()).error().code == Errc::refused);
    CHECK(contains(why_not(check_finish(forged, admin.run())), "was not signed by the admin"));

    auto uncertified = admin.run();
    uncertified.admin = NodeId{};
    CHECK(contains(why_not(check_finish({admin.order()}, uncertified)), "has no certificate"));
  }

  TEST_CASE("where any member ends the run an order is not needed, but has to be for it") {
    const AdminKeyFile admin;
    auto run = admin.run();
    run.admin.reset();
    CHECK(check_finish({}, run).has_value());
    CHECK(check_finish({admin.order()}, run).has_value());
    run.settings = Hash{};
    CHECK_FALSE(check_finish({admin.order()}, run).has_value());
  }
}
