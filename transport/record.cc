#include "transport/record.h"

#include "node/base/check.h"

#include <algorithm>
#include <string>

namespace starling::transport {
void RecordSealer::seal(const Record& record, Bytes& out) {
  STARLING_CHECK_OP(record.body_size(), <=, limits::kMaxRecordBody);
  STARLING_CHECK_OP(records_, <, limits::kMaxRecords);
  const auto plain_size = limits::kRecordHeader + record.body_size();
  const auto cipher_size = plain_size + limits::kTag;
  const auto start = out.size();
  // Appended piece by piece, because a resize would write zeros first.
  out.reserve(start + limits::kLengthPrefix + cipher_size);
  for (const auto byte : {cipher_size >> 8, cipher_size & 0xffU}) out.push_back(std::byte(byte));
  out.push_back(static_cast<std::byte>(record.type));
  out.push_back(std::byte{0});
  out.insert(out.end(), record.head.begin(), record.head.end());
  out.insert(out.end(), record.tail.begin(), record.tail.end());
  out.resize(out.size() + limits::kTag);
  const auto frame = std::span(out).subspan(start + limits::kLengthPrefix);
  cipher_.encrypt({}, frame.first(plain_size), frame);
  if (++records_ % limits::kRekeyRecords == 0) cipher_.rekey();
}

std::span<std::byte> RecordOpener::room(std::size_t bytes) {
  if (input_.size() - end_ < bytes && at_ > 0) {
    std::copy(input_.begin() + static_cast<std::ptrdiff_t>(at_),
              input_.begin() + static_cast<std::ptrdiff_t>(end_), input_.begin());
    end_ -= at_;
    at_ = 0;
  }
  if (input_.size() - end_ < bytes) input_.resize(end_ + bytes);
  return std::span(input_).subspan(end_, bytes);
}

void RecordOpener::came(std::size_t bytes) {
  STARLING_CHECK_OP(bytes, <=, input_.size() - end_);
  end_ += bytes;
}

void RecordOpener::feed(ByteView bytes) {
  std::ranges::copy(bytes, room(bytes.size()).begin());
  came(bytes.size());
}

Result<std::optional<OpenedRecord>> RecordOpener::next() {
  STARLING_CHECK(!failed_);
  const auto rest = std::span(input_).subspan(at_, end_ - at_);
  if (rest.size() < limits::kLengthPrefix) return std::nullopt;
  const auto size =
      (std::to_integer<std::size_t>(rest[0]) << 8) | std::to_integer<std::size_t>(rest[1]);
  failed_ = true;  // until the record proves valid
  if (size < limits::kMinCiphertext)
    return fail(Errc::bad_message, Doing::reading_record,
                "a record of " + std::to_string(size) + " bytes");
  if (rest.size() < limits::kLengthPrefix + size) {
    failed_ = false;
    return std::nullopt;
  }
  const auto cipher = rest.subspan(limits::kLengthPrefix, size);
  const auto plain = cipher.first(size - limits::kTag);
  if (records_ == limits::kMaxRecords || !cipher_.decrypt({}, cipher, plain))
    return fail(Errc::bad_message, Doing::reading_record,
                "record " + std::to_string(records_) +
                    " does not decrypt: changed, lost, repeated or out of order");
  if (++records_ % limits::kRekeyRecords == 0) cipher_.rekey();
  if (plain[0] > std::byte{kLastRecordType} || plain[1] != std::byte{0})
    return fail(Errc::bad_message, Doing::reading_record,
                "record type " + std::to_string(std::to_integer<int>(plain[0])) + " with flags " +
                    std::to_string(std::to_integer<int>(plain[1])) + " is unknown");
  failed_ = false;
  at_ += limits::kLengthPrefix + size;
  if (at_ == end_) at_ = end_ = 0;  // nothing is kept: the body lies where the next bytes will go
  OpenedRecord record;
  record.type = static_cast<RecordType>(plain[0]);
  record.body = plain.subspan(limits::kRecordHeader);
  record.wire_bytes = limits::kLengthPrefix + size;
  return record;
}

}  // namespace starling::transport
