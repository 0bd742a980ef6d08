// Texts of bootstrap: the first byte chooses seeds, settings or the address book.
#include "bootstrap/address_book.h"
#include "bootstrap/seeds.h"
#include "bootstrap/settings.h"
#include "node/base/check.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace {

using namespace starling;
using namespace starling::bootstrap;

void try_seeds(std::string_view text) {
  const auto read = [&](const std::string&) -> Result<std::string> { return std::string(text); };
  const auto seeds = parse_seeds(text, read);
  if (!seeds) return;
  STARLING_CHECK(seeds->size() <= kMaxSeeds);
  for (const auto& seed : *seeds) STARLING_CHECK(seed.endpoint.port != 0);
}

void try_settings(std::string_view text) {
  const auto settings = Settings::parse(text);
  if (settings) STARLING_CHECK(settings->text() == text);
}

void try_book(std::string_view text) {
  const auto book = AddressBook::parse(text);
  if (!book) return;
  const auto again = AddressBook::parse(book->to_text());
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(*again == *book);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      try_seeds(text);
      break;
    case 1:
      try_settings(text);
      break;
    default:
      try_book(text);
      break;
  }
  return 0;
}
