// Channel: messages and attachments over records; queues, priorities, credit. Sans-I/O.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/result.h"
#include "transport/figures.h"
#include "transport/limits.h"
#include "transport/message.h"
#include "transport/record.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <variant>
#include <vector>

namespace starling::transport {

// The memory that all sessions together may reserve for attachments on their way in, and for the
// bodies that wait for them.
//
// One per Transport, outlives its channels. Thread: io.
class TransferBudget {
 public:
  explicit TransferBudget(std::size_t limit = limits::kTransferBudget) : limit_(limit) {}

  // Reserves for a session that has `held` reserved already. With several attachments a session
  // gets at most half of what the others leave: one that opens many and finishes none keeps nobody
  // else out.
  [[nodiscard]] bool try_reserve(std::size_t bytes, std::size_t held) {
    if (bytes > limit_ - reserved_) return false;
    const std::size_t left = limit_ - (reserved_ - held);
    if (held > 0 && held + bytes > left / 2) return false;
    reserved_ += bytes;
    return true;
  }
  void release(std::size_t bytes) { reserved_ -= bytes; }
  [[nodiscard]] std::size_t reserved() const { return reserved_; }

 private:
  std::size_t limit_;
  std::size_t reserved_ = 0;
};

// Asked before memory is reserved for an attachment.
class Admitter {
 public:
  virtual ~Admitter() = default;
  [[nodiscard]] virtual bool admit(std::uint16_t type, ByteView body,
                                   std::size_t attachment_bytes) = 0;
};

// What a record meant to the layer above.
struct Welcomed {};
struct Delivered {
  Message message;
};
struct Refused {  // the peer refused the attachment of this message of ours
  std::uint16_t type = 0;
  Bytes body;
};
struct Ponged {
  std::uint64_t token = 0;
};
struct Farewell {  // the peer's last record
  Error why;
};
using ChannelEvent = std::variant<Welcomed, Delivered, Refused, Ponged, Farewell>;

// When our goodbye goes out.
enum class Leave : std::uint8_t {
  at_once,            // queues are dropped: the session broke a rule
  after_messages,     // queued messages go first, without attachments
  after_attachments,  // all that is queued goes first (decision 0073)
};

enum class End : std::uint8_t { initiator, responder };

// The largest body of a message type; 0 for a type that no room has.
[[nodiscard]] std::size_t max_body_of(std::uint16_t type);

// One side's half of a session's protocol, between handshake and goodbye.
//
//   receiving      | welcome        | message, more      | bulk, grant, refuse, abandon | bye
//   want welcome   | -> open        | error              | error                        | -> over
//   open           | error          | deliver or offer   | see wire.capnp               | -> over
//   over           | error          | error              | error                        | error
// (an accepted session starts in `open`)
//
//   sending        | records go out in this order: the rest of a body that began, answers of the
//                  | session, messages, one bulk record of the transfers that have credit, in turns
//                  | of limits::kBulkChunk; bye when nothing else is left (see Leave). A message
//                  | in_order joins the others when the attachments before it are out, or refused.
//
// A member of its Session; thread: io. Memory: limits::kMaxPerPeer, and what the budget granted.
class Channel {
 public:
  // `budget` outlives the channel.
  Channel(End end, TransferBudget& budget);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Queues the responder's acceptance: its first record.
  void say_welcome();
  // Queues the last record; later calls of send() fail. A second call may only hurry the first.
  void say_bye(const Error& why, Leave leave);
  // The messages whose attachments are not confirmed yet, in the order of sending: what say_bye()
  // would drop.
  [[nodiscard]] std::vector<Refused> unfinished() const;
  // Queues a ping whose answer is a Ponged with this token.
  void ping(std::uint64_t token);

  // Queues a message.
  //
  // Errors:  bad_argument for a type of no room; too_large; too_many when the queue or the
  // transfers
  //          are full; closed after say_bye(). Nothing is queued then.
  [[nodiscard]] Result<void> send(Message message);

  // The next record to seal, or nothing; bulk records carry at most `bulk_bytes`.
  [[nodiscard]] std::optional<Record> next_record(TimePoint now, std::size_t bulk_bytes);
  [[nodiscard]] bool has_record() const;
  // True once the bye went out through next_record().
  [[nodiscard]] bool bye_taken() const { return bye_taken_; }
  // A goodbye after attachments waits for one that is not out yet.
  [[nodiscard]] bool finishing() const { return bye_ && sends_bulk(); }
  [[nodiscard]] bool sends_bulk() const { return queued_bulk_bytes() > 0; }

  // Takes one record in and appends what it meant.
  //
  // Errors:  any violation of the rules in wire.capnp: the session must end.
  [[nodiscard]] Result<void> on_record(TimePoint now, const OpenedRecord& record,
                                       Admitter& admitter, std::vector<ChannelEvent>& events);

  // Gives up the transfers where nothing came of any for limits::kTransferStall: their sender gives
  // them turns, and on a slow line with many the next one may take longer. And where so little came
  // that what they reserve would take limits::kTransferTime: whoever trickles holds memory that
  // others need. Call about once a second.
  void on_tick(TimePoint now);

