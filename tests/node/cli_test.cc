#include "node/cli/arguments.h"
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/config/keys.h"
#include "node/state_dir.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <new>
#include <set>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::testing;

namespace {

// What `run` got, printed so that a test can look at it: hooks are plain functions.
int fake_run(const Config& config, RunMode mode, const Terminal& terminal) {
  terminal.out << nlohmann::json{{"dir", config.node.dir},
                                 {"data", config.data.train},
                                 {"batch", config.train.batch.value_or(0)},
                                 {"peers", config.net.peers},
                                 {"adopt", static_cast<int>(config.swarm.adopt)},
                                 {"open", config.swarm.mode == SwarmMode::open},
                                 {"listen", config.net.listen},
                                 {"dry", mode == RunMode::dry_run}}
                      .dump();
  return 42;
}
int fake_eval(const Config& config, const EvalArguments& arguments, const Terminal& terminal) {
  terminal.out << arguments.model.string() << ' ' << config.data.train << ' ' << arguments.json;
  return 43;
}

int full_eval(const Config&, const EvalArguments&, const Terminal&) { throw std::bad_alloc(); }

int fake_bench(const Arguments& arguments, const Terminal& terminal) {
  terminal.out << arguments.words.front() << ' ' << arguments.has("--json");
  return 44;
}

Said say(const Words& words, std::vector<std::pair<std::string, std::string>> environment = {}) {
  const VerbHooks hooks{
      .run = &fake_run, .eval = &fake_eval, .bench = &fake_bench, .torch_version = "2.11.0"};
  return said_by(words, hooks, std::move(environment));
}

}  // namespace

