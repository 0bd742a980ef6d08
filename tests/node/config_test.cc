#include "node/config/config.h"

#include "node/base/random.h"
#include "node/config/keys.h"
#include "node/config/load.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cctype>
#include <set>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using testing::contains;
using namespace std::chrono_literals;

namespace {

ConfigSources from_flags(std::vector<FlagValue> flags) {
  ConfigSources sources;
  sources.default_dir = "/d";
  sources.flags = std::move(flags);
  return sources;
}

// net.listen: STARLING_NET__LISTEN.
std::string variable_of(std::string_view key) {
  std::string name = "STARLING_";
  for (const char c : key) {
    if (c == '.')
      name += "__";
    else
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

ConfigSources from_environment(std::vector<std::pair<std::string, std::string>> environment) {
  ConfigSources sources;
  sources.default_dir = "/d";
  sources.environment = std::move(environment);
  return sources;
}

}  // namespace

TEST_SUITE("node/config") {
  TEST_CASE("NO_COLOR means no colours, unless more is said") {
    const auto colour_with = [](std::vector<std::pair<std::string, std::string>> environment) {
      return load_config(from_environment(std::move(environment)))->log.color;
    };
    CHECK(colour_with({{"NO_COLOR", "1"}}) == Colour::never);
    CHECK(colour_with({{"NO_COLOR", ""}}) == Colour::automatic);
    CHECK(colour_with({{"STARLING_LOG__COLOR", "auto"}, {"NO_COLOR", "1"}}) == Colour::automatic);
  }

  TEST_CASE("flags beat the environment, which beats files, which beat defaults") {
    const TempFolder scratch;
    const auto file = scratch.write("a.toml",
                                    "[train]\nbatch = 8\nseed = 5\n[net]\n"
                                    "join_grace = \"3s\"\nlisten = \"h:1\"\n");
    ConfigSources sources =
        from_environment({{"STARLING_TRAIN__BATCH", "16"}, {"STARLING_TRAIN__SEED", "6"}});
    sources.files = {file};
    sources.flags = {{"train.batch", "--batch", "32"}};

    const auto config = load_config(sources);

    REQUIRE(config);
    CHECK(config->train.batch == 32U);
    CHECK(config->train.seed == 6U);
    CHECK(config->net.join_grace == Duration(3s));
    CHECK(config->net.join_timeout == Duration(5min));
  }

  TEST_CASE("the origin of a value names its place and what it shadows") {
    const TempFolder scratch;
    const auto file = scratch.write("a.toml", "[train]\n  batch = 8\n");
    ConfigSources sources = from_environment({{"STARLING_TRAIN__BATCH", "16"}});
    sources.files = {file};
    sources.flags = {{"train.batch", "--batch", "32"}};

    const auto config = load_config(sources);

    REQUIRE(config);
    const auto& origin = config->origins.at("train.batch");
    CHECK(origin.layer == Layer::flag);
    CHECK(origin.where == "--batch");
    CHECK(origin.shadows ==
          std::vector<std::string>{"env STARLING_TRAIN__BATCH", file.string() + ":2:3"});
    CHECK(config->forced("train.batch"));
    CHECK_FALSE(config->forced("train.lr"));
  }

  TEST_CASE("a later file wins over an earlier one") {
    const TempFolder scratch;
    ConfigSources sources;
    sources.files = {scratch.write("a.toml", "[train]\nbatch = 8\n[net]\npeers = [\"a:1\"]\n"),
                     scratch.write("b.toml", "[net]\npeers = [\"b:2\", \"c:3\"]\n")};

    const auto config = load_config(sources);

    REQUIRE(config);
    CHECK(config->train.batch == 8U);
    CHECK(config->net.peers == std::vector<std::string>{"b:2", "c:3"});
  }

  TEST_CASE("flags of a list add up, with commas or without") {
    const auto config = load_config(from_flags({{"net.peers", "--peer", "a:1,b:2"},
                                                {"net.peers", "--peer", "@more"},
                                                {"net.peers", "--peer", "dns:x:7700"}}));
    REQUIRE(config);
    CHECK(config->net.peers == std::vector<std::string>{"a:1", "b:2", "@more", "dns:x:7700"});
  }

  TEST_CASE("an unknown key is an error with its place and the nearest key") {
    Config config;
    const auto wrong = apply_toml(config, "[train]\nbatch = 8\nbacth = 9\n", "s.toml");
    REQUIRE_FALSE(wrong);
    CHECK(wrong.error().code == Errc::bad_config);
    CHECK(contains(wrong.error().detail, "s.toml:3:1"));
    CHECK(contains(wrong.error().detail, "train.batch"));

    const auto table = apply_toml(config, "[trian]\nbatch = 8\n", "s.toml");
    REQUIRE_FALSE(table);
    CHECK(contains(table.error().detail, "trian"));

    const auto flag = load_config(from_flags({{"net.batch", "--set net.batch", "1"}}));
    REQUIRE_FALSE(flag);
    CHECK(contains(flag.error().detail, "train.batch"));
  }

  TEST_CASE("a wrong value is an error that names place, key, value and what is right") {
    struct Case {
      std::string key, value, right;
    };
    const std::vector<Case> cases{
        {"train.batch", "0", "1 to 65536"},      {"train.model", "resnet51", "resnet50"},
        {"train.lr", "nan", "0 to 100"},         {"train.lr", "-1", "0 to 100"},
        {"train.device", "cuda:x", "cuda:N"},    {"train.until", "forever", "samples=N"},
        {"train.device", "cuda:0,", "cuda:N,M"}, {"train.device", "cuda:0,128", "cuda:N,M"},
        {"train.precision", "fp16", "bf16"},     {"net.join_grace", "10", "90s"},
        {"net.listen", "7700", "HOST:PORT"},     {"gossip.codec", "L7", "L6"},
        {"log.level", "loud", "warn"},           {"http.exposed", "maybe", "true or false"},
        {"swarm.invite", "hello", "starling1:"}, {"node.name", "a\nb", "printable"},
        {"checkpoint.keep", "0", "1 to 1000"},   {"eval.share", "1", "0.001 to 0.9"}};
    for (const auto& [key, value, right] : cases) {
      CAPTURE(key);
      CAPTURE(value);
      const auto config = load_config(from_flags({{key, "--set " + key, value}}));
      REQUIRE_FALSE(config);
      CHECK(config.error().code == Errc::bad_config);
      CHECK(contains(config.error().detail, key));
      CHECK((contains(config.error().detail, value) || value == "a\nb"));
      CHECK(contains(config.error().detail, right));
      CHECK_FALSE(contains(config.error().detail, "\n"));
    }
  }

  TEST_CASE("a device is one, or several GPUs of a host") {
    for (const char* device : {"auto", "cpu", "cuda", "cuda:7", "cuda:0,1", "cuda:3,2,127"}) {
      CAPTURE(device);
      const auto config = load_config(from_flags({{"train.device", "--device", device}}));
      REQUIRE(config);
      CHECK(config->train.device == device);
    }
  }

  TEST_CASE("peers are checked when they are read, not when they are dialled") {
    const std::string id(64, 'a');
    for (const auto& good : {std::string("h:1"), std::string("h"), std::string("[::1]:7"),
                             std::string("@file"), std::string("dns:n:1"), id + "@h:1"}) {
      CAPTURE(good);
      CHECK(load_config(from_flags({{"net.peers", "--peer", good}})));
    }
    for (const auto& bad : {std::string("@"), std::string(":1"), std::string("h:x"),
                            std::string("::1:7"), std::string("abc@h:1"), "dns:" + id + "@h:1"}) {
      CAPTURE(bad);
      CHECK_FALSE(load_config(from_flags({{"net.peers", "--peer", bad}})));
    }
  }

  TEST_CASE("Kubernetes service links can never be taken for keys") {
    const auto config =
        load_config(from_environment({{"STARLING_PORT", "tcp://10.0.0.1:7700"},
                                      {"STARLING_PORT_7700_TCP", "tcp://10.0.0.1:7700"},
                                      {"STARLING_PORT_7700_TCP_ADDR", "10.0.0.1"},
                                      {"STARLING_SERVICE_HOST", "10.0.0.1"},
                                      {"STARLING_WEB_SERVICE_PORT_HTTP", "7780"},
                                      {"STARLING_NET", "x"},
                                      {"STARLING_NET_LISTEN", "x"}}));
    REQUIRE(config);
    CHECK(config->origins.empty());
    CHECK(config->notices.empty());
  }

  TEST_CASE("a variable with a double underscore that names no key is told, and stops nothing") {
    const auto config = load_config(from_environment({{"STARLING_TRAIN__BACTH", "1"}}));
    REQUIRE(config);
    REQUIRE(config->notices.size() == 1);
    CHECK(contains(config->notices.front(), "train.batch"));
  }

  TEST_CASE("a variable that ends in _FILE reads its value from that file") {
    const TempFolder scratch;
    const auto file = scratch.write("invite", "starling1:abc\n");
    const auto config =
        load_config(from_environment({{"STARLING_SWARM__INVITE_FILE", file.string()}}));
    REQUIRE(config);
    CHECK(config->swarm.invite == "starling1:abc");

    const auto own = load_config(from_environment({{"STARLING_SWARM__SECRET_FILE", "/s"}}));
    REQUIRE(own);
    CHECK(own->swarm.secret_file == "/s");

    const auto both =
        load_config(from_environment({{"STARLING_SWARM__INVITE", "starling1:other"},
                                      {"STARLING_SWARM__INVITE_FILE", file.string()}}));
    REQUIRE_FALSE(both);
    CHECK(contains(both.error().detail, "STARLING_SWARM__INVITE and"));
    CHECK_FALSE(contains(both.error().detail, "env "));
    CHECK(contains(both.error().detail, "STARLING_SWARM__INVITE_FILE"));
  }

  TEST_CASE("choices that contradict each other are refused with both places") {
    const auto open = load_config(from_flags(
        {{"swarm.mode", "--open", "open"}, {"swarm.secret_file", "--secret-file", "s"}}));
    REQUIRE_FALSE(open);
    CHECK(contains(open.error().detail, "--open"));
    CHECK(contains(open.error().detail, "--secret-file"));
  }

  TEST_CASE("HTTP on other addresses than loopback needs a token or a deliberate word") {
    CHECK_FALSE(load_config(from_flags({{"http.listen", "--http", "0.0.0.0:7780"}})));
    CHECK(load_config(from_flags(
        {{"http.listen", "--http", "0.0.0.0:7780"}, {"http.exposed", "--set", "true"}})));
    CHECK(load_config(from_flags(
        {{"http.listen", "--http", "0.0.0.0:7780"}, {"http.token_file", "--set", "/t"}})));
    CHECK(load_config(from_flags({{"http.listen", "--http", "127.0.0.1:0"}})));
    CHECK(load_config(from_flags({{"http.listen", "--http", "off"}})));
  }

  TEST_CASE("a file that is missing, huge or no TOML is an error that names it") {
    const TempFolder scratch;
    ConfigSources sources;
    sources.files = {scratch.path() / "none.toml"};
    REQUIRE_FALSE(load_config(sources));
    CHECK(load_config(sources).error().code == Errc::not_found);
    sources.files = {scratch.write("big.toml", std::string(kMaxConfigFile + 1, '#'))};
    CHECK(load_config(sources).error().code == Errc::too_large);
    sources.files = {scratch.write("bad.toml", "[net\n")};
    CHECK(contains(load_config(sources).error().detail, "bad.toml:1:"));
  }

  TEST_CASE("a file nested deeper than any key is refused before the parser recurses into it") {
    const auto deep = [](std::string_view part, std::string_view end) {
      std::string text = "# first\n";
      for (int i = 0; i < 100'000; ++i) text += part;
      return text + std::string(end);
    };
    for (const auto& text : {deep("a.", "b = 1\n"), deep("\"a\" . ", "b = 1\n"),
                             "# first\n[" + deep("a.", "b]\n").substr(8),
                             "# first\nx = {" + deep("a.", "b = 1}\n").substr(8),
                             deep("a={b.c=", "1\n"), "# first\nx = " + deep("[", "\n").substr(8)}) {
      CAPTURE(text.substr(0, 30));
      Config config;
      const auto read = apply_toml(config, text, "deep.toml");
      REQUIRE_FALSE(read);
      CHECK(read.error().code == Errc::bad_config);
      CHECK(contains(read.error().detail, "deep.toml:2: "));
      CHECK(contains(read.error().detail, "at most 16"));
    }
  }

  TEST_CASE("dots and brackets that are no nesting are nobody's business") {
    Config config;
    std::string text = "net.peers = [";
    for (int i = 0; i < 40; ++i) text += "\"a.b.c.d.example.org:7700\", 'e.f.g.h:1', ";
    text +=
        "]  # [[[[[[[[[[[[[[[[[[[[[[ {{{{{{{{{{{{{{{{{{{{{{{{{ "
        "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s\n";
    text += "[swarm]\nname = \"\\\"[[[[[[[[[[[[[[[[[[[[[[.............................\"\n";
    CHECK(apply_toml(config, text, "x"));
    CHECK(config.net.peers.size() == 80);
    // Strings of several lines, with quotes of their kind inside.
    const std::string many(40, '[');
    CHECK(apply_toml(config, "node.dir = \"\"\"a\"" + many + "\n" + many + "\"\"\"\"\n", "x"));
    CHECK(apply_toml(config, "node.dir = '''a'" + many + "\\\n" + many + "'''\n", "x"));
  }

  TEST_CASE("a FIFO in the place of a file is an error, and nobody waits for its writer") {
    const TempFolder scratch;
    const auto fifo = scratch.path() / "starling.toml";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    ConfigSources sources;
    sources.files = {fifo};
    const auto config = load_config(sources);
    REQUIRE_FALSE(config);
    CHECK(contains(config.error().detail, "starling.toml"));
    CHECK(contains(config.error().detail, "not a regular file"));
  }

  TEST_CASE("every key has help, reads what it shows, and can be set from the environment") {
    const Config defaults;
    std::set<std::string> names;
    std::set<std::string> flags;
    for (const auto& key : all_keys()) {
      CAPTURE(key.name);
      CHECK(names.insert(std::string(key.name)).second);
      CHECK(key.help.size() > 20);
      CHECK(key.help.ends_with('.'));
      if (!key.flag.empty()) CHECK(flags.insert(std::string(key.flag)).second);
      if (key.name == "node.dir") continue;  // has no default of its own
      const auto texts = key.show(defaults);
      Config copy;
      if (!key.list && !texts.front().empty()) {
        CHECK(key.read(copy, texts));
        CHECK(key.show(copy) == texts);
        const auto variable = variable_of(key.name);
        const auto config = load_config(from_environment({{variable, texts.front()}}));
        REQUIRE(config);
        REQUIRE(config->forced(key.name));
        CHECK(config->origins.find(key.name)->second.where == "env " + variable);
        CHECK(key.show(*config) == texts);
      }
    }
    for (const auto& alias : flag_aliases()) {
      CAPTURE(alias.flag);
      CHECK(flags.insert(std::string(alias.flag)).second);
      REQUIRE(find_key(alias.key) != nullptr);
      CHECK(load_config(from_flags(
          {{std::string(alias.key), std::string(alias.flag), std::string(alias.value)}})));
    }
  }

  TEST_CASE("the state folder follows the XDG specification") {
    CHECK(default_state_dir({{"XDG_STATE_HOME", "/x"}, {"HOME", "/h"}}) == "/x/starling");
    CHECK(default_state_dir({{"XDG_STATE_HOME", "x"}, {"HOME", "/h"}}) ==
          "/h/.local/state/starling");
    CHECK(default_state_dir({}) == "/var/lib/starling");
  }

  TEST_CASE("random bytes never get through as a configuration by accident") {
    constexpr std::string_view kAlphabet = "[]{}=\"'#\n\\. \tabtrain_netk0123456789-:,\x01\xff";
    for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      std::string text;
      for (auto left = rng.below(60); left > 0; --left)
        text += kAlphabet[static_cast<std::size_t>(rng.below(kAlphabet.size()))];
      Config config;
      const auto read = apply_toml(config, text, "x");
      if (read) CHECK(config.origins.size() <= all_keys().size());
      if (!read) CHECK(read.error().code == Errc::bad_config);
    }
  }
}