  [[nodiscard]] double goodput() const { return goodput_; }
  [[nodiscard]] std::size_t queued_control_bytes() const { return control_bytes_; }
  [[nodiscard]] std::size_t queued_bulk_bytes() const;
  [[nodiscard]] std::size_t incoming_bytes() const { return reserved_; }
  // Attachments that a change of sessions would cost.
  [[nodiscard]] bool has_transfers() const { return !outgoing_.empty() || !incoming_.empty(); }
  [[nodiscard]] bool idle() const;  // nothing queued and no transfer under way in any direction

 private:
  // A message on its way out: head and body in one piece.
  struct Outgoing {
    Bytes bytes;
    std::size_t sent = 0;
    std::uint32_t transfer = 0;
  };
  struct OutgoingTransfer {
    std::uint16_t type = 0;
    Bytes body;  // handed back if the peer refuses
    SharedBytes attachment;
    std::size_t sent = 0;
    std::size_t confirmed = 0;
    std::size_t limit = 0;
    bool announced = false;  // its message went out
  };
  struct IncomingMessage {
    std::uint16_t type = 0;
    std::uint32_t transfer = 0;
    std::size_t body_size = 0;
    std::size_t attachment_size = 0;
    Bytes body;
  };
  struct IncomingTransfer {
    std::uint16_t type = 0;
    Bytes body;
    Bytes bytes;
    std::size_t size = 0;
    std::size_t reserved = 0;  // of the budget, for `body` and `bytes`
    std::size_t received = 0;
    std::size_t confirmed = 0;
    std::size_t limit = 0;
    TimePoint offered;
    bool refused = false;
  };
  using Events = std::vector<ChannelEvent>;

  // Bulk that has credit now.
  [[nodiscard]] std::size_t ready_bulk_bytes() const;

  void queue_reply(RecordType type, Bytes body);
  void queue_grant(std::uint32_t id, std::size_t received, std::size_t limit);
  [[nodiscard]] Record next_message_record();
  [[nodiscard]] std::optional<Record> next_bulk_record(TimePoint now, std::size_t bulk_bytes);
  [[nodiscard]] std::map<std::uint32_t, OutgoingTransfer>::iterator next_transfer();
  [[nodiscard]] std::size_t transfers() const;  // outgoing ones, with those that are held
  void queue(Message message);
  [[nodiscard]] bool must_wait(const Message& message) const;
  void release_held();
  [[nodiscard]] bool bye_ready() const;

  [[nodiscard]] Result<void> on_message_record(TimePoint now, ByteView body, Admitter& admitter,
                                               Events& events);
  [[nodiscard]] Result<void> on_body_bytes(TimePoint now, ByteView bytes, Admitter& admitter,
                                           Events& events);
  void on_offer(TimePoint now, IncomingMessage message, Admitter& admitter);
  [[nodiscard]] Result<void> on_bulk(TimePoint now, ByteView body, Events& events);
  [[nodiscard]] Result<void> on_grant(TimePoint now, ByteView body);
  [[nodiscard]] Result<void> on_refuse(ByteView body, Events& events);
  [[nodiscard]] Result<void> on_abandon(ByteView body);
  [[nodiscard]] Result<void> on_open_record(TimePoint now, const OpenedRecord& record,
                                            Admitter& admitter, Events& events);
  void learn_goodput(TimePoint now, std::size_t confirmed);
  void release(IncomingTransfer& transfer);
  void give_up(std::uint32_t id, IncomingTransfer& transfer);
  [[nodiscard]] bool trickles(TimePoint now);
  void drop_transfers();

  enum class State : std::uint8_t { want_welcome, open, over };

  TransferBudget& budget_;
  State state_;

  // Sending.
  std::deque<Record> replies_;
  std::size_t reply_bytes_ = 0;
  std::deque<Outgoing> messages_;
  std::deque<Message> held_;  // for the attachments before a message in_order, and those behind it
  std::size_t control_bytes_ = 0;  // of messages_ and held_
  std::map<std::uint32_t, OutgoingTransfer> outgoing_;
  std::uint32_t last_outgoing_ = 0;  // id
  std::uint32_t turn_ = 0;           // transfer whose turn it is
  std::size_t turn_left_ = 0;        // bytes that it still has
  std::optional<Bytes> bye_;
  Leave leave_ = Leave::after_messages;
  bool bye_taken_ = false;

  // Receiving.
  std::optional<IncomingMessage> partial_;
  std::map<std::uint32_t, IncomingTransfer> incoming_;
  std::uint32_t last_incoming_ = 0;
  std::size_t reserved_ = 0;
  TimePoint bulk_came_{};   // of any transfer: while some have their turn the others wait
  TimePoint look_began_{};  // since when bulk is counted
  std::size_t look_bytes_ = 0;

  // Goodput of what we send.
  std::size_t unconfirmed_ = 0;
  std::size_t burst_ = 0;
  TimePoint burst_start_{};
  double goodput_ = 0;
};

}  // namespace starling::transport
