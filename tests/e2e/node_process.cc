#include "tests/e2e/node_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace starling::e2e {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

void pause_for(std::chrono::milliseconds time) {
  (void)::poll(nullptr, 0, static_cast<int>(time.count()));
}

std::vector<std::string> run_command(const fs::path& dir,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> command{starling_binary(), "run",      "--dir",
                                   dir.string(),      "--listen", "127.0.0.1:0"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  bool http = false;
  for (const auto& argument : arguments) http = http || argument == "--http";
  if (!http) command.insert(command.end(), {"--http", "off"});
  return command;
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "starling-e2e-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (std::getenv("STARLING_KEEP") == nullptr) fs::remove_all(path_, ignored);
}

Process::Process(const std::vector<std::string>& command, const fs::path& log_dir)
    : log_dir_(log_dir) {
  fs::create_directories(log_dir_);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string out = (log_dir_ / "stdout.log").string();
  const std::string err = (log_dir_ / "stderr.log").string();
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), kFlags, 0644);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), kFlags, 0644);
  std::vector<char*> argv;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int failed = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + command.front());
}

Process::~Process() {
  if (running()) {
    signal(SIGKILL);
    (void)wait(10s);
  }
}

void Process::signal(int number) const {
  if (!ended_) (void)::kill(pid_, number);
}

std::optional<Ended> Process::wait(std::chrono::seconds limit) {
  const auto end = steady_clock::now() + limit;
  while (running()) {
    if (steady_clock::now() > end) return std::nullopt;
    pause_for(20ms);
  }
  return ended_;
}

bool Process::running() {
  if (ended_) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  ended_ = Ended{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
  return false;
}

std::string Process::standard_output() const { return read_text(log_dir_ / "stdout.log"); }
std::string Process::standard_error() const { return read_text(log_dir_ / "stderr.log"); }

Finished run_to_end(const std::vector<std::string>& command, std::chrono::seconds limit) {
  const TempDir logs;
  Process process(command, logs.path());
  const auto ended = process.wait(limit);
  return {ended ? ended->status : -1, process.standard_output(), process.standard_error()};
}

std::string starling_binary() {
  const char* path = std::getenv("STARLING_BINARY");
  return path != nullptr ? path : STARLING_BINARY_PATH;
}

NodeProcess::NodeProcess(fs::path dir, const std::vector<std::string>& arguments)
    : dir_(std::move(dir)), process_(run_command(dir_, arguments), dir_) {}

std::string NodeProcess::address() const {
  std::string text;
  (void)eventually(60s, [&] { return !(text = read_text(dir_ / "address")).empty(); });
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

nlohmann::json NodeProcess::status() const {
  const Finished asked =
      run_to_end({starling_binary(), "status", "--dir", dir_.string(), "--json"}, 20s);
  return nlohmann::json::parse(asked.out, nullptr, false);
}

std::string NodeProcess::id() const {
  const auto now = status();
  return now.is_object() ? now.at("node").at("id").get<std::string>() : std::string();
}

std::int64_t NodeProcess::step() const {
  const auto now = status();
  return now.is_object() ? now.at("progress").at("step").get<std::int64_t>() : -1;
}

std::string NodeProcess::state_of(const std::string& member_id) const {
  const auto now = status();
  if (!now.is_object()) return {};
  for (const auto& member : now.at("members"))
    if (member.at("id") == member_id) return member.at("state");
  return {};
}

nlohmann::json NodeProcess::certificate() const {
  return nlohmann::json::parse(read_text(dir_ / "final" / "certificate.json"), nullptr, false);
}

std::string NodeProcess::page(const std::string& path) const {
  const auto address = status().at("http").get<std::string>();
  const auto colon = address.rfind(':');
  const std::string script = "exec 3<>/dev/tcp/" + address.substr(0, colon) + "/" +
                             address.substr(colon + 1) + "; printf 'GET " + path +
                             " HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3";
  return run_to_end({"/bin/bash", "-c", script}).out;
}

bool eventually(std::chrono::seconds limit, const std::function<bool()>& predicate) {
  const auto end = steady_clock::now() + limit;
  while (!predicate()) {
    if (steady_clock::now() > end) return false;
    pause_for(100ms);
  }
  return true;
}

StepWatch::StepWatch(std::vector<const NodeProcess*> nodes) {
  for (const auto* node : nodes) seen_[node] = {-1, steady_clock::now(), 0ms};
}

void StepWatch::look() {
  for (auto& [node, seen] : seen_) {
    const auto step = node->step();
    const auto now = steady_clock::now();
    if (step == seen.step) {
      const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(now - seen.since);
      seen.longest = std::max(seen.longest, pause);
    } else {
      seen.step = step;
      seen.since = now;
    }
  }
}

std::chrono::milliseconds StepWatch::longest_pause() const {
  std::chrono::milliseconds longest{0};
  for (const auto& [node, seen] : seen_) longest = std::max(longest, seen.longest);
  return longest;
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string sha256_of(const fs::path& path) {
  return run_to_end({"/usr/bin/sha256sum", path.string()}).out.substr(0, 64);
}

}  // namespace starling::e2e
