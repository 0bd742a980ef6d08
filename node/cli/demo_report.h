// What `starling demo` says about its nodes: pure functions from their status to text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace starling::node {

// How one node of a demo ended.
struct DemoEnd {
  std::string name;
  int exit_status = 0;
  std::string status;  // text of its last `status --json`, empty if it never answered
  std::string hash;    // of its certificate, empty without one
  std::string reason;  // its last words, for one that failed
};

// The number status.group.field of a `status --json`; 0 where there is none.
[[nodiscard]] double status_number(const nlohmann::json& status, const char* group,
                                   const char* field);

// One line about all nodes while they train; nothing before any of them answered. `statuses` are
// texts of `status --json`, empty for a node that did not answer.
[[nodiscard]] std::optional<std::string> demo_progress_line(
    const std::vector<std::string>& statuses);

// The table at the end: steps, samples, accuracy, bytes a step beside what data-parallel training
// would send (a ring all-reduce of n nodes: 2 (n - 1) / n x 4 bytes x parameters), and the hash.
[[nodiscard]] std::string demo_summary(const std::vector<DemoEnd>& ends);

// "final consensus: 4/4 replicas identical  blake2b 9f2c...": the largest group of nodes that ended
// well with one hash. Nothing if none did.
struct DemoVerdict {
  std::string line;
  int exit_code = 0;
};
[[nodiscard]] DemoVerdict demo_verdict(const std::vector<DemoEnd>& ends);

}  // namespace starling::node
