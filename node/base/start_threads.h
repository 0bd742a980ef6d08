// Starting threads where the machine may refuse one.
#pragma once

#include "node/base/fault.h"
#include "node/base/result.h"

#include <cerrno>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace starling {

// What `make` returns, which starts threads.
//
// Errors:  no_memory where the machine refuses one: it has no memory for it, or a limit on the
//          user's or the container's threads is reached; io_failed with what else the system
//          refused meanwhile.
template <class Make>
[[nodiscard]] Result<std::invoke_result_t<Make&>> start_threads(Doing doing, Make make) {
  try {
    if (fault::maybe("thread.refused")) throw std::system_error(EAGAIN, std::generic_category());
    return make();
  } catch (const std::system_error& refused) {
    if (refused.code() != std::errc::resource_unavailable_try_again)
      return fail(Errc::io_failed, doing, refused.what());
    return fail(
        Errc::no_memory, doing,
        std::string("the machine refused a thread (") + refused.what() +
            "): raise the limit of threads (ulimit -u; pids in a container) or free memory");
  }
}

}  // namespace starling
