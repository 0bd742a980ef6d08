#include "training/device.h"

#include "training/data/loader.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/device") {
  TEST_CASE("an unknown device, a device that is not there and a bad thread count are refused") {
    CHECK(resolve_device({.device = "gpu"}).error().code == Errc::bad_config);
    CHECK(resolve_device({.device = "cuda:x"}).error().code == Errc::bad_config);
    CHECK(resolve_device({.device = "cuda:4096"}).error().code == Errc::unsupported);
    CHECK(resolve_device({.device = "cpu", .threads = 0}).error().code == Errc::bad_config);
    CHECK(resolve_device({.device = "cpu", .threads = 1'025}).error().code == Errc::bad_config);
  }

  TEST_CASE("what is asked for is what comes out, and automatic becomes something") {
    const auto resolved =
        resolve_device({.device = "cpu", .precision = Precision::fp32, .threads = 3});
    REQUIRE(resolved.has_value());
    CHECK_FALSE(resolved->cuda);
    CHECK(resolved->precision == Precision::fp32);
    CHECK(resolved->threads == 3);
    CHECK(resolve_device({.device = "cpu"})->precision != Precision::automatic);
  }

  TEST_CASE("a loader for a CPU makes floats, and one for a device that is not there is refused") {
    LoaderOptions loader;
    loader.form = BatchForm::pixels;

    CHECK(suit_loader(loader, {.device = "cpu"}).has_value());

    CHECK(loader.form == BatchForm::floats);
    CHECK(suit_loader(loader, {.device = "cuda:99"}).error().code == Errc::unsupported);
  }
}