TEST_SUITE("node/cli") {
  TEST_CASE("the flags of run reach the node") {
    const auto said =
        say({"run", "--dir", "/d", "--data", "synthetic", "--batch=32", "--peer", "a:1", "--peer",
             "b:2,c:3", "--adopt", "--listen", "[::]:0", "--dry-run"});
    CHECK(said.code == 42);
    const auto got = nlohmann::json::parse(said.out);
    CHECK(got.at("dir") == "/d");
    CHECK(got.at("batch") == 32);
    CHECK(got.at("peers") == nlohmann::json{"a:1", "b:2", "c:3"});
    CHECK(got.at("adopt") == static_cast<int>(Adopt::always));
    CHECK(got.at("listen") == "[::]:0");
    CHECK(got.at("dry") == true);
  }

  TEST_CASE("of two flags that set one key the last one counts") {
    const auto said = say({"run", "--data", "x", "--batch", "1", "--set", "train.batch=2"});
    CHECK(nlohmann::json::parse(said.out).at("batch") == 2);
    const auto other = say({"run", "--data", "x", "--set", "train.batch=2", "--batch", "1"});
    CHECK(nlohmann::json::parse(other.out).at("batch") == 1);
  }

  TEST_CASE("words that are not UTF-8 are answered, and end no verb") {
    const starling::TempFolder folder;
    const auto dir = folder.path().string();
    const std::string foreign = "caf\xe9";
    CHECK(say({"join", foreign, "--dir", dir}).code == 3);  // no node runs there
    CHECK(say({"log-level", foreign, "--dir", dir}).code == 2);
    CHECK(say({"invite", "--ttl", foreign, "--dir", dir}).code == 2);
    const auto secret = (folder.path() / foreign).string();
    CHECK(say({"key", "new", "--secret-file", secret}).code == 0);
    const auto shown = say({"key", "show", "--json", "--secret-file", secret});
    CHECK(shown.code == 0);
    CHECK(nlohmann::json::parse(shown.out).at("current").is_object());
  }

  TEST_CASE("an unknown flag is exit 2 with the nearest one") {
    const auto said = say({"run", "--bacth", "32"});
    CHECK(said.code == 2);
    CHECK(said.out.empty());
    CHECK(contains(said.err, "--bacth"));
    CHECK(contains(said.err, "--batch"));
  }

  TEST_CASE("an unknown verb is exit 2 with the nearest one") {
    const auto said = say({"stauts"});
    CHECK(said.code == 2);
    CHECK(contains(said.err, "did you mean status?"));
    CHECK(say({}).code == 2);
    CHECK_FALSE(contains(say({"quantum"}).err, "did you mean"));
  }

  TEST_CASE("a slip in a word behind a verb, a value, a key or a table is told with the nearest") {
    const TempFolder scratch;
    const auto file = scratch.write("c.toml", "[trian]\nbatch = 1\n");
    const std::vector<std::pair<Words, std::string>> slips{
        {{"help", "stauts"}, "did you mean status?"},
        {{"config", "shwo"}, "did you mean show?"},
        {{"key", "rotat"}, "did you mean rotate?"},
        {{"log-level", "debgu"}, "did you mean debug?"},
        {{"run", "--data", "x", "--ui", "palin"}, "did you mean plain?"},
        {{"run", "--data", "x", "--model", "resnet5"}, "did you mean resnet50?"},
        {{"run", "--data", "x", "--max-bad", "3"}, "did you mean --set data.max_bad=N?"},
        {{"run", "--data", "x", "--config", file.string()}, "did you mean train?"}};
    for (const auto& [words, remedy] : slips) {
      CAPTURE(remedy);
      const auto said = say(words);
      CHECK(said.code == 2);
      CHECK(contains(said.err, remedy));
    }
  }

  TEST_CASE("a wrong value is exit 2 and names flag, value and what is right") {
    const auto said = say({"run", "--data", "x", "--batch", "many"});
    CHECK(said.code == 2);
    CHECK(contains(said.err, "--batch"));
    CHECK(contains(said.err, "many"));
    CHECK(contains(said.err, "1 to 65536"));
    CHECK(say({"run", "--data", "x", "--lr", "-1"}).code == 2);
    CHECK(say({"run", "--data", "x", "--set", "train.bacth=1"}).code == 2);
    CHECK(say({"run", "--data", "x", "--set", "train.batch"}).code == 2);
    CHECK(say({"run", "--data", "x", "--config", "/nonexistent.toml"}).code == 2);
    CHECK(say({"run", "--data"}).code == 2);
    CHECK(say({"run", "--data", "x", "stray"}).code == 2);
    CHECK(say({"run"}).code == 2);
    CHECK(contains(say({"run"}).err, "--data"));
  }

  TEST_CASE("a secret on the command line is refused with the reason, and not repeated") {
    const auto said = say({"run", "--data", "x", "--secret", "hunter2"});
    CHECK(said.code == 2);
    CHECK(contains(said.err, "--secret-file"));
    CHECK_FALSE(contains(said.err, "hunter2"));
    CHECK_FALSE(contains(say({"run", "--secret=hunter2"}).err, "hunter2"));
  }

  TEST_CASE("the environment and files reach the node, and notices do not stop it") {
    const TempFolder scratch;
    const auto file = scratch.write("c.toml", "[data]\ntrain = \"synthetic\"\n");
    const auto said =
        say({"run", "--config", file.string()}, {{"STARLING_TRAIN__BATCH", "7"},
                                                 {"STARLING_X__Y", "1"},
                                                 {"STARLING_PORT", "tcp://10.0.0.1:7700"}});
    CHECK(said.code == 42);
    CHECK(nlohmann::json::parse(said.out).at("batch") == 7);
    CHECK(contains(said.err, "STARLING_X__Y"));
    CHECK_FALSE(contains(said.err, "STARLING_PORT"));
  }

  TEST_CASE("verbs that ask a node say when none runs") {
    const TempFolder scratch;
    const auto dir = scratch.path().string();
    CHECK(say({"status", "--dir", dir}).code == 1);
    CHECK(say({"status", "--dir", dir, "--quiet"}).err.empty());
    for (const auto* verb : {"members", "neighbours", "leave", "finish", "merge"}) {
      CAPTURE(verb);
      const auto said = say({verb, "--dir", dir});
      CHECK(said.code == number_of(ExitCode::environment));
      CHECK(contains(said.err, "no node runs in"));
    }
    CHECK(say({"join", "--dir", dir}).code == 2);
    CHECK(say({"log-level", "loud", "--dir", dir}).code == 2);
    CHECK(say({"leave", "--timeout", "soon", "--dir", dir}).code == 2);
  }

  TEST_CASE("eval takes a model file and its data") {
    CHECK(say({"eval", "m.safetensors", "--data", "synthetic", "--json"}).out ==
          "m.safetensors synthetic 1");
    CHECK(say({"eval", "m.safetensors"}).code == 2);
  }

  TEST_CASE("a verb for which the machine has no memory ends with the code of that") {
    const auto said =
        said_by({"eval", "m.safetensors", "--data", "synthetic"}, VerbHooks{.eval = &full_eval});
    CHECK(said.code == number_of(ExitCode::temporary));
    CHECK(contains(said.err, "starling eval: "));
    CHECK(contains(said.err, "no memory"));
  }

  TEST_CASE("eval of the running node refuses what only a model file makes it look at") {
    const TempFolder scratch;
    const auto dir = scratch.path().string();
    const auto said = say({"eval", "--dir", dir, "--data", "synthetic"});
    CHECK(said.code == 2);
    CHECK(contains(said.err, "--data"));
    CHECK(contains(said.err, "MODEL.safetensors"));
    CHECK(say({"eval", "--dir", dir, "--set", "train.batch=8"}).code == 2);
    // What a container says to every verb is for the node.
    CHECK(say({"eval", "--dir", dir}, {{"STARLING_DATA__TRAIN", "synthetic"}}).code == 3);
  }

  TEST_CASE("help explains every verb and every key that has a flag") {
    CHECK(say({"help"}).code == 0);
    const auto run = say({"run", "--help"});
    CHECK(run.code == 0);
    for (const auto& key : all_keys()) {
      CAPTURE(key.name);
      CHECK(contains(run.out, key.flag.empty() ? key.name : key.flag));
    }
    for (const auto& verb : all_verbs()) {
      CAPTURE(verb.name);
      CHECK(contains(say({"help"}).out, verb.name));
      const auto said = say({"help", std::string(verb.name)});
      CHECK(said.code == 0);
      CHECK(contains(said.out, verb.summary));
    }
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  }

  TEST_CASE("help of run says what each exit code means, and what it takes besides keys") {
    const auto run = say({"help", "run"}).out;
    std::set<int> told;
    for (const auto& [code, restart, meaning] : kExitCodes) {
      CAPTURE(number_of(code));
      CHECK(told.insert(number_of(code)).second);
      const auto line = run.find("\n  " + std::to_string(number_of(code)) + " ");
      REQUIRE(line != std::string::npos);
      // It may be wrapped.
      CHECK(contains(run.substr(line, 200), std::string(meaning.substr(0, 30))));
      CHECK(contains(run.substr(line, run.find("\n  ", line + 3) - line), "restart") ==
            (restart == Restart::yes));
    }
    for (int number = 0; number < 256; ++number) {
      const auto code = exit_code_of(static_cast<Errc>(number));
      CAPTURE(number_of(code));
      CHECK(told.contains(number_of(code)));
    }
    CHECK(contains(run, "STARLING_NET__LISTEN_FILE"));
    for (const auto* signal : {"SIGHUP", "SIGUSR1", "SIGQUIT"}) CHECK(contains(run, signal));
    CHECK_FALSE(contains(say({"help", "bench"}).out, "exit codes"));
  }

  TEST_CASE("the table of exit codes for who deploys nodes is the program's") {
    const std::string readme = read_whole(STARLING_DEPLOY_README, 1'000'000).value();
    for (const auto& [code, restart, meaning] : kExitCodes) {
      const auto begin = readme.find("\n| " + std::to_string(number_of(code)) + " | ");
      CAPTURE(number_of(code));
      REQUIRE(begin != std::string::npos);
      std::string row = readme.substr(begin + 1, readme.find('\n', begin + 1) - begin - 1);
      std::erase(row, '`');
      CHECK(row == fmt::format("| {} | {} | {} |", number_of(code), meaning,
                               restart == Restart::yes ? "yes" : "no"));
    }
  }

  TEST_CASE("config default is a configuration that can be read again") {
    const TempFolder scratch;
    const auto defaults = say({"config", "default"});
    REQUIRE(defaults.code == 0);
    const auto file = scratch.write("d.toml", defaults.out);
    const auto again = say({"config", "show", "--config", file.string()});
    CHECK(again.code == 0);
    CHECK(again.err.empty());
    CHECK(contains(again.out, "batch = \"auto\""));
  }

  TEST_CASE("what config show writes is read back the same, digits of any kind too") {
    const TempFolder folder;
    for (const std::string name : {"007", "0", "12", "99999999999999999999", "true"}) {
      CAPTURE(name);
      const auto shown = say({"config", "show", "--name", name, "--seed", "18446744073709551615"});
      CHECK(shown.code == 0);
      const auto file = folder.write("shown.toml", shown.out);
      CHECK(say({"config", "show", "--config", file.string()}).out == shown.out);
    }
  }

  TEST_CASE("config show says where a value comes from and what it shadows") {
    const auto said =
        say({"config", "show", "--origin", "--batch", "8"}, {{"STARLING_TRAIN__BATCH", "7"}});
    CHECK(contains(said.out, "batch = 8   # --batch (shadows env STARLING_TRAIN__BATCH)"));
    CHECK(contains(said.out, "seed = 1   # default"));
    CHECK(say({"config", "check"}).code == 0);
    CHECK(say({"config", "check"}, {{"STARLING_X__Y", "1"}}).code == 2);
    for (const auto* what : {"default", "check"}) {
      const auto refused = say({"config", what, "--origin"});
      CHECK(refused.code == 2);
      CHECK(contains(refused.err, "--origin"));
    }
  }

  TEST_CASE("config check takes a file as a word, and show and default take none") {
    const TempFolder scratch;
    const auto good = scratch.write("good.toml", "[train]\nbatch = 8\n").string();
    const auto bad = scratch.write("bad.toml", "[train]\nbacth = 8\n").string();
    CHECK(say({"config", "check", good}).code == 0);
    const auto said = say({"config", "check", bad});
    CHECK(said.code == 2);
    CHECK(contains(said.err, bad + ":2:1"));
    CHECK(contains(said.err, "train.batch"));
    CHECK(say({"config", "check", (scratch.path() / "none.toml").string()}).code == 2);
    CHECK(say({"config", "check", good}, {{"STARLING_X__Y", "1"}}).code == 2);
    CHECK(say({"config", "show", good}).code == 2);
  }

  TEST_CASE("config show does not show an invite") {
    const auto said = say({"config", "show", "--invite", "starling1:sesame"});
    CHECK(said.code == 0);
    CHECK_FALSE(contains(said.out, "sesame"));
  }

  TEST_CASE("version names the libraries") {
    const auto json = nlohmann::json::parse(say({"version", "--json"}).out);
    CHECK(json.at("schema") == 1);
    CHECK_FALSE(json.at("version").get<std::string>().empty());
    CHECK(json.at("libraries").at("libtorch") == "2.11.0");
    CHECK(json.at("libraries").at("toml++") == "3.3.0");
    CHECK_FALSE(json.at("libraries").at("libsodium").get<std::string>().empty());
    CHECK(contains(say({"--version"}).out, "starling "));
  }

  TEST_CASE("the completion script knows every verb") {
    const auto script = say({"completion", "bash"});
    CHECK(script.code == 0);
    for (const auto& verb : all_verbs()) CHECK(contains(script.out, verb.name));
    CHECK(say({"completion", "csh"}).code == 2);
  }

  TEST_CASE("a demo refuses what it cannot do before it starts anything") {
    CHECK(say({"demo", "--nodes", "0"}).code == 2);
    CHECK(say({"demo", "--nodes", "many"}).code == 2);
    const TempFolder scratch;
    std::filesystem::create_directories(scratch.path() / "node-1");
    CHECK(say({"demo", "--dir", scratch.path().string()}).code == 2);
  }

  TEST_CASE("every error of the list ends in a documented exit code") {
    const std::set<int> documented{0, 1, 2, 3, 4, 5, 6, 7, 9, 75, 130, 143};
    for (int i = 0; i <= static_cast<int>(Errc::internal); ++i) {
      const auto code = static_cast<Errc>(i);
      CAPTURE(name_of(code));
      CHECK(documented.contains(number_of(exit_code_of(code))));
      CHECK(exit_code_of(code) != ExitCode::good);
    }
    CHECK(exit_code_of(Errc::bad_config) == ExitCode::usage);
    CHECK(exit_code_of(Errc::data_failed) == ExitCode::data);
    CHECK(exit_code_of(Errc::disk_full) == ExitCode::temporary);
    CHECK(exit_code_of(Errc::too_large) == ExitCode::environment);
    CHECK(exit_code_of(Error{Errc::too_many, Doing::reading_config, ""}) == ExitCode::usage);
    CHECK(exit_code_of(Error{Errc::too_many, Doing::connecting, ""}) == ExitCode::internal);
  }
}
