// The processes of `starling demo` and `starling chaos`: started, listened to, stopped, waited for.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/cli/demo_report.h"

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace starling::node {

// How long the nodes of a new swarm may take to start.
inline constexpr Duration kStartLimit = std::chrono::seconds(120);

// One child process that runs this very binary with other words. It is in a process group of its
// own, so that Ctrl-C reaches the demo alone, and it dies with the demo.
//
// Owned by the verb; the destructor kills what still runs. One thread.
class DemoNode {
 public:
  // Errors:  io_failed.
  [[nodiscard]] static Result<std::unique_ptr<DemoNode>> start(
      std::string name, std::filesystem::path dir, const std::vector<std::string>& words);
  ~DemoNode();
  DemoNode(const DemoNode&) = delete;
  DemoNode& operator=(const DemoNode&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::filesystem::path& dir() const { return dir_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Descriptor of what it prints; -1 after it closed.
  [[nodiscard]] int output() const { return output_; }

  // Reads what is there without waiting, and calls `on_line` with each whole line.
  void read_lines(const std::function<void(const std::string&)>& on_line);
  void signal(int number) const;
  // Looks whether it ended.
  [[nodiscard]] bool running();
  // Its exit status, or 128 + the signal that ended it; nothing while it runs.
  [[nodiscard]] std::optional<int> exit_status() const { return exit_status_; }

 private:
  DemoNode(std::string name, std::filesystem::path dir)
      : name_(std::move(name)), dir_(std::move(dir)) {}

  std::string name_;
  std::filesystem::path dir_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string partial_;
  std::optional<int> exit_status_;
};

// How a node ended, from its folder: `status` is the last one that it was asked for, and the one
// that it left behind, if any, is newer; `last_words` the last line that it printed.
[[nodiscard]] DemoEnd end_of(const DemoNode& node, std::string status,
                             const std::string& last_words);

// SIGINT and SIGTERM as something to poll; restored by the destructor, which drops those that
// nobody took: what they asked for is happening.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // The number of a signal that came and was not taken yet; nothing if there is none.
  [[nodiscard]] std::optional<int> take();
  // 128 + the signal that was taken last, as an exit status; nothing if none was.
  [[nodiscard]] std::optional<int> exit_status() const;

 private:
  int descriptor_ = -1;
  std::optional<int> taken_;
};

}  // namespace starling::node
