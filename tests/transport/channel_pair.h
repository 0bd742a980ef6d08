// Two channels and what goes between them, record by record.
#pragma once

#include "transport/channel.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace starling::transport::testing {

using namespace std::chrono_literals;

inline constexpr TimePoint kStart{std::chrono::seconds(50)};

class TestAdmitter final : public Admitter {
 public:
  bool admit(std::uint16_t, ByteView, std::size_t) override {
    ++asked;
    return admits;
  }
  bool admits = true;
  int asked = 0;
};

inline Bytes whole(const Record& record) {
  auto bytes = record.head;
  bytes.insert(bytes.end(), record.tail.begin(), record.tail.end());
  return bytes;
}

inline Message message_of(std::uint16_t type, std::size_t body, std::size_t attachment = 0) {
  Message message;
  message.type = type;
  message.body.assign(body, std::byte{0x11});
  if (attachment > 0) message.attachment = share(Bytes(attachment, std::byte{0x22}));
  return message;
}

inline Message in_order(Message message) {
  message.in_order = true;
  return message;
}

inline std::vector<std::uint16_t> types_of(const std::vector<Message>& messages) {
  std::vector<std::uint16_t> types;
  for (const auto& message : messages) types.push_back(message.type);
  return types;
}

// A channel with what it reported.
struct Node {
  Node(End end, TransferBudget& budget) : channel(end, budget) {}

  // Takes one record of the other side.
  Result<void> take(TimePoint now, RecordType type, ByteView body) {
    OpenedRecord opened;
    opened.type = type;
    opened.body = body;
    std::vector<ChannelEvent> events;
    auto taken = channel.on_record(now, opened, admitter, events);
    for (auto& event : events) {
      if (auto* delivered = std::get_if<Delivered>(&event))
        messages.push_back(std::move(delivered->message));
      if (std::holds_alternative<Refused>(event)) ++refused;
      if (std::holds_alternative<Ponged>(event)) ++pongs;
      if (auto* farewell = std::get_if<Farewell>(&event)) bye = farewell->why;
    }
    return taken;
  }

  TestAdmitter admitter;
  Channel channel;
  std::vector<Message> messages;
  int refused = 0;
  int pongs = 0;
  std::optional<Error> bye;
};

// Two channels and the records between them.
struct Link {
  TransferBudget budget;
  Node left{End::initiator, budget};
  Node right{End::responder, budget};
  TimePoint now = kStart;

  Link() {
    right.channel.say_welcome();
    REQUIRE(step(right, left));
  }

  // Moves one record; false if there is none.
  bool step(Node& from, Node& to) {
    const auto record = from.channel.next_record(now, limits::kMaxBulkRecord);
    if (!record) return false;
    const auto body = whole(*record);
    const auto taken = to.take(now, record->type, body);
    CHECK_MESSAGE(taken.has_value(), (taken ? "" : to_string(taken.error())));
    return true;
  }
  void settle() {
    while (step(left, right) || step(right, left)) now += 1ms;
  }
};

inline Bytes head_of(std::uint16_t type, std::uint32_t transfer, std::uint32_t body,
                     std::uint32_t attachment) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(type);
  writer.write(transfer);
  writer.write(body);
  writer.write(attachment);
  return bytes;
}

inline Bytes numbers(std::vector<std::uint32_t> values) {
  Bytes bytes;
  for (const auto value : values) ByteWriter(bytes).write(value);
  return bytes;
}

}  // namespace starling::transport::testing
