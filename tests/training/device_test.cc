#include "training/device.h"

#include "tests/support/counting_log.h"
#include "training/data/dataset.h"
#include "training/data/loader.h"
#include "training/data/spec.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/device") {
  TEST_CASE("an unknown device, a device that is not there and a bad thread count are refused") {
    CHECK(resolve_device({.device = "gpu"}).error().code == Errc::bad_config);
    CHECK(resolve_device({.device = "cuda:x"}).error().code == Errc::bad_config);
    for (const char* text : {"cuda:", "cuda:0,", "cuda:,1", "cuda:0,x", "cuda:0, 1", "cuda:-1"}) {
      CAPTURE(text);
      CHECK(resolve_device({.device = text}).error().code == Errc::bad_config);
    }
    CHECK(resolve_device({.device = "cuda:4096"}).error().code == Errc::unsupported);
    CHECK(resolve_device({.device = "cuda:4096,0"}).error().code == Errc::unsupported);
    const auto twice = resolve_device({.device = "cuda:3,1,3"});
    CHECK(twice.error().code == Errc::bad_config);
    CHECK(twice.error().detail.find("names cuda:3 twice") != std::string::npos);
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

  TEST_CASE("a device's name is what one writes to get it") {
    CHECK(name_of(ResolvedDevice{}) == "cpu");
    CHECK(name_of(ResolvedDevice{.cuda = true, .index = 2}) == "cuda:2");
    CHECK(name_of(ResolvedDevice{.cuda = true, .index = 1, .others = {0, 3}}) == "cuda:1,0,3");
  }

  TEST_CASE("a loader for a CPU makes floats, and one for a device that is not there is refused") {
    LoaderOptions loader;
    loader.form = BatchForm::pixels;

    CHECK(suit_loader(loader, {.device = "cpu"}).has_value());

    CHECK(loader.form == BatchForm::floats);
    CHECK(suit_loader(loader, {.device = "cuda:99"}).error().code == Errc::unsupported);
  }

  TEST_CASE("automatic says why it left a GPU alone, and only it does") {
    CHECK(refused_gpu({.device = "cpu"}).empty());
    CHECK(refused_gpu({.device = "cuda:0"}).empty());
    const auto resolved = resolve_device({.device = "auto"});
    REQUIRE(resolved.has_value());
    if (resolved->cuda) CHECK(refused_gpu({.device = "auto"}).empty());
  }

  TEST_CASE("pixels lie in ordinary memory where there is none that a device reads faster") {
    CountingLog log("data.not_pinned");
    const auto spec = parse_data_spec("synthetic:classes=4,size=16,channels=1,train=100");
    REQUIRE(spec.has_value());
    const auto data = open_data(*spec, nullptr, log);
    REQUIRE(data.has_value());
    LoaderOptions options = loader_options_for(*data->train, Pass::training, 16, 1);
    options.form = BatchForm::pixels;
    options.batch = 8;
    // Ordinary memory is not given back this way.
    options.memory = {.take = [](std::size_t, int) -> void* { return nullptr; },
                      .give = [](void*, int) { CHECK(false); }};
    Loader loader(*data->train, options, log);

    for (int i = 0; i < 6; ++i) {
      CAPTURE(i);
      auto batch = loader.next();
      REQUIRE(batch.has_value());
      REQUIRE(batch->has_value());
      CHECK_FALSE((*batch)->pixels.empty());
      if (i % 2 == 0) loader.recycle(**std::move(batch));
    }
    CHECK(log.count() > 0);
  }

  TEST_CASE("bf16 works in a machine that announces matrix tiles and hides their sizes") {
    if (!cpu_has_bf16()) return;
    // Where it is so, a product threw "could not create a primitive", and a step of training ended
    // the process.
    const at::Tensor product =
        at::mm(at::ones({512, 64}, at::kBFloat16), at::ones({64, 64}, at::kBFloat16));
    CHECK(product[0][0].item<float>() == 64);
    const at::Tensor x = at::ones({2, 64, 8, 8}, at::kBFloat16);
    for (const std::int64_t kernel : {1, 3}) {
      const at::Tensor w = at::ones({64, 64, kernel, kernel}, at::kBFloat16);
      const at::Tensor y = at::conv2d(x, w, {}, 1, kernel / 2);
      CHECK(y[0][0][4][4].item<float>() == static_cast<float>(64 * kernel * kernel));
    }
    if (cpu_hides_tiles()) CHECK(std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr);
  }
}
