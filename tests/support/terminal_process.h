// A program on a pseudo terminal of its own, as a person runs it.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling {

// What an xterm is sent when a screen ends: the page that was there before.
inline constexpr std::string_view kPageBefore = "\x1b[?1049l";

// Killed when the object goes. Every wait is bounded by a minute without a byte.
class TerminalProcess {
 public:
  using Environment = std::vector<std::string>;  // all of it: "TERM=xterm"

  TerminalProcess(std::vector<std::string> words, Environment environment) {
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> all;
      for (auto& text : texts) all.push_back(text.data());
      all.push_back(nullptr);
      return all;
    };
    const auto arguments = pointers(words);
    const auto variables = pointers(environment);
    winsize size{30, 100, 0, 0};
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::execve(arguments[0], arguments.data(), variables.data());
      ::_exit(127);
    }
  }
  ~TerminalProcess() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      (void)::waitpid(child_, nullptr, 0);
    }
    if (terminal_ >= 0) ::close(terminal_);
  }
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  // Reads until the terminal was sent this text.
  void wait_for(std::string_view text) {
    INFO("waits for '", text, "'");
    while (seen_.find(text) == std::string::npos) REQUIRE(read_some());
  }
  // Everything that the terminal was sent and that was read.
  [[nodiscard]] const std::string& seen() const { return seen_; }
  void press(std::string_view keys) const {
    REQUIRE(::write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  void resize(unsigned short rows, unsigned short columns) const {
    winsize size{rows, columns, 0, 0};
    REQUIRE(::ioctl(terminal_, TIOCSWINSZ, &size) == 0);
  }
  // The person's end goes, as with an ssh session that breaks: the exit code, or -1 for a signal.
  int hang_up() {
    ::close(std::exchange(terminal_, -1));
    const auto process = static_cast<int>(::syscall(SYS_pidfd_open, child_, 0));
    REQUIRE(process >= 0);
    pollfd ended{process, POLLIN, 0};
    const int count = ::poll(&ended, 1, 60'000);
    ::close(process);
    REQUIRE(count == 1);
    return exit_code();
  }
  // Reads to the end: the exit code, or -1 for a signal.
  int end() {
    while (read_some()) {
    }
    return exit_code();
  }

 private:
  int exit_code() {
    int status = -1;
    REQUIRE(::waitpid(std::exchange(child_, 0), &status, 0) > 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  bool read_some() {
    pollfd ready{terminal_, POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 60'000) == 1);
    std::array<char, 4'096> buffer;
    const auto count = ::read(terminal_, buffer.data(), buffer.size());
    if (count <= 0) return false;  // EIO: the other side is closed
    seen_.append(buffer.data(), static_cast<std::size_t>(count));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = 0;
  std::string seen_;
};

}  // namespace starling
