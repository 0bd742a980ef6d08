// starling_switch: the lines between the machines of the net lab, as one process in user space.
//
//   starling_switch SEED NAMESPACE...
//
// It makes a TAP device `lab0` in every network namespace, and carries Ethernet frames between
// them: from any to any, each direction through a Link of its own. The machine of port K (from 1)
// has the hardware address 02:00:00:00:00:K. Commands come on stdin, one a line, each answered
// with "ok" or "error: why":
//   link FROM TO fault=value...   FROM and TO are ports or *; faults as in link.h; others stay
//   clear                         no faults anywhere
// It ends when stdin does.
#include "node/base/bytes.h"
#include "tests/net/link.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <queue>
#include <sstream>
#include <string>
#include <vector>

namespace starling::lab {
namespace {

constexpr std::size_t kMaxPorts = 64;
constexpr std::size_t kMaxFrame = 65'550;
constexpr int kFramesATurn = 64;  // of one port, so that none starves the others
constexpr Duration kIdle = std::chrono::seconds(1);

std::unexpected<Error> refuse(Doing doing, const std::string& what) {
  return fail(Errc::bad_argument, doing, what);
}

// A TAP device in another network namespace: the descriptor works from this one.
Result<int> open_tap(const std::string& space) {
  const auto failed = [&](const std::string& what) {
    return fail(Errc::io_failed, Doing::starting,
                space + ": " + what + ": " + std::strerror(errno));
  };
  const int home = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = ::open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || there < 0 || ::setns(there, CLONE_NEWNET) != 0) return failed("no namespace");
  ::close(there);
  const int tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  std::strncpy(request.ifr_name, "lab0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (tap < 0 || ::ioctl(tap, TUNSETIFF, &request) != 0) return failed("no TAP device");
  if (::setns(home, CLONE_NEWNET) != 0) return failed("no way back");
  ::close(home);
  return tap;
}

class Switch {
 public:
  Switch(std::vector<int> taps, std::uint64_t seed)
      : taps_(std::move(taps)), links_(taps_.size() * taps_.size()), rng_(seed) {}

  void run();

 private:
  struct Waiting {
    TimePoint due;
    std::uint64_t number;  // frames that are due at the same moment stay in order
    std::size_t to;
    Frame frame;
  };
  struct Later {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.due != b.due ? a.due > b.due : a.number > b.number;
    }
  };

  [[nodiscard]] Link& link(std::size_t from, std::size_t to) {
    return links_[from * taps_.size() + to];
  }
  void read_port(std::size_t from);
  void forward(std::size_t from, const Frame& frame);
  void keep(std::size_t to, std::vector<Passing> passing);
  void deliver_due();
  [[nodiscard]] bool read_commands();
  [[nodiscard]] Result<void> carry_out(const std::string& line);
  [[nodiscard]] Result<std::vector<std::size_t>> ports_of(const std::string& word) const;
  void set_faults(std::size_t from, std::size_t to, const LinkFaults& faults);

