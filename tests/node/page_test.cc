// The page of a node as a browser shows it.
#include "node/observe/http.h"
#include "tests/node/browser.h"
#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

using namespace starling;
using namespace starling::node;

namespace {

// A browser, or the end of this program as skipped.
std::string browser_program() {
  if (std::string_view(STARLING_BROWSER).empty()) {
    std::fputs("skipped: no Chromium; deploy/setup --tests brings chromium-headless-shell\n",
               stderr);
    std::exit(77);
  }
  return STARLING_BROWSER;
}

// A node's HTTP port with a snapshot behind it, and a browser that looks at it.
struct ShownNode {
  SnapshotBox snapshots;
  Metrics metrics;
  Health health;
  ManualClock clock;
  NullLog log;
  std::unique_ptr<HttpServer> server;
  Browser browser{browser_program()};

  void serve(HttpOptions options = {.listen = "127.0.0.1:0"}) {
    auto started = HttpServer::start(std::move(options), {snapshots, metrics, health, clock}, log);
    REQUIRE(started);
    server = std::move(*started);
  }
  void open() { browser.open("http://" + server->address() + "/"); }

  // What a person reads in an element; nothing in one that does not show.
  std::string text_of(const std::string& id) {
    const auto element = "document.getElementById('" + id + "')";
    return browser.value_of(element + ".checkVisibility() ? " + element + ".innerText : ''")
        .get<std::string>();
  }
  bool comes_to_say(const std::string& id, const std::string& text) {
    return browser.becomes_true("document.getElementById('" + id + "').innerText.includes(" +
                                nlohmann::json(text).dump() + ")");
  }
};

}  // namespace

TEST_SUITE("node/page") {
  TEST_CASE("the page shows a node's figures, and goes on with it") {
    ShownNode shown;
    auto status = busy_snapshot();
    shown.snapshots.put(status);
    shown.serve();
    shown.open();

    REQUIRE(shown.comes_to_say("contact", "live"));
    const auto page = shown.text_of("node");
    CAPTURE(page);
    for (const auto* figure :
         {"2914 img/s", "swarm 23180", "2.4170", "1h38m", "35.0 %  epoch 3.57  step 8412",
          "2 alive, 1 suspect, 1 left", "disagreement 0.0037", "offers every 8 steps",
          "sent 3.0 MB", "brisk-wren", "4.2 ms", "3 probes unanswered", "this node"}) {
      CAPTURE(figure);
      CHECK(page.contains(figure));
    }
    CHECK(shown.text_of("name") == "mossy-otter");
    CHECK(shown.text_of("phase") == "training");
    CHECK(shown.browser.value_of("document.title") == "35.0 % mossy-otter - starling");
    CHECK(shown.text_of("end").empty());

    status.progress.step = 8'500;
    status.traffic.bytes_sent += 1'000'000;
    status.warnings = {"no other member is in reach"};
    status.consensus = {"certified", 2, std::string(64, 'f'), {std::string(64, 'c'), "abc"}, 2};
    shown.snapshots.put(status);
    REQUIRE(shown.comes_to_say("done", "step 8500"));
    CHECK(shown.text_of("warnings") == "no other member is in reach");
    const auto end = shown.text_of("end");
    CAPTURE(end);
    for (const auto* part : {"certified", "epoch 2, 2 participants, 2 identical", "blake2b ffffff",
                             "brisk-wren, abc"}) {
      CAPTURE(part);
      CHECK(end.contains(part));
    }
    // Every curve has a line by now, and says in words what it shows.
    CHECK(shown.browser.becomes_true(
        "[...document.querySelectorAll('svg')].filter((svg) => "
        "svg.querySelector('path').getAttribute('d').includes('L') && "
        "svg.querySelector('title').textContent.includes('between')).length === 4"));
  }

  TEST_CASE("names that strangers chose are text, whatever they look like") {
    constexpr std::string_view kHostile = "<img src=x onerror=\"document.title='taken'\">";
    ShownNode shown;
    auto status = busy_snapshot();
    status.node.name = kHostile;
    status.members[1].name = kHostile;
    status.members[3].name = "</td><script>document.title='taken'</script>";
    status.neighbours[0].name = kHostile;
    status.neighbours[1].name = "\u202egnp.exe";
    status.consensus.participants = {std::string(64, 'c')};
    status.consensus.state = kHostile;
    status.warnings = {std::string(kHostile)};
    shown.snapshots.put(status);
    shown.serve();
    shown.open();

    REQUIRE(shown.comes_to_say("contact", "live"));
    for (const auto* id :
         {"name", "members", "neighbours", "consensus", "participants", "warnings"}) {
      CAPTURE(id);
      CHECK(shown.text_of(id).contains(kHostile));
    }
    CHECK(shown.text_of("members").contains(R"(ash\x1b[2J\x0aheron)"));
    CHECK(shown.text_of("neighbours").contains(R"(\xe2\x80\xaegnp.exe)"));
    CHECK(shown.browser.value_of("document.images.length") == 0);
    CHECK(shown.browser.value_of("document.scripts.length") == 1);
    CHECK(shown.browser.value_of("document.title") ==
          "35.0 % " + std::string(kHostile) + " - starling");
    // Should the script ever make HTML of a text, the browser refuses.
    CHECK(shown.browser.value_of(
              "(() => { try { document.body.innerHTML = 'x'; } catch { return 'refused'; } })()") ==
          "refused");
  }

  TEST_CASE("a page whose node is gone says since when, why, and goes on when it is back") {
    ShownNode shown;
    shown.snapshots.put(busy_snapshot());
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));

    const auto address = shown.server->address();
    shown.server.reset();
    REQUIRE(shown.comes_to_say("contact", "trying again"));
    CHECK(shown.browser.value_of(R"(/^lost contact at \d\d:\d\d:\d\d, trying again$/)"
                                 ".test(document.getElementById('contact').innerText)") == true);
    CHECK(shown.text_of("node").contains("2914 img/s"));  // what was known last

    auto status = busy_snapshot();
    status.phase = Phase::finished;
    status.consensus = {"certified", 1, std::string(64, 'f'), {std::string(64, 'a')}, 1};
    shown.snapshots.put(status);
    shown.serve({.listen = address});
    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("phase") == "finished");

    shown.server.reset();
    REQUIRE(shown.comes_to_say("contact", "trying again"));
    CHECK(shown.text_of("contact").starts_with(
        "the run has ended: final consensus certified, 1/1 replicas identical; lost contact at "));
  }

  TEST_CASE("a node that wants its token is shown to those who type it, and to nobody else") {
    ShownNode shown;
    shown.snapshots.put(busy_snapshot());
    shown.serve({.listen = "127.0.0.1:0", .token = "sesame"});
    shown.open();
    const auto type = [&](const std::string& token) {
      shown.browser.value_of("(() => { document.getElementById('token').value = '" + token +
                             "'; document.querySelector('#door button').click(); })()");
    };
    REQUIRE(shown.comes_to_say("asks", "http.token_file"));
    CHECK(shown.text_of("node").empty());

    type("sesam");
    REQUIRE(shown.comes_to_say("asks", "That was not the token."));
    CHECK(shown.text_of("node").empty());

    type("sesame");
    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("node").contains("2914 img/s"));
    CHECK(shown.browser.value_of("localStorage.length + sessionStorage.length + "
                                 "document.cookie.length + location.search.length") == 0);
    CHECK(shown.browser.value_of("document.documentElement.outerHTML.includes('sesame')") == false);
  }
}
