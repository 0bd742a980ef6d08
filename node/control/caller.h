// The verb's side of DIR/control.sock.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/control/request.h"

#include <filesystem>
#include <functional>
#include <string>

namespace starling::node {

// Asks the node that runs in `dir` and waits for its answer; the body of its result.
//
// `on_progress` is called with the body of each intermediate line.
// Errors:  not_found when no node runs there; timed_out when nothing comes for `patience`;
//          bad_message; or the error that the node answered with.
// Thread:  any; blocks.
[[nodiscard]] Result<std::string> ask_node(
    const std::filesystem::path& dir, const ControlRequest& request, Duration patience,
    const std::function<void(const std::string&)>& on_progress = {});

}  // namespace starling::node
