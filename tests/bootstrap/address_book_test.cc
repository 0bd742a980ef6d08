#include "bootstrap/address_book.h"

#include "node/base/hash.h"
#include "node/base/random.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;

namespace {

transport::Endpoint endpoint_of(std::uint64_t number) {
  return {"10.0.0." + std::to_string(number % 256), static_cast<std::uint16_t>(1 + number / 256)};
}

}  // namespace

TEST_SUITE("bootstrap/address_book") {
  TEST_CASE("what worked last comes first, and comes back from its text") {
    AddressBook book;
    book.on_worked(id_of(1), endpoint_of(1));
    book.on_worked(id_of(2), {"2001:db8::2", 7700});
    book.on_worked(id_of(1), endpoint_of(1));
    REQUIRE(book.peers().size() == 2);
    CHECK(book.peers()[0].id == id_of(1));
    const auto back = AddressBook::parse(book.to_text());
    REQUIRE(back.has_value());
    CHECK(*back == book);
    CHECK(AddressBook::parse(AddressBook().to_text())->peers().empty());
  }

  TEST_CASE("what members say of themselves comes last, once, and pushes nothing out") {
    AddressBook book;
    CHECK(book.on_told(id_of(1), endpoint_of(1)));
    CHECK_FALSE(book.on_told(id_of(1), endpoint_of(1)));
    CHECK_FALSE(book.on_told(id_of(2), endpoint_of(1)));  // what worked there is known better
    CHECK_FALSE(book.on_told(id_of(2), {"a\"b", 7700}));
    book.on_worked(id_of(3), endpoint_of(3));
    CHECK(book.peers() ==
          std::vector<KnownPeer>{{id_of(3), endpoint_of(3)}, {id_of(1), endpoint_of(1)}});
    for (std::uint64_t i = 0; i < 10; ++i) (void)book.on_told(id_of(4), endpoint_of(100 + i));
    CHECK(book.peers().size() == 2 + AddressBook::kMaxPerPeer);
    for (std::uint64_t i = 0; i < 1'000; ++i) (void)book.on_told(id_of(1'000 + i), endpoint_of(i));
    CHECK(book.peers().size() == AddressBook::kMaxPeers);
    CHECK(book.peers().front().id == id_of(3));
    CHECK(AddressBook::parse(book.to_text()).value() == book);
  }

  TEST_CASE("another identity at an address replaces the one before") {
    AddressBook book;
    book.on_worked(id_of(1), endpoint_of(1));
    book.on_worked(id_of(2), endpoint_of(1));
    CHECK(book.peers() == std::vector<KnownPeer>{{id_of(2), endpoint_of(1)}});
    book.forget(endpoint_of(1));
    CHECK(book.peers().empty());
  }

  TEST_CASE("the book is bounded, and one identity cannot push the others out") {
    AddressBook book;
    for (std::uint64_t i = 0; i < 50; ++i) book.on_worked(id_of(i), endpoint_of(i));
    for (std::uint64_t i = 0; i < 1000; ++i) book.on_worked(id_of(7777), endpoint_of(100 + i));
    CHECK(book.peers().size() == 50 + AddressBook::kMaxPerPeer);
    for (std::uint64_t i = 0; i < 1000; ++i) book.on_worked(id_of(i), endpoint_of(i));
    CHECK(book.peers().size() == AddressBook::kMaxPeers);
    CHECK(book.to_text().size() < AddressBook::kMaxText);
    CHECK(AddressBook::parse(book.to_text()).has_value());
  }

  TEST_CASE("one network cannot push the others out") {
    AddressBook book;
    const transport::Endpoint honest{"5.1.1.1", 7700};
    book.on_worked(id_of(1000), honest);
    for (std::uint64_t i = 0; i < 250; ++i) {
      book.on_worked(id_of(i), {"9.1.0." + std::to_string(i), 7700});
      (void)book.on_told(id_of(i), {"9.1.1." + std::to_string(i), 7700});
    }
    CHECK(book.peers().size() == AddressBook::kMaxPerNetwork + 1);
    CHECK(book.peers().front().endpoint.host == "9.1.0.249");
    CHECK(book.peers().back().endpoint == honest);
  }

  TEST_CASE("a damaged file is refused, naming where it stops making sense") {
    AddressBook book;
    book.on_worked(id_of(1), endpoint_of(1));
    const auto text = book.to_text();
    for (std::size_t size = 0; size + 1 < text.size(); ++size)
      CHECK(!AddressBook::parse(std::string_view(text).substr(0, size)).has_value());
    CHECK(AddressBook::parse("[]").error().detail.find("byte 0") != std::string::npos);
    CHECK(AddressBook::parse(std::string(AddressBook::kMaxText + 1, ' ')).error().code ==
          Errc::too_large);
    Rng rng(3);
    for (int round = 0; round < 5000; ++round) {
      auto damaged = text;
      damaged[rng.below(damaged.size())] = static_cast<char>(rng.below(256));
      const auto back = AddressBook::parse(damaged);
      if (back) CHECK(AddressBook::parse(back->to_text()).value() == *back);
    }
  }
}
