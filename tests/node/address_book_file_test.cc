#include "node/address_book_file.h"

#include "node/base/clock.h"
#include "node/log_backend.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

using namespace starling;
using namespace starling::node;

namespace {

// A folder of a node, and what a start says about its address book.
struct BookFolder {
  SteadyClock clock;
  std::ostringstream lines;
  LogBackend log{{}, clock, lines};
  TempFolder dir;
  std::filesystem::path file = dir.path() / "peers.json";
  std::filesystem::path aside = dir.path() / "peers.json.unreadable";

  bootstrap::AddressBook read() { return read_address_book(file, log); }
  [[nodiscard]] bool told(std::string_view part) const {
    return lines.str().find(part) != std::string::npos;
  }
  [[nodiscard]] std::ptrdiff_t lines_told() const { return std::ranges::count(lines.str(), '\n'); }
};

std::string bytes_of_book(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bootstrap::AddressBook book_of_one() {
  bootstrap::AddressBook book;
  book.on_worked(NodeId{}, {"198.51.100.7", 7700});
  return book;
}

}  // namespace

TEST_SUITE("node/address_book_file") {
  TEST_CASE("the first start has an empty address book and says nothing") {
    BookFolder node;
    CHECK(node.read().peers().empty());
    CHECK(node.lines.str().empty());
    CHECK_FALSE(std::filesystem::exists(node.aside));
  }

  TEST_CASE("an address book that was saved is read again and stays where it is") {
    BookFolder node;
    node.dir.write("peers.json", book_of_one().to_text());
    CHECK(node.read() == book_of_one());
    CHECK(node.lines.str().empty());
    CHECK(std::filesystem::exists(node.file));
  }

  TEST_CASE("an address book that cannot be used is named and its bytes are set aside") {
    BookFolder node;
    std::string bytes;
    SUBCASE("larger than any book") { bytes.assign(std::size_t{65} << 10, ' '); }
    SUBCASE("of a newer version") { bytes = "{\"version\": \"2\", \"peers\": []}\n"; }
    SUBCASE("half written") { bytes = book_of_one().to_text().substr(0, 40); }
    node.dir.write("peers.json", bytes);

    CHECK(node.read().peers().empty());

    CHECK(node.lines_told() == 1);
    CHECK(node.told("peers.unreadable"));
    CHECK(node.told(node.file.string()));
    CHECK(node.told("remedy"));
    CHECK_FALSE(std::filesystem::exists(node.file));
    CHECK(bytes_of_book(node.aside) == bytes);
    // The next start finds nothing left to say.
    CHECK(node.read().peers().empty());
    CHECK(node.lines_told() == 1);
  }

  TEST_CASE("a folder in the place of the address book is named and set aside") {
    BookFolder node;
    node.dir.write("peers.json/notes", "hello\n");
    CHECK(node.read().peers().empty());
    CHECK(node.lines_told() == 1);
    CHECK(node.told(node.file.string()));
    CHECK(bytes_of_book(node.aside / "notes") == "hello\n");
  }

  TEST_CASE("an address book that is a link to nothing is no first start") {
    BookFolder node;
    std::filesystem::create_symlink("elsewhere.json", node.file);
    CHECK(node.read().peers().empty());
    CHECK(node.lines_told() == 1);
    CHECK(node.told(node.file.string()));
    CHECK(std::filesystem::read_symlink(node.aside) == "elsewhere.json");
  }

  TEST_CASE("an address book that cannot be set aside is left, and the warning says so") {
    BookFolder node;
    node.dir.write("peers.json", "hello\n");
    node.dir.write("peers.json.unreadable/notes", "what somebody keeps there\n");
    CHECK(node.read().peers().empty());
    CHECK(node.lines_told() == 1);
    CHECK(node.told("cannot be renamed to " + node.aside.string()));
    CHECK(bytes_of_book(node.file) == "hello\n");
  }
}
