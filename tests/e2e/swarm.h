// A swarm of real nodes on loopback, as tests build it: the first makes the secret, the others get
// its address.
#pragma once

#include "tests/e2e/node_process.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling::e2e {

class Swarm {
 public:
  explicit Swarm(std::vector<std::string> common_arguments)
      : common_arguments_(std::move(common_arguments)) {}

  // Starts `count` more nodes; each gets the addresses of `peers` (default: the first node).
  void start(int count);
  NodeProcess& start_with_peer(const NodeProcess& peer);
  // A new process in the folder of a node that ended; no peer is named but in `more`.
  NodeProcess& restart(std::size_t index, const std::vector<std::string>& more = {});

  [[nodiscard]] NodeProcess& node(std::size_t index) { return *nodes_.at(index); }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] std::filesystem::path path() const { return dir_.path(); }
  [[nodiscard]] std::string secret_file() const;

  // True when every listed node counts `alive` members (itself included) in its view.
  [[nodiscard]] bool all_see(const std::vector<std::size_t>& nodes, std::size_t alive) const;
  // Asks a node for the final consensus (`starling finish`): a test that has seen what it came for
  // need not train through the budget. True once the node says that the swarm is done.
  [[nodiscard]] bool finish(std::size_t index);
  // The end of each listed node; fails the test for one that does not end in time.
  [[nodiscard]] std::vector<int> wait_all(const std::vector<std::size_t>& nodes,
                                          std::chrono::seconds limit);
  // What the nodes printed, for INFO.
  [[nodiscard]] std::string logs() const;

 private:
  TempDir dir_;
  std::vector<std::string> common_arguments_;
  std::vector<std::unique_ptr<NodeProcess>> nodes_;
};

// A small net on synthetic images, long enough to do things to the swarm in the middle.
[[nodiscard]] std::vector<std::string> small_run(const std::string& samples);
// The same for a swarm whose end no test waits for.
[[nodiscard]] std::vector<std::string> endless_run();

[[nodiscard]] bool contains(const std::string& text, const std::string& part);
// How often the part stands in the text.
[[nodiscard]] std::size_t count_of(const std::string& text, const std::string& part);

// Members in state "alive" in a node's own view.
[[nodiscard]] std::size_t alive_members(const NodeProcess& node);
// Exchanges of a node over all its edges.
[[nodiscard]] std::int64_t exchanges(const NodeProcess& node);
// Whoever took its model from the swarm only follows in a final consensus before that many.
inline constexpr std::int64_t kNewcomerExchanges = 32;
// Share of the budget that a node believes is done, 0 if it does not answer.
[[nodiscard]] double progress_share(const NodeProcess& node);

}  // namespace starling::e2e
