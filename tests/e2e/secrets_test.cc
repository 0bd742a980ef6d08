// Where the bytes of keys are: in their files and in memory that no dump holds, and nowhere else.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

// The files that hold keys, by design.
bool holds_keys(const fs::path& file) {
  constexpr std::array<std::string_view, 3> kNames{"secret", "secret.next", "identity.key"};
  return std::ranges::find(kNames, file.filename().string()) != kNames.end();
}

// Every form in which a key of these files could turn up, under the name that a failure shows.
std::map<std::string, std::string> forms_of_keys(const fs::path& root) {
  constexpr std::size_t kKeyBytes = 32;
  std::map<std::string, std::string> forms;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || !holds_keys(entry.path())) continue;
    std::istringstream words(read_text(entry.path()));
    std::string last;
    for (std::string word; words >> word;) last = word;  // the key is the last one
    std::string raw(kKeyBytes, '\0');
    std::size_t size = 0;
    auto* bytes = reinterpret_cast<unsigned char*>(raw.data());
    REQUIRE(sodium_base642bin(bytes, raw.size(), last.data(), last.size(), nullptr, &size, nullptr,
                              sodium_base64_VARIANT_ORIGINAL) == 0);
    REQUIRE(size == kKeyBytes);
    std::string hex(2 * kKeyBytes + 1, '\0');
    (void)sodium_bin2hex(hex.data(), hex.size(), bytes, kKeyBytes);
    hex.pop_back();
    const auto name = fs::relative(entry.path(), root).string();
    forms[name + ", text"] = last;
    forms[name + ", hex"] = hex;
    forms[name + ", bytes"] = raw;
  }
  return forms;
}

std::vector<std::string> found_in(const std::map<std::string, std::string>& forms,
                                  const std::string& text) {
  std::vector<std::string> found;
  for (const auto& [name, form] : forms)
    if (contains(text, form)) found.push_back(name);
  return found;
}

std::string proc(const NodeProcess& node, const std::string& file) {
  return "/proc/" + std::to_string(node.process().pid()) + "/" + file;
}

struct Mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool readable = false;
  bool dumped = true;  // a core file has it: the kernel's flag dd is not set
  std::string name;
};

std::vector<Mapping> mappings_of(const NodeProcess& node) {
  std::vector<Mapping> mappings;
  std::ifstream in(proc(node, "smaps"));
  for (std::string line; std::getline(in, line);) {
    const auto dash = line.find('-');
    const auto space = line.find(' ');
    if (line.starts_with("VmFlags:")) {
      REQUIRE_FALSE(mappings.empty());
      mappings.back().dumped = !contains(line + " ", " dd ");
    } else if (dash != std::string::npos && dash < space && line.find(':') > space) {
      Mapping mapping;
      std::from_chars(line.data(), line.data() + dash, mapping.begin, 16);
      std::from_chars(line.data() + dash + 1, line.data() + space, mapping.end, 16);
      mapping.readable = line.at(space + 1) == 'r';
      const auto name = line.find_last_of(' ');
      mapping.name = line.substr(name + 1);
      // The kernel's own, which cannot be read.
      if (mapping.name.starts_with("[v")) mapping.readable = false;
      mappings.push_back(mapping);
    }
  }
  return mappings;
}

// What a core file of the process would hold, mapping by mapping.
std::vector<std::string> found_in_memory(const std::map<std::string, std::string>& forms,
                                         const NodeProcess& node) {
  std::vector<std::string> found;
  std::ifstream memory(proc(node, "mem"), std::ios::binary);
  REQUIRE(memory.is_open());
  for (const Mapping& mapping : mappings_of(node)) {
    if (!mapping.readable || !mapping.dumped) continue;
    std::string content(mapping.end - mapping.begin, '\0');
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(mapping.begin));
    memory.read(content.data(), static_cast<std::streamsize>(content.size()));
    content.resize(static_cast<std::size_t>(memory.gcount()));
    for (const auto& name : found_in(forms, content)) found.push_back(name + " in " + mapping.name);
  }
  return found;
}

Finished command(std::vector<std::string> words) {
  words.insert(words.begin(), starling_binary());
  auto done = run_to_end(words);
  INFO(done.err);
  REQUIRE(done.status == 0);
  return done;
}

bool said(const NodeProcess& node, const std::string& part) {
  return contains(node.process().standard_error(), part);
}

}  // namespace

