#include "node/observe/held_lines.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

using namespace starling;
using namespace starling::node;

namespace {

std::string notice(std::uint64_t lines) { return "dropped " + std::to_string(lines) + "\n"; }

// A pipe as small as one can be.
class Pipe {
 public:
  Pipe() {
    REQUIRE(::pipe2(ends_.data(), O_CLOEXEC) == 0);
    REQUIRE(::fcntl(ends_[0], F_SETFL, O_NONBLOCK) == 0);
    size_ = static_cast<std::size_t>(::fcntl(ends_[1], F_SETPIPE_SZ, 4'096));
  }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int writer() const { return ends_[1]; }
  [[nodiscard]] std::size_t size() const { return size_; }
  std::string read() {
    std::string text;
    std::array<char, 65'536> piece{};
    for (ssize_t size = 0; (size = ::read(ends_[0], piece.data(), piece.size())) > 0;)
      text.append(piece.data(), static_cast<std::size_t>(size));
    return text;
  }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  std::size_t size_ = 0;
};

// Lines as a node's, far more than a terminal takes while nobody reads.
std::string many_lines(HeldLines& lines) {
  std::string sent;
  for (int i = 0; sent.size() < 100'000; ++i) {
    const auto line = std::to_string(i) + std::string(170, 'x') + '\n';
    lines.write(line);
    sent += line;
  }
  return sent;
}

// Everything that has been kept, by a reader that reads on.
std::string drain(Pipe& pipe, HeldLines& lines) {
  std::string got;
  for (int i = 0; i < 3'000; ++i) {
    got += pipe.read();
    lines.write("");
  }
  return got + pipe.read();
}

}  // namespace

TEST_SUITE("node/held_lines") {
  TEST_CASE("lines go out at once, whole, from several streams") {
    Pipe pipe;
    HeldLines lines(pipe.writer(), notice);
    LineStream first(lines);
    LineStream second(lines);
    first << "half ";
    second << "a line " << 7 << '\n' << std::flush;
    CHECK(pipe.read() == "a line 7\n");
    first << "of one\nand two\n";
    CHECK(pipe.read() == "half of one\nand two\n");
  }

  TEST_CASE("a reader that stopped keeps nobody waiting and misses nothing that is kept") {
    Pipe pipe;
    HeldLines lines(pipe.writer(), notice);
    std::string sent;
    // Were it waited for, this would not end.
    for (int i = 0; sent.size() < 4 * pipe.size(); ++i) {
      const auto line = std::to_string(i) + std::string(300, 'x') + '\n';
      lines.write(line);
      sent += line;
    }
    // It reads again: each line that comes takes along what has room.
    std::string got;
    for (int i = 0; i < 100 && got.size() < sent.size(); ++i) {
      got += pipe.read();
      lines.write("more\n");
    }
    got += pipe.read();
    CHECK(got.starts_with(sent));
  }

  TEST_CASE("a terminal that nobody reads keeps nobody waiting and misses nothing that is kept") {
    int reader = -1;
    int terminal = -1;
    REQUIRE(::openpty(&reader, &terminal, nullptr, nullptr, nullptr) == 0);
    // Not forkpty(): ThreadSanitizer knows nothing of it, and its locks stay as they were.
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(30);  // where it waits: nobody else ends it
      HeldLines lines(terminal, notice);
      (void)many_lines(lines);
      // Whoever shares the terminal goes on with writes that wait.
      const bool waits = (::fcntl(terminal, F_GETFL) & O_NONBLOCK) == 0;
      ::_exit(waits ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    ::close(terminal);
    ::close(reader);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);

    REQUIRE(::openpty(&reader, &terminal, nullptr, nullptr, nullptr) == 0);
    {
      HeldLines lines(terminal, notice);
      const std::string sent = many_lines(lines);
      std::string got;
      std::array<char, 4'096> piece{};
      while (got.size() < sent.size()) {
        pollfd ready{reader, POLLIN, 0};
        REQUIRE(::poll(&ready, 1, 60'000) == 1);
        const auto size = ::read(reader, piece.data(), piece.size());
        REQUIRE(size > 0);
        got.append(piece.data(), static_cast<std::size_t>(size));
        std::erase(got, '\r');  // which a terminal adds
        lines.write("");
      }
      CHECK(got == sent);
    }
    ::close(terminal);
    ::close(reader);
  }

  TEST_CASE("a socket, as the journal's, is written to without a wait") {
    std::array<int, 2> ends{-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    {
      HeldLines lines(ends[1], notice);
      lines.write("one\n");
      std::array<char, 16> piece{};
      CHECK(::read(ends[0], piece.data(), piece.size()) == 4);
      for (int i = 0; i < 10; ++i) (void)many_lines(lines);
      ::close(ends[0]);
    }
    ::close(ends[1]);
  }

  TEST_CASE("what is too much is dropped and counted") {
    Pipe pipe;
    std::string got;
    {
      HeldLines lines(pipe.writer(), notice);
      const std::string line = std::string(999, 'x') + '\n';
      const std::size_t count = (HeldLines::kMost + pipe.size()) / line.size() + 10;
      for (std::size_t i = 0; i < count; ++i) lines.write(line);
      for (std::size_t i = 0; i < 2 * count && !got.ends_with("end\n"); ++i) {
        got += pipe.read();
        lines.write(i < count ? "on\n" : "end\n");
      }
    }
    const auto at = got.find("dropped ");
    REQUIRE(at != std::string::npos);
    CHECK(std::stoi(got.substr(at + 8)) >= 10);
    CHECK(got.find("on\n") > at);
  }

  TEST_CASE("what is held comes out at the release, in order, and the newest of it") {
    Pipe pipe;
    HeldLines lines(pipe.writer(), notice);
    lines.write("before\n");
    lines.hold();
    lines.write("first\n");
    lines.write("second\n");
    CHECK(pipe.read() == "before\n");
    CHECK(pipe.read().empty());
    lines.release();
    CHECK(drain(pipe, lines) == "first\nsecond\n");

    lines.hold();
    const std::string line = std::string(999, 'x') + '\n';
    for (std::size_t i = 0; i < HeldLines::kMost / line.size() + 10; ++i) lines.write(line);
    lines.write("newest\n");
    lines.release();
    const auto got = drain(pipe, lines);
    CHECK(got.starts_with("dropped "));
    CHECK(got.ends_with("newest\n"));
  }

  TEST_CASE("a line that was half written is not torn by what is held after it") {
    Pipe pipe;
    HeldLines lines(pipe.writer(), notice);
    const std::string begun = std::string(3 * pipe.size(), 'b') + '\n';
    lines.write(begun);  // as much of it as the pipe takes
    lines.hold();
    const std::string line = std::string(9'999, 'x') + '\n';
    for (std::size_t i = 0; i < HeldLines::kMost / line.size() + 10; ++i) lines.write(line);
    lines.release();
    CHECK(drain(pipe, lines).starts_with(begun + "dropped "));
  }

  TEST_CASE("a reader that is gone costs nothing") {
    Pipe pipe;
    (void)::signal(SIGPIPE, SIG_IGN);  // as main() does
    pipe.close_reader();
    HeldLines lines(pipe.writer(), notice);
    for (int i = 0; i < 1'000; ++i) lines.write("nobody reads this\n");
    CHECK(pipe.read().empty());
  }
}
