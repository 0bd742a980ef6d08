// Made-up images that a small network can learn: for tests, demonstrations and measurements.
#pragma once

#include "training/data/dataset.h"

namespace starling::training {

// Each class is a striped pattern with its own direction, frequency and colours; a sample shifts it
// at random and adds noise. Integer arithmetic only: the same bytes on every machine.
//
// Errors:  none. Cost: nothing is stored; a 32 x 32 image takes about 30 us.
[[nodiscard]] DataSets open_synthetic(const DataSpec& spec);

}  // namespace starling::training
