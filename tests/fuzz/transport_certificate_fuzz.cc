// What an admin signs, as bytes and as text: what parses, written again, is the same.
#include "transport/finish_order.h"
#include "transport/member_certificate.h"
#include "transport/revocation.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace starling::transport {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void chain(ByteView bytes) {
  const NodeId node{std::array<std::byte, 32>{std::byte{2}}};
  const auto read = decode_chain(node, bytes);
  if (!read) return;
  check(std::ranges::equal(encode_chain(*read), bytes));
  (void)fault_in(*read, NodeId{}, SwarmId{}, read->own.from_s);
}

void list(ByteView bytes) {
  const auto read = decode_revocations(bytes);
  if (!read) return;
  check(std::ranges::equal(encode_revocations(*read).value(), bytes));
  check(parse_revocations(print_revocations(*read).value()) == *read);
  check(!read->replaces(*read));
}

void texts(std::string_view text) {
  if (const auto membership = parse_membership(text))
    check(parse_membership(print_membership(*membership)) == *membership);
  if (const auto read = parse_revocations(text))
    check(parse_revocations(print_revocations(*read).value()) == *read);
  if (const auto order = parse_finish_order(text))
    check(parse_finish_order(print_finish_order(*order)) == *order);
}

}  // namespace
}  // namespace starling::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 3) {
    case 0:
      transport::chain(rest);
      break;
    case 1:
      transport::list(rest);
      break;
    default:
      transport::texts(as_text(rest));
      break;
  }
  return 0;
}
