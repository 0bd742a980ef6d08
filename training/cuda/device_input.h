// DeviceInput: batches on their way from pinned host memory to what a graph reads.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/input_passes.h"
#include "training/data/loader.h"
#include "training/device.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// What a step reads.
struct InputTensors {
  // N x C x H x W, channels_last, fp32 or bf16; as blocks they are SpaceToDepth::make_images().
  at::Tensor images;
  at::Tensor labels;  // N, int64
  ImageLayout layout = ImageLayout::pixels;
};

// Two places on the device for the bytes of batches, filled by turns on a stream of its own: while
// one batch is computed, the next one's bytes arrive. The crop, the mirror, the resize and the
// normalisation are one kernel on the stream that computes.
//
// Owned by the engine; train thread. A batch whose bytes lie in pinned memory (pinned_memory()) is
// copied without a stop; one in other memory is copied too, with one.
// Cost:    twice the largest batch's bytes and a quarter (some 100 to 300 KB for a photograph). A
//          GPU that computes a slice has the bytes of the whole batch: parts of images do not lie
//          in their order.
class DeviceInput {
 public:
  DeviceInput(at::Device device, c10::cuda::CUDAStream computing);
  // Waits for the copy that is under way.
  ~DeviceInput();
  DeviceInput(const DeviceInput&) = delete;
  DeviceInput& operator=(const DeviceInput&) = delete;

  // Begins to copy. At most one batch may be staged beyond the one that is loaded next, and what
  // was loaded before must have been waited for.
  void stage(const Batch& batch);
  // Waits for the copies that are under way, and for what computes with the ones before; what they
  // bring is not loaded any more.
  void forget_staged();
  // Fills the tensors with the images of the batch from the first on, on the current stream, which
  // must be the one that computes. Stages the batch where nobody did.
  void load(const Batch& batch, std::int64_t first, const InputTensors& to);

 private:
  struct Place {
    at::Tensor bytes;
    const std::byte* of = nullptr;  // the batch whose bytes are here, until it is loaded
    at::cuda::CUDAEvent copied;
  };
  // Null: one that is free.
  [[nodiscard]] Place* place_of(const std::byte* batch);

  at::Device device_;
  c10::cuda::CUDAStream computing_;
  c10::cuda::CUDAStream copying_;
  std::array<Place, 2> places_;
};

}  // namespace starling::training::cuda
