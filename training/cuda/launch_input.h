// Launches the input of a batch: crop, mirror, resize, normalise and round, in one kernel.
//
// Shared rules of launches: launch_optimizer.h.
#pragma once

#include "training/cuda/input_passes.h"
#include "training/cuda/launch_optimizer.h"

#include <cstddef>

namespace starling::training::cuda {

// Shapes:  args.batch is a copy of a PixelBatch with at least `images` images from args.first on;
//          args.out takes images x side x side x channels values (NHWC), or as many blocks as
//          ImageLayout::blocks has, of which those inside the images are written.
// Cost:    reads the parts and their filters, every byte once for each column that it is part of
//          and once for two rows (about three times, out of the caches), writes out once.
// Tested:  tests/training/cuda/input_test.cc; CPU twin Resampler::render(), equal to the bit.
[[nodiscard]] const char* launch_input(const InputArgs<float>& args, std::size_t images,
                                       Stream stream);
[[nodiscard]] const char* launch_input(const InputArgs<Bf16>& args, std::size_t images,
                                       Stream stream);

}  // namespace starling::training::cuda
