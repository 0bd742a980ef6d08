#include "training/optimizer.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <span>
#include <vector>

using namespace starling::training;

TEST_SUITE("training/optimizer") {
  TEST_CASE("fifty steps agree with torch::optim::SGD with Nesterov momentum") {
    constexpr std::size_t kCount = 1'001;
    torch::manual_seed(4);
    const at::Tensor start = at::randn({static_cast<std::int64_t>(kCount)});
    at::Tensor theirs = start.clone().requires_grad_(true);
    torch::optim::SGD sgd(
        {theirs}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4).nesterov(true));
    const float* first = start.data_ptr<float>();
    std::vector<float> x(first, first + kCount);
    std::vector<float> v(kCount, 0.0F);
    std::vector<float> w(kCount, 0.0F);

    for (int step = 0; step < 50; ++step) {
      const at::Tensor gradient = at::randn_like(start);
      theirs.mutable_grad() = gradient;
      sgd.step();
      const std::span<const float> g(gradient.data_ptr<float>(), kCount);
      sgd_pass(SgdRange<float>{x, g, v, w}, {0.1F, 0.9F, 5e-4F});
    }

    const at::Tensor ours = at::from_blob(x.data(), {static_cast<std::int64_t>(kCount)});
    // Both round in fp32, torch with fused multiply-adds: values below 16, so 2^-20 a rounding,
    // four roundings a step that momentum carries on for about ten steps.
    CHECK((ours - theirs.detach()).abs().max().item<float>() < 50 * 4 * 0x1p-20F);
  }
}
