#include "training/torch_guard.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace starling::training {
namespace {

// LibTorch's texts go on with a backtrace of C++ frames; the first line says what was wrong.
std::string first_line(const char* text) {
  const std::string whole(text);
  return whole.substr(0, whole.find('\n'));
}

// Only the allocator has an exception of its own for it. Graphs, libraries and collectives ask a
// device for memory themselves, and LibTorch passes on what they say. cuDNN and cuBLAS do not
// always name memory: a handle that is made when the GPU is full is not initialised, and an engine
// whose work space finds no room is one that could not be found. Where that had another cause, the
// guess is cheap: the batch is halved a few times, and the same failure ends the run.
bool tells_of_memory(std::string_view text) {
  constexpr std::array<std::string_view, 6> kWords{
      "not enough memory",                                      // a CPU's allocator
      "out of memory",                                          // the CUDA runtime
      "ALLOC_FAILED",                                           // cuBLAS
      "ALLOCATION_FAILED",                                      // cuDNN
      "STATUS_NOT_INITIALIZED",                                 // both
      "unable to find an engine to execute this computation"};  // LibTorch, of cuDNN
  return std::ranges::any_of(
      kWords, [text](std::string_view words) { return text.find(words) != text.npos; });
}

}  // namespace

Error current_torch_error(Doing doing) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return {Errc::no_memory, doing, first_line(error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    const char* const text = error.what_without_backtrace();
    return {tells_of_memory(text) ? Errc::no_memory : Errc::device_failed, doing, first_line(text)};
  } catch (...) {
    return current_error(doing, Errc::device_failed);
  }
}

}  // namespace starling::training
