#include "tests/liars/training_liars.h"

#include "node/base/check.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/tensor_memory.h"
#include "training/data/dataset.h"
#include "training/evaluate.h"
#include "training/genesis.h"
#include "training/stepper.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace starling::liars {

namespace {

using gossip::testing::SimNode;
using gossip::testing::SwarmOptions;
using gossip::testing::VirtualSwarm;
using training::Batch;
using training::Stepper;

constexpr std::int64_t kClasses = 10;
constexpr std::size_t kPixels = std::size_t{kSide} * kSide;
constexpr std::size_t kBatch = 16;
constexpr std::size_t kEvaluated = 250;  // images of a batch
constexpr std::uint64_t kDelayShare = 10;
constexpr training::ResolvedDevice kCpu{.precision = training::Precision::fp32, .threads = 1};

// The images at these places, as a batch.
Batch batch_of(const Images& images, std::span<const std::size_t> places) {
  Batch batch;
  batch.images = training::AlignedFloats(places.size() * kPixels);
  batch.size = places.size();
  float* out = batch.images.data();
  for (const std::size_t place : places) {
    out = std::copy_n(images.pixels.data() + place * kPixels, kPixels, out);
    batch.labels.push_back(images.labels[place]);
  }
  return batch;
}

// One pass over every kLiar-th image: the honest nodes together see all.
class Pass final : public training::BatchSource {
 public:
  Pass(const Images& images, std::size_t first) : images_(images), next_(first) {}

  Result<std::optional<Batch>> next() override {
    std::vector<std::size_t> places;
    for (; next_ < images_.labels.size() && places.size() < kEvaluated; next_ += kLiar)
      places.push_back(next_);
    if (places.empty()) return std::nullopt;
    return batch_of(images_, places);
  }
  void stop() override { next_ = images_.labels.size(); }

 private:
  const Images& images_;
  std::size_t next_;
};

Result<Images> load(const training::Dataset& dataset, std::size_t count) {
  NullLog log;
  auto options =
      training::loader_options_for(dataset, training::Pass::evaluation, kSide, /*channels=*/1);
  options.threads = 1;
  training::Loader loader(dataset, options, log);
  Images images;
  while (images.labels.size() < count) {
    TRY(std::optional<Batch> batch, loader.next());
    if (!batch) break;
    const std::size_t more = std::min(batch->size, count - images.labels.size());
    const float* pixels = batch->images.data();
    images.pixels.insert(images.pixels.end(), pixels, pixels + more * kPixels);
    images.labels.insert(images.labels.end(), batch->labels.begin(),
                         batch->labels.begin() + static_cast<std::ptrdiff_t>(more));
    loader.recycle(std::move(*batch));
  }
  return images;
}

// Five trainers under the nodes of a swarm, whose replicas go into them and come back with every
// step.
class Classroom {
 public:
  Classroom(const ImageSets& images, const TrainingRun& run, const training::Model& model)
      : images_(images), run_(run), model_(model) {
    const training::Trainer::Start start{training::make_genesis(model, run.seed).replica, {}, {}};
    for (std::size_t k = 0; k < kNodes; ++k)
      steppers_.push_back(
          std::make_unique<Stepper>(model, kCpu, training::TrainerOptions{}, start));
  }

  // One step of a node; one that lies about its replica has none to train.
  void train(std::size_t index, SimNode& node) {
    const bool lies = run_.lie && index == kLiar;
    if (failed_[index] || (lies && run_.lie != Lie::label_flip)) return;
    std::vector<std::size_t> places(kBatch);
    for (auto& place : places) place = node.rng.below(images_.train.labels.size());
    Batch batch = batch_of(images_.train, places);
    if (lies)
      for (auto& label : batch.labels) label = kClasses - 1 - label;
    Stepper& stepper = *steppers_[index];
    stepper.engine().master().with_master([&](const gossip::MasterView& own) {
      std::ranges::copy(node.master.parameters, own.parameters.begin());
      std::ranges::copy(node.master.mean, own.bn_mean.begin());
      std::ranges::copy(node.master.variance, own.bn_variance.begin());
    });
    const double share = static_cast<double>(node.steps) / static_cast<double>(run_.steps);
    const auto report = stepper.step(batch, share);
    if (!report) failed_[index] = report.error();
    stepper.engine().master().with_master([&](const gossip::MasterView& own) {
      std::ranges::copy(own.parameters, node.master.parameters.begin());
      std::ranges::copy(own.bn_mean, node.master.mean.begin());
      std::ranges::copy(own.bn_variance, node.master.variance.begin());
    });
  }

  [[nodiscard]] Result<Learned> examine(VirtualSwarm& swarm) const {
    Learned learned;
    for (std::size_t k = 0; k < kLiar; ++k) {
      if (failed_[k] && failed_[k]->code != Errc::diverged) return std::unexpected(*failed_[k]);
      const auto& master = swarm.node(k).master;
      for (const float x : master.parameters) learned.finite = learned.finite && std::isfinite(x);
      const training::Replica replica{master.parameters, master.mean, master.variance, 1};
      TRY(const auto report,
          training::evaluate(model_, replica,
                             {.device = "cpu", .precision = kCpu.precision, .threads = 1},
                             std::make_unique<Pass>(images_.test, k)));
      learned.accuracy += report.top1 / kLiar;
    }
    return learned;
  }

 private:
  const ImageSets& images_;
  const TrainingRun& run_;
  const training::Model& model_;
  std::vector<std::unique_ptr<Stepper>> steppers_;
  std::array<std::optional<Error>, kNodes> failed_;
};

}  // namespace

Result<ImageSets> load_images(std::string_view spec, std::size_t train, std::size_t test) {
  NullLog log;
  TRY(const training::DataSets data, training::open_data(spec, "", log));
  if (!data.val || data.train->classes() != kClasses)
    return fail(Errc::data_failed, Doing::loading_data,
                std::string(spec) + " has no test set, or other than ten classes");
  ImageSets images;
  TRY(images.train, load(*data.train, train));
  TRY(images.test, load(*data.val, test));
  return images;
}

Result<Learned> train_with_liar(const ImageSets& images, const TrainingRun& run) {
  training::use_intra_op_threads(1);
  training::use_cached_tensor_memory();
  TRY(const training::Model model, training::make_model({"small", kClasses, 1, kSide}));
  SwarmOptions options{.seed = run.seed, .nodes = kNodes, .budget_samples = 0, .batch = kBatch};
  options.model = {model.layout, training::make_genesis(model, run.seed).replica.parameters};
  options.aggregator = run.rule;
  // As the node does: what holds back needs every coordinate.
  if (gossip::holds_back(run.rule)) options.level = gossip::Level::l3;
  VirtualSwarm swarm(options);
  swarm.connect_all();
  std::optional<Liar> liar;
  if (run.lie) liar.emplace(swarm, *run.lie, run.steps / kDelayShare);
  Classroom room(images, run, model);
  swarm.train = [&](std::size_t index, SimNode& node) { room.train(index, node); };
  const bool done =
      swarm.run_until(options.step_time * static_cast<std::int64_t>(run.steps + 1), [&] {
        for (std::size_t k = 0; k < kNodes; ++k)
          if (swarm.node(k).steps < run.steps) return false;
        return true;
      });
  STARLING_CHECK(done);
  return room.examine(swarm);
}

}  // namespace starling::liars
