// Records: frames on the byte stream, sealed and opened; sans-I/O. What is inside is channel.h's
// business.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "transport/limits.h"
#include "transport/noise.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace starling::transport {

// See wire.capnp, section 3.
enum class RecordType : std::uint8_t {
  welcome = 0,
  bye = 1,
  ping = 2,
  pong = 3,
  message = 4,
  more = 5,
  bulk = 6,
  grant = 7,
  refuse = 8,
  abandon = 9,
};
inline constexpr std::uint8_t kLastRecordType = 9;

// One record in clear. The body is two pieces so that bulk needs no copy before it is sealed.
struct Record {
  RecordType type = RecordType::ping;
  Bytes head;
  ByteView tail;  // of an attachment, which the channel may let go of at the next record it hears

  [[nodiscard]] std::size_t body_size() const { return head.size() + tail.size(); }
  [[nodiscard]] std::size_t wire_size() const {
    return limits::kLengthPrefix + limits::kMinCiphertext + body_size();
  }
};

// The sending half: counter, key and its schedule. One per session, used by one coroutine.
class RecordSealer {
 public:
  explicit RecordSealer(const noise::CipherState& cipher) : cipher_(cipher) {}

  // Appends the sealed record to `out`.
  //
  // Cost:    20 us for 64 KiB.
  // Thread:  any, one at a time; in the order in which the bytes go out.
  void seal(const Record& record, Bytes& out);

  [[nodiscard]] std::uint64_t records() const { return records_; }

 private:
  noise::CipherState cipher_;
  std::uint64_t records_ = 0;
};

// A record as it arrived.
struct OpenedRecord {
  RecordType type = RecordType::ping;
  ByteView body;               // valid until the next call of the opener
  std::size_t wire_bytes = 0;  // with length prefix and tag
};

// The receiving half: cuts the stream into records and opens them.
//
//            | part of a record | whole valid record | anything else
//   open     | keep it          | give it out        | failed
//   failed   | CHECK            | CHECK              | CHECK
//
// One per session; thread: io. Holds at most one record (64 KiB) and what one read brought.
class RecordOpener {
 public:
  explicit RecordOpener(const noise::CipherState& cipher) : cipher_(cipher) {}

  // Where the next bytes of the stream may go, so that they are not copied: `bytes` of room, valid
  // until the next call. came() says how many of them there are.
  [[nodiscard]] std::span<std::byte> room(std::size_t bytes);
  void came(std::size_t bytes);
  // The same for bytes that are somewhere else.
  void feed(ByteView bytes);

  // The next whole record; nothing until more bytes come.
  //
  // Errors:  bad_message for a length that no record has, bytes that do not decrypt (changed, lost,
  //          repeated, reordered), an unknown type, flags. The session must end.
  [[nodiscard]] Result<std::optional<OpenedRecord>> next();

  // Bytes of a record that is not whole yet.
  [[nodiscard]] std::size_t pending() const { return end_ - at_; }
  [[nodiscard]] std::uint64_t records() const { return records_; }

 private:
  noise::CipherState cipher_;
  Bytes input_;  // [at_, end_) came and is not given out yet
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::uint64_t records_ = 0;
  bool failed_ = false;
};

}  // namespace starling::transport