TEST_SUITE("e2e/secrets") {
  TEST_CASE("a rotation reaches a node that cannot write beside its secret, and outlives it") {
    const TempDir dir;
    const auto first = dir.path() / "first";
    const auto second = dir.path() / "second";
    const auto mounted = dir.path() / "mounted" / "secret";
    const auto admin = (dir.path() / "admin").string();
    command({"key", "new", "--dir", first.string()});
    command({"key", "admin", admin, "--dir", first.string()});
    for (const auto& node : {first, second}) {
      const auto id = command({"id", "--dir", node.string()}).out.substr(0, 64);
      std::ofstream(node / "member.cert")
          << command({"key", "certify", id, "--admin-key", admin}).out;
    }
    fs::create_directory(mounted.parent_path());
    fs::copy_file(first / "secret", mounted);
    const auto before = read_text(mounted);

    NodeProcess node(first, endless_run());
    auto arguments = endless_run();
    arguments.insert(arguments.end(),
                     {"--peer", node.address(), "--secret-file", mounted.string()});
    {
      NodeProcess guest(second, arguments);
      const auto both = [&] { return alive_members(node) == 2 && alive_members(guest) == 2; };
      REQUIRE(eventually(60s, both));
      CHECK(said(guest, "data.opening"));
      CHECK(said(guest, "data.opened"));
      // As a read-only mount, for root as well: what it writes first is a link that it follows not.
      const auto pid = std::to_string(guest.process().pid());
      fs::create_symlink("nowhere", mounted.parent_path() / (".secret.next." + pid + ".new"));

      command({"key", "rotate", "--admin-key", admin, "--no-list", "--dir", first.string()});

      CHECK(eventually(90s, [&] {
        return said(node, "secret.previous_ended") && said(guest, "secret.previous_ended");
      }));
      INFO(guest.process().standard_error());
      CHECK(fs::exists(second / "secret.ordered"));
      CHECK_FALSE(fs::exists(second / "secret.ordered.previous"));
      CHECK_FALSE(fs::exists(mounted.string() + ".next"));
      CHECK(read_text(mounted) == before);
      CHECK_FALSE(said(guest, "secret.not_changed"));
      guest.process().signal(SIGTERM);
      REQUIRE(guest.process().wait(60s));
    }
    const NodeProcess again(second, arguments);
    CHECK(eventually(60s, [&] { return alive_members(again) == 2; }));
    CHECK(said(again, "secret.ordered_in_force"));
  }

  TEST_CASE("no byte of a key is outside its file and the memory that no dump holds") {
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--log-level", "trace", "--http", "127.0.0.1:0"});
    Swarm swarm(arguments);
    swarm.start(2);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
    REQUIRE(run_to_end({starling_binary(), "key", "rotate", "--secret-file", swarm.secret_file()})
                .status == 0);
    // Each says it at its start, and again once it holds the next secret, too.
    const auto has_read_again = [&](std::size_t node) {
      return count_of(swarm.node(node).process().standard_error(), "access.read") >= 2;
    };
    REQUIRE(eventually(30s, [&] { return has_read_again(0) && has_read_again(1); }));

    const auto forms = forms_of_keys(swarm.path());
    CHECK(forms.size() == 3 * 4);  // two secrets, two identities
    using Found = std::vector<std::string>;
    for (std::size_t number = 0; number < swarm.size(); ++number) {
      CAPTURE(number);
      const NodeProcess& node = swarm.node(number);
      CHECK(found_in(forms, read_text(proc(node, "environ"))) == Found{});
      CHECK(found_in(forms, read_text(proc(node, "cmdline"))) == Found{});
      const auto metrics = node.page("/metrics");
      CHECK(contains(metrics, "starling_"));
      CHECK(found_in(forms, metrics) == Found{});
      CHECK(found_in(forms, node.status().dump()) == Found{});
      CHECK(found_in_memory(forms, node) == Found{});
      // What is no secret is found there: it is this process that was looked through.
      CHECK(found_in_memory({{"its id", node.id()}}, node) != Found{});
    }

    // Its last checkpoint is written then.
    REQUIRE(
        run_to_end({starling_binary(), "leave", "--dir", swarm.node(1).dir().string()}).status ==
        0);
    CHECK(swarm.wait_all({1}, 60s) == std::vector<int>{0});
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(swarm.path())) {
      if (!entry.is_regular_file() || holds_keys(entry.path())) continue;
      CAPTURE(entry.path().string());
      CHECK(found_in(forms, read_text(entry.path())) == Found{});
      ++files;
    }
    CHECK(files > 10);
    CHECK(fs::exists(swarm.node(1).dir() / "checkpoints"));
  }
}
