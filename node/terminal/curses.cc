#include "node/terminal/curses.h"

#include "node/base/check.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#define NCURSES_NOMACROS
#include <curses.h>
#include <term.h>
#undef columns
#undef lines

namespace starling::node::terminal {

namespace {

volatile sig_atomic_t interrupted = 0;

bool wants_colours() {
  const char* no = std::getenv("NO_COLOR");
  return ::has_colors() && (no == nullptr || *no == '\0');
}

// How a style looks: without colours by weight alone.
std::array<attr_t, kStyles> attributes(bool colours) {
  const auto of = [&](short pair) {
    return colours ? static_cast<attr_t>(COLOR_PAIR(pair)) : A_NORMAL;
  };
  if (colours) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(1, COLOR_GREEN, -1);
    ::init_pair(2, COLOR_YELLOW, -1);
    ::init_pair(3, COLOR_RED, -1);
  }
  return {A_NORMAL, A_DIM, A_BOLD, of(1), of(2), of(3) | A_BOLD, A_REVERSE};
}

// Whether the person's end of the terminal is gone: nothing waits for a key any more.
bool hung_up() {
  pollfd keys{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&keys, 1, 0) == 1 && (keys.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

Key key_of(int key) {
  switch (key) {
    case 'q':
    case 'Q':
      return Key::quit;
    case 'n':
      return Key::neighbours;
    case 'm':
      return Key::members;
    case KEY_UP:
    case 'k':
      return Key::up;
    case KEY_DOWN:
    case 'j':
      return Key::down;
    case KEY_PPAGE:
      return Key::page_up;
    case KEY_NPAGE:
      return Key::page_down;
    case KEY_RESIZE:
      return Key::resized;
    default:
      return Key::none;
  }
}

std::string_view named_terminal() {
  const char* term = std::getenv("TERM");
  return term == nullptr ? "" : std::string_view(term).substr(0, 64);
}

std::unexpected<Error> unknown_terminal() {
  return fail(Errc::unsupported, Doing::starting,
              fmt::format("TERM is '{}', which is no terminal that this machine knows: set it "
                          "(TERM=xterm), or use `starling status`",
                          named_terminal()));
}

// `dumb` is in the terminal database, and ncurses would draw on it all the same.
std::unexpected<Error> terminal_of_lines() {
  return fail(
      Errc::unsupported, Doing::starting,
      fmt::format("TERM is '{}', a terminal that shows lines only: use `starling status`, or "
                  "set TERM where it can do more (TERM=xterm)",
                  named_terminal()));
}

}  // namespace

struct Curses::Screen {
  SCREEN* terminal = nullptr;
  // Twice as wide as the screen, which shows its left half: a line that is too long ends at the
  // edge instead of going on in the next one.
  WINDOW* pad = nullptr;
  Size pad_size;
  std::array<attr_t, kStyles> attributes{};
  bool unicode = false;
  std::optional<struct sigaction> before;  // of SIGINT
};

Result<std::unique_ptr<Curses>> Curses::open(Interrupt interrupt) {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1)
    return fail(Errc::unsupported, Doing::starting,
                "the live screen needs a terminal as standard input and output; `starling status` "
                "says the same once, in lines or as --json");
  // Asked beforehand, because newterm() leaks what it began where nobody knows the terminal.
  int why = 0;
  if (::setupterm(nullptr, STDOUT_FILENO, &why) != OK) return unknown_terminal();
  std::array<char, 4> moves{"cup"};
  const bool draws = ::tigetstr(moves.data()) != nullptr;
  (void)::del_curterm(::cur_term);
  if (!draws) return terminal_of_lines();
  std::setlocale(LC_CTYPE, "");
  // Before ncurses, which takes over what nobody handles, and would end the process with a failure.
  struct sigaction stop{};
  stop.sa_handler = [](int) { interrupted = 1; };
  auto screen = std::make_unique<Screen>();
  if (interrupt == Interrupt::quits) {
    screen->before.emplace();
    (void)::sigaction(SIGINT, &stop, &*screen->before);
  }
  screen->terminal = ::newterm(nullptr, stdout, stdin);
  if (screen->terminal == nullptr) {
    if (screen->before) (void)::sigaction(SIGINT, &*screen->before, nullptr);
    return unknown_terminal();
  }
  interrupted = 0;
  ::cbreak();
  ::noecho();
  ::curs_set(0);
  screen->unicode = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
  screen->attributes = terminal::attributes(wants_colours());
  return std::unique_ptr<Curses>(new Curses(std::move(screen)));
}

Curses::Curses(std::unique_ptr<Screen> screen) : screen_(std::move(screen)) {}

Curses::~Curses() {
  if (screen_->pad != nullptr) ::delwin(screen_->pad);
  ::endwin();
  ::delscreen(screen_->terminal);
  if (screen_->before) (void)::sigaction(SIGINT, &*screen_->before, nullptr);
}

Size Curses::size() const {
  return {static_cast<std::size_t>(std::max(::getmaxx(stdscr), 1)),
          static_cast<std::size_t>(std::max(::getmaxy(stdscr), 1))};
}

bool Curses::unicode() const { return screen_->unicode; }

void Curses::show(const Frame& frame) {
  const auto now = size();
  auto& screen = *screen_;
  if (screen.pad == nullptr || screen.pad_size.columns != now.columns ||
      screen.pad_size.rows != now.rows) {
    if (screen.pad != nullptr) ::delwin(screen.pad);
    screen.pad = ::newpad(static_cast<int>(now.rows), static_cast<int>(2 * now.columns));
    STARLING_CHECK(screen.pad != nullptr);
    screen.pad_size = now;
    ::keypad(screen.pad, true);
  }
  ::werase(screen.pad);
  for (std::size_t row = 0; row < std::min(frame.size(), now.rows); ++row) {
    ::wmove(screen.pad, static_cast<int>(row), 0);
    for (const auto& span : frame[row]) {
      ::wattrset(screen.pad,
                 static_cast<int>(screen.attributes[static_cast<std::size_t>(span.style)]));
      ::waddstr(screen.pad, span.text.c_str());
    }
  }
  ::prefresh(screen.pad, 0, 0, 0, 0, static_cast<int>(now.rows) - 1,
             static_cast<int>(now.columns) - 1);
}

Key Curses::wait_key(Duration patience) {
  if (interrupted != 0) return Key::quit;
  WINDOW* window = screen_->pad != nullptr ? screen_->pad : stdscr;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  ::wtimeout(window, static_cast<int>(std::clamp<std::int64_t>(ms, 0, 60'000)));
  const int key = ::wgetch(window);
  if (interrupted != 0 || (key == ERR && hung_up())) return Key::quit;
  return key_of(key);
}

}  // namespace starling::node::terminal
