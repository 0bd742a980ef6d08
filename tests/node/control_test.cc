#include "node/base/random.h"
#include "node/control/caller.h"
#include "node/control/request.h"
#include "node/control/server.h"
#include "node/control/socket_path.h"
#include "node/state_dir.h"
#include "tests/node/control_rig.h"
#include "tests/node/said.h"
#include "tests/node/snapshots.h"
#include "tests/support/temp_folder.h"

#include <asio/post.hpp>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

namespace {

// Answers every verb in the way that its kind says.
class Handler final : public ControlHandler {
 public:
  void on_request(const ControlRequest& request, ControlReply reply) override {
    if (std::holds_alternative<FinishRequest>(request)) {
      reply.done({{"message", "done"}});
      reply.done({{"message", "twice"}});
    } else if (std::holds_alternative<JoinRequest>(request)) {
      reply.fail({Errc::connect_failed, Doing::joining, "nobody answers"});
    } else if (std::holds_alternative<EvalRequest>(request) ||
               std::holds_alternative<LeaveRequest>(request)) {
      held = reply;  // answered later, or never
    }
    // Everything else is dropped: a bug that the server has to survive.
  }

  void drop_held() { held.reset(); }

  std::optional<ControlReply> held;
};

using Rig = ControlRig<Handler>;

// What a verb writes to standard error, one line after the other, and who is told of each.
class ToldLines final : public std::stringbuf {
 public:
  explicit ToldLines(std::function<void()> on_line) : on_line_(std::move(on_line)) {}

 private:
  int sync() override {
    on_line_();
    return 0;
  }

  std::function<void()> on_line_;
};

// The address of DIR/control.sock; `path` keeps it usable.
sockaddr_un address_of(const SocketPath& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(static_cast<void*>(address.sun_path), path.text().c_str(), path.text().size() + 1);
  return address;
}

// The socket of a node that stands still: nobody accepts, and there is no room to wait in either.
class FrozenNode {
 public:
  explicit FrozenNode(const std::filesystem::path& dir) {
    const auto path = SocketPath::in(dir);
    REQUIRE(path);
    const auto address = address_of(*path);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    open_.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(open_.back(), generic, sizeof(address)) == 0);
    REQUIRE(::listen(open_.back(), 0) == 0);
    while (true) {
      open_.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (::connect(open_.back(), generic, sizeof(address)) == 0) continue;
      REQUIRE(errno == EAGAIN);
      break;
    }
  }
  ~FrozenNode() {
    for (const int descriptor : open_) ::close(descriptor);
  }
  FrozenNode(const FrozenNode&) = delete;
  FrozenNode& operator=(const FrozenNode&) = delete;

 private:
  std::vector<int> open_;
};

// Sends bytes as they are and returns what comes back until the end or 5 s.
std::string raw(const std::filesystem::path& dir, std::string_view bytes) {
  const auto path = SocketPath::in(dir);
  REQUIRE(path);
  const auto address = address_of(*path);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{5, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string answer;
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    (void)!::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(descriptor, SHUT_WR);
    std::array<char, 4'096> buffer;
    for (ssize_t count = 0; (count = ::recv(descriptor, buffer.data(), buffer.size(), 0)) > 0;)
      answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(descriptor);
  return answer;
}

}  // namespace

