#include "training/data/spec.h"

#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <string>

using namespace starling;
using namespace starling::training;

namespace {

std::string refusal_of_spec(const std::string& text) {
  const Result<DataSpec> spec = parse_data_spec(text);
  if (spec) return "accepted";
  CHECK(spec.error().code == Errc::bad_config);
  return spec.error().detail;
}

}  // namespace

TEST_SUITE("training/data/spec") {
  TEST_CASE("each form of --data names its kind and its paths") {
    CHECK(parse_data_spec("fashion-mnist")->kind == DataKind::idx);
    CHECK(parse_data_spec("idx:/d/mnist")->paths.front() == "/d/mnist");
    CHECK(parse_data_spec("cifar10:c")->kind == DataKind::cifar10);
    CHECK(parse_data_spec("/data/imagenet")->kind == DataKind::folder);
    CHECK(parse_data_spec("one.tar")->kind == DataKind::tar);
    CHECK(parse_data_spec("synthetic")->kind == DataKind::synthetic);
  }

  TEST_CASE("a range of shards keeps its leading zeros and its order") {
    const auto spec = parse_data_spec("/d/x-{008..011}.tar");

    REQUIRE(spec);
    REQUIRE(spec->paths.size() == 4);
    CHECK(spec->paths[0] == "/d/x-008.tar");
    CHECK(spec->paths[3] == "/d/x-011.tar");
  }

  TEST_CASE("commas join shards and ranges") {
    const auto spec = parse_data_spec("a.tar,b-{0..2}.tar");

    REQUIRE(spec);
    CHECK(spec->paths.size() == 4);
    CHECK(spec->paths.back() == "b-2.tar");
  }

  TEST_CASE("a range that would fill the memory is refused") {
    CHECK(mentions(refusal_of_spec("x-{0..18446744073709551615}.tar"), "shards"));
    CHECK(mentions(refusal_of_spec("x-{0..99999}.tar,y-{0..99999}.tar"), "more than 100000"));
    CHECK(mentions(refusal_of_spec("x-{0..99999}.tar,y.tar"), "more than 100000"));
  }

  TEST_CASE("a damaged range says how one is written") {
    for (const char* text : {"x-{0..}.tar", "x-{a..b}.tar", "x-{0..2.tar", "x-0..2}.tar",
                             "x-{0..1}{0..1}.tar", "x-{0-2}.tar", "x-}0..2{.tar"}) {
      CAPTURE(text);
      CHECK(mentions(refusal_of_spec(text), "{first..last}"));
    }
    CHECK(mentions(refusal_of_spec("x-{3..1}.tar"), "before the first"));
  }

  TEST_CASE("what this version cannot read is refused with what to do instead") {
    CHECK(mentions(refusal_of_spec("packed:"), "path is missing"));
    CHECK(mentions(refusal_of_spec("x.tar.gz"), "unpack it"));
    CHECK(mentions(refusal_of_spec(""), "fashion-mnist"));
    CHECK(mentions(refusal_of_spec("idx:"), "path is missing"));
    CHECK(mentions(refusal_of_spec(std::string("a\0b", 3)), "zero byte"));
    CHECK(mentions(refusal_of_spec(std::string(5'000, 'x')), "longer than"));
  }

  TEST_CASE("the synthetic set takes its shape from keys, and names a wrong one") {
    const auto spec = parse_data_spec("synthetic:classes=4,size=16,channels=1,train=100,noise=0.5");

    REQUIRE(spec);
    CHECK(spec->synthetic.classes == 4);
    CHECK(spec->synthetic.size == 16);
    CHECK(spec->synthetic.channels == 1);
    CHECK(spec->synthetic.train == 100);
    CHECK(spec->synthetic.noise == 0.5F);
    CHECK(mentions(refusal_of_spec("synthetic:colour=3"), "unknown key 'colour'"));
    CHECK(mentions(refusal_of_spec("synthetic:classes=1"), "from 2 to 65536"));
    CHECK(mentions(refusal_of_spec("synthetic:channels=2"), "1 or 3"));
    CHECK(mentions(refusal_of_spec("synthetic:noise=nan"), "from 0 to 1"));
    CHECK(mentions(refusal_of_spec("synthetic:size"), "key=value"));
  }
}
