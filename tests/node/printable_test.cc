#include "node/printable.h"

#include "node/base/random.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

using namespace starling;
using namespace starling::node;

TEST_SUITE("node/printable") {
  TEST_CASE("plain words stay as they are and everything else is quoted") {
    CHECK(escape_value("127.0.0.1:7700") == "127.0.0.1:7700");
    CHECK(escape_value("") == "\"\"");
    CHECK(escape_value("two words") == "\"two words\"");
    CHECK(escape_value("a\"b\\c") == "\"a\\\"b\\\\c\"");
    CHECK(escape_value("k=v") == "\"k=v\"");
  }

  TEST_CASE("a peer's text cannot end a line, move the cursor or turn the direction of writing") {
    CHECK(printable("a\nb\r\x1b[2J") == "a\\x0ab\\x0d\\x1b[2J");
    CHECK(printable("\x7f\xc2\x9b") == "\\x7f\\xc2\\x9b");      // DEL, and the eight-bit escape
    CHECK(printable("x\xe2\x80\xaey") == "x\\xe2\\x80\\xaey");  // right-to-left override
    CHECK(printable("\xc3\x28\xff") == "\\xc3(\\xff");
    CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");  // not the shortest form
  }

  TEST_CASE("words of other scripts stay readable") {
    CHECK(printable("gr\xc3\xbc\xc3\x9f Gott \xe6\xa3\xae") ==
          "gr\xc3\xbc\xc3\x9f Gott \xe6\xa3\xae");
  }

  TEST_CASE("a JSON text is ASCII and means the same") {
    const nlohmann::json json{{"name",
                               "x\xc2\x9b"
                               "2J gr\xc3\xbc\xc3\x9f"}};
    CHECK(json_text(json) == R"({"name":"x\u009b2J gr\u00fc\u00df"})");
    CHECK(nlohmann::json::parse(json_text(json)) == json);
  }

  TEST_CASE("random bytes come out as one clean line and as valid UTF-8") {
    for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      std::string text;
      for (auto left = rng.below(40); left > 0; --left) text += static_cast<char>(rng.below(256));
      const auto shown = printable(text);
      CHECK(std::ranges::none_of(
          shown, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }));
      nlohmann::json json = valid_utf8(text);
      CHECK_NOTHROW((void)json.dump());
      json = shown;
      CHECK_NOTHROW((void)json.dump());
    }
  }
}
