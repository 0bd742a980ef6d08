// The engine of a GPU beside the CPU's: the same steps, and what one saved the other goes on with.
#include "tests/support/temp_folder.h"
#include "tests/training/torch_support.h"
#include "training/cuda/device_memory.h"
#include "training/models/wiring.h"
#include "training/stepper.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// Before main(), so that the whole binary is skipped (exit 77) where there is no device.
[[maybe_unused]] const bool kDevice = [] {
  if (torch::cuda::device_count() > 0) return true;
  std::clog << "skipped: no CUDA device that LibTorch can use\n";
  std::_Exit(77);
}();

ResolvedDevice device_of(const char* name, Precision precision) {
  const auto resolved = resolve_device({.device = name, .precision = precision});
  REQUIRE(resolved.has_value());
  return *resolved;
}

// Two losses may differ by the rounding of some ten operations one behind the other; cuDNN's
// convolutions of fp32 values round their operands to TF32.
double tolerance_in(Precision precision) {
  return precision == Precision::bf16 ? 10 * 0x1p-8 : 10 * 0x1p-11;
}

std::vector<double> losses_of(Stepper& stepper, std::uint64_t seed, int steps) {
  Rng rng(seed);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto report = stepper.step(quarter_batch(rng, 16, 12), 0.1);
    REQUIRE(report.has_value());
    CHECK(report->outcome == StepOutcome::trained);
    losses.push_back(report->loss);
  }
  return losses;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] - b[i]) <= tolerance * std::abs(a[i]));
  }
}
void check_close(const std::vector<double>& a, const std::vector<double>& b, Precision precision) {
  check_close(a, b, tolerance_in(precision));
}

// While it lives, fp32 products keep all bits of their operands. Made behind the engines: they ask
// for TF32.
struct WholeOperands {
  WholeOperands() { set(false); }
  WholeOperands(const WholeOperands&) = delete;
  WholeOperands& operator=(const WholeOperands&) = delete;
  ~WholeOperands() { set(true); }

 private:
  static void set(bool tf32) {
    at::globalContext().setAllowTF32CuDNN(tf32);
    at::globalContext().setAllowTF32CuBLAS(tf32);
  }
};

// After one step: the gradient of one tensor, and a little decay.
std::vector<float> momenta_of(const gossip::TensorPlace& place, Stepper& stepper) {
  const Checkpoint checkpoint = stepper.checkpoint();
  const float* const first = checkpoint.momenta.data() + place.offset;
  return {first, first + place.count};
}

// The length of the difference beside that of b.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0;
  double length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / length);
}

// The gradients of what lies before the pool, after a first step. On a CPU those of bf16 differ
// from those of fp32 by half their size, and TF32 rounds to an eighth of bf16's steps. A
// gradient that went to another pixel would be as far off as it is large.
void check_stem(const Model& model, Stepper& cpu, Stepper& gpu) {
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    if (!place.name.starts_with("conv1.") && !place.name.starts_with("bn1.")) continue;
    CAPTURE(place.name);
    const std::vector<float> expected = momenta_of(place, cpu);
    CHECK(std::ranges::any_of(expected, [](float value) { return value != 0; }));
    CHECK(apart(momenta_of(place, gpu), expected) < 0.25);
  }
}

// A batch of bytes whose images are the model's own size, and the same as floats.
struct TwoForms {
  Batch pixels;
  Batch floats;
};
TwoForms random_batch(Rng& rng, std::size_t size, std::uint32_t side, std::uint32_t channels = 1) {
  const InputForm form{side, channels, default_normalisation(channels)};
  const std::size_t values = std::size_t{side} * side * channels;
  TwoForms made;
  made.pixels.pixels = PixelBatch(size, 16 * values + 4'096, ordinary_memory());
  made.floats.images = AlignedFloats(size * values);
  PixelBatch& pixels = made.pixels.pixels;
  pixels.form = pixel_form(form);
  pixels.used = pixels.first_part();
  Resampler resampler;
  for (std::size_t n = 0; n < size; ++n) {
    Image image{
        .pixels = std::vector<std::uint8_t>(values), .size = {side, side}, .channels = channels};
    for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
    const View view = choose_view({.crop = CropPolicy::padded, .flip = 0.5}, image.size, rng);
    const std::size_t bytes = resampler.plan_part(image, view, side);
    REQUIRE(pixels.used + bytes <= pixels.capacity());
    pixels.places()[n] = resampler.write_part(image, view, pixels.used,
                                              std::span(pixels.data() + pixels.used, bytes));
    pixels.used += bytes;
    resampler.render(image, view, form, made.floats.images.span().subspan(n * values, values));
    pixels.labels()[n] = static_cast<std::int64_t>(n % kClasses);
    made.floats.labels.push_back(pixels.labels()[n]);
  }
  made.pixels.labels = made.floats.labels;
  made.pixels.size = made.floats.size = size;
  made.pixels.side = made.floats.side = side;
  return made;
}

// While it lives, LibTorch may take so many bytes of the first GPU beyond what it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::int64_t more) {
    std::size_t free = 0;
    std::size_t all = 0;
    REQUIRE(cudaMemGetInfo(&free, &all) == cudaSuccess);
    const auto has = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
    set(static_cast<double>(has + more) / static_cast<double>(all));
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() { set(1); }

 private:
  static void set(double share) { c10::cuda::CUDACachingAllocator::setMemoryFraction(share, 0); }
};

}  // namespace

