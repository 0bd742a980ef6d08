#include "training/torch_guard.h"

#include <torch/torch.h>

#include <exception>
#include <new>
#include <string>

namespace starling::training {
namespace {

// LibTorch's texts go on with a backtrace of C++ frames; the first line says what was wrong.
std::string first_line(const char* text) {
  const std::string whole(text);
  return whole.substr(0, whole.find('\n'));
}

}  // namespace

Error current_torch_error(Doing doing) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return {Errc::no_memory, doing, first_line(error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    const std::string text = first_line(error.what_without_backtrace());
    const bool memory = text.find("not enough memory") != std::string::npos;
    return {memory ? Errc::no_memory : Errc::device_failed, doing, text};
  } catch (const std::bad_alloc&) {
    return {Errc::no_memory, doing, "the machine has no memory left"};
  } catch (const std::exception& error) {
    return {Errc::device_failed, doing, first_line(error.what())};
  }
}

}  // namespace starling::training
