#include "tests/e2e/swarm.h"

namespace starling::e2e {

using namespace std::chrono_literals;

void Swarm::start(int count) {
  for (int i = 0; i < count; ++i) {
    if (!nodes_.empty()) {
      start_with_peer(*nodes_.front());
      continue;
    }
    nodes_.push_back(std::make_unique<NodeProcess>(dir_.path() / "node-1", common_arguments_));
    (void)nodes_.front()->address();
  }
}

NodeProcess& Swarm::start_with_peer(const NodeProcess& peer) {
  std::vector<std::string> arguments = common_arguments_;
  arguments.insert(arguments.end(), {"--peer", peer.address(), "--secret-file", secret_file()});
  const auto dir = dir_.path() / ("node-" + std::to_string(nodes_.size() + 1));
  nodes_.push_back(std::make_unique<NodeProcess>(dir, arguments));
  return *nodes_.back();
}

NodeProcess& Swarm::restart(std::size_t index, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = common_arguments_;
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (index > 0) arguments.insert(arguments.end(), {"--secret-file", secret_file()});
  const auto dir = nodes_.at(index)->dir();
  nodes_.at(index).reset();
  nodes_.at(index) = std::make_unique<NodeProcess>(dir, arguments);
  return *nodes_.at(index);
}

std::string Swarm::secret_file() const { return (nodes_.front()->dir() / "secret").string(); }

bool Swarm::all_see(const std::vector<std::size_t>& nodes, std::size_t alive) const {
  for (const auto index : nodes)
    if (alive_members(*nodes_.at(index)) != alive) return false;
  return true;
}

bool Swarm::finish(std::size_t index) {
  const auto answer = run_to_end(
      {starling_binary(), "finish", "--dir", nodes_.at(index)->dir().string(), "--json"}, 300s);
  return answer.status == 0;
}

std::vector<int> Swarm::wait_all(const std::vector<std::size_t>& nodes,
                                 std::chrono::seconds limit) {
  std::vector<int> ends;
  for (const auto index : nodes) {
    const auto ended = nodes_.at(index)->process().wait(limit);
    ends.push_back(ended ? ended->status : -1);
  }
  return ends;
}

std::string Swarm::logs() const {
  std::string text;
  for (const auto& node : nodes_) {
    text += "=== " + node->dir().filename().string() + "\n";
    auto log = node->process().standard_error() + node->process().standard_output();
    text += log.size() > 6'000 ? log.substr(log.size() - 6'000) : log;
  }
  return text;
}

std::size_t alive_members(const NodeProcess& node) {
  const auto status = node.status();
  if (!status.is_object()) return 0;
  std::size_t alive = 0;
  for (const auto& member : status.at("members")) alive += member.at("state") == "alive" ? 1 : 0;
  return alive;
}

std::int64_t exchanges(const NodeProcess& node) {
  const auto status = node.status();
  if (!status.is_object()) return 0;
  std::int64_t sum = 0;
  for (const auto& edge : status.at("neighbours")) sum += edge.at("exchanges").get<std::int64_t>();
  return sum;
}

double progress_share(const NodeProcess& node) {
  const auto status = node.status();
  if (!status.is_object()) return 0;
  const auto& progress = status.at("progress");
  const auto budget = progress.at("budget_samples").get<double>();
  return budget > 0 ? progress.at("swarm_samples").get<double>() / budget : 0;
}

std::vector<std::string> small_run(const std::string& samples) {
  return {"--data",  "synthetic:size=16,channels=1", "--model",   "small", "--batch", "32",
          "--until", "samples=" + samples,           "--threads", "1"};
}

std::vector<std::string> endless_run() { return small_run("100000000"); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

}  // namespace starling::e2e
