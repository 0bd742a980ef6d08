// The sending half, and what both halves share. Receiving is in channel_receive.cc.
#include "transport/channel.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "transport/wire_codec.h"

#include <algorithm>
#include <utility>

namespace starling::transport {
namespace {

// The smoothing of goodput: one burst in four counts.
constexpr double kGain = 0.25;

Bytes token_bytes(std::uint64_t token) {
  Bytes bytes;
  ByteWriter(bytes).write(token);
  return bytes;
}

Bytes message_bytes(const Message& message, std::uint32_t transfer) {
  Bytes bytes;
  bytes.reserve(limits::kMessageHead + message.body.size());
  ByteWriter writer(bytes);
  writer.write(message.type);
  writer.write(transfer);
  writer.write(static_cast<std::uint32_t>(message.body.size()));
  writer.write(static_cast<std::uint32_t>(message.attached().size()));
  writer.append(message.body);
  return bytes;
}

std::size_t max_session_body_of(std::uint16_t type) {
  switch (type) {
    case kSwarmSecretMessage:
    case kNextSecretMessage:
      return limits::kMaxSecretText;
    case kMembershipMessage:
      return limits::kMaxMembershipText;
    case kAccessFactsMessage:
      return limits::kAccessFacts;
    case kRevocationsMessage:
      return limits::kMaxRevocations;
    case kSecretHeldMessage:
      return limits::kMaxSecretHeld;
    default:
      return 0;
  }
}

}  // namespace

std::size_t max_body_of(std::uint16_t type) {
  switch (static_cast<Room>(type >> 8)) {
    case Room::membership:
      return limits::kMaxMembershipBody;
    case Room::exchange:
    case Room::consensus:
    case Room::bootstrap:
      return limits::kMaxControlBody;
    case Room::session:
      return max_session_body_of(type);
  }
  return 0;
}

Channel::Channel(End end, TransferBudget& budget)
    : budget_(budget), state_(end == End::initiator ? State::want_welcome : State::open) {}

Channel::~Channel() { budget_.release(reserved_); }

void Channel::queue_reply(RecordType type, Bytes body) {
  if (bye_ && leave_ == Leave::at_once) return;
  reply_bytes_ += body.size() + limits::kMinCiphertext;
  Record record;
  record.type = type;
  record.head = std::move(body);
  replies_.push_back(std::move(record));
}

void Channel::queue_grant(std::uint32_t id, std::size_t received, std::size_t limit) {
  Bytes body;
  ByteWriter writer(body);
  writer.write(id);
  writer.write(static_cast<std::uint32_t>(received));
  writer.write(static_cast<std::uint32_t>(limit));
  queue_reply(RecordType::grant, std::move(body));
}

void Channel::say_welcome() { queue_reply(RecordType::welcome, {}); }

void Channel::ping(std::uint64_t token) { queue_reply(RecordType::ping, token_bytes(token)); }

void Channel::say_bye(const Error& why, Leave leave) {
  if (bye_taken_ || (bye_ && leave >= leave_)) return;
  if (!bye_) bye_ = encode_bye(why);
  leave_ = leave;
  if (leave == Leave::after_attachments) return;
  drop_transfers();
  if (leave == Leave::after_messages) return;
  replies_.clear();
  reply_bytes_ = 0;
  messages_.clear();
  held_.clear();
  control_bytes_ = 0;
}

std::vector<Refused> Channel::unfinished() const {
  std::vector<Refused> messages;
  for (const auto& [id, transfer] : outgoing_)
    messages.push_back(Refused{transfer.type, transfer.body});
  for (const auto& message : held_)
    if (!message.attached().empty()) messages.push_back(Refused{message.type, message.body});
  return messages;
}

void Channel::drop_transfers() {
  outgoing_.clear();
  unconfirmed_ = 0;
  // A message whose attachment will not come is not announced any more.
  std::erase_if(messages_, [this](const Outgoing& message) {
    const bool drop = message.transfer != 0 && message.sent == 0;
    if (drop) control_bytes_ -= message.bytes.size();
    return drop;
  });
  std::erase_if(held_, [this](const Message& message) {
    const bool drop = !message.attached().empty();
    if (drop) control_bytes_ -= limits::kMessageHead + message.body.size();
    return drop;
  });
  release_held();
}

// What an attachment of its room that is still under way, or a held message of it, keeps back.
bool Channel::must_wait(const Message& message) const {
  const auto of_its_room = [&](std::uint16_t type) {
    return static_cast<Room>(type >> 8) == message.room();
  };
  if (std::ranges::any_of(held_, [&](const Message& held) { return of_its_room(held.type); }))
    return true;
  return message.in_order && std::ranges::any_of(outgoing_, [&](const auto& entry) {
           const OutgoingTransfer& transfer = entry.second;
           return of_its_room(transfer.type) && transfer.sent < transfer.attachment->size();
         });
}

void Channel::release_held() {
  for (auto& message : std::exchange(held_, {})) {
    control_bytes_ -= limits::kMessageHead + message.body.size();
    queue(std::move(message));
  }
}

Result<void> Channel::send(Message message) {
  const auto attachment = message.attached().size();
  const auto largest = max_body_of(message.type);
  if (largest == 0)
    return fail(Errc::bad_argument, Doing::writing_record,
                "message type " + std::to_string(message.type) + " belongs to no room");
  if (message.body.size() > largest)
    return fail(Errc::too_large, Doing::writing_record,
                "a body of " + std::to_string(message.body.size()) + " bytes, at most " +
                    std::to_string(largest));
  if (attachment > limits::kMaxAttachment)
    return fail(Errc::too_large, Doing::writing_record,
                "an attachment of " + std::to_string(attachment) + " bytes");
  if (bye_ || state_ == State::over)
    return fail(Errc::closed, Doing::writing_record, "the session is ending");
  if (control_bytes_ + limits::kMessageHead + message.body.size() > limits::kMaxQueuedControl)
    return fail(Errc::too_many, Doing::writing_record,
                std::to_string(control_bytes_) + " bytes of messages are queued already");
  if (attachment > 0 && transfers() >= limits::kMaxTransfers)
    return fail(Errc::too_many, Doing::writing_record,
                std::to_string(transfers()) + " attachments are under way already");
  queue(std::move(message));
  return {};
}

std::size_t Channel::transfers() const {
  return outgoing_.size() +
         static_cast<std::size_t>(std::ranges::count_if(
             held_, [](const Message& held) { return !held.attached().empty(); }));
}

void Channel::queue(Message message) {
  if (must_wait(message)) {
    control_bytes_ += limits::kMessageHead + message.body.size();
    held_.push_back(std::move(message));
    return;
  }
  const auto attachment = message.attached().size();
  Outgoing outgoing;
  if (attachment > 0) outgoing.transfer = ++last_outgoing_;
  outgoing.bytes = message_bytes(message, outgoing.transfer);
  control_bytes_ += outgoing.bytes.size();
  if (attachment > 0) {
    auto& transfer = outgoing_[outgoing.transfer];
    transfer.type = message.type;
    transfer.body = std::move(message.body);
    transfer.attachment = std::move(message.attachment);
    transfer.limit = std::min(attachment, limits::kInitialCredit);
  }
  messages_.push_back(std::move(outgoing));
}

bool Channel::bye_ready() const {
  return bye_ && !bye_taken_ && replies_.empty() && messages_.empty() && held_.empty() &&
         !sends_bulk();
}

bool Channel::has_record() const {
  if (bye_taken_) return false;
  return !replies_.empty() || !messages_.empty() || bye_ready() || ready_bulk_bytes() > 0;
}

std::optional<Record> Channel::next_record(TimePoint now, std::size_t bulk_bytes) {
  if (bye_taken_) return std::nullopt;
  const bool inside_body = !messages_.empty() && messages_.front().sent > 0;
  if (!replies_.empty() && !inside_body) {
    auto record = std::move(replies_.front());
    replies_.pop_front();
    reply_bytes_ -= record.head.size() + limits::kMinCiphertext;
    return record;
  }
  if (!messages_.empty()) return next_message_record();
  if (auto record = next_bulk_record(now, bulk_bytes)) return record;
  if (!bye_ready()) return std::nullopt;
  bye_taken_ = true;
  Record record;
  record.type = RecordType::bye;
  record.head = std::move(*bye_);
  return record;
}

Record Channel::next_message_record() {
  auto& message = messages_.front();
  Record record;
  record.type = message.sent == 0 ? RecordType::message : RecordType::more;
  const auto rest = ByteView(message.bytes).subspan(message.sent);
  const auto part = rest.first(std::min(rest.size(), limits::kMaxRecordBody));
  record.head = to_bytes(part);
  message.sent += part.size();
  if (message.sent == message.bytes.size()) {
    control_bytes_ -= message.bytes.size();
    if (const auto transfer = outgoing_.find(message.transfer); transfer != outgoing_.end())
      transfer->second.announced = true;
    messages_.pop_front();
  }
  return record;
}

std::map<std::uint32_t, Channel::OutgoingTransfer>::iterator Channel::next_transfer() {
  const auto ready = [](const auto& entry) {
    return entry.second.announced && entry.second.sent < entry.second.limit;
  };
  // The one whose turn it is, then the next by id, round and round.
  const auto from = turn_left_ > 0 ? outgoing_.lower_bound(turn_) : outgoing_.upper_bound(turn_);
  auto found = std::find_if(from, outgoing_.end(), ready);
  if (found == outgoing_.end()) {
    found = std::find_if(outgoing_.begin(), from, ready);
    if (found == from) return outgoing_.end();
  }
  if (found->first != turn_ || turn_left_ == 0) {
    turn_ = found->first;
    turn_left_ = limits::kBulkChunk;
  }
  return found;
}

std::optional<Record> Channel::next_bulk_record(TimePoint now, std::size_t bulk_bytes) {
  const auto found = next_transfer();
  if (found == outgoing_.end()) return std::nullopt;
  auto& [id, transfer] = *found;
  const auto room =
      std::clamp(bulk_bytes, limits::kMinBulkRecord, limits::kMaxBulkRecord) - limits::kTransferId;
  const auto size = std::min({room, transfer.limit - transfer.sent, turn_left_});
  Record record;
  record.type = RecordType::bulk;
  ByteWriter(record.head).write(id);
  record.tail = ByteView(*transfer.attachment).subspan(transfer.sent, size);
  if (unconfirmed_ == 0) {
    burst_start_ = now;
    burst_ = 0;
  }
  unconfirmed_ += size;
  const std::size_t half = transfer.attachment->size() / 2;
  if (transfer.sent <= half && transfer.sent + size > half) fault::pass("net.half_attachment");
  transfer.sent += size;
  turn_left_ -= size;
  if (transfer.sent == transfer.attachment->size()) release_held();
  return record;
}

void Channel::learn_goodput(TimePoint now, std::size_t confirmed) {
  unconfirmed_ -= confirmed;
  burst_ += confirmed;
  if (burst_ < limits::kBulkChunk || now <= burst_start_) return;
  const double sample = static_cast<double>(burst_) / seconds(now - burst_start_);
  goodput_ = goodput_ == 0 ? sample : goodput_ + kGain * (sample - goodput_);
  burst_ = 0;
  burst_start_ = now;
}

std::size_t Channel::queued_bulk_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, transfer] : outgoing_) bytes += transfer.attachment->size() - transfer.sent;
  for (const auto& message : held_) bytes += message.attached().size();
  return bytes;
}

std::size_t Channel::ready_bulk_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, transfer] : outgoing_)
    if (transfer.announced) bytes += transfer.limit - transfer.sent;
  return bytes;
}

bool Channel::idle() const {
  return replies_.empty() && messages_.empty() && held_.empty() && outgoing_.empty() &&
         incoming_.empty() && !partial_;
}

}  // namespace starling::transport