  std::vector<int> taps_;
  std::vector<Link> links_;
  Rng rng_;
  SteadyClock clock_;
  std::priority_queue<Waiting, std::vector<Waiting>, Later> waiting_;
  std::uint64_t next_number_ = 0;
  std::string commands_;
};

void Switch::run() {
  std::vector<pollfd> polled{{STDIN_FILENO, POLLIN, 0}};
  for (const int tap : taps_) polled.push_back({tap, POLLIN, 0});
  while (true) {
    deliver_due();
    const Duration wait =
        waiting_.empty() ? kIdle
                         : std::clamp(waiting_.top().due - clock_.now(), Duration::zero(), kIdle);
    const timespec limit{wait.count() / 1'000'000, wait.count() % 1'000'000 * 1'000};
    if (::ppoll(polled.data(), polled.size(), &limit, nullptr) <= 0) continue;
    for (std::size_t port = 0; port < taps_.size(); ++port)
      if ((polled[port + 1].revents & POLLIN) != 0) read_port(port);
    if (polled[0].revents != 0 && !read_commands()) return;
  }
}

void Switch::read_port(std::size_t from) {
  static Frame buffer(kMaxFrame);
  for (int k = 0; k < kFramesATurn; ++k) {
    const auto count = ::read(taps_[from], buffer.data(), buffer.size());
    if (count < 14) return;
    forward(from, Frame(buffer.begin(), buffer.begin() + count));
  }
}

// To the port in the last byte of the destination's hardware address, or to all.
void Switch::forward(std::size_t from, const Frame& frame) {
  const TimePoint now = clock_.now();
  const bool to_all = (std::to_integer<unsigned>(frame[0]) & 1U) != 0;
  const auto named = std::to_integer<std::size_t>(frame[5]);
  for (std::size_t to = 0; to < taps_.size(); ++to)
    if (to != from && (to_all || named == to + 1)) keep(to, link(from, to).pass(now, frame, rng_));
}

void Switch::keep(std::size_t to, std::vector<Passing> passing) {
  for (Passing& one : passing) waiting_.push({one.due, next_number_++, to, std::move(one.frame)});
}

void Switch::deliver_due() {
  while (!waiting_.empty() && waiting_.top().due <= clock_.now()) {
    const Waiting& first = waiting_.top();
    // A machine that is down or full loses frames, as it would on any line.
    [[maybe_unused]] const auto written =
        ::write(taps_[first.to], first.frame.data(), first.frame.size());
    waiting_.pop();
  }
}

bool Switch::read_commands() {
  std::array<char, 4'096> buffer;
  const auto count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count <= 0) return false;
  commands_.append(buffer.data(), static_cast<std::size_t>(count));
  for (auto end = commands_.find('\n'); end != std::string::npos; end = commands_.find('\n')) {
    const auto done = carry_out(commands_.substr(0, end));
    commands_.erase(0, end + 1);
    std::cout << (done ? "ok" : "error: " + done.error().detail) << '\n' << std::flush;
  }
  return true;
}

Result<std::vector<std::size_t>> Switch::ports_of(const std::string& word) const {
  std::vector<std::size_t> ports;
  if (word == "*") {
    for (std::size_t k = 0; k < taps_.size(); ++k) ports.push_back(k);
    return ports;
  }
  std::size_t number = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (problem != std::errc{} || end != word.data() + word.size() || number < 1 ||
      number > taps_.size())
    return refuse(Doing::parsing_arguments, "\"" + word + "\" is no port");
  ports.push_back(number - 1);
  return ports;
}

void Switch::set_faults(std::size_t from, std::size_t to, const LinkFaults& faults) {
  keep(to, link(from, to).set(clock_.now(), faults, rng_));
}

Result<void> Switch::carry_out(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::string from_word;
  std::string to_word;
  words >> verb >> from_word >> to_word;
  const bool clear = verb == "clear";
  if (!clear && verb != "link") return refuse(Doing::parsing_arguments, "no such command: " + verb);
  TRY(const auto from, ports_of(clear ? "*" : from_word));
  TRY(const auto to, ports_of(clear ? "*" : to_word));
  std::vector<std::string> changes;
  for (std::string word; words >> word;) changes.push_back(word);
  for (const auto a : from) {
    for (const auto b : to) {
      LinkFaults faults = clear ? LinkFaults{} : link(a, b).faults();
      for (const auto& change : changes) {
        const auto equals = change.find('=');
        if (equals == std::string::npos)
          return refuse(Doing::parsing_arguments, change + " is not fault=value");
        TRY_VOID(set_fault(faults, std::string_view(change).substr(0, equals),
                           std::string_view(change).substr(equals + 1)));
      }
      set_faults(a, b, faults);
    }
  }
  return {};
}

Result<void> run_switch(const std::vector<std::string>& words) {
  if (words.size() < 2 || words.size() > kMaxPorts + 1)
    return refuse(Doing::parsing_arguments, "usage: starling_switch SEED NAMESPACE...");
  std::uint64_t seed = 0;
  const auto& text = words.front();
  if (std::from_chars(text.data(), text.data() + text.size(), seed).ec != std::errc{})
    return refuse(Doing::parsing_arguments, text + " is no seed");
  std::vector<int> taps;
  for (std::size_t k = 1; k < words.size(); ++k) {
    TRY(const int tap, open_tap(words[k]));
    taps.push_back(tap);
  }
  std::cout << "ready\n" << std::flush;
  Switch(std::move(taps), seed).run();
  return {};
}

}  // namespace
}  // namespace starling::lab

int main(int argc, char** argv) {
  const auto ran = starling::lab::run_switch({argv + (argc > 0 ? 1 : 0), argv + argc});
  if (ran) return 0;
  std::cerr << "starling_switch: " << ran.error().detail << '\n';
  return ran.error().code == starling::Errc::bad_argument ? 2 : 3;
}