TEST_SUITE("training/cuda/engine") {
  TEST_CASE("a GPU's losses are the CPU's, but for rounding") {
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      Stepper cpu(model, device_of("cpu", precision), tiny_options(), start_of(model));
      Stepper gpu(model, device_of("cuda", precision), tiny_options(), start_of(model));
      if (precision == Precision::fp32) {
        const WholeOperands whole;
        // Of sums of a thousand products, whose rounding five steps make some ten times larger.
        check_close(losses_of(cpu, 1, 5), losses_of(gpu, 1, 5), 2e-4);
      } else {
        check_close(losses_of(cpu, 1, 5), losses_of(gpu, 1, 5), precision);
      }
    }
  }

  TEST_CASE("the gradients before a GPU's max pool are the CPU's, but for rounding") {
    const auto model = make_model({"resnet18", kClasses, 1, 40});
    REQUIRE(model.has_value());
    // An odd size before the pool, and an even one.
    for (const std::int64_t side : {42, 40}) {
      CAPTURE(side);
      Stepper cpu(*model, device_of("cpu", Precision::fp32), tiny_options(), start_of(*model));
      Stepper gpu(*model, device_of("cuda", Precision::fp32), tiny_options(), start_of(*model));
      Rng rng(4);
      const Batch batch = quarter_batch(rng, 16, side);

      const auto a = cpu.step(batch, 0);
      const auto b = gpu.step(batch, 0);

      REQUIRE(a.has_value());
      REQUIRE(b.has_value());
      check_close({a->loss}, {b->loss}, Precision::fp32);
      check_stem(*model, cpu, gpu);
    }
  }

  TEST_CASE("two GPUs train what two slices of a CPU train") {
    if (torch::cuda::device_count() < 2) {
      MESSAGE("one GPU here, nothing is compared");
      return;
    }
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      ResolvedDevice two_threads = device_of("cpu", precision);
      two_threads.threads = 2;
      Stepper cpu(model, two_threads, tiny_options(), start_of(model));
      Stepper gpus(model, device_of("cuda:1,0", precision), tiny_options(), start_of(model));

      check_close(losses_of(cpu, 1, 5), losses_of(gpus, 1, 5), precision);

      const Replica expected = cpu.checkpoint().replica;
      const Replica found = gpus.checkpoint().replica;
      CHECK(found.batches_tracked == expected.batches_tracked);
      for (std::size_t i = 0; i < expected.bn_variance.size(); ++i)
        CHECK(found.bn_variance[i] ==
              doctest::Approx(expected.bn_variance[i]).epsilon(10 * tolerance_in(precision)));
    }
  }

  TEST_CASE("bytes that two GPUs share train what the same floats train") {
    if (torch::cuda::device_count() < 2) {
      MESSAGE("one GPU here, nothing is compared");
      return;
    }
    const Model model = tiny_model();
    ResolvedDevice two_threads = device_of("cpu", Precision::fp32);
    two_threads.threads = 2;
    Stepper floats(model, two_threads, tiny_options(), start_of(model));
    Stepper bytes(model, device_of("cuda:0,1", Precision::fp32), tiny_options(), start_of(model));
    Rng rng(7);
    std::vector<double> from_bytes;
    std::vector<double> from_floats;
    for (const std::uint32_t side : {12U, 8U, 12U}) {
      const TwoForms batch = random_batch(rng, 17, side);
      const auto a = bytes.step(batch.pixels, 0.1);
      const auto b = floats.step(batch.floats, 0.1);
      REQUIRE(a.has_value());
      REQUIRE(b.has_value());
      from_bytes.push_back(a->loss);
      from_floats.push_back(b->loss);
    }
    check_close(from_floats, from_bytes, Precision::fp32);
  }

  TEST_CASE("memory that another thread takes and gives does not stop two GPUs") {
    if (torch::cuda::device_count() < 2) {
      MESSAGE("one GPU here, nothing is shown");
      return;
    }
    const Model model = tiny_model();
    Stepper stepper(model, device_of("cuda:0,1", Precision::bf16), tiny_options(), start_of(model));
    std::atomic<bool> trained = false;
    std::atomic<bool> taken = true;
    std::thread other([&] {
      if (cudaSetDevice(0) != cudaSuccess) taken = false;
      while (!trained && taken)
        taken = cuda::DeviceArray<float>::make(1 << 20, Doing::exchanging).has_value() &&
                cuda::PinnedArray<float>::make(1 << 16, Doing::exchanging).has_value();
    });

    Rng rng(5);
    for (int step = 0; step < 200; ++step)
      CHECK(stepper.step(quarter_batch(rng, 16, 12), 0.1).has_value());

    trained = true;
    other.join();
    CHECK(taken);
  }

  TEST_CASE("a batch of fewer images than GPUs is refused with the remedy") {
    if (torch::cuda::device_count() < 2) return;
    const Model model = tiny_model();
    Stepper stepper(model, device_of("cuda:0,1", Precision::fp32), tiny_options(), start_of(model));
    Rng rng(3);
    const auto report = stepper.step(quarter_batch(rng, 1, 12), 0.1);
    REQUIRE_FALSE(report.has_value());
    CHECK(report.error().code == Errc::bad_config);
    CHECK(report.error().detail.find("raise --batch") != std::string::npos);
  }

  TEST_CASE("what one device saved the other loads to the byte and goes on with") {
    const Model model = tiny_model();
    const Precision precision = Precision::fp32;
    for (const bool gpu_first : {true, false}) {
      CAPTURE(gpu_first);
      const ResolvedDevice first = device_of(gpu_first ? "cuda" : "cpu", precision);
      const ResolvedDevice second = device_of(gpu_first ? "cpu" : "cuda", precision);
      Stepper writer(model, first, tiny_options(), start_of(model));
      (void)losses_of(writer, 1, 4);
      const TempFolder folder;
      const CheckpointOptions where{folder.path(), 1};
      NullLog log;
      REQUIRE(save_checkpoint(where, model, writer.checkpoint()).has_value());

      auto loaded = load_checkpoint(where, model, log);

      REQUIRE(loaded.has_value());
      Stepper reader(model, second, tiny_options(),
                     {loaded->replica, loaded->momenta, loaded->state});
      const Checkpoint again = reader.checkpoint();
      CHECK(again.replica == loaded->replica);
      CHECK(again.momenta == loaded->momenta);
      CHECK(again.state == loaded->state);
      check_close(losses_of(writer, 2, 3), losses_of(reader, 2, 3), precision);
    }
  }

  TEST_CASE("batches of bytes train what the same floats train, at every size of an image") {
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      Stepper bytes(model, device_of("cuda", precision), tiny_options(), start_of(model));
      Stepper floats(model, device_of("cpu", precision), tiny_options(), start_of(model));
      Rng rng(5);
      std::vector<TwoForms> batches;
      // A graph is captured for each size, and again where one comes back.
      for (const std::uint32_t side : {8U, 8U, 12U, 12U, 8U})
        batches.push_back(random_batch(rng, 16, side));
      std::vector<double> from_bytes;
      std::vector<double> from_floats;
      for (std::size_t i = 0; i < batches.size(); ++i) {
        if (i + 1 < batches.size()) REQUIRE(bytes.stage(batches[i + 1].pixels).has_value());
        const auto a = bytes.step(batches[i].pixels, 0.1);
        const auto b = floats.step(batches[i].floats, 0.1);
        REQUIRE(a.has_value());
        REQUIRE(b.has_value());
        from_bytes.push_back(a->loss);
        from_floats.push_back(b->loss);
      }

      check_close(from_floats, from_bytes, precision);
    }
  }

  TEST_CASE(
      "a stem on blocks of pixels trains what the stem itself trains, from bytes and floats") {
    const auto model = make_model({"resnet18", kClasses, 3, 64});
    REQUIRE(model.has_value());
    TrainerOptions options = tiny_options();
    // So slow that eight images of noise do not drive the weights of two devices apart.
    options.schedule.peak = 5e-4;
    const ResolvedDevice device = device_of("cuda", Precision::fp32);
    Stepper cpu(*model, device_of("cpu", Precision::fp32), options, start_of(*model));
    Stepper bytes(*model, device, options, start_of(*model));
    Stepper floats(*model, device, options, start_of(*model));
    Rng rng(9);
    std::vector<double> expected;
    std::vector<double> from_bytes;
    std::vector<double> from_floats;
    // An odd side has no blocks, and the last step takes them up again.
    for (const std::uint32_t side : {64U, 64U, 64U, 63U, 64U}) {
      const TwoForms batch = random_batch(rng, 8, side, 3);
      const auto a = cpu.step(batch.floats, 0.1);
      const auto b = bytes.step(batch.pixels, 0.1);
      const auto c = floats.step(batch.floats, 0.1);
      REQUIRE(a.has_value());
      REQUIRE(b.has_value());
      REQUIRE(c.has_value());
      expected.push_back(a->loss);
      from_bytes.push_back(b->loss);
      from_floats.push_back(c->loss);
      if (expected.size() > 1) continue;
      // Behind 17 normalisations of few values a CPU's gradient of the stem in bf16 is 0.42 from
      // that in fp32, so TF32's, of three bits more, may be 0.05 from it. A wrong one is 1 and
      // more.
      const gossip::TensorPlace& stem = model->layout.tensors()[wiring_of(*model).stem.conv];
      const std::vector<float> right = momenta_of(stem, cpu);
      CHECK(apart(momenta_of(stem, bytes), right) < 0.2);
      CHECK(apart(momenta_of(stem, floats), right) < 0.2);
    }

    check_close(expected, from_bytes, Precision::fp32);
    check_close(expected, from_floats, Precision::fp32);
  }

  TEST_CASE("a batch that is not finite changes nothing on a GPU either") {
    const Model model = tiny_model();
    Stepper stepper(model, device_of("cuda", Precision::bf16), tiny_options(), start_of(model));
    (void)losses_of(stepper, 1, 1);
    const Checkpoint before = stepper.checkpoint();
    Rng rng(2);
    // With the second only a variance is infinite.
    for (const float factor : {std::nanf(""), 1e25F}) {
      CAPTURE(factor);
      Batch poisoned = quarter_batch(rng, 16, 12);
      for (float& pixel : poisoned.images.span()) pixel *= factor;

      const auto report = stepper.step(poisoned, 0.1);

      REQUIRE(report.has_value());
      CHECK(report->outcome == StepOutcome::skipped);
      CHECK(stepper.checkpoint().replica == before.replica);
    }
  }

  TEST_CASE("after a batch that does not fit a smaller one trains as if there had been none") {
    const auto model = make_model({"resnet18", kClasses, 3, 64});
    REQUIRE(model.has_value());
    const ResolvedDevice device = device_of("cuda", Precision::fp32);
    Stepper stepper(*model, device, tiny_options(), start_of(*model));
    Stepper fresh(*model, device, tiny_options(), start_of(*model));
    Rng rng(11);
    const TwoForms large = random_batch(rng, 512, 64, 3);
    const TwoForms next = random_batch(rng, 512, 64, 3);
    const TwoForms small = random_batch(rng, 8, 64, 3);
    double loss = 0;
    {
      // What the stem alone makes of the large batch is 128 MiB.
      const MemoryLimit limit(std::int64_t{160} << 20);
      REQUIRE(stepper.stage(next.pixels).has_value());
      const auto refused = stepper.step(large.pixels, 0.1);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().code == Errc::no_memory);
      REQUIRE(stepper.forget_staged().has_value());

      const auto trained = stepper.step(small.pixels, 0.1);

      REQUIRE(trained.has_value());
      loss = trained->loss;
    }
    const auto expected = fresh.step(small.pixels, 0.1);
    REQUIRE(expected.has_value());
    check_close({expected->loss}, {loss}, Precision::fp32);
  }

  TEST_CASE("the master in host memory goes down and comes back") {
    const Model model = tiny_model();
    Stepper stepper(model, device_of("cuda", Precision::bf16), tiny_options(), start_of(model));
    (void)losses_of(stepper, 1, 1);
    const Replica before = stepper.checkpoint().replica;

    stepper.engine().master().with_master([](const gossip::MasterView& view) {
      for (float& x : view.parameters) x *= 2;
      for (float& variance : view.bn_variance) variance *= 4;
    });

    const Replica after = stepper.checkpoint().replica;
    CHECK(after.bn_mean == before.bn_mean);
    for (std::size_t i = 0; i < before.parameters.size(); ++i)
      REQUIRE(after.parameters[i] == 2 * before.parameters[i]);
    for (std::size_t i = 0; i < before.bn_variance.size(); ++i)
      CHECK(after.bn_variance[i] == 4 * before.bn_variance[i]);
  }

  TEST_CASE("a batch that no GPU holds is refused with its size and the remedy") {
    auto model = make_model({"resnet18", kClasses, 3, 4'096});
    REQUIRE(model.has_value());
    Stepper stepper(*model, device_of("cuda", Precision::bf16), tiny_options(), start_of(*model));
    Batch batch;
    batch.size = 64;
    batch.images = AlignedFloats(batch.size * 4'096 * 4'096 * 3);
    batch.labels.assign(batch.size, 0);

    const auto report = stepper.step(batch, 0.1);

    REQUIRE_FALSE(report.has_value());
    CHECK(report.error().code == Errc::no_memory);
    CHECK(report.error().detail.find("choose a smaller --batch") != std::string::npos);
  }
}
