// What the local swarms of `starling demo` and `starling chaos` begin with.
#pragma once

#include "node/base/result.h"
#include "node/cli/verbs.h"
#include "node/config/config.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// Errors:  bad_argument for what is another for each node (its name, addresses, secret, screen) and
//          so is chosen here: it would be ignored. From wherever it was given.
[[nodiscard]] Result<void> refuse_decided(const Config& config, std::string_view verb);

// The folder of the nodes' folders: --dir, or a new one in the temporary folder.
//
// Errors:  bad_argument for a folder that holds such a swarm already; permission.
[[nodiscard]] Result<std::filesystem::path> choose_swarm_folder(const Config& config,
                                                                std::string_view verb);

// Adds the secret that the first node made, once its address is there; nothing for an open swarm,
// which has none: any other wrote it before the address.
void add_secret_of(const std::filesystem::path& first_node, std::vector<std::string>& words);

// What every node of the swarm is told: what was said to the verb, and, where nothing was said, a
// small model on data that this machine has, for as long as `until` says. Tells the terminal what
// it chose.
[[nodiscard]] std::vector<std::string> swarm_words(const Config& config, std::uint64_t count,
                                                   std::string_view until,
                                                   const Terminal& terminal);

}  // namespace starling::node
