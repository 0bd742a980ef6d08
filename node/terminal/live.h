// The live screen at work: it asks a node each second, takes keys, and draws.
#pragma once

#include "node/terminal/curses.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace starling::node::terminal {

// Shows the node that runs in `dir` until somebody quits, or `ended` says so of its phase; before
// its first status that is empty. A node that does not answer stays as it was, with a line that
// says why.
//
// Thread:  one, which waits for keys, the disk and the node's control socket, 2 s for each answer.
void show_node(Curses& screen, const std::filesystem::path& dir,
               const std::function<bool(std::string_view phase)>& ended);

// The screen of this very process (`starling run --ui tui`), on a thread of its own: it asks over
// the control socket like any other. Where the node leaves it closes: what that says is to be read.
//
// `closed` is called once, on that thread, when the terminal is as it was; before the end of the
// object at the latest.
class OwnScreen {
 public:
  OwnScreen(std::unique_ptr<Curses> screen, std::filesystem::path dir,
            std::function<void()> closed);
  ~OwnScreen();
  OwnScreen(const OwnScreen&) = delete;
  OwnScreen& operator=(const OwnScreen&) = delete;

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace starling::node::terminal
