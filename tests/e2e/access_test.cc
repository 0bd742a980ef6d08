// Who may have a session: lists of nodes and rotations of the secret, under a running swarm.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

bool said(const NodeProcess& node, const std::string& part) {
  return contains(node.process().standard_error(), part);
}

std::string mode_of(const NodeProcess& node) {
  const auto status = node.status();
  return status.is_object() ? status.at("swarm").at("mode").get<std::string>() : std::string();
}

Finished command(std::vector<std::string> words) {
  words.insert(words.begin(), starling_binary());
  return run_to_end(words);
}

}  // namespace

TEST_SUITE("e2e/access") {
  TEST_CASE("a node that is denied loses its session and is told why, and comes back when it may") {
    Swarm swarm(endless_run());
    swarm.start(2);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
    const auto list = swarm.node(0).dir() / "peers.deny";

    std::ofstream(list) << swarm.node(1).id() << " the second node\n";

    INFO(swarm.logs());
    CHECK(eventually(20s, [&] { return said(swarm.node(1), "on the list of denied nodes"); }));
    CHECK(eventually(60s, [&] { return alive_members(swarm.node(0)) == 1; }));
    std::ofstream(list) << "# nobody\n";
    CHECK(eventually(90s, [&] { return swarm.all_see({0, 1}, 2); }));
  }

  TEST_CASE("a closed swarm lets in who is listed and tells others why not") {
    const TempDir dir;
    const auto first = dir.path() / "first";
    const auto listed = dir.path() / "listed";
    const auto id = command({"id", "--dir", listed.string()});
    REQUIRE(id.status == 0);
    REQUIRE(command({"id", "--dir", first.string()}).status == 0);
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "swarm.mode=closed"});
    NodeProcess closed_without(first, arguments);
    const auto ended = closed_without.process().wait(60s);
    REQUIRE(ended);
    CHECK(ended->status == 2);
    CHECK(said(closed_without, "peers.allow"));

    std::ofstream(first / "peers.allow") << id.out;
    NodeProcess node(first, arguments);
    auto joining = endless_run();
    joining.insert(joining.end(),
                   {"--peer", node.address(), "--secret-file", (first / "secret").string(),
                    "--require-peers", "1", "--join-timeout", "20s"});
    NodeProcess stranger(dir.path() / "stranger", joining);
    NodeProcess guest(listed, joining);

    CHECK(eventually(60s, [&] { return alive_members(node) == 2; }));
    CHECK(node.state_of(guest.id()) == "alive");
    const auto refused = stranger.process().wait(120s);
    INFO(stranger.process().standard_error());
    REQUIRE(refused);
    CHECK(refused->status == 5);
    CHECK(said(stranger, "not on the list of allowed nodes"));
  }

  TEST_CASE("an invite brings one machine in, with its secret, and no second one") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const auto issuer = swarm.node(0).dir();
    const auto made = command({"invite", "--dir", issuer.string(), "--ttl", "1h"});
    INFO(made.err);
    REQUIRE(made.status == 0);
    CHECK(made.out.starts_with("starling1:"));
    const TempDir dir;
    const auto file = dir.path() / "invite";
    std::ofstream(file) << made.out;
    auto joining = endless_run();
    joining.insert(joining.end(), {"--invite", "@" + file.string(), "--require-peers", "1",
                                   "--join-timeout", "20s"});
    const auto newcomer = dir.path() / "newcomer";
    {
      // What is left of another swarm is named before the invite is spent.
      const auto other = (dir.path() / "other").string();
      const auto id = command({"id", "--dir", newcomer.string()}).out.substr(0, 64);
      REQUIRE(command({"key", "new", "--dir", other}).status == 0);
      REQUIRE(command({"key", "admin", other + "/admin.key", "--dir", other}).status == 0);
      const auto left = command({"key", "certify", id, "--admin-key", other + "/admin.key"});
      std::ofstream(newcomer / "member.cert") << left.out;
      NodeProcess mistaken(newcomer, joining);
      const auto end = mistaken.process().wait(60s);
      INFO(mistaken.process().standard_error());
      REQUIRE(end);
      CHECK(end->status == 5);
      CHECK(said(mistaken, "member.cert is for swarm"));
      std::filesystem::remove(newcomer / "member.cert");
    }
    {
      NodeProcess invited(newcomer, joining);
      INFO(invited.process().standard_error());
      CHECK(eventually(60s, [&] { return alive_members(invited) == 2; }));
      CHECK(eventually(60s, [&] { return alive_members(swarm.node(0)) == 2; }));
      CHECK(read_text(newcomer / "secret") == read_text(issuer / "secret"));
      CHECK(std::filesystem::status(newcomer / "secret").permissions() ==
            (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
      CHECK(std::filesystem::is_empty(issuer / "invites"));
    }

    NodeProcess second(dir.path() / "second", joining);
    const auto refused = second.process().wait(90s);
    INFO(second.process().standard_error());
    REQUIRE(refused);
    CHECK(refused->status == 5);
    CHECK(said(second, "invite was used"));
    CHECK_FALSE(std::filesystem::exists(dir.path() / "second" / "secret"));

    // The same command again: by now it has the secret.
    NodeProcess again(newcomer, joining);
    CHECK(eventually(60s, [&] { return alive_members(again) == 2; }));
  }

  TEST_CASE("under an admin certificates let in, invites bring them, and what is revoked is out") {
    const TempDir dir;
    const auto first = (dir.path() / "first").string();
    const auto admin = (dir.path() / "admin.key").string();
    REQUIRE(command({"key", "new", "--dir", first}).status == 0);
    REQUIRE(command({"key", "admin", admin, "--dir", first}).status == 0);
    const auto id = command({"id", "--dir", first}).out.substr(0, 64);
    const auto certificate =
        command({"key", "certify", id, "--admin-key", admin, "--role", "inviter"});
    REQUIRE(certificate.status == 0);
    std::ofstream(dir.path() / "first" / "member.cert") << certificate.out;
    NodeProcess issuer(dir.path() / "first", endless_run());
    CHECK(eventually(60s, [&] { return mode_of(issuer) == "closed"; }));

    const auto joining = [&](std::vector<std::string> more) {
      auto arguments = endless_run();
      arguments.insert(arguments.end(), {"--require-peers", "1", "--join-timeout", "20s"});
      arguments.insert(arguments.end(), more.begin(), more.end());
      return arguments;
    };
    const auto invite = command({"invite", "--dir", first, "--ttl", "1h"});
    INFO(invite.err);
    REQUIRE(invite.status == 0);
    std::ofstream(dir.path() / "invite") << invite.out;
    NodeProcess invited(dir.path() / "invited",
                        joining({"--invite", "@" + (dir.path() / "invite").string()}));
    INFO(invited.process().standard_error());
    CHECK(eventually(60s, [&] { return alive_members(invited) == 2; }));
    CHECK(read_text(dir.path() / "invited" / "member.cert").starts_with("starling-member 1\n"));
    CHECK(eventually(60s, [&] { return mode_of(invited) == "closed"; }));

    // The secret alone is not enough, at the invited node either.
    const auto with_secret =
        joining({"--peer", invited.address(), "--secret-file", first + "/secret"});
    NodeProcess stranger(dir.path() / "stranger", with_secret);
    const auto refused = stranger.process().wait(120s);
    INFO(stranger.process().standard_error());
    REQUIRE(refused);
    CHECK(refused->status == 5);
    CHECK(said(stranger, "shows no certificate"));

    // Its certificate, not its id: in its first session it showed none.
    const auto shown =
        command({"key", "show", "--dir", (dir.path() / "invited").string(), "--json"});
    const auto serial = nlohmann::json::parse(shown.out).at("certificate").at("serial");
    REQUIRE(command({"key", "revoke", serial.get<std::string>(), "--admin-key", admin, "--list",
                     first + "/revoked", "--no-list"})
                .status == 0);
    CHECK(eventually(20s, [&] { return said(invited, "was revoked"); }));
    CHECK(eventually(60s, [&] { return alive_members(issuer) == 1; }));
  }

  TEST_CASE(
      "where only the admin ends the run, a member's finish is refused until it has the order") {
    const TempDir dir;
    const auto folder = [&](const std::string& name) { return (dir.path() / name).string(); };
    const auto admin = folder("admin.key");
    REQUIRE(command({"key", "new", "--dir", folder("first")}).status == 0);
    REQUIRE(command({"key", "admin", admin, "--dir", folder("first")}).status == 0);
    for (const std::string name : {"first", "second"}) {
      const auto id = command({"id", "--dir", folder(name)}).out.substr(0, 64);
      const auto certificate = command({"key", "certify", id, "--admin-key", admin});
      REQUIRE(certificate.status == 0);
      std::ofstream(dir.path() / name / "member.cert") << certificate.out;
    }
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "finish.by=admin", "--set", "gossip.tau=2"});
    NodeProcess first(dir.path() / "first", arguments);
    // The second takes finish.by from the swarm.
    auto joining = endless_run();
    joining.insert(joining.end(), {"--set", "gossip.tau=2", "--peer", first.address(),
                                   "--secret-file", folder("first") + "/secret"});
    NodeProcess second(dir.path() / "second", joining);
    // It has its part in the end.
    REQUIRE(eventually(
        60s, [&] { return alive_members(first) == 2 && exchanges(second) >= kNewcomerExchanges; }));

    const auto refused = command({"finish", "--dir", folder("second")});
    CHECK(refused.status == 5);
    CHECK(contains(refused.err, "starling key finish"));
    const auto status = first.status();
    const auto fingerprint = status.at("swarm").at("fingerprint").get<std::string>();
    const auto order = command({"key", "finish", fingerprint, "--admin-key", admin});
    REQUIRE(order.status == 0);
    std::ofstream(dir.path() / "finish.order") << order.out;
    const auto ended =
        command({"finish", "--order", folder("finish.order"), "--dir", folder("second")});

    INFO(ended.err);
    CHECK(ended.status == 0);
    for (auto* node : {&first, &second}) {
      const auto end = node->process().wait(120s);
      INFO(node->process().standard_error());
      REQUIRE(end);
      CHECK(end->status == 0);
      CHECK(contains(node->process().standard_output(), "2/2 replicas identical"));
    }
  }

  TEST_CASE("a rotation of the secret under a running swarm costs no session") {
    Swarm swarm(endless_run());
    swarm.start(2);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
    // Somebody has dialled the newcomer back.
    CHECK(eventually(30s, [&] { return swarm.node(1).status().at("reachable") == "yes"; }));
    const auto file = swarm.secret_file();
    const auto both_said = [&](const std::string& part) {
      return eventually(30s,
                        [&] { return said(swarm.node(0), part) && said(swarm.node(1), part); });
    };

    // Each says it at its start, and again once it accepts the next secret, too.
    const auto has_read_again = [&](std::size_t node) {
      return count_of(swarm.node(node).process().standard_error(), "access.read") >= 2;
    };

    REQUIRE(command({"key", "rotate", "--secret-file", file}).status == 0);
    REQUIRE(eventually(30s, [&] { return has_read_again(0) && has_read_again(1); }));
    REQUIRE(command({"key", "promote", "--secret-file", file}).status == 0);

    INFO(swarm.logs());
    CHECK(both_said("secret_epoch=1"));
    CHECK(both_said("session.renewed"));
    const auto before = exchanges(swarm.node(0));
    CHECK(eventually(60s, [&] { return exchanges(swarm.node(0)) > before + 3; }));
    CHECK_FALSE(said(swarm.node(0), "session.down"));
    CHECK_FALSE(said(swarm.node(1), "session.down"));
    swarm.start(1);
    CHECK(eventually(60s, [&] { return swarm.all_see({0, 1, 2}, 3); }));
  }
}
