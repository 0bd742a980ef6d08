#include "transport/transport.h"

#include "node/base/check.h"
#include "transport/transport_impl.h"

#include <algorithm>
#include <string>
#include <utility>

namespace starling::transport {

Transport::Impl::Impl(TransportHost host, const Identity& identity, SwarmKey key,
                      TransportOptions options)
    : io_(host.io),
      identity_(identity),
      swarm_(std::move(key)),
      options_(std::move(options)),
      events_(host.events),
      log_(host.log),
      invites_(host.invites),
      calendar_(std::move(host.calendar)),
      table_(identity.id()),
      admission_(options_.handshakes_per_address),
      drained_(io_),
      listener_(io_.get_executor(), log_,
                [this](asio::ip::tcp::socket socket) { on_socket(std::move(socket)); }),
      tasks_(io_.get_executor(), log_) {
  STARLING_CHECK_OP(options_.name.size(), <=, limits::kMaxName);
  STARLING_CHECK_OP(options_.advertised.size(), <=, limits::kMaxAdvertised);
}

Result<Endpoint> Transport::Impl::listen(const Endpoint& endpoint) {
  return listener_.listen(endpoint);
}

void Transport::Impl::on_socket(asio::ip::tcp::socket socket) {
  tasks_.spawn("transport.serve",
               [this, socket = std::move(socket)]() mutable { return serve(std::move(socket)); });
}

void Transport::Impl::dial(DialTarget target, DialMet met) {
  tasks_.spawn("transport.dial", [this, target = std::move(target), met = std::move(met)] {
    return dial_and_run(target, met);
  });
}

Session* Transport::Impl::find(const NodeId& peer) const {
  const auto* entry = table_.find(peer);
  return entry == nullptr ? nullptr : entry->session;
}

Result<void> Transport::Impl::send(const NodeId& peer, Message message) {
  auto* session = find(peer);
  if (session == nullptr)
    return fail(Errc::not_found, Doing::writing_record, "no session with " + short_form(peer));
  return session->send(std::move(message));
}

void Transport::Impl::close(const NodeId& peer, Error why) {
  if (auto* session = find(peer)) session->close(std::move(why), Leave::after_messages);
}

Task<> Transport::Impl::stop(Duration patience) {
  assert_io_thread();
  if (!std::exchange(stopping_, true)) {
    co_await listener_.stop();
    assert_io_thread();
    for (auto* session : live_) {
      Error leaving{Errc::cancelled, Doing::stopping, "the node stops"};
      session->leave(leaving, patience);
    }
    drained_.expires_after(patience + limits::kCloseDeadline);
    if (!live_.empty()) {
      const auto [error] = co_await drained_.async_wait(as_result);
      (void)error;  // the last session's end cancels the wait
    }
  }
  co_await tasks_.stop();
}

void Transport::Impl::install(Session& session) {
  const auto& info = session.info();
  TableEntry entry;
  entry.session = &session;
  entry.instance = info.instance;
  entry.direction = info.direction;
  entry.since = clock_.now();
  const auto old = table_.insert(info.peer, entry);
  installed_.insert(&session);
  ++totals_.sessions_opened;
  if (old.session != nullptr) {
    if (old.instance == info.instance && session.renews()) {
      replace(*old.session, session);
      return;
    }
    Error why{Errc::closed, Doing::handshaking, "a newer connection took over"};
    if (old.session->closing()) why = old.session->reason().value_or(why);
    old.session->close(why, Leave::after_messages);
    events_.on_session_down(info.peer, why);
  }
  log_.info("session.up", {{"peer", short_form(info.peer)},
                           {"name", info.name},
                           {"remote", to_string(info.remote)},
                           {"dialled", info.direction == Direction::dialled}});
  events_.on_session_up(info);
}

void Transport::Impl::replace(Session& old, Session& session) {
  log_.info("session.renewed", {{"peer", short_form(session.info().peer)}});
  session.hold();
  successors_[&old] = &session;
  old.retire(session.info().direction);
}

bool Transport::Impl::is_heard(const Session& session) const {
  const auto* current = find(session.info().peer);
  if (current == &session) return true;
  // One that was replaced, until the end of its successor was reported.
  const auto found = successors_.find(&session);
  return found != successors_.end() && found->second == current;
}

void Transport::Impl::set_key(SwarmKey key) {
  const bool admitted = swarm_.mode() == Mode::invite && key.mode() == Mode::secret;
  STARLING_CHECK(key.swarm() == swarm_.swarm() && (key.mode() == swarm_.mode() || admitted));
  const bool rotated = swarm_.mode() == Mode::secret && swarm_.current()->id != key.current()->id;
  swarm_ = std::move(key);
  if (!rotated) return;
  for (const auto& [peer, entry] : table_.all()) entry.session->wear_out();
}

void Transport::Impl::set_peer_rules(PeerRules rules) {
  rules_ = std::move(rules);
  // Also those that are not in the table yet, or not any more.
  for (auto* session : live_) {
    const auto& info = session->info();
    if (auto why = refusal_of(info.peer, info.certificate, info.invited))
      session->close(std::move(*why), Leave::at_once);
  }
}

void Transport::Impl::set_certificate_of(const NodeId& newcomer, const CertificateChain& chain) {
  auto* session = find(newcomer);
  if (session == nullptr || session->info().certificate) return;
  session->set_certificate(chain);
  if (auto why = refusal_of(newcomer, chain, session->info().invited))
    session->close(std::move(*why), Leave::at_once);
}

std::optional<Error> Transport::Impl::refusal_of(const NodeId& peer,
                                                 const std::optional<CertificateChain>& certificate,
                                                 bool invited) const {
  STARLING_CHECK(!rules_.admin || calendar_);
  return rules_.refusal(peer, {.certificate = certificate ? &*certificate : nullptr,
                               .invited = invited,
                               .now_s = rules_.admin ? calendar_() : 0});
}

void Transport::Impl::on_worn(Session& session) {
  const auto& info = session.info();
  if (!renewing_.insert(info.peer).second) return;
  DialTarget target{info.remote, info.peer};
  tasks_.spawn("transport.renew", [this, target] { return renew(target); });
}

void Transport::Impl::on_welcome(Session& session) {
  table_.end_dial(session.info().peer);
  renewing_.erase(session.info().peer);
  // What ends by itself meanwhile is not replaced: the peer must see its end as well.
  const auto* old = find(session.info().peer);
  if (session.renews() && (old == nullptr || old->closing())) {
    Error ended{Errc::closed, Doing::handshaking, "the session to be renewed has ended"};
    session.close(std::move(ended), Leave::at_once);
    return;
  }
  ++totals_.handshakes_ok;
  install(session);
}

void Transport::Impl::on_message(Session& session, Message message) {
  if (is_heard(session)) events_.on_message(session.info().peer, std::move(message));
}

bool Transport::Impl::admit(Session& session, std::uint16_t type, ByteView body,
                            std::size_t attachment_bytes) {
  return is_heard(session) && !stopping_ &&
         events_.admit(session.info().peer, type, body, attachment_bytes);
}

void Transport::Impl::on_refused(Session& session, std::uint16_t type, ByteView body) {
  if (is_heard(session)) events_.on_refused(session.info().peer, type, body);
}

void Transport::Impl::add(TransportTotals& totals, const SessionFigures& figures) {
  totals.sent += figures.sent;
  totals.received += figures.received;
  totals.records_sent += figures.records_sent;
  totals.records_received += figures.records_received;
}

TransportTotals Transport::Impl::totals() const {
  auto totals = totals_;
  for (const auto* session : live_) add(totals, session->figures());
  totals.reserved_bytes = budget_.reserved();
  totals.unauthenticated = admission_.size();
  return totals;
}

Transport::Transport(TransportHost host, const Identity& identity, SwarmKey key,
                     TransportOptions options)
    : impl_(std::make_unique<Impl>(std::move(host), identity, std::move(key), std::move(options))) {
}

Transport::~Transport() = default;

Result<Endpoint> Transport::listen(const Endpoint& endpoint) { return impl_->listen(endpoint); }

void Transport::dial(DialTarget target, DialMet met) {
  impl_->dial(std::move(target), std::move(met));
}

void Transport::set_advertised(std::vector<Endpoint> advertised) {
  STARLING_CHECK_OP(advertised.size(), <=, limits::kMaxAdvertised);
  impl_->options().advertised = std::move(advertised);
}

void Transport::set_certificate(std::optional<CertificateChain> certificate) {
  impl_->options().certificate = certificate;
}

void Transport::set_certificate_of(const NodeId& newcomer, const CertificateChain& chain) {
  impl_->set_certificate_of(newcomer, chain);
}

void Transport::set_key(SwarmKey key) { impl_->set_key(std::move(key)); }

void Transport::set_peer_rules(PeerRules rules) { impl_->set_peer_rules(std::move(rules)); }

Result<void> Transport::send(const NodeId& peer, Message message) {
  return impl_->send(peer, std::move(message));
}

void Transport::close(const NodeId& peer, Error why) { impl_->close(peer, std::move(why)); }

bool Transport::has_session(const NodeId& peer) const {
  return impl_->table().find(peer) != nullptr;
}

std::vector<SessionInfo> Transport::sessions() const {
  std::vector<SessionInfo> infos;
  for (const auto& [peer, entry] : impl_->table().all()) infos.push_back(entry.session->info());
  return infos;
}

std::vector<SessionFigures> Transport::figures() const {
  std::vector<SessionFigures> figures;
  for (const auto& [peer, entry] : impl_->table().all())
    figures.push_back(entry.session->figures());
  return figures;
}

TransportTotals Transport::totals() const { return impl_->totals(); }

Task<> Transport::stop(Duration patience) { return impl_->stop(patience); }

}  // namespace starling::transport
