#include "transport/record.h"

#include "node/base/check.h"

#include <algorithm>
#include <string>

namespace starling::transport {
namespace {

constexpr auto kDoing = Doing::reading_record;

}  // namespace

void RecordSealer::seal(const Record& record, Bytes& out) {
  STARLING_CHECK_OP(record.body_size(), <=, limits::kMaxRecordBody);
  STARLING_CHECK_OP(records_, <, limits::kMaxRecords);
  const auto plain_size = limits::kRecordHeader + record.body_size();
  const auto cipher_size = plain_size + limits::kTag;
  const auto start = out.size();
  out.resize(start + limits::kLengthPrefix + cipher_size);
  auto frame = std::span(out).subspan(start);
  frame[0] = static_cast<std::byte>(cipher_size >> 8);
  frame[1] = static_cast<std::byte>(cipher_size & 0xffU);
  frame = frame.subspan(limits::kLengthPrefix);
  frame[0] = static_cast<std::byte>(record.type);
  frame[1] = std::byte{0};
  auto body = std::ranges::copy(record.head, frame.begin() + limits::kRecordHeader).out;
  std::ranges::copy(record.tail, body);
  cipher_.encrypt({}, frame.first(plain_size), frame);
  if (++records_ % limits::kRekeyRecords == 0) cipher_.rekey();
}

void RecordOpener::feed(ByteView bytes) {
  if (at_ == input_.size()) {
    input_.clear();
    at_ = 0;
  } else if (at_ > limits::kMaxCiphertext) {
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ = 0;
  }
  input_.insert(input_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<OpenedRecord>> RecordOpener::next() {
  STARLING_CHECK(!failed_);
  const auto rest = std::span(input_).subspan(at_);
  if (rest.size() < limits::kLengthPrefix) return std::nullopt;
  const auto size =
      (std::to_integer<std::size_t>(rest[0]) << 8) | std::to_integer<std::size_t>(rest[1]);
  failed_ = true;  // until the record proves valid
  if (size < limits::kMinCiphertext)
    return fail(Errc::bad_message, kDoing, "a record of " + std::to_string(size) + " bytes");
  if (rest.size() < limits::kLengthPrefix + size) {
    failed_ = false;
    return std::nullopt;
  }
  const auto cipher = rest.subspan(limits::kLengthPrefix, size);
  const auto plain = cipher.first(size - limits::kTag);
  if (records_ == limits::kMaxRecords || !cipher_.decrypt({}, cipher, plain))
    return fail(Errc::bad_message, kDoing,
                "record " + std::to_string(records_) +
                    " does not decrypt: changed, lost, repeated or out of order");
  if (++records_ % limits::kRekeyRecords == 0) cipher_.rekey();
  if (plain[0] > std::byte{kLastRecordType} || plain[1] != std::byte{0})
    return fail(Errc::bad_message, kDoing,
                "record type " + std::to_string(std::to_integer<int>(plain[0])) + " with flags " +
                    std::to_string(std::to_integer<int>(plain[1])) + " is unknown");
  failed_ = false;
  at_ += limits::kLengthPrefix + size;
  OpenedRecord record;
  record.type = static_cast<RecordType>(plain[0]);
  record.body = plain.subspan(limits::kRecordHeader);
  record.wire_bytes = limits::kLengthPrefix + size;
  return record;
}

}  // namespace starling::transport
