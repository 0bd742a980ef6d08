#include "tests/sim/sessions.h"

#include "node/base/check.h"

#include <algorithm>
#include <utility>

namespace starling::sim {

namespace limits = transport::limits;
using transport::ChannelEvent;
using transport::Direction;
using transport::End;
using transport::Leave;

// Asks the shell, as transport::Session::ChannelAdmitter does.
class Sessions::Door final : public transport::Admitter {
 public:
  Door(Sessions& sessions, const Session& session) : sessions_(sessions), session_(session) {}
  [[nodiscard]] bool admit(std::uint16_t type, ByteView, std::size_t bytes) override {
    const auto current = sessions_.current_.find(session_.info.peer);
    const bool heard = current != sessions_.current_.end() && current->second == session_.id;
    return heard && !sessions_.stopping_ && sessions_.shell_.admit(session_.info.peer, type, bytes);
  }

 private:
  Sessions& sessions_;
  const Session& session_;
};

Sessions::Sessions(Schedule& schedule, Wire& wire, Hosts& hosts, SessionShell& shell,
                   ProcessIdentity identity)
    : schedule_(schedule),
      wire_(wire),
      hosts_(hosts),
      shell_(shell),
      self_(std::move(identity)),
      table_(self_.id) {}

Sessions::~Sessions() {
  // The kernel closes what the process had open.
  for (const auto& [id, session] : sessions_) wire_.close(id, self_.host);
}

Sessions::Session* Sessions::find(ConnectionId id) {
  const auto at = sessions_.find(id);
  return at == sessions_.end() ? nullptr : at->second.get();
}

Sessions::Session& Sessions::add_session(ConnectionId id, transport::SessionInfo info, End end) {
  auto made = std::make_unique<Session>(id, std::move(info), end, budget_);
  made->since = now();
  made->welcomed = end == End::responder;
  return *sessions_.emplace(id, std::move(made)).first->second;
}

// ---- what the shell asks

Result<void> Sessions::send(const NodeId& peer, transport::Message message) {
  const auto at = current_.find(peer);
  if (at == current_.end())
    return fail(Errc::not_found, Doing::writing_record, "no session with " + short_form(peer));
  Session& session = *sessions_.at(at->second);
  TRY_VOID(session.channel.send(std::move(message)));
  pump(session);
  return {};
}

void Sessions::close(const NodeId& peer, const Error& why) {
  const auto at = current_.find(peer);
  if (at != current_.end()) begin_close(*sessions_.at(at->second), why, Leave::after_messages);
}

void Sessions::stop() {
  stopping_ = true;
  for (auto& [id, session] : sessions_)
    begin_close(*session, {Errc::cancelled, Doing::stopping, "the node stops"},
                session->channel.sends_bulk() ? Leave::after_attachments : Leave::after_messages);
}

void Sessions::tick() {
  std::vector<std::pair<ConnectionId, Error>> over;
  for (auto& [id, session] : sessions_) {
    const Duration age = now() - session->since;
    if (session->closing_since) {
      if (now() - *session->closing_since >= limits::kCloseDeadline)
        over.emplace_back(
            id, session->reason.value_or(Error{Errc::timed_out, Doing::stopping, "no goodbye"}));
      continue;
    }
    if (!session->welcomed && age > limits::kHandshakeDeadline)
      begin_close(*session,
                  {Errc::timed_out, Doing::handshaking, "the peer neither accepts nor refuses"},
                  Leave::at_once);
    else if (age > limits::kMaxSessionAge)
      begin_close(*session, {Errc::closed, Doing::stopping, "the session is too old: dial again"},
                  Leave::after_messages);
    session->channel.on_tick(now());
    pump(*session);
  }
  for (const auto& [id, why] : over) finish(id, why);
}

std::vector<NodeId> Sessions::peers() const {
  std::vector<NodeId> ids;
  for (const auto& [peer, id] : current_) ids.push_back(peer);
  return ids;
}

std::vector<std::pair<NodeId, double>> Sessions::goodputs() const {
  std::vector<std::pair<NodeId, double>> all;
  for (const auto& [peer, id] : current_)
    if (const double goodput = sessions_.at(id)->channel.goodput(); goodput > 0)
      all.emplace_back(peer, goodput);
  return all;
}

std::size_t Sessions::largest_queue() const {
  std::size_t most = 0;
  for (const auto& [id, session] : sessions_)
    most = std::max(most, session->channel.queued_control_bytes());
  return most;
}

// ---- the life of a session

void Sessions::install(Session& session) {
  const auto& info = session.info;
  transport::TableEntry entry;
  entry.instance = info.instance;
  entry.direction = info.direction;
  entry.since = now();
  (void)table_.insert(info.peer, entry);
  const auto old = current_.find(info.peer);
  if (old != current_.end()) {
    const ConnectionId before = std::exchange(old->second, session.id);
    const Error why{Errc::closed, Doing::handshaking, "a newer connection took over"};
    begin_close(*sessions_.at(before), why, Leave::after_messages);
    shell_.on_session_down(info.peer, why);
  } else {
    current_.emplace(info.peer, session.id);
  }
  shell_.on_session_up(info);
}

void Sessions::begin_close(Session& session, const Error& why, Leave leave) {
  session.channel.say_bye(why, leave);
  if (!session.reason) session.reason = why;
  if (!session.closing_since) {
    const bool sends = leave == Leave::after_attachments;
    const Duration patience = sends ? limits::kLastAttachments : Duration::zero();
    session.closing_since = now() + patience;
    if (sends) tick_after(patience, session.id);
    tick_after(patience + limits::kCloseDeadline, session.id);
  }
  pump(session);
}

void Sessions::pump(Session& session) {
  while (wire_.has_room(session.id, self_.host)) {
    auto record = session.channel.next_record(now(), limits::kMaxBulkRecord);
    if (!record) break;
    Frame frame{record->type, std::move(record->head)};
    frame.body.insert(frame.body.end(), record->tail.begin(), record->tail.end());
    wire_.write(session.id, self_.host, std::move(frame));
  }
  if (session.channel.has_record()) wire_.want_room(session.id, self_.host);
}

void Sessions::hear(ConnectionId id, WireEvent event) {
  Session* session = find(id);
  if (session == nullptr) return;
  if (const auto* frame = std::get_if<Frame>(&event)) {
    on_frame(*session, *frame);
  } else if (std::holds_alternative<Ended>(event)) {
    finish(id, session->reason.value_or(Error{Errc::closed, Doing::reading_record,
                                              "the connection was cut without a goodbye"}));
  } else {
    pump(*session);
  }
}

void Sessions::on_frame(Session& session, const Frame& frame) {
  const ConnectionId id = session.id;
  Door door(*this, session);
  std::vector<ChannelEvent> events;
  const transport::OpenedRecord record{frame.type, frame.body, frame.body.size()};
  const auto taken = session.channel.on_record(now(), record, door, events);
  for (auto& event : events) {
    Session* still = find(id);
    if (still == nullptr) return;
    on_event(*still, std::move(event));
  }
  Session* still = find(id);
  if (still == nullptr) return;
  if (!taken) {
    if (still->closing_since) return finish(id, taken.error());
    begin_close(*still, taken.error(), Leave::at_once);
  }
  pump(*still);
}

void Sessions::on_event(Session& session, ChannelEvent event) {
  const bool closing = session.closing_since.has_value();
  const auto current = current_.find(session.info.peer);
  const bool heard = current != current_.end() && current->second == session.id && !closing;
  if (std::holds_alternative<transport::Welcomed>(event)) {
    if (closing) return;
    session.welcomed = true;
    table_.end_dial(session.info.peer);
    attempts_.erase(session.attempt);
    install(session);
  } else if (auto* delivered = std::get_if<transport::Delivered>(&event)) {
    if (heard) shell_.on_message(session.info.peer, std::move(delivered->message));
  } else if (const auto* refused = std::get_if<transport::Refused>(&event)) {
    if (heard) shell_.on_refused(session.info.peer, refused->type, refused->body);
  } else if (std::holds_alternative<transport::Ponged>(event)) {
    for (const auto knock : std::exchange(session.probes, {})) on_probed(knock, true);
  } else if (auto* farewell = std::get_if<transport::Farewell>(&event)) {
    if (closing) return finish(session.id, *session.reason);
    session.reason = std::move(farewell->why);
    begin_close(session, {Errc::closed, Doing::stopping, "goodbye"}, Leave::after_messages);
  }
}

void Sessions::tick_after(Duration wait, ConnectionId id) {
  schedule_.after(wait, [this, process = self_.process, host = self_.host, id, &hosts = hosts_] {
    hosts.run(host, process, [this, id] { tick_one(id); });
  });
}

// The patience for attachments, or the time for the goodbye, is over.
void Sessions::tick_one(ConnectionId id) {
  Session* session = find(id);
  if (session == nullptr || !session->closing_since) return;
  if (now() - *session->closing_since >= limits::kCloseDeadline)
    return finish(id, *session->reason);
  session->channel.say_bye(*session->reason, Leave::after_messages);
  pump(*session);
}

void Sessions::finish(ConnectionId id, const Error& why) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return;
  wire_.close(id, self_.host);
  const auto session = std::move(at->second);
  sessions_.erase(at);
  on_end(*session, why);
  for (const auto knock : session->probes) on_probed(knock, false);
}

void Sessions::on_end(const Session& session, const Error& why) {
  const NodeId peer = session.info.peer;
  if (!session.welcomed) {
    table_.end_dial(peer);
    if (why.code == Errc::already_exists && !stopping_)
      await_other_session(session.attempt, why);
    else
      fail_dial(session.attempt, why);
    return;
  }
  const auto current = current_.find(peer);
  if (current == current_.end() || current->second != session.id) return;
  current_.erase(current);
  (void)table_.erase(peer, nullptr);
  Error reported = why;
  if (stopping_) reported = {Errc::cancelled, Doing::stopping, "stopping"};
  shell_.on_session_down(peer, reported);
}

}  // namespace starling::sim
