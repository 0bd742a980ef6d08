#include "tests/sim/wire.h"

#include "node/base/check.h"

#include <algorithm>

namespace starling::sim {
namespace {

// What is serialized ahead of time at most, so that control waits for one bulk record only.
constexpr Duration kAhead = std::chrono::milliseconds(20);
constexpr std::size_t kOverhead =
    transport::limits::kLengthPrefix + transport::limits::kMinCiphertext;

}  // namespace

Wire::Wire(Schedule& schedule, Rng rng, WireOptions options, std::size_t hosts)
    : schedule_(schedule), rng_(rng), options_(options), hosts_(hosts) {}

// ---- faults

void Wire::unblock(Host from, Host to) {
  const auto at = blocks_.find({from, to});
  STARLING_CHECK(at != blocks_.end());
  if (--at->second == 0) blocks_.erase(at);
}

void Wire::clog(Host from, Host to, TimePoint until) {
  auto& end = clogs_[{from, to}];
  end = std::max(end, until);
}

void Wire::set_power(Host host, bool on) {
  hosts_[host].on = on;
  if (on) return;
  // Nothing is said to anybody: the other ends find out by themselves.
  for (const auto id : std::exchange(hosts_[host].connections, {})) {
    Connection& connection = connections_.at(id);
    Way& way = connection.ways[side_of(connection, host)];
    way.open = false;
    way.backlog.clear();
    forget_if_over(id);
  }
}

void Wire::cut_connections(Host host) {
  const auto ids = hosts_[host].connections;
  for (const auto id : ids) {
    end(id, 0, Ended::reset);
    end(id, 1, Ended::reset);
  }
}

bool Wire::passes(Host from, Host to) const {
  if (!hosts_[from].on || !hosts_[to].on) return false;
  return blocks_.empty() || !blocks_.contains({from, to});
}

Duration Wire::travel(Host from, Host to) {
  const auto& quality = options_.quality;
  const auto spread = static_cast<std::uint64_t>((quality.delay_max - quality.delay_min).count());
  Duration delay = quality.delay_min + hosts_[from].distance + hosts_[to].distance +
                   Duration(static_cast<std::int64_t>(rng_.below(spread + 1)));
  Duration again = options_.first_retransmission;
  while (quality.loss > 0 && rng_.chance(quality.loss) && again < std::chrono::seconds(10)) {
    delay += again;
    again *= 2;
  }
  if (!clogs_.empty()) {
    const auto at = clogs_.find({from, to});
    if (at != clogs_.end()) {
      if (at->second <= schedule_.now())
        clogs_.erase(at);
      else
        delay += at->second - schedule_.now();
    }
  }
  return delay;
}

// ---- connections

ConnectionId Wire::connect(Host from, Host to, Hear hear_from, Hear hear_to) {
  const ConnectionId id = ++last_id_;
  Connection& connection = connections_[id];
  connection.ways[0].from = connection.ways[1].to = from;
  connection.ways[0].to = connection.ways[1].from = to;
  connection.ways[0].hear = std::move(hear_from);
  connection.ways[1].hear = std::move(hear_to);
  hosts_[from].connections.insert(id);
  hosts_[to].connections.insert(id);
  return id;
}

Wire::Connection* Wire::find(ConnectionId id) {
  const auto at = connections_.find(id);
  return at == connections_.end() ? nullptr : &at->second;
}

bool Wire::has_room(ConnectionId id, Host from) const {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return false;
  const Way& way = at->second.ways[side_of(at->second, from)];
  return way.open && way.unacknowledged < options_.send_buffer &&
         way.free_at <= schedule_.now() + kAhead;
}

void Wire::write(ConnectionId id, Host from, Frame frame) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  ++frames_;
  bytes_ += frame.body.size() + kOverhead;
  put(id, connection->ways[side_of(*connection, from)], std::move(frame));
}

void Wire::want_room(ConnectionId id, Host from) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  Way& way = connection->ways[side_of(*connection, from)];
  if (std::exchange(way.wants_room, true)) return;
  // A stalled way or a full buffer says so by itself.
  if (way.stalled || way.unacknowledged >= options_.send_buffer) return;
  const std::size_t side = side_of(*connection, from);
  schedule_.at(way.free_at - kAhead / 2, [this, id, side, asked = ++way.asked] {
    Connection* still = find(id);
    if (still == nullptr || still->ways[side].asked != asked) return;
    if (!std::exchange(still->ways[side].wants_room, false)) return;
    if (still->ways[side].open) still->ways[side].hear(id, Writable{});
  });
}

