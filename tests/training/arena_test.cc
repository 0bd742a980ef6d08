#include "training/arena.h"

#include "torch_support.h"
#include "training/stepper.h"

#include <doctest/doctest.h>

#include <span>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

constexpr Rates kStill{{0.0F, 0.9F, 0.0F}, {0.0F, 0.9F, 0.0F}};

}  // namespace

TEST_SUITE("training/arena") {
  TEST_CASE("the threads of a team share the optimizer pass and change no bit of it") {
    const Model model = tiny_model();
    const Trainer::Start start = start_of(model);
    const Rates rates{{0.1F, 0.9F, 1e-2F}, {0.1F, 0.9F, 0.0F}};
    const auto after_two_passes = [&](Team* team) {
      Arena arena(model, {.precision = Precision::bf16}, start.replica, {});
      torch::manual_seed(2);
      for (const std::size_t set : {0U, 1U, 2U}) {
        for (const at::Tensor& gradient : arena.gradients(set)) gradient.normal_();
      }
      (void)arena.optimizer_pass(rates, 3, team);
      (void)arena.optimizer_pass(rates, 2, team);
      Checkpoint after;
      after.replica = arena.snapshot();
      after.momenta = arena.momenta();
      return after;
    };
    Team team("train", 3);

    const Checkpoint shared = after_two_passes(&team);
    const Checkpoint alone = after_two_passes(nullptr);

    CHECK(shared.replica == alone.replica);
    CHECK(shared.momenta == alone.momenta);
    CHECK(alone.replica != start.replica);
  }

  TEST_CASE("what a codec job adds between two steps is in what the next step computes with") {
    const Model model = tiny_model();
    const Trainer::Start start = start_of(model);
    Arena arena(model, {}, start.replica, {});
    const gossip::TensorPlace* bias = model.layout.find("fc.bias");
    REQUIRE(bias != nullptr);

    arena.lease().with_master(
        [&](const gossip::MasterView& master) { master.parameters[bias->offset] += 3.0F; });
    (void)arena.optimizer_pass(kStill);

    const auto tensors = model.layout.tensors();
    const auto index = static_cast<std::size_t>(
        std::ranges::find(tensors, "fc.bias", &gossip::TensorPlace::name) - tensors.begin());
    CHECK(arena.weights().parameters[index][0].item<float>() == 3.0F);
    CHECK(arena.snapshot().parameters[bias->offset] == 3.0F);
  }

  TEST_CASE("statistics pooled during a forward pass keep both the pool and the batch") {
    const Model model = tiny_model();
    const Trainer::Start start = start_of(model);
    // Two arenas: in one the pooling happens while the forward pass runs, in the other before it.
    Arena during(model, {}, start.replica, {});
    Arena before(model, {}, start.replica, {});
    const auto pool = [](const gossip::MasterView& master) {
      for (float& mean : master.bn_mean) mean += 0.5F;
      for (float& variance : master.bn_variance) variance += 2.0F;
    };
    const Network network(model);
    torch::manual_seed(1);
    const at::Tensor images = at::randn({8, 1, 12, 12});
    const torch::NoGradGuard no_grad;

    (void)network.forward(during.weights(), images, Mode::training);
    during.lease().with_master(pool);
    (void)during.optimizer_pass(kStill);

    before.lease().with_master(pool);
    (void)before.optimizer_pass(kStill);  // the pool reaches the working copy
    (void)network.forward(before.weights(), images, Mode::training);
    (void)before.optimizer_pass(kStill);

    // The first pass of `before` saw no forward pass: its statistics moved by the pool alone, but
    // as an update would have moved them, by (1 - momentum) of it.
    const Replica a = during.snapshot();
    const Replica b = before.snapshot();
    for (std::size_t c = 0; c < a.bn_mean.size(); ++c) {
      CAPTURE(c);
      const float moved = start.replica.bn_mean[c] + 0.9F * 0.5F;
      CHECK(a.bn_mean[c] - moved == doctest::Approx(b.bn_mean[c] - 0.9F * moved).epsilon(1e-4));
      CHECK(a.bn_variance[c] > 0);
    }
  }

  TEST_CASE("padding is zero in master, momenta and working copy after training") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    for (int step = 0; step < 3; ++step) {
      REQUIRE(stepper.step(quarter_batch(rng, 8, 12), 0.1).has_value());
    }

    const Checkpoint checkpoint = stepper.checkpoint();
    for (std::size_t i = 0; i < model.layout.size(); ++i) {
      if (model.layout.is_real(i / 4'096, i % 4'096)) continue;
      REQUIRE(checkpoint.replica.parameters[i] == 0.0F);
      REQUIRE(checkpoint.momenta[i] == 0.0F);
    }
  }

  TEST_CASE("weight decay pulls at weights of rank two and more, and at nothing else") {
    const Model model = tiny_model();
    Trainer::Start start = start_of(model);
    for (float& x : start.replica.parameters) x = x != 0.0F ? 1.0F : 0.0F;
    Arena arena(model, {}, start.replica, {});

    (void)arena.optimizer_pass({{1.0F, 0.0F, 0.25F}, {1.0F, 0.0F, 0.0F}});

    const Replica after = arena.snapshot();
    CHECK(after.parameters[model.layout.find("conv1.weight")->offset] == 0.75F);
    CHECK(after.parameters[model.layout.find("fc.weight")->offset] == 0.75F);
    CHECK(after.parameters[model.layout.find("bn1.weight")->offset] == 1.0F);
  }
}
