#include "node/observe/http.h"

#include "node/config/config.h"
#include "tests/node/snapshots.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

namespace {

struct PageRig {
  SnapshotBox snapshots;
  Metrics metrics;
  Health health;
  ManualClock clock;
  NullLog log;
  RecentEvents events;
  Config config;
  HttpSources sources{snapshots, metrics, health, clock, &events, &config};
  HttpOptions options;

  HttpReply get(std::string_view path, std::string_view host = "localhost:7780") {
    return answer_http({"GET", path, "", host, ""}, sources, options);
  }
};

constexpr std::uint32_t kOther = INADDR_LOOPBACK + 1;  // 127.0.0.2

// A connection to a local port from an address of 127.0.0.0/8; receiving gives up after 5 s.
int connected(const std::string& address, std::uint32_t from = INADDR_LOOPBACK) {
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{5, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(from);
  sockaddr_in target = own;
  target.sin_port = htons(port);
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)::bind(descriptor, reinterpret_cast<const sockaddr*>(&own), sizeof(own));
  (void)::connect(descriptor, reinterpret_cast<const sockaddr*>(&target), sizeof(target));
  return descriptor;
}

// What a raw request to a local port gets, until the other side closes or 5 s passed.
std::string ask_port(const std::string& address, std::string_view request) {
  const int descriptor = connected(address);
  std::string answer;
  (void)!::send(descriptor, request.data(), request.size(), MSG_NOSIGNAL);
  std::array<char, 4'096> buffer;
  for (ssize_t count = 0; (count = ::recv(descriptor, buffer.data(), buffer.size(), 0)) > 0;)
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  ::close(descriptor);
  return answer;
}

}  // namespace