void Wire::put(ConnectionId id, Way& way, Segment segment) {
  if (!way.open) return;
  if (const auto* frame = std::get_if<Frame>(&segment))
    way.unacknowledged += frame->body.size() + kOverhead;
  if (way.stalled || !passes(way.from, way.to)) {
    way.backlog.push_back(std::move(segment));
    stall(id, way);
    return;
  }
  if (!passes(way.to, way.from)) stall(id, way);  // it arrives, and nobody hears that it did
  launch(id, way, std::move(segment));
}

void Wire::launch(ConnectionId id, Way& way, Segment segment) {
  const auto* frame = std::get_if<Frame>(&segment);
  const std::size_t bytes = frame == nullptr ? 0 : frame->body.size() + kOverhead;
  const Duration wired(static_cast<std::int64_t>(1e6 * static_cast<double>(bytes) /
                                                 options_.quality.bytes_per_second));
  way.free_at = std::max(way.free_at, schedule_.now()) + wired;
  way.last_arrival = std::max(way.last_arrival, way.free_at + travel(way.from, way.to));
  const std::size_t side = &way == &connections_.at(id).ways[0] ? 0 : 1;
  schedule_.at(way.last_arrival, [this, id, side, bytes, segment = std::move(segment)]() mutable {
    arrive(id, side, std::move(segment), bytes);
  });
}

void Wire::arrive(ConnectionId id, std::size_t side, Segment segment, std::size_t bytes) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  Way& way = connection->ways[side];
  Way& back = connection->ways[1 - side];
  if (!way.stalled) {
    way.unacknowledged -= std::min(way.unacknowledged, bytes);
    if (way.open && way.wants_room && way.unacknowledged < options_.send_buffer) {
      way.wants_room = false;
      way.hear(id, Writable{});
      connection = find(id);
      if (connection == nullptr) return;
    }
  }
  if (!hosts_[way.to].on) return;
  if (!back.open) {
    // Nobody is there any more: the machine says so.
    if (way.open && std::holds_alternative<Frame>(segment)) end(id, side, Ended::reset);
    return;
  }
  if (auto* frame = std::get_if<Frame>(&segment))
    back.hear(id, std::move(*frame));
  else
    end(id, 1 - side, Ended::reset);
}

// ---- stalls

void Wire::stall(ConnectionId id, Way& way) {
  if (way.stalled) return;
  way.stalled = schedule_.now();
  way.retransmission = options_.first_retransmission;
  const std::size_t side = &way == &connections_.at(id).ways[0] ? 0 : 1;
  schedule_.after(way.retransmission, [this, id, side] { retransmit(id, side); });
}

void Wire::retransmit(ConnectionId id, std::size_t side) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  Way& way = connection->ways[side];
  if (!way.stalled || !hosts_[way.from].on) return;
  if (both_ways(way)) {
    if (!connection->ways[1 - side].open) return end(id, side, Ended::reset);
    way.stalled.reset();
    way.unacknowledged = 0;
    for (auto& segment : std::exchange(way.backlog, {})) {
      if (const auto* frame = std::get_if<Frame>(&segment))
        way.unacknowledged += frame->body.size() + kOverhead;
      launch(id, way, std::move(segment));
    }
    if (way.open && std::exchange(way.wants_room, false)) way.hear(id, Writable{});
    return;
  }
  if (schedule_.now() - *way.stalled >= options_.user_timeout)
    return end(id, side, Ended::timed_out);
  if (passes(way.from, way.to)) {
    // What went out arrives; only the acknowledgements are missing.
    for (auto& segment : std::exchange(way.backlog, {})) launch(id, way, std::move(segment));
  }
  way.retransmission = std::min(2 * way.retransmission, options_.last_retransmission);
  // As the kernel: the last try is at the end of its patience.
  const Duration left = *way.stalled + options_.user_timeout - schedule_.now();
  schedule_.after(std::min(way.retransmission, left), [this, id, side] { retransmit(id, side); });
}

// ---- ends

void Wire::end(ConnectionId id, std::size_t side, Ended how) {
  Connection* connection = find(id);
  if (connection == nullptr || !connection->ways[side].open) return;
  Way& way = connection->ways[side];
  way.open = false;
  way.backlog.clear();
  way.stalled.reset();
  hosts_[way.from].connections.erase(id);
  const Hear hear = std::move(way.hear);
  forget_if_over(id);
  if (hear) hear(id, how);
}

void Wire::close(ConnectionId id, Host from) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  Way& way = connection->ways[side_of(*connection, from)];
  if (!way.open) return;
  put(id, way, Fin{});
  way.open = false;
  way.hear = nullptr;
  hosts_[from].connections.erase(id);
  forget_if_over(id);
}

void Wire::close_all(Host host) {
  for (const auto id : std::exchange(hosts_[host].connections, {})) close(id, host);
}

void Wire::forget_if_over(ConnectionId id) {
  const Connection& connection = connections_.at(id);
  if (!connection.ways[0].open && !connection.ways[1].open) connections_.erase(id);
}

}  // namespace starling::sim
