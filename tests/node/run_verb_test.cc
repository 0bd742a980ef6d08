#include "node/cli/exit_code.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

using namespace starling;
using namespace starling::node;
using starling::node::testing::contains;
using starling::node::testing::Said;

namespace {

Said dry_run_with_secret(const TempFolder& scratch, const std::filesystem::path& secret) {
  VerbHooks hooks;
  hooks.run = &run_verb;
  return starling::node::testing::said_by(
      {"run", "--dry-run", "--dir", (scratch.path() / "n").string(), "--data",
       "synthetic:classes=3,size=8,train=30,val=6", "--model", "small", "--secret-file",
       secret.string()},
      hooks);
}

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

  TEST_CASE("a secret file that is missing is called so, with where to get it") {
    const TempFolder scratch;
    const Said said = dry_run_with_secret(scratch, scratch.path() / "mounted");

    INFO(said.err);
    CHECK(said.code != number_of(ExitCode::good));
    CHECK(contains(said.err, "is not there: copy it from a node of the swarm"));
  }
}
