#include "tests/tidy/rules.h"
#include "tests/tidy/source_tree.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace starling::tidy;

namespace {

// Lower it with every line that leaves the list; never raise it.
constexpr std::size_t kMaxExceptions = 1;

using Planted = std::vector<std::pair<std::string, std::string>>;

SourceTree plant(const Planted& files) {
  SourceTree tree;
  for (const auto& [path, content] : files) tree.push_back(parse_source(path, content));
  return tree;
}

// Rules broken by one planted file, without those about its folder.
std::vector<std::string> broken_by(const std::string& path, const std::string& content) {
  std::vector<std::string> rules;
  for (const Finding& finding : check_all(plant({{path, content}}))) {
    if (finding.rule != "readme" && finding.rule != "pragma-once") rules.push_back(finding.rule);
  }
  return rules;
}

bool breaks(const std::string& path, const std::string& content, const std::string& rule) {
  const auto rules = broken_by(path, content);
  return std::find(rules.begin(), rules.end(), rule) != rules.end();
}

struct Case {
  std::string path;
  std::string line;
};

}  // namespace

TEST_SUITE("tidy") {
  TEST_CASE("the repository keeps the rules of the house") {
    const SourceTree tree = read_tree(STARLING_SOURCE_DIR);
    std::vector<Exception> exceptions;
    for (const SourceFile& file : tree) {
      if (file.path == "tests/tidy/exceptions.txt") exceptions = parse_exceptions(file);
    }

    const Findings findings = apply_exceptions(check_all(tree), exceptions);

    CHECK(tree.size() > 100);  // an empty walk is a broken test, not a clean tree
    CHECK(exceptions.size() <= kMaxExceptions);
    std::string text;
    for (const Finding& finding : findings) text += to_string(finding) + "\n";
    CHECK_MESSAGE(findings.empty(), text);
  }

  TEST_CASE("an include against the direction of the layers is reported with its place") {
    const auto findings =
        check_layering(plant({{"gossip/bad.cc", "// a comment\n#include <torch/torch.h>\n"}}));

    REQUIRE(findings.size() == 1);
    CHECK(to_string(findings[0]).starts_with("gossip/bad.cc:2 layering: includes torch/torch.h"));
  }

  TEST_CASE("every forbidden direction is caught") {
    for (const Case& c : std::vector<Case>{
             {"node/base/a.h", "#include \"node/config/config.h\""},
             {"node/base/a.cc", "#include <sodium.h>"},
             {"node/base/a.cc", "#include <spdlog/spdlog.h>"},
             {"transport/a.cc", "#include \"gossip/driver.h\""},
             {"transport/a.cc", "#include <capnp/message.h>"},
             {"transport/a.cc", "#include <openssl/evp.h>"},
             {"gossip/delta/a.cc", "#include \"transport/message.h\""},
             {"gossip/delta/a.cc", "#include <asio/post.hpp>"},
             {"gossip/exchange/a.cc", "#include \"gossip/membership/view.h\""},
             {"gossip/membership/a.cc", "#include \"gossip/consensus/tree.h\""},
             {"gossip/consensus/a.cc", "#include \"gossip/exchange/edge.h\""},
             {"gossip/consensus/a.cc", "#include \"transport/session.h\""},
             {"gossip/consensus/a.cc", "#include <sodium.h>"},
             {"gossip/consensus/a.cc", "#include <openssl/evp.h>"},
             {"gossip/consensus/a.cc", "#include <kj/common.h>"},
             {"gossip/consensus/a.cc", "#include \"gossip/consensus/messages.capnp.h\""},
             {"gossip/mixer.cc", "#include <asio/io_context.hpp>"},
             {"gossip/mixer.cc", "#include \"training/trainer.h\""},
             {"training/a.cc", "#include \"gossip/exchange/edge.h\""},
             {"training/a.cc", "#include <asio/post.hpp>"},
             {"training/data/a.cc", "#include <torch/torch.h>"},
             {"training/data/a.cc", "#include \"training/trainer.h\""},
             {"bootstrap/join.cc", "#include <asio/post.hpp>"},
             {"bootstrap/join.cc", "#include \"training/trainer.h\""},
             {"node/node.cc", "#include <capnp/message.h>"},
             {"tests/gossip/exchange/a_test.cc", "#include \"gossip/consensus/tree.h\""},
             {"tests/base/a_test.cc", "#include \"transport/message.h\""},
             {"tests/gossip/a_test.cc", "#include <torch/torch.h>"},
         }) {
      CAPTURE(c.path);
      CAPTURE(c.line);
      CHECK(breaks(c.path, c.line + "\n", "layering"));
    }
  }

  TEST_CASE("what the layers permit is not reported") {
    for (const Case& c : std::vector<Case>{
             {"node/base/hash.cc", "#include <sodium.h>"},
             {"node/base/a.cc", "#include <vector>"},
             {"transport/aead.cc", "#include <openssl/evp.h>"},
             {"transport/wire_codec.cc", "#include <capnp/message.h>"},
             {"transport/wire_codec.cc", "#include \"transport/wire.capnp.h\""},
             {"gossip/exchange/message_codec.cc", "#include <capnp/message.h>"},
             {"gossip/exchange/message_codec.cc", "#include \"transport/capnp_message.h\""},
             {"gossip/exchange/a.cc", "#include \"gossip/delta/layout.h\""},
             {"gossip/driver.cc", "#include <asio/io_context.hpp>"},
             {"gossip/driver.cc", "#include \"transport/session.h\""},
             {"bootstrap/driver.h", "#include <asio/io_context.hpp>"},
             {"training/a.cc", "#include <torch/torch.h>"},
             {"training/a.cc", "#include \"training/data/loader.h\""},
             {"node/node.cc", "#include \"training/trainer.h\""},
             {"tests/gossip/exchange/a_test.cc", "#include \"tests/support/swarm.h\""},
             {"tests/sim/a.cc", "#include \"gossip/consensus/tree.h\""},
         }) {
      CAPTURE(c.path);
      CAPTURE(c.line);
      CHECK(broken_by(c.path, c.line + "\n").empty());
    }
  }

  TEST_CASE("every banned construct is caught, and nothing is where it belongs") {
    struct Banned {
      std::string rule;
      std::string code;
      std::string right_place;  // "" if there is none
    };
    for (const Banned& b : std::vector<Banned>{
             {"detached", "co_spawn(io, task(), asio::detached);", ""},
             {"detached", "thread_.detach();", ""},
             {"sleep", "std::this_thread::sleep_for(1s);", ""},
             {"sleep", "::usleep(10);", ""},
             {"random", "std::mt19937 random(1);", ""},
             {"random", "std::random_device device;", "node/node.cc"},
             {"random", "int x = std::rand();", ""},
             {"wall-clock", "auto t = std::chrono::system_clock::now();", "node/wall_time.cc"},
             {"clock", "auto t = std::chrono::steady_clock::now();", "node/base/clock.h"},
             {"mutex", "#include <mutex>", "node/base/mutex.h"},
             {"experimental", "asio::experimental::as_tuple(t)", "transport/task.h"},
             {"output", "printf(text);", ""},
             {"output", "std::cout << 1;", ""},
             {"thread-local", "thread_local int x = 0;", ""},
             {"async", "auto f = std::async(run);", ""},
             {"assert", "assert(x == 1);", ""},
             {"torch-load", "torch::load(model, path);", ""},
             {"using-namespace", "using namespace std;", ""},
             {"exit", "std::exit(3);", "node/main.cc"},
             {"exit", "::abort();", "node/base/check.cc"},
             {"io-context-stop", "io_.stop();", "node/lifecycle.cc"},
             {"json-dump", "out << json.dump();", "tests/node/a_test.cc"},
             {"json-dump", "out << found->dump(2);", ""},
             {"skipped-test", "TEST_CASE(\"x\" * doctest::skip())", ""},
         }) {
      CAPTURE(b.code);
      CHECK(breaks("training/a.cc", b.code + "\n", b.rule));
      if (!b.right_place.empty()) CHECK(!breaks(b.right_place, b.code + "\n", b.rule));
    }
  }

  TEST_CASE("comments, texts and longer names are not what a ban means") {
    for (const char* code : {
             "// std::cout << 1; sleep_for(1s)",
             "const char* text = \"std::cout sleep_for(1s) assert(x)\";",
             "/* std::mt19937\n thread_local\n*/ int x = 1;",
             "const char* raw = R\"(printf(\nassert(x)\n)\";",
             "crypto_sign_detached(a, b);",
             "static_assert(sizeof(int) == 4);",
             "std::snprintf(text, 3, format);",
             "int n = 1'000; char c = '\"'; // sleep(1)",
             "timer.sleep_deadline();",
             "auto plain = tensor.detach();",
             "out << json.dump(-1, ' ', false, replace);",
             "void Merge::abort() {}",
             "int main() {\n  std::cout << 1;\n}",
         }) {
      CAPTURE(code);
      CHECK(broken_by("training/a.cc", std::string(code) + "\n").empty());
    }
  }

  TEST_CASE("a shared_ptr needs a comment about its owners, a parameter does not") {
    CHECK(breaks("node/a.cc", "int y;\nint z;\nstd::shared_ptr<int> x_;\n", "shared-ptr"));
    CHECK(breaks("node/a.cc", "int y;\n\nstd::vector<std::shared_ptr<int>> x_;\n", "shared-ptr"));
    CHECK(breaks("node/a.cc", "int y;\n\nusing X = std::shared_ptr<int>;\n", "shared-ptr"));
    CHECK(!breaks("node/a.cc", "// Owners: a and b.\nstd::shared_ptr<int> x_;\n", "shared-ptr"));
    CHECK(!breaks("node/a.cc", "\n\nvoid f(std::shared_ptr<int> x);\n", "shared-ptr"));
    CHECK(!breaks("node/a.cc", "\n\nvoid f(const std::shared_ptr<int>& x);\n", "shared-ptr"));
  }

  TEST_CASE("the words of other systems are caught, ours are not") {
    CHECK(breaks("gossip/a.h", "// Each worker sends.\n", "word"));
    CHECK(breaks("gossip/a.h", "int worker_count;\n", "word"));
    CHECK(breaks("training/a.h", "// the master node decides\n", "word"));
    CHECK(breaks("training/a.h", "int world_size;\n", "word"));
    CHECK(breaks("transport/a.h", "// The client dials.\n", "word"));
    CHECK(breaks("gossip/messages.capnp", "# the server answers\n", "word"));
    CHECK(!breaks("training/a.h", "// The master is fp32; tensors of rank 4.\n", "word"));
    CHECK(!breaks("node/http.h", "// The HTTP server.\n", "word"));
    CHECK(!breaks("gossip/baselines/bsp.h", "// Each worker waits.\n", "word"));
  }

  TEST_CASE("files are tidy: length, blanks, line ends, headers, places") {
    std::string long_file;
    for (int i = 0; i < 501; ++i) long_file += "int x;\n";
    CHECK(breaks("node/a.cc", long_file, "length"));
    CHECK(!breaks("node/a.cc", long_file.substr(7), "length"));
    CHECK(breaks("node/README.md", std::string(61, '\n'), "length"));
    CHECK(breaks("node/a.cc", "\tint x;\n", "tab"));
    CHECK(breaks("node/a.cc", "int x; \n", "trailing-blank"));
    CHECK(breaks("node/a.cc", "int x;\r\n", "trailing-blank"));
    CHECK(breaks("node/a.cc", "int x;", "last-line"));
    CHECK(breaks("node/a.h", "#pragma once\nusing namespace starling;\n", "using-namespace"));
    CHECK(!breaks("node/a.h", "using namespace std::chrono_literals;\n", "using-namespace"));
    CHECK(breaks("tests/a.cc", std::string("open(\"../") + "shared/data\");\n", "place"));
    CHECK(breaks("tests/a.cc", std::string("open(\"/wo") + "rk/main\");\n", "place"));
    const auto findings = check_layout(plant({{"node/a.h", "int x;\n"}}));
    CHECK(std::any_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.rule == "pragma-once"; }));
  }

  TEST_CASE("a TODO has a topic, and two topics must not reach main") {
    CHECK(!breaks("node/a.cc", "// TODO(perf): use the other path.\n", "todo"));
    CHECK(breaks("node/a.cc", "// TODO: later\n", "todo"));
    CHECK(breaks("node/a.cc", "// TODO(later): x\n", "todo"));
    CHECK(breaks("node/a.cc", "int x;  // FIXME\n", "todo"));
    CHECK(breaks("node/a.cc", "// TODO(security): check it.\n", "todo"));
    CHECK(breaks("node/a.cc", "// TODO(correctness): check it.\n", "todo"));
  }

  TEST_CASE("test names hold no semicolon, and one file has the main function") {
    CHECK(breaks("tests/a_test.cc", "TEST_CASE(\"one; two\") {}\n", "test-name"));
    CHECK(!breaks("tests/a_test.cc", "TEST_CASE(\"one, two: three\") {}\n", "test-name"));
    CHECK(breaks("tests/a_test.cc", "#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n", "test-main"));
  }

  TEST_CASE("a test that a comment names exists") {
    const auto found = [](const std::string& comment) {
      std::string all;
      for (const Finding& finding : check_layout(plant({{"node/a.h", "#pragma once\n" + comment},
                                                        {"node/README.md", "# node\n"},
                                                        {"tests/node/a_test.cc", "int x;\n"}})))
        all += to_string(finding) + "\n";
      return all;
    };
    CHECK(found("// Tested:  tests/node/a_test.cc.\n") == "");
    CHECK(found("// Tested:  a_test.cc, by hand.\n") == "");
    CHECK(found("// Tested:  tests/node/a_test.cc (on a CPU), tests/fuzz/a_fuzz.cc; as b.cc.\n") ==
          "node/a.h:2 tested: tests/fuzz/a_fuzz.cc does not exist\n");
  }

  TEST_CASE("a fault point is in the list, in the code, and there once") {
    const auto found = [](const std::string& list, const std::string& code) {
      std::string all;
      for (const Finding& finding : check_fault_points(
               plant({{"node/base/fault_points.h", list}, {"transport/a.cc", code}})))
        all += finding.path + ": " + finding.message + "\n";
      return all;
    };
    const std::string list =
        "    PointSpec{\"net.read\"},\n    PointSpec{\"net.gone\", Kind::dies},\n";
    const std::string code = "if (fault::maybe(\"net.read\")) {}\nfault::pass(\"net.gone\");\n";
    CHECK(found(list, code) == "");
    CHECK(found(list, code + "fault::maybe(\"net.read\");\n").find("twice") != std::string::npos);
    CHECK(found(list, code + "fault::maybe(\"net.new\");\n").find("not in the list") !=
          std::string::npos);
    CHECK(found(list, "fault::maybe(\"net.read\");\n").find("used nowhere") != std::string::npos);
  }

  TEST_CASE("every folder of code has a page, and a name that says something") {
    const auto rules = [](const Planted& files) {
      std::vector<std::string> found;
      for (const Finding& finding : check_layout(plant(files))) found.push_back(finding.rule);
      return found;
    };

    CHECK(rules({{"gossip/delta/a.cc", "int x;\n"}}) == std::vector<std::string>{"readme"});
    CHECK(rules({{"gossip/delta/a.cc", "int x;\n"}, {"gossip/delta/README.md", "# delta\n"}})
              .empty());
    CHECK(rules({{"node/cli/a.cc", "int x;\n"}, {"node/README.md", "`cli/`: verbs\n"}}).empty());
    CHECK(rules({{"tests/gossip/delta/a_test.cc", "int x;\n"}}).empty());
    CHECK(rules({{"node/utils/README.md", "# utils\n"}}) ==
          std::vector<std::string>{"vague-folder"});
  }

  TEST_CASE("exceptions permit what they name, and complain when they permit too much") {
    const Findings findings{{"a.cc", 3, "clock", "x"}, {"a.cc", 9, "clock", "x"}};
    const auto list = [](const std::string& text) {
      return parse_exceptions(parse_source("exceptions.txt", text));
    };

    CHECK(apply_exceptions(findings, list("# why\n2 clock a.cc\n")).empty());
    CHECK(apply_exceptions(findings, list("1 clock a.cc\n")).size() == 1);
    CHECK(apply_exceptions(findings, list("2 sleep a.cc\n")).size() == 3);
    const auto left = apply_exceptions(findings, list("3 clock a.cc\n"));
    REQUIRE(left.size() == 1);
    CHECK(left[0].message.find("lower it") != std::string::npos);
    CHECK(!apply_exceptions({}, list("unreadable\n")).empty());
  }

  TEST_CASE("the walk reads text files and leaves build folders alone") {
    const std::filesystem::path root =
        std::filesystem::temp_directory_path() / ("starling-tidy-" + std::to_string(::getpid()));
    const auto write = [&](const std::string& name, const std::string& text) {
      std::filesystem::create_directories((root / name).parent_path());
      std::ofstream(root / name) << text;
    };
    write("gossip/bad.cc", "#include <torch/torch.h>\n");
    write("build/dev/generated.cc", "int x;\n");
    write(".deps/torch/a.h", "int x;\n");
    write("deploy/setup", "#!/bin/sh\n");
    write("tests/data.bin", "binary");

    const SourceTree tree = read_tree(root);
    std::filesystem::remove_all(root);

    REQUIRE(tree.size() == 2);
    CHECK(tree[0].path == "deploy/setup");
    CHECK(tree[1].path == "gossip/bad.cc");
    CHECK(check_layering(tree).size() == 1);
  }
}
