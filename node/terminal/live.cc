#include "node/terminal/live.h"

#include "node/base/thread.h"
#include "node/control/caller.h"
#include "node/observe/line_tail.h"
#include "node/terminal/screen.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace starling::node::terminal {

namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
// A node that is stopped must not hold up the keys for long.
constexpr Duration kPatience = std::chrono::seconds(2);
// How long an end may go unnoticed.
constexpr Duration kKeyPatience = std::chrono::milliseconds(100);
constexpr std::size_t kMostKeptEvents = 64;

// What the screen knows of the node, and how the person wants to see it.
class LiveView {
 public:
  explicit LiveView(const std::filesystem::path& dir) : dir_(dir), tail_(dir / "events.jsonl") {}

  // Asks the node; one that does not answer leaves what it said before, and a line that says so.
  void look(TimePoint now) {
    const auto answer = ask_node(dir_, StatusRequest{}, kPatience);
    take_events();
    trouble_.clear();
    if (!answer) {
      trouble_ = status_.empty() ? "the node is not up yet   (q quits)"
                                 : "no new status: " + to_string(answer.error()) + "   (q quits)";
      return;
    }
    auto status = nlohmann::json::parse(*answer, nullptr, false);
    if (!status.is_object()) {
      trouble_ = "no new status: the node's answer is no JSON object   (q quits)";
      return;
    }
    status_ = std::move(status);
    trends_.take(now, status_);
  }

  [[nodiscard]] std::string phase() const {
    const auto found = status_.find("phase");
    return found != status_.end() && found->is_string() ? found->get<std::string>() : "";
  }

  void on_key(Key key, std::size_t page) {
    const auto rows = rows_of(status_, look_.table);
    const auto last = rows > 0 ? rows - 1 : 0;
    const auto back = [&](std::size_t count) {
      look_.first_row -= std::min(count, look_.first_row);
    };
    if (key == Key::neighbours || key == Key::members) {
      look_.table = key == Key::members ? Table::members : Table::neighbours;
      look_.first_row = 0;
    }
    if (key == Key::up) back(1);
    if (key == Key::page_up) back(page);
    if (key == Key::down) look_.first_row = std::min(look_.first_row + 1, last);
    if (key == Key::page_down) look_.first_row = std::min(look_.first_row + page, last);
  }

  [[nodiscard]] Frame frame(Size size, bool unicode) {
    look_.size = size;
    look_.unicode = unicode;
    return draw({.status = status_, .trends = trends_, .events = events_, .trouble = trouble_},
                look_);
  }

 private:
  void take_events() {
    for (auto& line : tail_.read()) events_.push_back(std::move(line));
    if (events_.size() > kMostKeptEvents)
      events_.erase(events_.begin(), events_.end() - kMostKeptEvents);
  }

  const std::filesystem::path dir_;
  LineTail tail_;
  nlohmann::json status_ = nlohmann::json::object();
  Trends trends_;
  std::vector<std::string> events_;
  std::string trouble_;
  Look look_;
};

}  // namespace

void show_node(Curses& screen, const std::filesystem::path& dir,
               const std::function<bool(std::string_view phase)>& ended) {
  LiveView view(dir);
  const SteadyClock clock;
  auto due = clock.now();
  bool changed = true;
  while (!ended(view.phase())) {
    if (clock.now() >= due) {
      view.look(clock.now());
      due = clock.now() + kLookEvery;
      changed = true;
    }
    const auto size = screen.size();
    if (changed) screen.show(view.frame(size, screen.unicode()));
    const auto key =
        screen.wait_key(std::clamp<Duration>(due - clock.now(), Duration{0}, kKeyPatience));
    if (key == Key::quit) break;
    changed = key != Key::none;
    view.on_key(key, std::max<std::size_t>(size.rows / 2, 1));
  }
}

OwnScreen::OwnScreen(std::unique_ptr<Curses> screen, std::filesystem::path dir,
                     std::function<void()> closed)
    : thread_([this, screen = std::move(screen), dir = std::move(dir),
               closed = std::move(closed)]() mutable {
        name_this_thread("screen");
        show_node(*screen, dir,
                  [this](std::string_view phase) { return ended_ || phase == "leaving"; });
        screen.reset();
        closed();
      }) {}

OwnScreen::~OwnScreen() {
  ended_ = true;
  thread_.join();
}

}  // namespace starling::node::terminal
