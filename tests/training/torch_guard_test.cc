#include "training/torch_guard.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <new>
#include <stdexcept>
#include <string>

using namespace starling;
using namespace starling::training;

namespace {

Error error_saying(const std::string& text) {
  const auto done = guarded(Doing::training, [&]() -> Result<void> { TORCH_CHECK(false, text); });
  REQUIRE_FALSE(done.has_value());
  return done.error();
}

}  // namespace

TEST_SUITE("training/torch_guard") {
  TEST_CASE("a device without memory is told from one that fails, whoever asked it for memory") {
    // The allocator has an exception of its own for it. A graph, a library's handle and work space,
    // and a collective ask the device themselves: these are their words.
    for (const char* text :
         {"CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual",
          "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
          "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
          "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
          "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
          "FIND was unable to find an engine to execute this computation",
          "GET was unable to find an engine to execute this computation",
          "NCCL Error 1: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
          "not enough memory for a tensor of 123 bytes"}) {
      CAPTURE(std::string(text));
      CHECK(error_saying(text).code == Errc::no_memory);
    }
    for (const char* text :
         {"CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
          "asynchronously reported",
          "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
          "NCCL Error 2: unhandled system error"}) {
      CAPTURE(std::string(text));
      CHECK(error_saying(text).code == Errc::device_failed);
    }
  }

  TEST_CASE("an error is the first line of what LibTorch says") {
    CHECK(error_saying("one\ntwo").detail == "one");
  }

  TEST_CASE("exceptions of others become errors, too") {
    const auto of = [](auto thrown) {
      return guarded(Doing::training, [&]() -> Result<void> { throw thrown; }).error();
    };
    CHECK(of(std::bad_alloc()).code == Errc::no_memory);
    CHECK(of(std::runtime_error("words")).code == Errc::device_failed);
    CHECK(of(std::runtime_error("words")).detail == "words");
  }
}
