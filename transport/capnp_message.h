// Bounded reading and writing of one Cap'n Proto struct: included by the *_codec.cc files only.
//
// The order of checks (security T10): length against the maximum of the type, one segment, explicit
// traversal and nesting limits, then one copy into our own structs. kj's exceptions end here.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "transport/capnp_compiler.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace starling::transport {

// Writes a struct in canonical form, one segment without trailing zeros: `fill` gets the root
// builder.
template <class Schema, class Fill>
[[nodiscard]] Bytes write_capnp(Fill&& fill) {
  ::capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Schema>());
  const auto words = ::capnp::canonicalize(builder.getRoot<Schema>().asReader());
  const auto raw = words.asBytes();
  // Before the segment: how many there are, less one, and its words.
  const std::array<std::uint32_t, 2> table{0, static_cast<std::uint32_t>(words.size())};
  Bytes bytes(sizeof(table) + raw.size());
  std::memcpy(bytes.data(), table.data(), sizeof(table));
  std::memcpy(bytes.data() + sizeof(table), raw.begin(), raw.size());
  return bytes;
}

// Reads a struct of at most `max_bytes` bytes. `copy` turns the root reader into Result<Value> and
// may throw kj::Exception, which becomes bad_message. Nothing of the reader outlives the call.
template <class Schema, class Value, class Copy>
[[nodiscard]] Result<Value> read_capnp(ByteView body, std::size_t max_bytes, Copy&& copy) {
  constexpr auto kDoing = Doing::reading_message;
  if (body.size() > max_bytes)
    return fail(Errc::too_large, kDoing,
                std::to_string(body.size()) + " bytes where " + std::to_string(max_bytes) +
                    " are the most");
  if (body.size() < 16 || body.size() % sizeof(::capnp::word) != 0)
    return fail(Errc::bad_message, kDoing, std::to_string(body.size()) + " bytes are no message");
  std::vector<::capnp::word> words(body.size() / sizeof(::capnp::word));
  std::memcpy(static_cast<void*>(words.data()), body.data(), body.size());
  std::uint32_t more_segments = 0;
  std::memcpy(&more_segments, body.data(), sizeof(more_segments));
  if (more_segments != 0) return fail(Errc::bad_message, kDoing, "more than one segment");
  ::capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words.size() + 64;
  options.nestingLimit = 16;
  try {
    ::capnp::FlatArrayMessageReader reader(
        kj::ArrayPtr<const ::capnp::word>(words.data(), words.size()), options);
    if (reader.getEnd() != words.data() + words.size())
      return fail(Errc::bad_message, kDoing, "bytes after the message");
    return copy(reader.getRoot<Schema>());
  } catch (const kj::Exception& exception) {
    return fail(Errc::bad_message, kDoing, std::string(exception.getDescription().cStr()));
  } catch (const std::exception& exception) {
    return fail(Errc::bad_message, kDoing, exception.what());
  }
}

// Our bytes of a capnp Data field, for comparisons and copies.
[[nodiscard]] inline ByteView view_of(::capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}
[[nodiscard]] inline ::capnp::Data::Reader data_of(ByteView bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

}  // namespace starling::transport
