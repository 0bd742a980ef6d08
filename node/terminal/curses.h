// Curses: the terminal of this process, drawn by ncurses. The only place that knows that library.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/terminal/frame.h"

#include <cstdint>
#include <memory>

namespace starling::node::terminal {

enum class Key : std::uint8_t {
  none,  // nothing came in time, or nothing that means something here
  quit,
  neighbours,
  members,
  up,
  down,
  page_up,
  page_down,
  resized,
};

enum class Interrupt : std::uint8_t {
  quits,    // Ctrl-C is Key::quit
  is_ours,  // what the process does with SIGINT stays as it is
};

// Owner of the whole screen from open() to its end, which puts the terminal back as it was.
//
// One at a time, used by one thread. It takes the locale's characters from the environment; without
// colours, or with NO_COLOR, it draws without. Where the process is killed the terminal stays as it
// is: `reset` mends that.
class Curses {
 public:
  // Errors:  unsupported where standard input or output is no terminal, or TERM names none that is
  //          known.
  [[nodiscard]] static Result<std::unique_ptr<Curses>> open(Interrupt interrupt);
  ~Curses();
  Curses(const Curses&) = delete;
  Curses& operator=(const Curses&) = delete;

  [[nodiscard]] Size size() const;
  // Whether its characters are Unicode's.
  [[nodiscard]] bool unicode() const;
  // What lies beyond its edges is not drawn.
  void show(const Frame& frame);
  // Waits so long for a key. A terminal that hung up is Key::quit.
  [[nodiscard]] Key wait_key(Duration patience);

 private:
  struct Screen;
  explicit Curses(std::unique_ptr<Screen> screen);

  std::unique_ptr<Screen> screen_;
};

}  // namespace starling::node::terminal
