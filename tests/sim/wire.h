// Wire: hosts, the links between them, and connections over the links as TCP makes them.
//
// A connection loses nothing, repeats nothing and keeps its order, because TCP does: a lost segment
// is a delay, a cut is a stall that ends with the next retransmission after the cut is mended, or
// with the connection. What a link can do to a connection is in LinkQuality and the faults below.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/random.h"
#include "tests/sim/schedule.h"
#include "transport/limits.h"
#include "transport/record.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace starling::sim {

using Host = std::uint32_t;
using ConnectionId = std::uint64_t;

struct LinkQuality {
  Duration delay_min = std::chrono::microseconds(200);
  Duration delay_max = std::chrono::milliseconds(5);
  double loss = 0;  // of a segment: each loss costs a retransmission
  double bytes_per_second = 12.5e6;
};

struct WireOptions {
  LinkQuality quality;
  // First wait before a retransmission; it doubles up to the second.
  Duration first_retransmission = std::chrono::milliseconds(200);
  Duration last_retransmission = std::chrono::seconds(120);
  // How long data may stay unacknowledged before the kernel ends the connection.
  Duration user_timeout = transport::limits::kUnacknowledged;
  // What a connection holds for a peer that acknowledges nothing.
  std::size_t send_buffer = std::size_t{128} << 10;
};

// One record in clear, on its way.
struct Frame {
  transport::RecordType type = transport::RecordType::ping;
  Bytes body;
};
// The stream has an end: cut without a goodbye, or given up by the kernel.
enum class Ended : std::uint8_t { reset, timed_out };
struct Writable {};
using WireEvent = std::variant<Frame, Ended, Writable>;
// What an end of a connection hears; called at the moment of arrival, whatever its host does then.
using Hear = std::function<void(ConnectionId, WireEvent)>;

class Wire {
 public:
  Wire(Schedule& schedule, Rng rng, WireOptions options, std::size_t hosts);

  // Faults. Blocks are counted: what two partitions cut is whole again when both are over.
  void block(Host from, Host to) { ++blocks_[{from, to}]; }
  void unblock(Host from, Host to);
  void clog(Host from, Host to, TimePoint until);
  void set_quality(const LinkQuality& quality) { options_.quality = quality; }
  void set_distance(Host host, Duration distance) { hosts_[host].distance = distance; }
  void set_power(Host host, bool on);
  // Every connection of this host is reset, as by a middlebox.
  void cut_connections(Host host);
  [[nodiscard]] bool passes(Host from, Host to) const;
  [[nodiscard]] bool powered(Host host) const { return hosts_[host].on; }
  [[nodiscard]] std::size_t blocked_links() const { return blocks_.size(); }

  // How long a segment takes now, if the link passes.
  [[nodiscard]] Duration travel(Host from, Host to);

  // An established connection; side 0 is `from`.
  ConnectionId connect(Host from, Host to, Hear hear_from, Hear hear_to);
  // Whether one more record may be written, and writing it. Rule: only with room.
  [[nodiscard]] bool has_room(ConnectionId id, Host from) const;
  void write(ConnectionId id, Host from, Frame frame);
  // Writable is told once there is room.
  void want_room(ConnectionId id, Host from);
  // This end is closed after what was written: the other end hears Ended::reset, unless it closed
  // before. Nothing is heard here any more.
  void close(ConnectionId id, Host from);
  // The process is gone: the kernel closes its connections.
  void close_all(Host host);

  [[nodiscard]] std::uint64_t frames() const { return frames_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }

 private:
  struct Fin {};
  using Segment = std::variant<Frame, Fin>;
  struct Way {  // one direction
    Host from = 0;
    Host to = 0;
    bool open = true;  // the end that writes here lives
    Hear hear;         // of the end that writes here
    TimePoint free_at{};
    TimePoint last_arrival{};
    std::deque<Segment> backlog;
    std::size_t unacknowledged = 0;
    bool wants_room = false;
    std::uint64_t asked = 0;  // for room so far: an answer to an older question is stale
    std::optional<TimePoint> stalled;
    Duration retransmission{};
  };
  struct Connection {
    std::array<Way, 2> ways;
  };
  struct HostState {
    bool on = true;
    Duration distance{0};
    std::set<ConnectionId> connections;
  };

  [[nodiscard]] Connection* find(ConnectionId id);
  [[nodiscard]] static std::size_t side_of(const Connection& connection, Host from) {
    return connection.ways[0].from == from ? 0 : 1;
  }
  void put(ConnectionId id, Way& way, Segment segment);
  void launch(ConnectionId id, Way& way, Segment segment);
  void arrive(ConnectionId id, std::size_t side, Segment segment, std::size_t bytes);
  void stall(ConnectionId id, Way& way);
  void retransmit(ConnectionId id, std::size_t side);
  void end(ConnectionId id, std::size_t side, Ended how);
  void forget_if_over(ConnectionId id);
  [[nodiscard]] bool both_ways(const Way& way) const {
    return passes(way.from, way.to) && passes(way.to, way.from);
  }

  Schedule& schedule_;
  Rng rng_;
  WireOptions options_;
  std::vector<HostState> hosts_;
  std::map<std::pair<Host, Host>, std::uint32_t> blocks_;
  std::map<std::pair<Host, Host>, TimePoint> clogs_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId last_id_ = 0;
  std::uint64_t frames_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace starling::sim
