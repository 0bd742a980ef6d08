// A real browser without a window, for tests of the page.
#pragma once

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace starling {

// Chromium, told what to do over two pipes in its DevTools protocol: JSON texts, a zero byte after
// each. One page. Killed when the object goes; a minute of silence is a failed test.
class Browser {
 public:
  explicit Browser(const std::string& program) {
    auto [its_commands, commands] = pipe_of_two();
    auto [answers, its_answers] = pipe_of_two();
    commands_ = commands;
    answers_ = answers;
    std::vector<std::string> words{program,
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--disable-dev-shm-usage",
                                   "--remote-debugging-pipe",
                                   "--user-data-dir=" + profile_.path().string()};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const int output : {1, 2})
      posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, its_commands, 3);
    posix_spawn_file_actions_adddup2(&files, its_answers, 4);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // it starts many processes
    const int failed =
        ::posix_spawn(&child_, program.c_str(), &files, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    ::close(its_commands);
    ::close(its_answers);
    REQUIRE(failed == 0);
  }
  ~Browser() {
    ::kill(-child_, SIGKILL);
    (void)::waitpid(child_, nullptr, 0);
    ::close(commands_);
    ::close(answers_);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Returns when the page and what it names are loaded.
  void open(const std::string& url) {
    const auto target = call("Target.createTarget", {{"url", "about:blank"}}).at("targetId");
    session_ =
        call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}}).at("sessionId");
    call("Page.enable", nlohmann::json::object());
    seen_.clear();
    call("Page.navigate", {{"url", url}});
    while (!seen_.contains("Page.loadEventFired")) seen_.insert(read().value("method", ""));
  }

  // From now on the window has this width, and `scheme` is "light" or "dark".
  void resize(int width, const std::string& scheme) {
    call("Emulation.setDeviceMetricsOverride",
         {{"width", width}, {"height", 800}, {"deviceScaleFactor", 1}, {"mobile", false}});
    call("Emulation.setEmulatedMedia",
         {{"features", {{{"name", "prefers-color-scheme"}, {"value", scheme}}}}});
  }

  // What an expression of JavaScript is in the page; a promise is waited for.
  nlohmann::json value_of(const std::string& expression) {
    const auto answer =
        call("Runtime.evaluate",
             {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
    INFO(answer.dump());
    REQUIRE_FALSE(answer.contains("exceptionDetails"));
    return answer.at("result").value("value", nlohmann::json());
  }

  // Whether an expression becomes true within 45 s.
  bool becomes_true(const std::string& expression) {
    return value_of(
               "new Promise((done) => { const last = performance.now() + 45000;"
               "const ask = () => { if (" +
               expression +
               ") done(true); else if (performance.now() > last) done(false);"
               "else setTimeout(ask, 20); }; ask(); })") == true;
  }

 private:
  // Above the descriptors that the browser wants at 3 and 4.
  static std::array<int, 2> pipe_of_two() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    for (int& end : ends) {
      const int low = end;
      end = ::fcntl(low, F_DUPFD_CLOEXEC, 10);
      ::close(low);
    }
    return ends;
  }

  nlohmann::json call(const std::string& method, nlohmann::json parameters) {
    nlohmann::json command{{"id", ++last_}, {"method", method}, {"params", std::move(parameters)}};
    if (!session_.empty()) command["sessionId"] = session_;
    const auto text = command.dump();
    // The zero byte at its end goes along.
    REQUIRE(::write(commands_, text.c_str(), text.size() + 1) ==
            static_cast<ssize_t>(text.size() + 1));
    for (;;) {
      auto answer = read();
      seen_.insert(answer.value("method", ""));
      if (answer.value("id", 0) != last_) continue;
      INFO(answer.dump());
      REQUIRE(answer.contains("result"));
      return answer["result"];
    }
  }

  nlohmann::json read() {
    std::size_t end = 0;
    while ((end = buffer_.find('\0')) == std::string::npos) {
      pollfd ready{answers_, POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 60'000) == 1);
      std::array<char, 65'536> bytes;
      const auto count = ::read(answers_, bytes.data(), bytes.size());
      REQUIRE(count > 0);
      buffer_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    auto message = nlohmann::json::parse(buffer_.substr(0, end));
    buffer_.erase(0, end + 1);
    return message;
  }

  TempFolder profile_;
  pid_t child_ = -1;
  int commands_ = -1;
  int answers_ = -1;
  int last_ = 0;
  std::string session_;
  std::string buffer_;
  std::set<std::string> seen_;  // events
};

}  // namespace starling
