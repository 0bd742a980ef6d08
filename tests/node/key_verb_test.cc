#include "node/cli/exit_code.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "transport/identity.h"
#include "transport/secret.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::testing;

namespace {

// The text of the secret itself, which no output may hold.
std::string secret_line(const std::filesystem::path& file) {
  const auto text = transport::SwarmSecret::load(file).value().print();
  return text.substr(text.find("\nsecret ") + 8, 44);
}

}  // namespace

TEST_SUITE("node/key_verb") {
  TEST_CASE("id makes the identity once and prints a line of a list of nodes") {
    const TempFolder scratch;
    const auto dir = (scratch.path() / "node").string();
    const auto first = said_by({"id", "--dir", dir});
    CHECK(first.code == 0);
    CHECK(contains(first.err, "new identity"));
    const auto identity = transport::Identity::load(dir + "/identity.key").value();
    CHECK(first.out == to_hex(identity.id().view()) + " " + default_name(identity.id()) + "\n");
    const auto again = said_by({"id", "--dir", dir, "--json"});
    CHECK(again.err.empty());
    CHECK(nlohmann::json::parse(again.out).at("id") == to_hex(identity.id().view()));
    CHECK(said_by({"key", "id", "--dir", dir}).out == first.out);
  }

  TEST_CASE("key new makes one secret of mode 0600 and never replaces it") {
    const TempFolder scratch;
    const auto dir = (scratch.path() / "node").string();
    CHECK(said_by({"key", "new", "--dir", dir}).code == 0);
    struct stat info{};
    REQUIRE(::stat((dir + "/secret").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777U) == 0600);
    const auto before = secret_line(dir + "/secret");
    const auto twice = said_by({"key", "new", "--dir", dir});
    CHECK(twice.code == 3);
    CHECK(contains(twice.err, "key rotate"));
    CHECK(secret_line(dir + "/secret") == before);
  }

  TEST_CASE("key shows the secret that a node keeps in its folder for one that is mounted") {
    const TempFolder scratch;
    const auto dir = scratch.path() / "node";
    std::filesystem::create_directories(dir);
    const auto file = (scratch.path() / "mounted").string();
    const auto first = transport::SwarmSecret::generate();
    REQUIRE(first.create(file));
    const auto shown = [&] {
      const auto said =
          said_by({"key", "show", "--json", "--dir", dir.string(), "--secret-file", file});
      CHECK(said.code == 0);
      return nlohmann::json::parse(said.out).at("current").at("file").get<std::string>();
    };
    CHECK(shown() == file);
    const auto ordered = dir / "secret.ordered";
    REQUIRE(first.rotated().create(ordered));
    CHECK(shown() == ordered.string());
    std::filesystem::remove(ordered);
    REQUIRE(transport::SwarmSecret::generate().rotated().create(ordered));
    CHECK(shown() == file);
  }

  TEST_CASE("key shows what is accepted at each step of a rotation, and no secret") {
    const TempFolder scratch;
    const auto file = (scratch.path() / "s").string();
    const auto ask = [&](const std::string& what) {
      return said_by({"key", what, "--secret-file", file});
    };
    CHECK(contains(ask("show").err, "key new"));
    CHECK(ask("new").code == 0);
    CHECK(contains(ask("promote").err, "key rotate"));
    const auto rotated = ask("rotate");
    CHECK(rotated.code == 0);
    CHECK(contains(rotated.out, file + ".next"));
    const auto both = ask("show");
    CHECK(contains(both.out, "current"));
    CHECK(contains(both.out, "next"));
    CHECK_FALSE(contains(both.out, "previous"));
    CHECK_FALSE(contains(both.out, secret_line(file)));
    CHECK_FALSE(contains(both.out, secret_line(file + ".next")));
    const auto promoted = ask("promote");
    CHECK(promoted.code == 0);
    CHECK(contains(promoted.out, "24h"));
    const auto shown =
        nlohmann::json::parse(said_by({"key", "show", "--json", "--secret-file", file}).out);
    CHECK(shown.at("current").at("epoch") == 1);
    CHECK(shown.at("previous").at("epoch") == 0);
    CHECK(shown.at("next").is_null());
  }

  TEST_CASE("a passphrase makes the same secret on two machines") {
    const TempFolder scratch;
    const auto phrase = scratch.write("phrase", "correct horse battery\n");
    REQUIRE(::chmod(phrase.c_str(), 0600) == 0);
    const auto make = [&](const std::string& name) {
      return said_by({"key", "new", "--secret-file", (scratch.path() / name).string(),
                      "--passphrase-file", phrase.string(), "--set", "swarm.name=barn"});
    };
    CHECK(make("a").code == 0);
    CHECK(make("b").code == 0);
    CHECK(secret_line(scratch.path() / "a") == secret_line(scratch.path() / "b"));
  }

  TEST_CASE("a passphrase that is weak, unsalted or readable by others is refused") {
    const TempFolder scratch;
    const auto file = (scratch.path() / "s").string();
    const auto phrase = scratch.write("phrase", "hunter2\n");
    const auto make = [&](const std::string& name) {
      return said_by({"key", "new", "--secret-file", file, "--passphrase-file", phrase.string(),
                      "--set", name});
    };
    CHECK(contains(make("swarm.name=barn").err, "chmod 600"));
    REQUIRE(::chmod(phrase.c_str(), 0600) == 0);
    const auto weak = make("swarm.name=barn");
    CHECK(weak.code == 2);
    CHECK(contains(weak.err, "7 characters"));
    CHECK(contains(make("node.name=x").err, "swarm.name=NAME"));
    CHECK_FALSE(std::filesystem::exists(file));
  }

  TEST_CASE("a flag that a kind of key does not know is an error") {
    const TempFolder scratch;
    const auto dir = scratch.path().string();
    CHECK(said_by({"key", "rotate", "--json", "--dir", dir}).code == 2);
    CHECK(said_by({"key", "show", "--passphrase-file", "x", "--dir", dir}).code == 2);
    CHECK(contains(said_by({"key", "nwe", "--dir", dir}).err, "rotate"));
    CHECK(contains(said_by({"key", "new", "--open", "--dir", dir}).err, "open swarm"));
  }
}
