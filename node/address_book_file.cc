#include "node/address_book_file.h"

#include "node/set_aside.h"
#include "node/state_dir.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace starling::node {

bootstrap::AddressBook read_address_book(const std::filesystem::path& file, Log& log) {
  const auto text = read_whole(file, bootstrap::AddressBook::kMaxText);
  if (!text && is_absent(file, text.error())) return {};  // the first start
  auto book = text ? bootstrap::AddressBook::parse(*text) : fail(text.error());
  if (book) return std::move(*book);
  const auto aside = set_aside(file, "unreadable");
  log.warn(
      "peers.unreadable",
      {{"file", file.string()},
       {"why", to_string(book.error())},
       {"did", aside ? "began an empty address book, and renamed this one to " + aside->string()
                     : fmt::format("began an empty address book; {}; the next save replaces it",
                                   aside.error().detail)},
       {"remedy",
        "none where --peer names a member: the new book fills by itself; else stop this node and "
        "put a readable peers.json back, or give --peer"}});
  return {};
}

}  // namespace starling::node
