#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>

using namespace starling::node;
using namespace starling::node::testing;

namespace {

Said data(Words words) {
  words.insert(words.begin(), "data");
  return said_by(words, VerbHooks{.data = &data_verb});
}

// A tar whose only member has this name, and claims more bytes than there are.
std::string cut_tar(const std::string& name) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, "00000001000");
  header[156] = '0';
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  return header.replace(148, 6, fmt::format("{:06o}", sum));
}

const std::string kSet = "synthetic:classes=3,size=8,train=30,val=6";

}  // namespace

TEST_SUITE("node/data_verb") {
  TEST_CASE("scan counts every class of every part") {
    const auto said = data({"scan", "--data", kSet, "--json"});
    CHECK(said.code == 0);
    const auto json = nlohmann::json::parse(said.out);
    REQUIRE(json.at("parts").size() == 2);
    int images = 0;
    for (const auto& [name, count] : json.at("parts")[0].at("classes").items())
      images += count.get<int>();
    CHECK(images == 30);
    CHECK(json.at("parts")[1].at("images") == 6);
    CHECK(json.at("parts")[0].at("bytes") == 30 * 8 * 8 * 3);
    CHECK(contains(data({"scan", "--data", kSet}).out, "30 images, 3 classes"));
  }

  TEST_CASE("pack writes a file that the other verbs read, and says how to train on it") {
    const starling::TempFolder folder;
    const auto file = (folder.path() / "x.packed").string();
    const auto said = data({"pack", "--data", kSet, "--out", file, "--side", "0"});
    CAPTURE(said.err);
    CHECK(said.code == 0);
    CHECK(contains(said.out, "30 images for training, 6 for validation"));
    CHECK(contains(said.out, "--data packed:" + file));
    const auto verified = data({"verify", "--data", "packed:" + file, "--json"});
    CHECK(verified.code == 0);
    CHECK(nlohmann::json::parse(verified.out).at("parts")[0].at("bad").empty());
  }

  TEST_CASE("long work says how far it is some twenty times, however many images there are") {
    const starling::TempFolder folder;
    const std::string many = "synthetic:classes=3,size=4,channels=1,train=60000,val=6";
    const auto lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
    const auto scanned = data({"scan", "--data", many});
    CHECK(scanned.code == 0);
    CHECK(lines(scanned.err) == 20);
    CHECK(contains(scanned.err, "60000 of 60000"));
    const auto packed =
        data({"pack", "--data", many, "--out", (folder.path() / "x.packed").string()});
    CHECK(packed.code == 0);
    CHECK(lines(packed.err) >= 15);
    CHECK(lines(packed.err) <= 20);
  }

  TEST_CASE("classes whose names are not UTF-8 are counted in JSON, too") {
    const starling::TempFolder folder;
    const std::string latin = "caf";
    folder.write(latin + "\xe8/a.jpg", "no image");
    folder.write(latin + "\xe9/a.jpg", "no image");
    folder.write(latin + "\\xe9/a.jpg", "no image");
    folder.write("dog/b.jpg", "no image either");
    const auto said = data({"scan", "--data", folder.path().string(), "--json"});
    CHECK(said.code == 0);
    const auto classes = nlohmann::json::parse(said.out).at("parts")[0].at("classes");
    CHECK(classes.size() == 4);
    CHECK(classes.at(latin + "\\xe8") == 1);
    CHECK(std::ranges::count(said.out, '\xff') == 0);
  }

  TEST_CASE("scan does not say of images that it has not decoded that they are readable") {
    const starling::TempFolder folder;
    folder.write("cat/good.jpg", "no image");
    folder.write("dog/good.jpg", "no image either");
    const auto said = data({"scan", "--data", folder.path().string()});
    CHECK(said.code == 0);
    CHECK_FALSE(contains(said.out, "0 unreadable"));
    CHECK(contains(said.out, "not decoded (`starling data verify` does that)"));
    const auto json = data({"scan", "--data", folder.path().string(), "--json"});
    CHECK(nlohmann::json::parse(json.out).at("parts")[0].at("decoded") == false);
  }

  TEST_CASE("verify names the unreadable images and says so with its exit code") {
    const starling::TempFolder folder;
    folder.write("cat/good.jpg", "no image");
    folder.write("dog/bad.jpg", "no image either");
    const auto said = data({"verify", "--data", folder.path().string()});
    CHECK(said.code == 7);
    CHECK(contains(said.out, "2 unreadable"));
    CHECK(contains(said.out, "bad.jpg: "));
  }

  TEST_CASE("names in a foreign archive move no cursor") {
    const starling::TempFolder folder;
    const auto file = folder.write("x.tar", cut_tar("cat/\x1b[2J.jpg")).string();
    const auto said = data({"scan", "--data", file});
    CHECK(said.code == 7);
    CHECK(contains(said.err, R"(truncated: 'cat/\x1b[2J.jpg')"));
    CHECK_FALSE(contains(said.err, "\x1b"));
  }

  TEST_CASE("pack refuses at once what a finished file cannot replace") {
    const starling::TempFolder folder;
    const auto pipe = folder.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    for (const auto& out : {folder.path(), pipe}) {
      CAPTURE(out);
      const auto said = data({"pack", "--data", kSet, "--out", out.string()});
      CHECK(said.code == 2);
      CHECK(contains(said.err, "--out"));
      CHECK_FALSE(contains(said.err, "images"));  // nothing was packed
      CHECK_FALSE(std::filesystem::is_regular_file(out));
    }
  }

  TEST_CASE("scan and verify refuse the flags of pack instead of ignoring them") {
    for (const Words& flag : {Words{"--out", "x"}, Words{"--side", "8"}, Words{"--form", "raw"},
                              Words{"--quality", "90"}}) {
      CAPTURE(flag[0]);
      for (const auto* what : {"scan", "verify"}) {
        const auto said = data({what, "--data", kSet, flag[0], flag[1]});
        CHECK(said.code == 2);
        CHECK(contains(said.err, flag[0]));
      }
    }
  }

  TEST_CASE("what makes no sense is refused with the remedy") {
    CHECK(data({"chew", "--data", kSet}).code == 2);
    CHECK(contains(data({"scna", "--data", kSet}).err, "did you mean scan?"));
    CHECK(data({"scan"}).code == 2);
    CHECK(contains(data({"pack", "--data", kSet}).err, "--out"));
    const starling::TempFolder folder;
    const auto file = (folder.path() / "x").string();
    for (const Words& flags : {Words{"--form", "png"}, Words{"--side", "x"}, Words{"--side", "3"},
                               Words{"--quality", "0"}, Words{"--quality", "101"}}) {
      CAPTURE(flags[0] + " " + flags[1]);
      const auto said = data({"pack", "--data", kSet, "--out", file, flags[0], flags[1]});
      CHECK(said.code == 2);
      CHECK_FALSE(std::filesystem::exists(file));
    }
    CHECK(data({"pack", "--data", kSet, "--out", "/nonexistent/x"}).code == 3);
    CHECK(data({"pack", "--data", kSet, "--out", ""}).code == 2);
    CHECK(data({"scan", "--data", "packed:/nonexistent"}).code == 7);
  }
}
