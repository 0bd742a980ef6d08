// Admission: which accepted connections may start a handshake. Sans-I/O.
#pragma once

#include "node/base/clock.h"
#include "node/base/rate.h"
#include "transport/limits.h"

#include <asio/ip/address.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace starling::transport {

// One IPv4 address, or the /56 that one IPv6 customer has.
enum class AddressGroup : std::uint64_t {};
[[nodiscard]] AddressGroup group_of(const asio::ip::address& address);

// An IPv4 address that a socket of both families shows as ::ffff:a.b.c.d, as itself.
[[nodiscard]] asio::ip::address unmapped(const asio::ip::address& address);

enum class AdmissionRefusal : std::uint8_t {
  none,
  too_fast,         // the address, or all new addresses together, connect too often
  address_crowded,  // the address has its share of unauthenticated connections
  full,             // all places are taken, and none can be cleared for this one
};

// What to do with a connection that was just accepted.
struct AdmissionVerdict {
  AdmissionRefusal refusal = AdmissionRefusal::none;
  std::uint64_t ticket = 0;            // of the admitted connection
  std::optional<std::uint64_t> evict;  // ticket of a connection to close in its favour
};

// The unauthenticated connections: bounded in all and per address, and the rate of new ones and of
// those that are answered.
//
// When all places are taken, the oldest that has not sent a valid first message makes room: who
// belongs here sends it along with the connection, and under a secret nobody else can. Of the most
// crowded address first, if that has more than one connection; where all have sent theirs, the
// oldest of that address goes. Places beyond kMaxUnauthenticated - kUnauthenticatedReserve are for
// addresses that were peers before. Those share no rate with the others either: a flood from many
// addresses must not keep members out. Loopback is exempt from the rates, not from the bounds.
//
// Owned by Transport; thread: io. Memory: 128 tickets and about 5,000 rates.
class Admission {
 public:
  // `rate`: connections of one address each second.
  explicit Admission(double rate) : rate_(rate) {}

  [[nodiscard]] AdmissionVerdict admit(TimePoint now, const asio::ip::address& address,
                                       bool was_peer);
  // Whether the connection with this ticket, whose first message is valid, gets an answer: asked
  // once, before the costly part of the handshake.
  [[nodiscard]] bool may_answer(TimePoint now, std::uint64_t ticket);
  // The connection with this ticket finished its handshake or is gone.
  void end(std::uint64_t ticket);

  [[nodiscard]] std::size_t size() const { return tickets_.size(); }

 private:
  struct Ticket {
    AddressGroup group;
    bool exempt = false;    // from the rate of all
    bool answered = false;  // its first message was valid
  };

  [[nodiscard]] bool try_rate(TimePoint now, AddressGroup group, bool was_peer);
  // Whose place is given to another connection.
  [[nodiscard]] std::optional<std::uint64_t> expendable() const;

  double rate_;
  TokenBucket connections_{limits::kConnectionsInAll, limits::kConnectionsInAll};
  TokenBucket answers_{limits::kHandshakesInAll, limits::kHandshakesInAll};
  std::map<AddressGroup, TokenBucket> rates_;
  std::map<std::uint64_t, Ticket> tickets_;  // in the order of arrival
  std::map<AddressGroup, std::size_t> counts_;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace starling::transport
