#include "node/base/check.h"
#include "transport/channel.h"
#include "transport/wire_codec.h"

#include <algorithm>
#include <string>
#include <utility>

namespace starling::transport {
namespace {

std::unexpected<Error> bad_record(std::string what) {
  return fail(Errc::bad_message, Doing::reading_record, std::move(what));
}

Result<std::uint32_t> read_id(ByteView body) {
  ByteReader reader(body);
  const auto id = reader.read<std::uint32_t>();
  if (!id || reader.left() != 0) return bad_record("a record of a transfer has the wrong size");
  return *id;
}

}  // namespace

Result<void> Channel::on_record(TimePoint now, const OpenedRecord& record, Admitter& admitter,
                                Events& events) {
  if (state_ == State::over) return bad_record("a record after the goodbye");
  if (record.type == RecordType::bye) {
    TRY(auto why, decode_bye(record.body));
    state_ = State::over;
    events.emplace_back(Farewell{std::move(why)});
    return {};
  }
  if (state_ == State::want_welcome) {
    if (record.type != RecordType::welcome || !record.body.empty())
      return bad_record("the peer spoke before its welcome");
    state_ = State::open;
    events.emplace_back(Welcomed{});
    return {};
  }
  TRY_VOID(on_open_record(now, record, admitter, events));
  // Whoever makes us answer must read the answers.
  if (reply_bytes_ > limits::kMaxQueuedReplies)
    return fail(Errc::too_many, Doing::reading_record,
                "the peer does not read the answers that it asks for");
  return {};
}

Result<void> Channel::on_open_record(TimePoint now, const OpenedRecord& record, Admitter& admitter,
                                     Events& events) {
  if (partial_ && record.type != RecordType::more && record.type != RecordType::bulk)
    return bad_record("a record inside the body of a message");
  switch (record.type) {
    case RecordType::ping:
    case RecordType::pong: {
      ByteReader reader(record.body);
      const auto token = reader.read<std::uint64_t>();
      if (!token || reader.left() != 0) return bad_record("a ping or pong has the wrong size");
      if (record.type == RecordType::pong)
        events.emplace_back(Ponged{*token});
      else
        queue_reply(RecordType::pong, to_bytes(record.body));
      return {};
    }
    case RecordType::message:
      return on_message_record(now, record.body, admitter, events);
    case RecordType::more:
      if (!partial_ || record.body.empty()) return bad_record("a continuation of nothing");
      return on_body_bytes(now, record.body, admitter, events);
    case RecordType::bulk:
      return on_bulk(now, record.body, events);
    case RecordType::grant:
      return on_grant(now, record.body);
    case RecordType::refuse:
      return on_refuse(record.body, events);
    case RecordType::abandon:
      return on_abandon(record.body);
    case RecordType::welcome:
      return bad_record("a second welcome");
    case RecordType::bye:
      break;
  }
  STARLING_CHECK(false);
  return {};
}

Result<void> Channel::on_message_record(TimePoint now, ByteView body, Admitter& admitter,
                                        Events& events) {
  ByteReader reader(body);
  IncomingMessage message;
  const auto type = reader.read<std::uint16_t>();
  const auto transfer = reader.read<std::uint32_t>();
  const auto body_size = reader.read<std::uint32_t>();
  const auto attachment_size = reader.read<std::uint32_t>();
  if (reader.failed()) return bad_record("a message without its head");
  const auto largest = max_body_of(*type);
  if (largest == 0)
    return bad_record("message type " + std::to_string(*type) + " belongs to no room");
  if (*body_size > largest || *attachment_size > limits::kMaxAttachment)
    return fail(Errc::too_large, Doing::reading_record,
                "message type " + std::to_string(*type) + " with a body of " +
                    std::to_string(*body_size) + " bytes and an attachment of " +
                    std::to_string(*attachment_size));
  if ((*transfer == 0) != (*attachment_size == 0))
    return bad_record("a transfer without attachment");
  if (*transfer != 0) {
    if (*transfer != last_incoming_ + 1) return bad_record("a transfer id out of order");
    if (incoming_.size() == limits::kMaxTransfers)
      return fail(Errc::too_many, Doing::reading_record, "too many attachments under way");
    last_incoming_ = *transfer;
  }
  message.type = *type;
  message.transfer = *transfer;
  message.body_size = *body_size;
  message.attachment_size = *attachment_size;
  message.body.reserve(*body_size);
  partial_ = std::move(message);
  return on_body_bytes(now, body.subspan(limits::kMessageHead), admitter, events);
}

Result<void> Channel::on_body_bytes(TimePoint now, ByteView bytes, Admitter& admitter,
                                    Events& events) {
  auto& body = partial_->body;
  if (bytes.size() > partial_->body_size - body.size())
    return bad_record("a body longer than announced");
  body.insert(body.end(), bytes.begin(), bytes.end());
  if (body.size() < partial_->body_size) return {};
  auto message = std::move(*partial_);
  partial_.reset();
  if (message.transfer == 0)
    events.emplace_back(Delivered{Message{message.type, std::move(message.body), nullptr}});
  else
    on_offer(now, std::move(message), admitter);
  return {};
}

void Channel::on_offer(TimePoint now, IncomingMessage message, Admitter& admitter) {
  auto& transfer = incoming_[message.transfer];
  transfer.type = message.type;
  transfer.size = message.attachment_size;
  transfer.limit = std::min(transfer.size, limits::kInitialCredit);
  transfer.offered = now;
  const bool wanted = !bye_ && admitter.admit(message.type, message.body, transfer.size);
  // The body waits as long as its attachment does, so it is paid for as well.
  const auto cost = transfer.size + message.body.size();
  if (!wanted || !budget_.try_reserve(cost, reserved_)) {
    give_up(message.transfer, transfer);
    return;
  }
  reserved_ += cost;
  transfer.reserved = cost;
  transfer.body = std::move(message.body);
  transfer.bytes.reserve(transfer.size);  // the pages come with the bytes, not now
  prefer_huge_pages(transfer.bytes.data(), transfer.size);
  const auto limit = std::min(transfer.size, limits::kTransferWindow);
  if (limit > transfer.limit) {
    transfer.limit = limit;
    queue_grant(message.transfer, 0, limit);
  }
}

void Channel::release(IncomingTransfer& transfer) {
  reserved_ -= transfer.reserved;
  budget_.release(std::exchange(transfer.reserved, 0));
}

void Channel::give_up(std::uint32_t id, IncomingTransfer& transfer) {
  release(transfer);
  transfer.refused = true;
  transfer.bytes = Bytes();
  transfer.body = Bytes();
  Bytes body;
  ByteWriter(body).write(id);
  queue_reply(RecordType::refuse, std::move(body));
}

Result<void> Channel::on_bulk(TimePoint now, ByteView body, Events& events) {
  ByteReader reader(body);
  const auto id = reader.read<std::uint32_t>();
  const auto found = id ? incoming_.find(*id) : incoming_.end();
  if (found == incoming_.end()) return bad_record("bulk of no transfer");
  auto& transfer = found->second;
  const auto bytes = body.subspan(limits::kTransferId);
  if (bytes.empty() || bytes.size() > transfer.limit - transfer.received)
    return bad_record("bulk beyond its credit");
  transfer.received += bytes.size();
  bulk_came_ = now;
  look_bytes_ += bytes.size();
  if (transfer.refused) return {};
  transfer.bytes.insert(transfer.bytes.end(), bytes.begin(), bytes.end());
  if (transfer.received < transfer.size) {
    if (transfer.received - transfer.confirmed >= limits::kBulkChunk) {
      transfer.confirmed = transfer.received;
      transfer.limit = std::min(transfer.size, transfer.received + limits::kTransferWindow);
      queue_grant(*id, transfer.received, transfer.limit);
    }
    return {};
  }
  queue_grant(*id, transfer.size, transfer.size);
  release(transfer);
  Message message{transfer.type, std::move(transfer.body), share(std::move(transfer.bytes))};
  incoming_.erase(found);
  events.emplace_back(Delivered{std::move(message)});
  return {};
}

Result<void> Channel::on_grant(TimePoint now, ByteView body) {
  ByteReader reader(body);
  const auto id = reader.read<std::uint32_t>();
  const auto received = reader.read<std::uint32_t>();
  const auto limit = reader.read<std::uint32_t>();
  if (!limit || reader.left() != 0) return bad_record("a grant has the wrong size");
  const auto found = outgoing_.find(*id);
  if (found == outgoing_.end()) {
    // After our goodbye dropped the transfers, grants for them are still on their way.
    if (bye_ && *id <= last_outgoing_) return {};
    return bad_record("a grant for no transfer");
  }
  auto& transfer = found->second;
  if (*received > transfer.sent || *received < transfer.confirmed || *limit < transfer.limit ||
      *limit > transfer.attachment->size() || !transfer.announced)
    return bad_record("a grant that takes back or exceeds");
  learn_goodput(now, *received - transfer.confirmed);
  transfer.confirmed = *received;
  transfer.limit = *limit;
  if (transfer.confirmed == transfer.attachment->size()) outgoing_.erase(found);
  return {};
}

Result<void> Channel::on_refuse(ByteView body, Events& events) {
  TRY(const auto id, read_id(body));
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end()) {
    if (bye_ && id <= last_outgoing_) return {};
    return bad_record("a refusal of no transfer");
  }
  auto& transfer = found->second;
  if (!transfer.announced) return bad_record("a refusal of a transfer that was not announced");
  unconfirmed_ -= transfer.sent - transfer.confirmed;
  events.emplace_back(Refused{transfer.type, std::move(transfer.body)});
  outgoing_.erase(found);
  release_held();
  queue_reply(RecordType::abandon, to_bytes(body));
  return {};
}

Result<void> Channel::on_abandon(ByteView body) {
  TRY(const auto id, read_id(body));
  const auto found = incoming_.find(id);
  if (found == incoming_.end() || !found->second.refused)
    return bad_record("an abandon nobody asked for");
  incoming_.erase(found);
  return {};
}

// Of what was reserved for a whole minute, so that a line that was away for a while does not.
bool Channel::trickles(TimePoint now) {
  const Duration looked = now - look_began_;
  if (looked <= 4 * limits::kTransferStall) return false;
  std::size_t reserved = 0;
  for (const auto& [id, transfer] : incoming_)
    if (transfer.offered <= look_began_) reserved += transfer.reserved;
  const double share = seconds(looked) / seconds(limits::kTransferTime);
  look_began_ = now;
  return static_cast<double>(std::exchange(look_bytes_, 0)) < share * static_cast<double>(reserved);
}

void Channel::on_tick(TimePoint now) {
  if (!trickles(now) && now - bulk_came_ <= limits::kTransferStall) return;
  for (auto& [id, transfer] : incoming_)
    if (!transfer.refused && now - transfer.offered > limits::kTransferStall) give_up(id, transfer);
}

}  // namespace starling::transport
