#include "node/cli/exit_code.h"
#include "node/final_result.h"
#include "node/kept_settings.h"
#include "node/state_dir.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "training/data/dataset.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using starling::node::testing::contains;
using starling::node::testing::Said;

namespace {

constexpr const char* kData = "synthetic:classes=3,size=8,train=30,val=6";

// In DIR = scratch/n.
Said dry_run(const TempFolder& scratch, const std::vector<std::string>& more = {}) {
  VerbHooks hooks;
  hooks.run = &run_verb;
  std::vector<std::string> words{"run",    "--dry-run", "--dir",   (scratch.path() / "n").string(),
                                 "--data", kData,       "--model", "small"};
  words.insert(words.end(), more.begin(), more.end());
  return starling::node::testing::said_by(words, hooks);
}

Said dry_run_with_secret(const TempFolder& scratch, const std::filesystem::path& secret) {
  return dry_run(scratch, {"--secret-file", secret.string()});
}

// A node whose swarm extends its finished run: DIR/settings as they were adopted.
struct Extending {
  TempFolder scratch;
  std::filesystem::path dir = scratch.path() / "n";
  std::filesystem::path final_dir = dir / "final";

  Extending() {
    NullLog log;
    const auto data = training::open_data(kData, "", log);
    REQUIRE(data.has_value());
    Config config;
    config.train.model = "small";
    config.run.extend = 1;
    const auto settings = choose_settings(config, *data->train, {}, log);
    REQUIRE(settings.has_value());
    scratch.write("n/settings", settings->text.text());
  }
};

}  // namespace

TEST_SUITE("node/run_verb") {
  TEST_CASE("a secret file that cannot be looked at is not called missing") {
    const TempFolder scratch;
    const auto secret = scratch.path() / "mounted";
    std::filesystem::create_symlink("mounted", secret);  // a circle: ELOOP, whoever asks

    const Said said = dry_run_with_secret(scratch, secret);

    INFO(said.err);
    CHECK(said.code != number_of(ExitCode::good));
    CHECK(contains(said.err, secret.string()));
    CHECK(contains(said.err, "symbolic links"));
    CHECK_FALSE(contains(said.err, "is not there"));
  }

  TEST_CASE("an extended run whose model cannot be read now does not begin another one") {
    const Extending node;
    std::string remedy;
    SUBCASE("the folder is a link to a disk that is not mounted") {
      std::filesystem::create_symlink("unmounted", node.final_dir);
      remedy = "mount or put back unmounted";
    }
    SUBCASE("the certificate cannot be opened") {
      std::filesystem::create_directory(node.final_dir);
      std::filesystem::create_symlink("certificate.json", node.final_dir / "certificate.json");
      remedy = "let this user read it";
    }
    SUBCASE("the model cannot be opened") {
      node.scratch.write("n/final/certificate.json", format_certificate({}));
      std::filesystem::create_symlink("model.safetensors", node.final_dir / "model.safetensors");
      remedy = "let this user read it";
    }
    SUBCASE("the model is lost") {
      node.scratch.write("n/final/certificate.json", format_certificate({}));
      remedy = "put the file back";
    }
    SUBCASE("the certificate is a newer program's") {
      node.scratch.write("n/final/certificate.json", R"({"schema": 2})");
      remedy = "start the program that wrote it";
    }
    SUBCASE("the certificate is damaged") {
      node.scratch.write("n/final/certificate.json", "{");
      remedy = "move the folder " + node.final_dir.string();
    }

    const Said said = dry_run(node.scratch);

    INFO(said.err);
    CHECK(said.code == number_of(ExitCode::environment));
    CHECK(contains(said.err, node.final_dir.string()));
    CHECK(contains(said.err, "nothing was changed"));
    CHECK(contains(said.err, remedy));
  }

  TEST_CASE("an extended run that was adopted, and whose model never came, begins without it") {
    const Extending node;
    const Said said = dry_run(node.scratch);

    INFO(said.err);
    CHECK(said.code == number_of(ExitCode::good));
    CHECK(contains(said.out, "extend           0"));
  }

  TEST_CASE("a key or a secret on a disk that is not mounted is not made anew") {
    for (const std::string name : {"identity.key", "secret"}) {
      const TempFolder scratch;
      const auto link = scratch.path() / "n" / name;
      std::filesystem::create_directory(scratch.path() / "n");
      std::filesystem::create_symlink("unmounted", link);

      const Said said = dry_run(scratch);

      INFO(said.err);
      CHECK(said.code == number_of(ExitCode::environment));
      CHECK(contains(said.err, link.string() + ": a symbolic link to unmounted"));
    }
  }

  TEST_CASE("a token that others may read is refused like any other secret") {
    const TempFolder scratch;
    const auto token = scratch.write("token", "sesame\n");
    const auto mode = [&](std::filesystem::perms to) {
      std::filesystem::permissions(token, to);
      return dry_run(scratch, {"--set", "http.token_file=" + token.string()});
    };
    using std::filesystem::perms;
    CHECK(mode(perms::owner_read | perms::owner_write).code == number_of(ExitCode::good));

    const Said said =
        mode(perms::owner_read | perms::owner_write | perms::group_read | perms::others_read);
    INFO(said.err);
    CHECK(said.code == number_of(ExitCode::environment));
    CHECK(contains(said.err, "chmod 600 " + token.string()));
    CHECK_FALSE(contains(said.err, "sesame"));
  }

  TEST_CASE("a secret file that is missing is called so, with where to get it") {
    const TempFolder scratch;
    const Said said = dry_run_with_secret(scratch, scratch.path() / "mounted");

    INFO(said.err);
    CHECK(said.code != number_of(ExitCode::good));
    CHECK(contains(said.err, "is not there: copy it from a node of the swarm"));
  }
}
