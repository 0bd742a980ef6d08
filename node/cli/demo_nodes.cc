#include "node/cli/demo_nodes.h"

#include "node/control/request.h"
#include "node/printable.h"
#include "node/state_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

constexpr std::size_t kMaxLine = 4'096;

sigset_t stop_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  return set;
}

// Between fork and exec only calls that are safe there; never returns.
[[noreturn]] void become_child(int output, pid_t parent, char* const* argv) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before that took effect
  const sigset_t set = stop_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

Result<std::unique_ptr<DemoNode>> DemoNode::start(std::string name, std::filesystem::path dir,
                                                  const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(Errc::io_failed, Doing::starting,
                "no pipe: " + std::generic_category().message(errno));
  std::vector<std::string> copy{"starling"};
  copy.insert(copy.end(), words.begin(), words.end());
  std::vector<char*> argv;
  argv.reserve(copy.size() + 1);
  for (auto& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);

  std::unique_ptr<DemoNode> node(new DemoNode(std::move(name), std::move(dir)));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become_child(ends[1], parent, argv.data());
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return fail(Errc::io_failed, Doing::starting,
                "no process: " + std::generic_category().message(errno));
  }
  node->pid_ = pid;
  node->output_ = ends[0];
  ::fcntl(node->output_, F_SETFL, O_NONBLOCK);
  return node;
}

DemoNode::~DemoNode() {
  if (running()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
}

void DemoNode::read_lines(const std::function<void(const std::string&)>& on_line) {
  std::array<char, 16'384> buffer;
  while (output_ >= 0) {
    const auto count = ::read(output_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      ::close(output_);
      output_ = -1;
      if (!partial_.empty()) on_line(partial_);
      partial_.clear();
      break;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (auto end = partial_.find('\n'); end != std::string::npos;
         end = partial_.find('\n', begin)) {
      on_line(partial_.substr(begin, std::min(end - begin, kMaxLine)));
      begin = end + 1;
    }
    partial_.erase(0, begin);
    if (partial_.size() > kMaxLine) partial_.resize(kMaxLine);
  }
}

void DemoNode::signal(int number) const {
  if (!exit_status_) ::kill(pid_, number);
}

bool DemoNode::running() {
  if (exit_status_ || pid_ <= 0) return false;
  int status = 0;
  const auto waited = ::waitpid(pid_, &status, WNOHANG);
  if (waited == 0 || (waited < 0 && errno == EINTR)) return true;
  exit_status_ = waited < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return false;
}

DemoEnd end_of(const DemoNode& node, std::string status, const std::string& last_words) {
  DemoEnd end{node.name(), node.exit_status().value_or(1), std::move(status), "", ""};
  if (auto last = read_whole(node.dir() / "status.json", kMaxControlReply)) end.status = *last;
  if (const auto text = read_whole(node.dir() / "final" / "certificate.json", kMaxControlReply)) {
    const auto certificate = nlohmann::json::parse(*text, nullptr, false);
    if (certificate.is_object() && certificate.contains("hash") && certificate["hash"].is_string())
      end.hash = certificate["hash"].get<std::string>();
  }
  if (end.exit_status != 0) end.reason = printable(last_words);
  return end;
}

StopSignals::StopSignals() {
  const sigset_t set = stop_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

StopSignals::~StopSignals() {
  while (take()) {
  }
  if (descriptor_ >= 0) ::close(descriptor_);
  const sigset_t set = stop_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> StopSignals::take() {
  signalfd_siginfo info{};
  if (descriptor_ < 0 || ::read(descriptor_, &info, sizeof(info)) != sizeof(info))
    return std::nullopt;
  taken_ = static_cast<int>(info.ssi_signo);
  return taken_;
}

std::optional<int> StopSignals::exit_status() const {
  return taken_ ? std::optional(128 + *taken_) : std::nullopt;
}

}  // namespace starling::node
