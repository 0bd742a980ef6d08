// `starling top` as a person runs it: a process of its own on a pseudo terminal.
#include "node/control/server.h"
#include "tests/node/control_rig.h"
#include "tests/node/snapshots.h"
#include "tests/support/temp_folder.h"
#include "tests/support/terminal_process.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <utility>

using namespace starling;
using namespace starling::node;

namespace {

class NoRequests final : public ControlHandler {
 public:
  void on_request(const ControlRequest&, ControlReply) override {}
  void drop_held() {}
};

// `starling top` on a terminal of 100 columns and 30 rows.
class Top : public TerminalProcess {
 public:
  explicit Top(const std::filesystem::path& dir,
               Environment environment = {"TERM=xterm-256color", "LANG=C.UTF-8"})
      : TerminalProcess({STARLING_STAND_IN, "top", "--dir", dir.string()}, std::move(environment)) {
  }
};

// A node that says what busy_snapshot() says, until it is told otherwise.
struct Watched {
  Watched() { rig.snapshots.put(busy_snapshot()); }
  [[nodiscard]] std::filesystem::path dir() const { return scratch.path(); }

  TempFolder scratch;
  ControlRig<NoRequests> rig{scratch.path()};
};

}  // namespace

TEST_SUITE("node/top") {
  TEST_CASE("a terminal of lines gets no screen, but what to do instead") {
    const Watched node;
    Top top(node.dir(), {"TERM=dumb", "LANG=C.UTF-8"});
    top.wait_for("starling status");
    CHECK(top.end() == 3);
    CHECK(top.seen().find('\x1b') == std::string::npos);
  }

  TEST_CASE("top shows the running node, takes keys, and leaves the terminal as it was") {
    const Watched node;
    Top top(node.dir());
    top.wait_for("mossy-otter");
    top.wait_for("brisk-wren");
    top.press("m");
    top.wait_for("MEMBER");
    top.wait_for("this node");
    top.press("q");
    CHECK(top.end() == 0);
    CHECK(top.seen().find(kPageBefore) != std::string::npos);
  }

  TEST_CASE("a screen whose terminal hangs up ends, where SIGHUP means something else") {
    const Watched node;
    // As a node has it, whose signal says that files are to be read again.
    const auto before = ::signal(SIGHUP, SIG_IGN);
    Top top(node.dir());
    (void)::signal(SIGHUP, before);
    top.wait_for("mossy-otter");
    CHECK(top.hang_up() == 0);
  }

  TEST_CASE("top follows the node, and says when it is gone") {
    Watched node;
    Top top(node.dir());
    top.wait_for("8412");
    auto later = busy_snapshot();
    later.progress.step = 9'555;
    node.rig.snapshots.put(later);
    top.wait_for("9555");
    node.rig.stop();
    top.wait_for("no new status");
    top.press("q");
    CHECK(top.end() == 0);
  }

  TEST_CASE("a wider terminal shows more of a line") {
    Watched node;
    auto status = busy_snapshot();
    status.warnings = {std::string(100, 'w') + " beyond the edge"};
    node.rig.snapshots.put(status);
    Top top(node.dir());
    top.wait_for("brisk-wren");
    CHECK(top.seen().find("beyond the edge") == std::string::npos);
    top.resize(40, 160);
    top.wait_for("beyond the edge");
    top.press("q");
    CHECK(top.end() == 0);
  }

  TEST_CASE("Ctrl-C ends top like q") {
    const Watched node;
    Top top(node.dir());
    top.wait_for("mossy-otter");
    top.press("\x03");
    CHECK(top.end() == 0);
    CHECK(top.seen().find(kPageBefore) != std::string::npos);
  }

  TEST_CASE("without colours nothing is coloured") {
    const Watched node;
    for (const bool colours : {true, false}) {
      Top top(node.dir(), {"TERM=xterm-256color", "LANG=C.UTF-8", colours ? "X=" : "NO_COLOR=1"});
      top.wait_for("brisk-wren");
      top.press("q");
      CHECK(top.end() == 0);
      CHECK((top.seen().find("\x1b[32m") != std::string::npos) == colours);  // green
    }
  }

  TEST_CASE("top without a node, or on a terminal that nobody knows, says what to do") {
    const TempFolder scratch;
    Top nobody(scratch.path());
    CHECK(nobody.end() == 3);
    CHECK(nobody.seen().find("no node runs") != std::string::npos);

    ControlRig<NoRequests> rig(scratch.path());
    Top unknown(scratch.path(), {"TERM=made-up"});
    CHECK(unknown.end() == 3);
    CHECK(unknown.seen().find("TERM is 'made-up'") != std::string::npos);
  }
}