TEST_SUITE("node/control") {
  TEST_CASE("every request comes back from its own line") {
    const std::vector<ControlRequest> requests{
        StatusRequest{},     MembersRequest{},
        NeighboursRequest{}, JoinRequest{{"10.0.0.7:7700", "dns:x:1"}},
        LeaveRequest{},      LeaveRequest{Duration(90s)},
        FinishRequest{},     MergeRequest{},
        EvalRequest{},       LogLevelRequest{LogLevel::debug},
        InviteRequest{},     InviteRequest{std::chrono::minutes(90)}};
    for (const auto& request : requests) {
      auto line = encode_request(request);
      CAPTURE(line);
      REQUIRE(line.ends_with('\n'));
      line.pop_back();
      const auto parsed = parse_request(line);
      REQUIRE(parsed);
      CHECK(parsed->index() == request.index());
      CHECK(encode_request(*parsed) == line + "\n");
    }
  }

  TEST_CASE("what is not exactly one request is refused with the reason") {
    for (const auto* line : {"",
                             "status",
                             "[]",
                             "null",
                             "{}",
                             R"({"verb":3})",
                             R"({"verb":"kill"})",
                             R"({"verb":"status","args":{"x":1}})",
                             R"({"verb":"status","extra":1})",
                             R"({"verb":"status","schema":2})",
                             R"({"verb":"status","args":[]})",
                             R"({"verb":"join"})",
                             R"({"verb":"join","args":{"addresses":[]}})",
                             R"({"verb":"join","args":{"addresses":["a\nb"]}})",
                             R"({"verb":"join","args":{"addresses":[1]}})",
                             R"({"verb":"leave","args":{"timeout":5}})",
                             R"({"verb":"leave","args":{"timeout":"5"}})",
                             R"({"verb":"leave","args":{"timeout":"0"}})",
                             R"({"verb":"leave","args":{"timeout":"99ms"}})",
                             R"({"verb":"leave","args":{"timeout":"11m"}})",
                             R"({"verb":"log-level","args":{"level":"loud"}})",
                             R"({"verb":"invite","args":{"ttl":"1s"}})",
                             R"({"verb":"invite","args":{"ttl":"31d"}})",
                             R"({"verb":"invite","args":{"ttl":24}})",
                             R"({"verb":"invite","args":{"swarm":"x"}})",
                             R"({"verb":"status"} {})",
                             R"({"verb":[[[[[[[[[[1]]]]]]]]]]})"}) {
      CAPTURE(line);
      const auto parsed = parse_request(line);
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().code == Errc::bad_argument);
      CHECK_FALSE(parsed.error().detail.empty());
    }
    CHECK(parse_request(std::string(kMaxControlRequest + 1, ' ')).error().code == Errc::too_large);
    CHECK_FALSE(parse_request(std::string(kMaxControlRequest, '[')));
  }

  TEST_CASE("a wrong value of a request is repeated, with the flag that it came by") {
    const auto why = [](const char* line) {
      const auto parsed = parse_request(line);
      return parsed ? std::string("nothing is wrong") : parsed.error().detail;
    };
    CHECK(why(R"({"verb":"log-level","args":{"level":"loud"}})").contains("loud is no level"));
    CHECK(why(R"({"verb":"invite","args":{"ttl":"1s"}})").contains("--ttl 1s"));
    CHECK(why(R"({"verb":"invite","args":{"ttl":"soon"}})").contains("--ttl soon"));
    CHECK(why(R"({"verb":"leave","args":{"timeout":"0"}})").contains("--timeout 0"));
    CHECK(why(R"({"verb":"leave","args":{"timeout":"soon"}})").contains("--timeout soon"));
  }

  TEST_CASE("random bytes and broken requests are refused and never crash") {
    const std::string base = encode_request(JoinRequest{{"10.0.0.7:7700"}});
    for (std::uint64_t seed = 1; seed <= 5'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      auto line = base;
      for (auto changes = 1 + rng.below(4); changes > 0; --changes)
        line[static_cast<std::size_t>(rng.below(line.size()))] = static_cast<char>(rng.below(256));
      const auto parsed = parse_request(line);
      if (parsed) CHECK(parse_request(encode_request(*parsed)));
      (void)parse_answer(line);
    }
  }

  TEST_CASE("a process that holds the folder and takes no requests yet is not taken for none") {
    const TempFolder scratch;
    const auto dir = scratch.path() / "node";
    const auto answer = [&] {
      const auto answered = ask_node(dir, StatusRequest{}, 1s);
      REQUIRE_FALSE(answered);
      CHECK(answered.error().code == Errc::not_found);
      return answered.error().detail;
    };
    {
      const auto held = StateDir::open(dir);
      REQUIRE(held);
      const auto starting = answer();
      CHECK(starting.starts_with("process " + std::to_string(::getpid()) + " is starting in "));
      CHECK(starting.find("no node runs") == std::string::npos);
    }
    // The file is still there, with the number of a process that lives.
    CHECK(std::filesystem::exists(dir / "lock"));
    CHECK(answer().starts_with("no node runs in "));
  }

  TEST_CASE("an answer that nests without end is refused, and one as deep as a status is not") {
    const auto of_depth = [](std::size_t depth) {
      return R"({"kind":"result","body":)" + std::string(depth, '[') + std::string(depth, ']') +
             '}';
    };
    for (const std::size_t deep : {std::size_t{16}, std::size_t{100'000}}) {
      const auto refused = parse_answer(of_depth(deep));
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == Errc::bad_message);
    }
    CHECK(parse_answer(of_depth(15)));
    const auto text = parse_answer(R"({"kind":"result","body":"\"[[[[[[[[[[[[[[[[[[[[\\"})");
    REQUIRE(text);
    CHECK(text->body == R"("\"[[[[[[[[[[[[[[[[[[[[\\")");
  }

  TEST_CASE("errors keep their code and their sentence on the way") {
    const ControlAnswer sent{ControlAnswer::Kind::error,
                             "",
                             {Errc::replicas_differ, Doing::certifying, "2 of 4 \n\xff"}};
    auto line = encode_answer(sent);
    line.pop_back();
    const auto got = parse_answer(line);
    REQUIRE(got);
    CHECK(got->error.code == Errc::replicas_differ);
    CHECK(got->error.detail.starts_with("2 of 4 \n"));
    CHECK(line.find('\n') == std::string::npos);
  }

  TEST_CASE("a verb gets status, members and neighbours from the newest snapshot") {
    const TempFolder scratch;
    Rig rig(scratch.path());
    rig.snapshots.put(busy_snapshot());
    const auto status = ask_node(scratch.path(), StatusRequest{}, 5s);
    REQUIRE(status);
    CHECK(nlohmann::json::parse(*status) == to_json(busy_snapshot()));
    const auto members = ask_node(scratch.path(), MembersRequest{}, 5s);
    REQUIRE(members);
    CHECK(nlohmann::json::parse(*members).at("members").size() == 4);
  }

  TEST_CASE("with --json a verb prints one object that names its schema, whatever came before") {
    const TempFolder scratch;
    Rig rig(scratch.path(), 1ms);
    ToldLines told(
        [&] { asio::post(rig.io, [&] { rig.handler.held->done({{"message", "done"}}); }); });
    std::ostringstream out;
    std::ostream err(&told);
    const testing::Words words{"leave", "--json", "--dir", scratch.path().string()};
    CHECK(run_command_line(words, {{}, Terminal{out, err}, {}}) == 0);
    CHECK(told.str().starts_with("the node is still at work on leave\n"));
    CHECK(nlohmann::json::parse(out.str()) == nlohmann::json{{"message", "done"}, {"schema", 1}});
  }

  TEST_CASE("a verb whose work takes long hears of the node meanwhile, and of nothing afterwards") {
    const TempFolder scratch;
    Rig rig(scratch.path(), 1ms);
    std::size_t signs = 0;
    const auto result = ask_node(scratch.path(), EvalRequest{}, 5s, [&](const auto& body) {
      CHECK(nlohmann::json::parse(body).at("message") == "the node is still at work on eval");
      if (++signs == 3) asio::post(rig.io, [&] { rig.handler.held->done({{"message", "done"}}); });
    });
    REQUIRE(result);
    CHECK(*result == R"({"message":"done"})");
    CHECK(signs >= 3);
  }

  TEST_CASE("an error of the node reaches the verb, and a dropped question is an error too") {
    const TempFolder scratch;
    const Rig rig(scratch.path());
    const auto refused = ask_node(scratch.path(), JoinRequest{{"h:1"}}, 5s);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::connect_failed);
    CHECK(refused.error().detail == "nobody answers");
    const auto dropped = ask_node(scratch.path(), MergeRequest{}, 5s);
    REQUIRE_FALSE(dropped);
    CHECK(dropped.error().code == Errc::internal);
  }

  TEST_CASE("a verb whose node ends in the middle is told so") {
    const TempFolder scratch;
    std::optional<Rig> rig(std::in_place, scratch.path());
    std::thread killer;
    const auto answer = [&] {
      killer = std::thread([&] {
        // The question is held by the handler; ending the server closes its connection.
        while (true) {
          bool held = false;
          std::atomic<bool> looked{false};
          asio::post(rig->io, [&] {
            held = rig->handler.held.has_value();
            looked = true;
          });
          while (!looked) std::this_thread::yield();
          if (held) break;
        }
        rig.reset();
      });
      return ask_node(scratch.path(), EvalRequest{}, 5s);
    }();
    killer.join();
    CHECK_FALSE(answer);
  }

  TEST_CASE("a verb gives up on a node that stands still, with no room to wait in either") {
    const TempFolder scratch;
    const FrozenNode node(scratch.path());
    const auto answer = ask_node(scratch.path(), StatusRequest{}, 10ms);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().code == Errc::timed_out);
  }

  TEST_CASE("a verb that does not read its answer loses its place") {
    const TempFolder scratch;
    Rig rig(scratch.path(), 1ms);
    StatusSnapshot large;  // more than a socket holds
    large.members.resize(20'000);
    rig.snapshots.put(std::move(large));
    const auto path = SocketPath::in(scratch.path());
    REQUIRE(path);
    const auto address = address_of(*path);
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    REQUIRE(::connect(descriptor, generic, sizeof(address)) == 0);
    const auto line = encode_request(StatusRequest{});
    REQUIRE(::send(descriptor, line.data(), line.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(line.size()));

    pollfd ended{descriptor, POLLRDHUP, 0};
    CHECK(::poll(&ended, 1, 60'000) == 1);
    ::close(descriptor);
  }

  TEST_CASE("hostile bytes get an error or nothing, and the next verb is served") {
    const TempFolder scratch;
    const Rig rig(scratch.path());
    CHECK(raw(scratch.path(), "nonsense\n").find("bad_argument") != std::string::npos);
    CHECK(raw(scratch.path(), std::string(100'000, 'x')).find("too_large") != std::string::npos);
    CHECK(raw(scratch.path(), "").empty());
    CHECK(raw(scratch.path(), "{\"verb\":\"stat").empty());
    CHECK(raw(scratch.path(), std::string("\0\0\n", 3)).find("error") != std::string::npos);
    CHECK(ask_node(scratch.path(), StatusRequest{}, 5s));
  }

  TEST_CASE("the socket is its owner's alone and goes with the node") {
    const TempFolder scratch;
    {
      const Rig rig(scratch.path());
      struct stat status{};
      REQUIRE(::stat((scratch.path() / "control.sock").c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0600);
    }
    CHECK_FALSE(std::filesystem::exists(scratch.path() / "control.sock"));
    const auto nobody = ask_node(scratch.path(), StatusRequest{}, 5s);
    REQUIRE_FALSE(nobody);
    CHECK(nobody.error().code == Errc::not_found);
    CHECK(ask_node(scratch.path() / "none", StatusRequest{}, 5s).error().code == Errc::not_found);
  }

  TEST_CASE("a folder with a path of any length works, and a dead socket is replaced") {
    const TempFolder scratch;
    auto dir = scratch.path();
    for (int i = 0; i < 4; ++i) dir /= std::string(60, static_cast<char>('a' + i));
    std::filesystem::create_directories(dir);
    {
      std::ofstream(dir / "control.sock") << "left behind";
    }
    const Rig rig(dir);
    CHECK(ask_node(dir, StatusRequest{}, 5s));
  }
}
