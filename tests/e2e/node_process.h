// Real starling processes for end-to-end tests: start, ask, signal, wait.
//
// Every wait is a generous bound with polling; ports come from the kernel; a process that outlives
// its object is killed. What a node printed is in DIR/stdout.log and DIR/stderr.log.
#pragma once

#include <nlohmann/json.hpp>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace starling::e2e {

// A folder under the temporary directory that is removed at the end, unless STARLING_KEEP is set.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// How a process ended: its exit status, or 128 + signal.
struct Ended {
  int status = 0;
};

// One child process of the test. Killed when the object goes.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::filesystem::path& log_dir);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  // The end, or nothing if it still runs after `limit`.
  [[nodiscard]] std::optional<Ended> wait(std::chrono::seconds limit);
  [[nodiscard]] bool running();
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string standard_output() const;
  [[nodiscard]] std::string standard_error() const;

 private:
  std::filesystem::path log_dir_;
  pid_t pid_ = -1;
  std::optional<Ended> ended_;
};

// Runs a command to its end and returns status and output.
struct Finished {
  int status = 0;
  std::string out;
  std::string err;
};
[[nodiscard]] Finished run_to_end(const std::vector<std::string>& command,
                                  std::chrono::seconds limit = std::chrono::seconds(60));

// Path of the binary under test.
[[nodiscard]] std::string starling_binary();

// One node: `starling run --dir DIR ...` with a port from the kernel and no HTTP unless asked for.
class NodeProcess {
 public:
  NodeProcess(std::filesystem::path dir, const std::vector<std::string>& arguments);

  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] const Process& process() const { return process_; }
  [[nodiscard]] const std::filesystem::path& dir() const { return dir_; }

  // The address that other nodes dial; waits for the node to listen.
  [[nodiscard]] std::string address() const;
  // `starling status --json`; null if the node does not answer.
  [[nodiscard]] nlohmann::json status() const;
  [[nodiscard]] std::string id() const;
  [[nodiscard]] std::int64_t step() const;
  // State of a member in this node's view ("alive", ...), empty if it is unknown.
  [[nodiscard]] std::string state_of(const std::string& member_id) const;
  [[nodiscard]] nlohmann::json certificate() const;
  // The whole answer of its HTTP server.
  [[nodiscard]] std::string page(const std::string& path) const;

 private:
  std::filesystem::path dir_;
  Process process_;
};

// Polls until the predicate holds; false if it never did within `limit`.
[[nodiscard]] bool eventually(std::chrono::seconds limit, const std::function<bool()>& predicate);

// Watches the step counters of nodes: the longest time that each stood still.
class StepWatch {
 public:
  explicit StepWatch(std::vector<const NodeProcess*> nodes);
  // Looks once; call it in every poll.
  void look();
  [[nodiscard]] std::chrono::milliseconds longest_pause() const;

 private:
  struct Seen {
    std::int64_t step = -1;
    std::chrono::steady_clock::time_point since;
    std::chrono::milliseconds longest{0};
  };
  std::map<const NodeProcess*, Seen> seen_;
};

[[nodiscard]] std::string read_text(const std::filesystem::path& path);
// BLAKE2b is the project's; this is coreutils' SHA-256, which shares no code with it.
[[nodiscard]] std::string sha256_of(const std::filesystem::path& path);

}  // namespace starling::e2e