TEST_SUITE("node/http") {
  TEST_CASE("probes follow the phase of the node and the heartbeat of its threads") {
    PageRig rig;
    CHECK(rig.get("/livez").status == 200);
    CHECK(rig.get("/readyz").status == 503);
    rig.snapshots.put(busy_snapshot());
    CHECK(rig.get("/readyz").status == 200);
    auto leaving = busy_snapshot();
    leaving.phase = Phase::leaving;
    rig.snapshots.put(leaving);
    CHECK(rig.get("/readyz").status == 503);
    CHECK(answer_http({"GET", "/readyz", "started", "localhost", ""}, rig.sources, rig.options)
              .status == 200);

    rig.health.beat_io(rig.clock.now());
    rig.health.beat_train(rig.clock.now());
    rig.clock.advance(59s);
    CHECK(rig.get("/livez").status == 200);
    rig.clock.advance(2s);
    CHECK(rig.get("/livez").status == 503);
    rig.health.beat_io(rig.clock.now());
    CHECK(rig.get("/livez").status == 200);
  }

  TEST_CASE("the time without a step is known from the moment on that a node is not live for it") {
    PageRig rig;
    CHECK_FALSE(rig.health.train_stands(rig.clock.now()));
    rig.health.beat_train(rig.clock.now());
    rig.clock.advance(10min);
    CHECK_FALSE(rig.health.train_stands(rig.clock.now()));
    rig.clock.advance(1s);
    CHECK(rig.get("/livez").status == 503);
    CHECK(rig.health.train_stands(rig.clock.now()) == 601s);

    rig.health.beat_train(rig.clock.now());
    CHECK_FALSE(rig.health.train_stands(rig.clock.now()));
  }

  TEST_CASE("a node whose train thread rests is live, however long ago its last step was") {
    PageRig rig;
    rig.health.beat_train(rig.clock.now());
    rig.clock.advance(10min);
    CHECK(rig.get("/livez").status == 200);
    rig.clock.advance(1s);
    CHECK(rig.get("/livez").status == 503);

    rig.health.rest_train();
    CHECK(rig.get("/livez").status == 200);

    rig.health.beat_train(rig.clock.now());
    rig.clock.advance(601s);
    CHECK(rig.get("/livez").status == 503);
  }

  TEST_CASE("a start says what its address shows: the page only where it can be read") {
    HttpOptions options;
    CHECK(way_to_page(options, "127.0.0.1:7780") ==
          "http://127.0.0.1:7780/  (the page; metrics at /metrics)");

    options.listen = "0.0.0.0:7780";
    CHECK(way_to_page(options, "0.0.0.0:7780") ==
          "http://0.0.0.0:7780/metrics  (and probes; the page needs http.token_file)");

    options.token = "tulip";
    CHECK(way_to_page(options, "0.0.0.0:7780") ==
          "http://0.0.0.0:7780/  (the page, with the token in http.token_file; metrics at "
          "/metrics)");
  }

  TEST_CASE("status, members and neighbours are there, and nothing can be changed") {
    PageRig rig;
    rig.snapshots.put(busy_snapshot());
    CHECK(nlohmann::json::parse(rig.get("/api/v1/status").body).at("phase") == "training");
    CHECK(nlohmann::json::parse(rig.get("/api/v1/members").body).at("members").size() == 4);
    CHECK(nlohmann::json::parse(rig.get("/api/v1/neighbours").body).at("neighbours").size() == 2);
    CHECK(rig.get("/api/v1/kill").status == 404);
    CHECK(rig.get("/api").status == 404);
    for (const auto* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
      CAPTURE(method);
      CHECK(answer_http({method, "/api/v1/status", "", "localhost", ""}, rig.sources, rig.options)
                .status == 405);
    }
  }

  TEST_CASE("the last events are there, and for who knows some of them those that are new") {
    PageRig rig;
    rig.events.add(LogLevel::info, "member.alive", "name=brisk-wren");
    rig.events.add(LogLevel::warn, "checkpoint.failed", "why=\xff");
    const auto ask = [&](std::string_view after) {
      return answer_http({.method = "GET",
                          .path = "/api/v1/events",
                          .query = "",
                          .host = "localhost",
                          .authorization = "",
                          .after = after},
                         rig.sources, rig.options);
    };

    const auto all = nlohmann::json::parse(ask("").body);
    CHECK(all.at("schema") == 1);
    REQUIRE(all.at("events").size() == 2);
    CHECK(all.at("events")[0].at("seq") == 1);
    CHECK(all.at("events")[0].at("level") == "info");
    CHECK(all.at("events")[0].at("event") == "member.alive");
    CHECK(all.at("events")[0].at("text") == "name=brisk-wren");
    CHECK(all.at("events")[0].at("time").get<std::string>().ends_with("Z"));
    CHECK(all.at("events")[1].at("text") == "why=\ufffd");
    CHECK(nlohmann::json::parse(ask("1").body).at("events").size() == 1);
    CHECK(nlohmann::json::parse(ask("2").body).at("events").empty());
    CHECK(nlohmann::json::parse(ask("18446744073709551615").body).at("events").size() == 2);
    for (const auto* wrong : {"-1", "+1", " 1", "1 ", "1.5", "x", "0x1", "18446744073709551616"}) {
      CAPTURE(wrong);
      CHECK(ask(wrong).status == 400);
    }

    rig.options.token = "sesame";
    CHECK(ask("").status == 401);
    rig.options.token = "";
    rig.sources.events = nullptr;
    CHECK(ask("").status == 404);
  }

  TEST_CASE("every key of the configuration is there, with its value and where that came from") {
    PageRig rig;
    rig.config.net.listen = "0.0.0.0:7700";
    rig.config.origins["net.listen"] = {Layer::flag, "--listen", {"starling.toml:7:3"}};
    rig.config.train.momentum = 0.5;
    rig.config.origins["train.momentum"] = {Layer::environment, "env STARLING_TRAIN__MOMENTUM", {}};
    rig.config.swarm.invite = "starling1:abcdefgh";
    auto status = busy_snapshot();
    status.swarm.settings = {
        {"lr", "1.7"}, {"momentum", "0.9"}, {"budget_samples", "6000000"}, {"budget_seconds", "0"}};
    rig.snapshots.put(status);

    const auto reply = rig.get("/api/v1/config");
    CHECK(reply.status == 200);
    CHECK_FALSE(reply.body.contains("abcdefgh"));
    const auto body = nlohmann::json::parse(reply.body);
    CHECK(body.at("schema") == 1);
    CHECK(body.at("settings").at("budget_samples") == "6000000");
    const auto key = [&](std::string_view name) {
      for (const auto& one : body.at("keys"))
        if (one.at("key") == name) return one;
      FAIL("no " << name);
      return nlohmann::json();
    };
    CHECK(key("net.listen").at("value") == "0.0.0.0:7700");
    CHECK(key("net.listen").at("layer") == "flag");
    CHECK(key("net.listen").at("where") == "--listen");
    CHECK(key("net.listen").at("shadows")[0] == "starling.toml:7:3");
    CHECK(key("http.listen").at("value") == "127.0.0.1:7780");
    CHECK(key("http.listen").at("layer") == "default");
    CHECK(key("swarm.invite").at("value") == "starling1:(hidden)");
    // What nobody chose here is the swarm's; what somebody chose is not.
    CHECK(key("train.lr").at("value") == "1.7");
    CHECK(key("train.lr").at("layer") == "swarm");
    CHECK(key("train.until").at("value") == "samples=6000000");
    CHECK(key("train.momentum").at("value") == "0.5");
    CHECK(key("train.momentum").at("layer") == "environment");

    rig.options.token = "sesame";
    CHECK(rig.get("/api/v1/config").status == 401);
    rig.options.token = "";
    rig.sources.config = nullptr;
    CHECK(rig.get("/api/v1/config").status == 404);
  }

  TEST_CASE(
      "of a swarm that is too large for a reply, a status shows some members and counts all") {
    PageRig rig;
    auto status = busy_snapshot();
    status.members.clear();
    for (int i = 0; i < 16'384; ++i) {
      MemberStatus one;
      one.id = std::string(64 - std::to_string(i).size(), 'a') + std::to_string(i);
      one.name = "member-" + std::to_string(99'999 - i);
      one.state = i % 2 == 0 ? MemberState::alive : MemberState::dead;
      one.self = i == 9;
      status.members.push_back(one);
    }
    rig.snapshots.put(status);
    const auto whole = rig.get("/api/v1/status");
    CHECK(whole.status == 507);
    CHECK(whole.body.contains("/api/v1/status?members="));

    const auto ask = [&](std::string_view members) {
      return answer_http({.method = "GET",
                          .path = "/api/v1/status",
                          .query = "",
                          .host = "localhost",
                          .authorization = "",
                          .members = members},
                         rig.sources, rig.options);
    };
    const auto body = nlohmann::json::parse(ask("200").body);
    CHECK(body.at("members").size() == 200);
    CHECK(body.at("members")[0].at("self") == true);
    CHECK(body.at("members")[1].at("name") == "member-83616");  // the first by name
    CHECK(body.at("members_left_out") == 16'184);
    CHECK(body.at("members_by_state").at("alive") == 8'192);
    CHECK(body.at("members_by_state").at("left") == 0);
    CHECK(nlohmann::json::parse(ask("0").body).at("members").empty());
    for (const auto* wrong : {"-1", "all", "1e3"}) {
      CAPTURE(wrong);
      CHECK(ask(wrong).status == 400);
    }
    rig.snapshots.put(busy_snapshot());
    CHECK(nlohmann::json::parse(ask("4").body).at("members_left_out") == 0);
    CHECK(nlohmann::json::parse(rig.get("/api/v1/status").body).at("members_left_out") == 0);
  }

  TEST_CASE("the page is three files that load nothing from elsewhere and hold no data") {
    PageRig rig;
    rig.snapshots.put(busy_snapshot());
    rig.options.token = "sesame";
    for (const auto& [path, type] : {std::pair{"/", "text/html; charset=utf-8"},
                                     std::pair{"/page.css", "text/css; charset=utf-8"},
                                     std::pair{"/page.js", "text/javascript; charset=utf-8"}}) {
      CAPTURE(path);
      for (const auto* listen : {"127.0.0.1:7780", "0.0.0.0:7780"}) {
        rig.options.listen = listen;
        const auto reply = rig.get(path);
        CHECK(reply.status == 200);
        CHECK(reply.type == type);
        CHECK(reply.policy.starts_with("default-src 'self';"));
        for (const auto* absent : {"sesame", "mossy-otter", "http:", "https:", "style=", "onclick",
                                   "<style", "innerHTML", "eval("})
          CHECK_FALSE(reply.body.contains(absent));
      }
      rig.options.listen = "127.0.0.1:7780";
      CHECK(rig.get(path, "evil.example").status == 403);
      CHECK(answer_http({"HEAD", path, "", "localhost", ""}, rig.sources, rig.options).status ==
            200);
      CHECK(answer_http({"POST", path, "", "localhost", ""}, rig.sources, rig.options).status ==
            405);
    }
    for (const auto* path : {"", "//", "/page", "/page.js/", "/page.css.map", "/index.html",
                             "/../page.js", "/favicon.ico"}) {
      CAPTURE(path);
      CHECK(rig.get(path).status == 404);
      CHECK(rig.get(path).policy == "default-src 'none'");
    }
  }

  TEST_CASE("a page of the web cannot read a node through a name that points to loopback") {
    PageRig rig;
    for (const auto* host :
         {"evil.example", "evil.example:7780", "", "10.0.0.1", "localhost.evil", "[::2]:7780",
          "127.evil.example", "127.0.0.1.evil.example:7780", "127."}) {
      CAPTURE(host);
      CHECK(rig.get("/api/v1/status", host).status == 403);
      CHECK(rig.get("/metrics", host).status == 403);
    }
    for (const auto* host : {"localhost", "127.0.0.1:7780", "[::1]:7780"}) {
      CAPTURE(host);
      CHECK(rig.get("/metrics", host).status == 200);
    }
  }

  TEST_CASE("on other addresses the API needs its token, metrics and probes do not") {
    PageRig rig;
    rig.options.listen = "0.0.0.0:7780";
    CHECK(rig.get("/metrics", "node.example").status == 200);
    CHECK(rig.get("/api/v1/status", "node.example").status == 403);
    rig.options.token = "sesame";
    const auto ask = [&](std::string_view authorization) {
      return answer_http({"GET", "/api/v1/status", "", "node.example", authorization}, rig.sources,
                         rig.options)
          .status;
    };
    CHECK(ask("Bearer sesame") == 200);
    for (const auto* wrong : {"", "Bearer", "Bearer ", "Bearer sesamE", "Bearer sesame2",
                              "Bearer sesam", "Basic sesame"}) {
      CAPTURE(wrong);
      CHECK(ask(wrong) == 401);
    }
  }

  TEST_CASE("the server answers over a socket and says what it is") {
    PageRig rig;
    rig.snapshots.put(busy_snapshot());
    auto server = HttpServer::start({.listen = "127.0.0.1:0"}, rig.sources, rig.log);
    REQUIRE(server);
    CHECK_FALSE((*server)->address().ends_with(":0"));

    const auto metrics =
        ask_port((*server)->address(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(metrics.starts_with("HTTP/1.1 200"));
    CHECK(metrics.find("text/plain; version=0.0.4") != std::string::npos);
    CHECK(metrics.find("starling_train_steps_total 0") != std::string::npos);
    const auto page = ask_port((*server)->address(), "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(page.starts_with("HTTP/1.1 200"));
    CHECK(page.contains("\r\nContent-Security-Policy: default-src 'self';"));
    CHECK(page.contains("\r\nX-Content-Type-Options: nosniff\r\n"));
    CHECK(page.contains("\r\nReferrer-Policy: no-referrer\r\n"));
    CHECK(page.contains("\r\nCache-Control: no-store\r\n"));
    CHECK(page.ends_with("\r\n\r\n"));
    rig.events.add(LogLevel::info, "first", "");
    const auto news = ask_port((*server)->address(),
                               "GET /api/v1/events?after=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(news.ends_with("\r\n\r\n{\"events\":[],\"schema\":1}\n"));
    CHECK(ask_port((*server)->address(),
                   "GET /api/v1/status?members=x HTTP/1.1\r\nHost: localhost\r\n\r\n")
              .starts_with("HTTP/1.1 400"));
    const auto post = ask_port((*server)->address(),
                               "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                               "3\r\n\r\nabc");
    CHECK(post.starts_with("HTTP/1.1 405"));
    CHECK(post.contains("\r\nAllow: GET, HEAD\r\n"));
    CHECK(ask_port((*server)->address(), "\x16\x03\x01 nonsense\r\n\r\n").find("200") ==
          std::string::npos);
  }

  TEST_CASE("who comes without the token is told what kind of it is wanted") {
    PageRig rig;
    auto server =
        HttpServer::start({.listen = "127.0.0.1:0", .token = "sesame"}, rig.sources, rig.log);
    REQUIRE(server);
    const auto refused =
        ask_port((*server)->address(), "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(refused.starts_with("HTTP/1.1 401"));
    CHECK(refused.contains("\r\nWWW-Authenticate: Bearer\r\n"));
  }

  TEST_CASE("who holds connections open takes no place from another address") {
    PageRig rig;
    auto server = HttpServer::start({.listen = "127.0.0.1:0"}, rig.sources, rig.log);
    REQUIRE(server);
    std::vector<int> held;
    for (int i = 0; i < 12; ++i) held.push_back(connected((*server)->address()));

    const int other = connected((*server)->address(), kOther);
    constexpr std::string_view kProbe = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    (void)!::send(other, kProbe.data(), kProbe.size(), MSG_NOSIGNAL);
    pollfd answer{other, POLLIN, 0};
    bool answered = false;
    // None of them falls silent.
    for (int turn = 0; turn < 60 && !answered; ++turn) {
      for (const int descriptor : held) (void)!::send(descriptor, "G", 1, MSG_NOSIGNAL);
      answered = ::poll(&answer, 1, 100) == 1;
    }

    CHECK(answered);
    char first = 0;
    CHECK(::recv(other, &first, 1, 0) == 1);
    CHECK(first == 'H');  // HTTP/1.1
    for (const int descriptor : held) ::close(descriptor);
    ::close(other);
  }

  TEST_CASE("a default port that is taken moves, one that a person chose is an error") {
    PageRig rig;
    auto first = HttpServer::start({.listen = "127.0.0.1:0"}, rig.sources, rig.log);
    REQUIRE(first);
    const auto taken = (*first)->address();

    auto moved = HttpServer::start({.listen = taken, .policy = PortPolicy::or_another}, rig.sources,
                                   rig.log);
    REQUIRE(moved);
    CHECK((*moved)->address() != taken);
    const auto refused = HttpServer::start({.listen = taken}, rig.sources, rig.log);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::listen_failed);
    CHECK(refused.error().detail.find(taken) != std::string::npos);
    CHECK(refused.error().detail.contains("--http"));  // the remedy
    CHECK_FALSE(HttpServer::start({.listen = "name.example:1"}, rig.sources, rig.log));
  }
}
