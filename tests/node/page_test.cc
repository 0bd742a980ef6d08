// The page of a node as a browser shows it.
#include "node/config/config.h"
#include "node/observe/fields.h"
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
  RecentEvents events;
  Config config;
  std::unique_ptr<HttpServer> server;
  Browser browser{browser_program()};

  void serve(HttpOptions options = {.listen = "127.0.0.1:0"}) {
    auto started = HttpServer::start(std::move(options),
                                     {snapshots, metrics, health, clock, &events, &config}, log);
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

  TEST_CASE("a person reads what happened, the newest first, and what comes is added") {
    constexpr std::string_view kHostile = "name=\"<img src=x onerror=alert(1)>\"";
    ShownNode shown;
    shown.snapshots.put(busy_snapshot());
    shown.events.add(LogLevel::info, "member.alive", kHostile);
    shown.events.add(LogLevel::warn, "checkpoint.failed", "why=\"disk full\"");
    shown.serve();
    shown.open();

    REQUIRE(shown.comes_to_say("events", "member.alive"));
    CHECK(shown.text_of("events").contains(kHostile));
    CHECK(shown.browser.value_of("document.images.length") == 0);
    const auto first = [&] {
      return shown.browser.value_of("document.querySelector('#events li').innerText")
          .get<std::string>();
    };
    CHECK(first().contains("warn"));
    CHECK(first().contains("checkpoint.failed why=\"disk full\""));
    CHECK(shown.browser.value_of("/^\\d\\d:\\d\\d:\\d\\d$/.test(document.querySelector('#events "
                                 "time').innerText)") == true);

    shown.events.add(LogLevel::error, "train.failed", "");
    REQUIRE(shown.comes_to_say("events", "train.failed"));
    CHECK(first().contains("error"));
    CHECK(shown.browser.value_of("document.querySelectorAll('#events li').length") == 3);
  }

  TEST_CASE("the events of a node that was started again replace those of the one before") {
    ShownNode shown;
    auto status = busy_snapshot();
    shown.snapshots.put(status);
    for (int i = 0; i < 3; ++i) shown.events.add(LogLevel::info, "before", "");
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("events", "before"));

    const auto address = shown.server->address();
    shown.server.reset();
    REQUIRE(shown.comes_to_say("contact", "trying again"));
    RecentEvents fresh;
    for (int i = 0; i < 5; ++i) fresh.add(LogLevel::info, "afterwards", "");
    // For longer than the one before, when it was looked at last.
    status.node.uptime_s += 100;
    status.node.instance = std::string(16, '2');
    shown.snapshots.put(status);
    auto again = HttpServer::start(
        {.listen = address},
        {shown.snapshots, shown.metrics, shown.health, shown.clock, &fresh, nullptr}, shown.log);
    REQUIRE(again);
    REQUIRE(shown.comes_to_say("events", "afterwards"));
    CHECK(shown.browser.value_of("document.querySelectorAll('#events li').length") == 5);
    CHECK_FALSE(shown.text_of("events").contains("before"));
  }

  TEST_CASE("the picture has this node, its edges, and of the others no edges at all") {
    ShownNode shown;
    auto status = busy_snapshot();
    NeighbourStatus dropped;
    dropped.id = std::string(64, 'e');
    dropped.state = MemberState::left;
    dropped.edge = "closed";
    dropped.exchanges = 9;
    dropped.dropped = 1;
    status.neighbours.push_back(dropped);
    shown.snapshots.put(status);
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));

    const auto count = [&](const std::string& selector) {
      return shown.browser.value_of("document.querySelectorAll('#picture " + selector +
                                    "').length");
    };
    CHECK(count("#dots > g") == 4);
    CHECK(count("#dots > .hub") == 1);
    CHECK(count("#edges line") == 2);
    CHECK(count("#edges line[data-state=lost]") == 1);
    CHECK(
        shown.browser.value_of("document.getElementById('in_words').textContent") ==
        R"(4 members, this node in the middle; its edges: ash\x1b[2J\x0aheron (lost), brisk-wren)");
    CHECK(shown.browser.value_of("document.querySelector('#dots .hub text').textContent") ==
          "mossy-otter");
    CHECK(
        shown.browser.value_of("new Set([...document.querySelectorAll('#dots path')].map((path) "
                               "=> path.getAttribute('d').replace(/^M\\S+ [\\d.-]+/, ''))).size") ==
        4);  // a shape for each state and for this node
    CHECK(shown.text_of("not_drawn").empty());
  }

  TEST_CASE("of a large swarm the page shows a part, and how many it leaves out") {
    ShownNode shown;
    auto status = busy_snapshot();
    for (int i = 0; i < 16'000; ++i) {
      MemberStatus one;
      one.id = std::string(64 - std::to_string(i).size(), '0') + std::to_string(i);
      one.name = "member-" + std::to_string(i);
      one.state = MemberState::alive;
      status.members.push_back(one);
    }
    shown.snapshots.put(status);
    shown.serve();
    shown.open();

    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("swarm").starts_with("16002 alive, 1 suspect, 1 left"));
    CHECK(shown.text_of("members").contains("and 15804 more: starling members shows all"));
    CHECK(shown.browser.value_of("document.querySelectorAll('#dots > g').length") == 64);
    CHECK(shown.text_of("not_drawn") == "15940 more members are not drawn.");
    CHECK(shown.browser.value_of("document.querySelectorAll('#edges line').length") == 2);
  }

  TEST_CASE("the configuration is asked for when somebody opens it") {
    ShownNode shown;
    auto status = busy_snapshot();
    status.swarm.settings = {{"lr", "1.7"}};
    shown.snapshots.put(status);
    shown.config.net.listen = "0.0.0.0:7700";
    shown.config.origins["net.listen"] = {Layer::flag, "--listen", {"starling.toml:7:3"}};
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.browser.value_of("document.getElementById('keys').children.length") == 0);

    shown.browser.value_of("document.querySelector('summary').click()");
    REQUIRE(shown.comes_to_say("keys", "net.listen"));
    const auto keys = shown.text_of("keys");
    CAPTURE(keys);
    CHECK(keys.contains("net.listen\t0.0.0.0:7700\t--listen (shadows starling.toml:7:3)"));
    CHECK(keys.contains("train.lr\t1.7\tswarm"));
    CHECK(shown.text_of("configured") == "what all nodes of this swarm train: lr 1.7");
  }

  TEST_CASE("an open configuration follows the settings of the swarm, and a restart") {
    ShownNode shown;
    auto status = busy_snapshot();
    status.swarm.settings = {{"lr", "1.7"}};
    shown.snapshots.put(status);
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));
    shown.browser.value_of("document.querySelector('summary').click()");
    REQUIRE(shown.comes_to_say("configured", "lr 1.7"));

    status.swarm.settings = {{"lr", "0.9"}};
    status.swarm.fingerprint = "99ab";
    shown.snapshots.put(status);
    CHECK(shown.comes_to_say("configured", "lr 0.9"));

    status.swarm.settings = {{"lr", "0.4"}};
    status.node.instance = std::string(16, '2');
    shown.snapshots.put(status);
    CHECK(shown.comes_to_say("configured", "lr 0.4"));
  }

  TEST_CASE("a node that waits for a model says how much of it has come, and from whom") {
    ShownNode shown;
    auto status = busy_snapshot();
    status.phase = Phase::joining;
    status.join = {.phase = "loading",
                   .sponsor = std::string(64, 'c'),
                   .bytes_done = 61'000'000,
                   .bytes_total = 205'000'000};
    shown.snapshots.put(status);
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("join") == "loading 61.0 MB of 205 MB from cccccccc");
    CHECK(shown.text_of("joining").starts_with("join"));

    status.join = {.phase = "<b>choosing</b>", .sponsor = "", .bytes_done = 0, .bytes_total = 0};
    shown.snapshots.put(status);
    REQUIRE(shown.comes_to_say("join", "choosing"));
    CHECK(shown.text_of("join") == "<b>choosing</b>");

    status.join.reset();
    status.phase = Phase::training;
    shown.snapshots.put(status);
    REQUIRE(shown.comes_to_say("phase", "training"));
    CHECK(shown.text_of("joining").empty());
  }

  TEST_CASE("a node that nobody can dial says so on the page, and what to do") {
    ShownNode shown;
    auto status = busy_snapshot();
    shown.snapshots.put(status);
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("reachable").empty());

    status.reachable = "no";
    ++status.progress.step;
    shown.snapshots.put(status);
    REQUIRE(shown.comes_to_say("done", "step " + std::to_string(status.progress.step)));
    CHECK(shown.text_of("reachable") == fields::reachable_of(to_json(status)));
    CHECK(shown.text_of("reachable").contains("TCP 7700"));
  }

  TEST_CASE("a final consensus that waits says for what, and who is not there") {
    ShownNode shown;
    auto status = busy_snapshot();
    status.phase = Phase::finishing;
    status.consensus = {"reducing", 2, "", {std::string(64, 'a'), std::string(64, 'd')}, 0};
    status.consensus.phase = "reducing";
    status.consensus.bytes_left = 12'000'000;
    status.consensus.bytes_total = 97'500'000;
    status.consensus.reason = "brisk-wren died";
    shown.snapshots.put(status);
    shown.serve();
    shown.open();

    REQUIRE(shown.comes_to_say("contact", "live"));
    CHECK(shown.text_of("agreement") ==
          "phase reducing, 12.0 MB of 97.5 MB left; the last epoch was given up: brisk-wren died");
    CHECK(shown.text_of("missing") == R"(missing: ash\x1b[2J\x0aheron (suspect))");

    status.consensus.state = "certified";
    shown.snapshots.put(status);
    REQUIRE(shown.comes_to_say("consensus", "certified"));
    CHECK(shown.text_of("agreement").empty());
    CHECK(shown.text_of("missing").empty());
  }

  TEST_CASE("the page writes a figure as the live screen does") {
    ShownNode shown;
    auto status = busy_snapshot();
    shown.snapshots.put(status);
    shown.serve();
    shown.open();
    for (const double value : {0.5, 3.7e-3, 1.23456e-4, 9.99996e-5, 3.7e-5, 2.5e-7, 24'300.25}) {
      CAPTURE(value);
      ++status.progress.step;
      status.neighbours[0].disagreement_ratio = value;
      status.neighbours[0].rtt_ms = value;
      shown.snapshots.put(status);
      REQUIRE(shown.comes_to_say("done", "step " + std::to_string(status.progress.step)));
      const auto edge = to_json(status).at("neighbours")[0];
      const auto row = shown.text_of("neighbours");
      CAPTURE(row);
      CHECK(row.contains("\t" + fields::with_unit(edge, "rtt_ms", "ms") + "\t"));
      CHECK(row.contains("\t" + fields::show(edge, {"disagreement_ratio"}) + "\t"));
    }
  }

  TEST_CASE("the page fits a narrow window, is dark where that is wanted, and needs no mouse") {
    ShownNode shown;
    shown.snapshots.put(busy_snapshot());
    shown.events.add(LogLevel::warn, "payload.refused", "why=" + std::string(300, 'x'));
    shown.serve();
    shown.open();
    REQUIRE(shown.comes_to_say("events", "payload.refused"));
    shown.browser.resize(360, "dark");
    shown.browser.value_of("document.querySelector('summary').click()");
    REQUIRE(shown.comes_to_say("keys", "net.listen"));

    CHECK(shown.browser.value_of("(({scrollWidth, clientWidth}) => scrollWidth <= "
                                 "clientWidth)(document.documentElement)") == true);
    CHECK(shown.browser.value_of("getComputedStyle(document.body).backgroundColor") ==
          "rgb(20, 25, 29)");
    // Whatever scrolls by itself can be reached and has a name.
    CHECK(shown.browser.value_of(
              "[...document.querySelectorAll('.table, #events')].every((place) => place.tabIndex "
              "=== 0 && (place.getAttribute('aria-label') || document.getElementById("
              "place.getAttribute('aria-labelledby'))))") == true);
  }
}
