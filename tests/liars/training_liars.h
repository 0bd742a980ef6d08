// What one of four neighbours can do by lying where a small net learns images.
#pragma once

#include "gossip/delta/aggregation.h"
#include "node/base/result.h"
#include "tests/liars/lies.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace starling::liars {

// Pixels a side: a quarter of the work of the 28 of Fashion-MNIST, which the small net learns
// nearly as well.
inline constexpr std::uint32_t kSide = 14;

// Labelled images, normalised, kSide pixels a side, one channel. Immutable once loaded, so that any
// number of runs on any threads may share them.
struct Images {
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
};

struct ImageSets {
  Images train;
  Images test;
};

// The first images of both parts of a data set of ten classes.
//
// Errors:  those of open_data(); data_failed if it has no test set or other classes.
// Cost:    reads and shrinks them: about a second for 30,000.
[[nodiscard]] Result<ImageSets> load_images(std::string_view spec, std::size_t train,
                                            std::size_t test);

// Symbols as in lies.h: five nodes, the last one lies, or trains like the others.
struct TrainingRun {
  std::uint64_t seed = 1;
  gossip::Aggregator rule = gossip::Aggregator::mean;
  std::optional<Lie> lie;
  std::uint64_t steps = 100;  // of each node; Lie::delay is of a tenth: 1,000 of 10,000
};

// Of the honest nodes, after the run.
struct Learned {
  double accuracy =
      0;               // of the test images, of which each node with its own replica sees a quarter
  bool finite = true;  // all parameters
};

// Trains the five with the trainer's own step, one thread for all.
//
// Errors:  those of a step, of an honest node; a step that diverged is none, its node stays as it
//          is.
// Thread:  any, several at once.
[[nodiscard]] Result<Learned> train_with_liar(const ImageSets& images, const TrainingRun& run);

}  // namespace starling::liars
