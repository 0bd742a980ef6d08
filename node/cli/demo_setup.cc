#include "node/cli/demo_setup.h"

#include "node/base/cores.h"
#include "node/config/keys.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <ostream>
#include <system_error>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFashionMnist = "/usr/share/datasets/fashion-mnist";

// Keys that are decided for each node.
bool decided_here(std::string_view key) {
  return key == "node.dir" || key == "node.name" || key == "node.ui" || key == "net.listen" ||
         key == "net.peers" || key == "net.advertise" || key == "http.listen" ||
         key == "swarm.secret_file" || key == "swarm.invite";
}

}  // namespace

Result<void> refuse_decided(const Config& config, std::string_view verb) {
  for (const auto& key : all_keys())
    if (key.name != "node.dir" && config.forced(key.name) && decided_here(key.name))
      return fail(
          Errc::bad_argument, Doing::parsing_arguments,
          fmt::format("{} chooses {} for each of its nodes and was given it by {}: leave it "
                      "out, or start the nodes with `starling run`",
                      verb, key.name, config.origins.find(key.name)->second.where));
  return {};
}

Result<fs::path> choose_swarm_folder(const Config& config, std::string_view verb) {
  if (config.forced("node.dir")) {
    fs::path dir = config.node.dir;
    std::error_code error;
    if (fs::exists(dir / "node-1", error))
      return fail(Errc::bad_argument, Doing::starting,
                  fmt::format("{} holds such a swarm already: choose a fresh --dir, or remove it",
                              dir.string()));
    fs::create_directories(dir, error);
    if (error)
      return fail(Errc::permission, Doing::starting,
                  fmt::format("{}: {}", dir.string(), error.message()));
    return dir;
  }
  std::error_code error;
  auto pattern =
      (fs::temp_directory_path(error) / fmt::format("starling-{}-XXXXXX", verb)).string();
  if (error || ::mkdtemp(pattern.data()) == nullptr)
    return fail(Errc::permission, Doing::starting,
                fmt::format("{}: cannot be made; give --dir", pattern));
  return fs::path(pattern);
}

void add_secret_of(const fs::path& first_node, std::vector<std::string>& words) {
  std::error_code error;
  if (const auto secret = first_node / "secret"; fs::exists(secret, error))
    words.insert(words.end(), {"--secret-file", secret.string()});
}

std::vector<std::string> swarm_words(const Config& config, std::uint64_t count,
                                     std::string_view until, const Terminal& terminal) {
  std::vector<std::string> words;
  const auto set = [&](std::string_view key, std::string_view value) {
    words.push_back("--set");
    words.push_back(fmt::format("{}={}", key, value));
  };
  // What was said to the verb, wherever, goes to the nodes as flags.
  for (const auto& key : all_keys())
    if (config.forced(key.name) && !decided_here(key.name)) set(key.name, show_value(key, config));
  std::string data = config.data.train;
  if (data.empty()) {
    std::error_code error;
    data = fs::exists(fs::path(kFashionMnist), error) ? "fashion-mnist" : "synthetic";
    set("data.train", data);
    if (data == "synthetic")
      terminal.err << "Fashion-MNIST is not installed (Debian package dataset-fashion-mnist): "
                      "training on synthetic images\n";
  }
  if (!config.forced("train.model")) {
    set("train.model", "small");
    // Four passes over easy images: no smoothing, and batches small enough that four nodes that
    // share the budget still take many steps, each with its exchange (batches of 64 end a point
    // lower). The small net likes a higher rate than deep ones: four nodes end better at 0.2 than
    // at 0.05, 0.1 and 0.4.
    if (!config.forced("train.batch")) {
      set("train.batch", "16");
      if (!config.forced("train.lr")) set("train.lr", "0.2");
    }
    if (!config.forced("train.label_smoothing")) set("train.label_smoothing", "0");
  }
  if (!config.forced("train.until")) set("train.until", until);
  if (!config.forced("node.threads")) {
    const auto cores = static_cast<std::uint64_t>(usable_cores());
    set("node.threads", std::to_string(std::max<std::uint64_t>(1, cores / count)));
  }
  terminal.err << fmt::format("data {}\n", printable(data));
  return words;
}

}  // namespace starling::node
