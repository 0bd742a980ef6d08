// The life of one connection: accepted or dialled, handshake, decision, session.
#include "node/base/check.h"
#include "node/base/fault.h"
#include "transport/tcp_options.h"
#include "transport/transport_impl.h"

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/ip/address.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace starling::transport {
namespace {

using asio::ip::tcp;

// A probe may find that the session it asked was replaced meanwhile.
constexpr int kDecisions = 3;

// Runs a handshake to its end. Everything referred to belongs to the awaiting coroutine's frame.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): see above.
Task<Result<void>> run_handshake(tcp::socket& socket, Handshake& handshake, const Clock& clock,
                                 InviteDesk* invites) {
  std::array<std::byte, limits::kMaxUnauthenticatedBuffer> input;
  while (true) {
    if (const auto output = handshake.take_output(); !output.empty()) {
      auto buffer = asio::buffer(output);
      auto [error, size] = co_await asio::async_write(socket, buffer, as_result);
      if (!error && fault::maybe("net.handshake_write")) error = asio::error::broken_pipe;
      if (error == asio::error::operation_aborted)
        co_return fail(Errc::cancelled, Doing::handshaking, "stopping");
      if (error) co_return fail(handshake.on_end_of_stream());
    }
    if (handshake.done()) co_return Result<void>();
    auto buffer = asio::buffer(input);
    auto [error, size] = co_await socket.async_read_some(buffer, as_result);
    if (!error && fault::maybe("net.handshake_read")) error = asio::error::connection_reset;
    if (error == asio::error::operation_aborted)
      co_return fail(Errc::cancelled, Doing::handshaking, "stopping");
    if (error) co_return fail(handshake.on_end_of_stream());
    auto fed = handshake.feed(clock.now(), ByteView(input).first(size));
    if (!fed) co_return fail(std::move(fed).error());
    if (const auto invite = handshake.redeeming()) {
      auto counting = invites->redeem(*invite);
      const bool counted = co_await std::move(counting);
      // A cancellation that came meanwhile is used up: nothing below would hear of it.
      const auto state = co_await asio::this_coro::cancellation_state;
      if (state.cancelled() != asio::cancellation_type::none)
        co_return fail(Errc::cancelled, Doing::handshaking, "over while the invite was counted");
      auto redeemed = handshake.on_redeemed(counted);
      if (!redeemed) co_return fail(std::move(redeemed).error());
    }
  }
}

}  // namespace

HandshakeContext Transport::Impl::context() const {
  HandshakeContext context{identity_, noise_static_, swarm_, replays_, {}, {}, {}};
  context.own.instance = options_.instance;
  context.own.name = options_.name;
  context.own.addresses = options_.advertised;
  context.own.certificate = options_.certificate;
  return context;
}

std::unique_ptr<Session> Transport::Impl::make_session(Connection connection, Direction direction) {
  const auto& hello = connection.outcome.peer;
  SessionInfo info;
  info.peer = hello.identity;
  info.instance = hello.instance;
  info.name = hello.name;
  info.peer_addresses = hello.addresses;
  info.direction = direction;
  info.purpose = connection.purpose;
  info.invited = connection.outcome.invited;
  info.certificate = hello.certificate;
  std::error_code gone;
  const auto remote = connection.socket.remote_endpoint(gone);
  if (!gone) info.remote = endpoint_of(remote);
  prefer_bbr(connection.socket, info.remote);
  const SessionServices services{budget_, clock_, *this, log_, options_.renew_after};
  return std::make_unique<Session>(std::move(connection.socket), std::move(connection.outcome),
                                   std::move(info), services);
}

void Transport::Impl::prefer_bbr(tcp::socket& socket, const Endpoint& remote) {
  std::error_code no_address;
  const bool far = !asio::ip::make_address(remote.host, no_address).is_loopback() && !no_address;
  if (!options_.prefer_bbr || !far || use_bbr(socket) || std::exchange(told_of_bbr_, true)) return;
  log_.info("transport.no_bbr",
            {{"what", "this kernel offers no BBR; a line that loses packets will be slow"},
             {"remedy", "modprobe tcp_bbr"}});
}

Task<> Transport::Impl::serve(tcp::socket socket) {
  std::error_code gone;
  const auto remote = socket.remote_endpoint(gone);
  if (gone) co_return;
  const auto was_peer = peer_addresses_.contains(group_of(remote.address()));
  const auto verdict = admission_.admit(clock_.now(), remote.address(), was_peer);
  if (verdict.evict) {
    if (const auto found = unauthenticated_.find(*verdict.evict); found != unauthenticated_.end())
      found->second->close(gone);
    ++totals_.handshakes_failed.crowded;
  }
  if (verdict.refusal != AdmissionRefusal::none) {
    ++totals_.handshakes_failed.crowded;
    co_return;
  }
  unauthenticated_.emplace(verdict.ticket, &socket);
  auto setup = context();
  if (invites_ != nullptr)
    setup.find_invite = [this](const KeyId& id) {
      assert_io_thread();
      return invites_->find(id);
    };
  setup.may_answer = [this, ticket = verdict.ticket] {
    assert_io_thread();
    return admission_.may_answer(clock_.now(), ticket);
  };
  auto handshake = Handshake::respond(std::move(setup));
  auto running = run_handshake(socket, handshake, clock_, invites_);
  const auto done =
      co_await with_deadline(limits::kHandshakeDeadline, Doing::handshaking, std::move(running));
  unauthenticated_.erase(verdict.ticket);
  admission_.end(verdict.ticket);
  if (!done) {
    count_handshake_failure(done.error());
    log_.debug("handshake.failed",
               {{"remote", to_string(endpoint_of(remote))}, {"reason", to_string(done.error())}});
    co_return;  // without a word: the peer has proved nothing
  }
  remember_peer_address(socket);
  auto outcome = handshake.take_outcome();
  const auto purpose = outcome.peer.purpose;
  Connection connection{std::move(socket), std::move(outcome), purpose};
  auto decided = decide(std::move(connection));
  co_await std::move(decided);
}

Task<> Transport::Impl::decide(Connection connection) {
  assert_io_thread();
  Candidate candidate;
  candidate.peer = connection.outcome.peer.identity;
  candidate.instance = connection.outcome.peer.instance;
  candidate.purpose = connection.outcome.peer.purpose;
  const auto decide_now = [&] {
    assert_io_thread();
    const auto* existing = find(candidate.peer);
    if (existing != nullptr && existing->closing()) candidate.probe = Candidate::Probe::ending;
    candidate.waits_its_turn = existing != nullptr && existing->held();
    return table_.decide(clock_.now(), candidate);
  };
  auto decision = decide_now();
  for (int i = 0; i < kDecisions && decision.decision == Decision::probe; ++i) {
    auto* asked = find(candidate.peer);
    auto probing = Session::probe(*asked);
    const bool answered = co_await std::move(probing);
    assert_io_thread();
    candidate.probe = answered ? Candidate::Probe::answered : Candidate::Probe::silent;
    if (find(candidate.peer) != asked) candidate.probe = Candidate::Probe::not_tried;
    decision = decide_now();
  }
  Error refusal = std::move(decision.why);
  if (auto why = refusal_of(candidate.peer, connection.outcome.peer.certificate,
                            connection.outcome.invited))
    refusal = std::move(*why);
  else if (decision.decision == Decision::probe)
    refusal = {Errc::too_many, Doing::handshaking, "too many connections at once"};
  else if (decision.decision == Decision::accept && table_.size() >= options_.max_sessions)
    refusal = {Errc::too_many, Doing::handshaking, "no session is free here"};
  else if (stopping_)
    refusal = {Errc::closed, Doing::handshaking, "the node stops"};
  if (refusal.code == Errc::duplicate_identity && find(candidate.peer) != nullptr)
    refusal.detail += " at " + to_string(find(candidate.peer)->info().remote);
  const bool refused = !refusal.detail.empty();

  const auto session = make_session(std::move(connection), Direction::accepted);
  if (refused) {
    ++totals_.handshakes_failed.refused;
    log_.info("session.refused", {{"peer", short_form(candidate.peer)},
                                  {"remote", to_string(session->info().remote)},
                                  {"reason", to_string(refusal)}});
    session->close(std::move(refusal), Leave::at_once);
  } else {
    ++totals_.handshakes_ok;
    session->say_welcome();
    install(*session);
  }
  auto running = run(*session);
  (void)co_await std::move(running);
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): the caller owns it.
Task<Error> Transport::Impl::run(Session& session) {
  live_.insert(&session);
  auto running = session.run();
  const auto why = co_await std::move(running);
  assert_io_thread();
  live_.erase(&session);
  totals_.sessions_closed += installed_.erase(&session);
  add(totals_, session.figures());
  if (session.how_it_ended() == SessionEnd::truncated) ++totals_.truncations;
  if (session.how_it_ended() == SessionEnd::violation) ++totals_.bad_records;
  on_end(session, why);
  if (live_.empty()) drained_.cancel();
  co_return why;
}

void Transport::Impl::on_end(Session& session, const Error& why) {
  const auto& peer = session.info().peer;
  std::erase_if(successors_, [&](const auto& entry) { return entry.second == &session; });
  if (const auto found = successors_.find(&session); found != successors_.end()) {
    auto& successor = *found->second;
    successors_.erase(found);
    if (session.how_it_ended() != SessionEnd::orderly) {
      // Its last messages may be lost, which only one side may have noticed. What follows them is
      // not to be heard, and both sides have to know: so its successor ends, by name.
      Error lost{Errc::closed, Doing::reading_record,
                 "messages were lost when a fresh handshake replaced the session"};
      successor.close(std::move(lost), Leave::at_once);
    }
    successor.release();
    return;
  }
  if (!table_.erase(peer, &session)) return;
  log_.info("session.down", {{"peer", short_form(peer)}, {"reason", to_string(why)}});
  Error reported = why;
  if (stopping_) reported = {Errc::cancelled, Doing::stopping, "stopping"};
  events_.on_session_down(peer, reported);
}

Task<> Transport::Impl::renew(DialTarget target) {
  assert_io_thread();
  const auto peer = target.pin.value();
  auto connecting = connect(target, Purpose::renew);
  auto connected = co_await std::move(connecting);
  assert_io_thread();
  auto* connection = connected ? std::get_if<Connection>(&*connected) : nullptr;
  if (connection != nullptr && find(peer) != nullptr) {
    const auto session = make_session(std::move(*connection), Direction::dialled);
    auto running = run(*session);
    (void)co_await std::move(running);
    if (session->welcomed()) co_return;
  }
  if (!connected)
    log_.warn("session.renewal_failed",
              {{"peer", short_form(peer)}, {"reason", to_string(connected.error())}});
  if (tasks_.stopping()) {  // the cancellation may be used up, then the pause would not hear of it
    renewing_.erase(peer);
    co_return;
  }
  asio::steady_timer pause(io_, limits::kRenewRetry);
  const auto [error] = co_await pause.async_wait(as_result);
  (void)error;
  renewing_.erase(peer);
}

Task<> Transport::Impl::dial_and_run(DialTarget target, DialMet met) {
  assert_io_thread();
  const auto tell = [this, &met](const NodeId& peer) {
    if (met && !stopping_) met(peer);
  };
  if (pending_dials_ >= limits::kMaxPendingDials) {
    Error many{Errc::too_many, Doing::connecting,
               std::to_string(pending_dials_) + " dials are under way"};
    fail_dial(target.endpoint, many);
    co_return;
  }
  ++pending_dials_;
  auto connecting = connect(target, Purpose::fresh);
  auto connected = co_await std::move(connecting);
  assert_io_thread();
  --pending_dials_;
  if (!connected) {
    fail_dial(target.endpoint, connected.error());
    co_return;
  }
  if (const auto* known = std::get_if<NodeId>(&*connected)) {
    tell(*known);  // a session with that node exists: the dial has its purpose
    co_return;
  }
  auto& connection = std::get<Connection>(*connected);
  const auto session = make_session(std::move(connection), Direction::dialled);
  const auto peer = session->info().peer;
  table_.begin_dial(peer);
  auto running = run(*session);
  const auto why = co_await std::move(running);
  assert_io_thread();
  if (session->welcomed()) co_return;
  table_.end_dial(peer);
  if (why.code == Errc::already_exists && !stopping_) {
    // The peer keeps another connection between us, which may still be in its handshake.
    asio::steady_timer patience(io_, limits::kSimultaneousDial);
    while (find(peer) == nullptr && !tasks_.stopping()) {
      const auto [error] = co_await patience.async_wait(as_result);
      assert_io_thread();
      if (!error) break;
    }
    if (find(peer) != nullptr) {
      tell(peer);
      co_return;
    }
  }
  count_handshake_failure(why);
  fail_dial(target.endpoint, why);
}

Task<Result<std::variant<Transport::Impl::Connection, NodeId>>> Transport::Impl::connect(
    DialTarget target, Purpose purpose) {
  auto connecting = connect_to(target.endpoint);
  auto socket = co_await std::move(connecting);
  if (!socket) co_return fail(std::move(socket).error());
  std::optional<NodeId> known;
  auto setup = context();
  setup.own.purpose = purpose;
  setup.check_peer = [this, purpose, &known](const Hello& peer) -> Result<void> {
    const auto* session = find(peer.identity);
    // One that says goodbye is of no use to whoever dials.
    if (purpose == Purpose::fresh && session != nullptr && !session->closing()) {
      known = peer.identity;
      return fail(Errc::already_exists, Doing::handshaking, "a session exists");
    }
    if (auto why = refusal_of(peer.identity, peer.certificate, false)) return fail(std::move(*why));
    return {};
  };
  auto handshake = Handshake::initiate(std::move(setup), target.pin);
  auto running = run_handshake(*socket, handshake, clock_, nullptr);
  auto done =
      co_await with_deadline(limits::kHandshakeDeadline, Doing::handshaking, std::move(running));
  if (known) co_return *known;
  if (!done) {
    count_handshake_failure(done.error());
    co_return fail(std::move(done).error());
  }
  Connection connection{std::move(*socket), handshake.take_outcome(), purpose};
  // The rules may have changed while message 3 was written.
  const auto& peer = connection.outcome.peer;
  if (auto why = refusal_of(peer.identity, peer.certificate, false)) {
    count_handshake_failure(*why);
    co_return fail(std::move(*why));
  }
  remember_peer_address(connection.socket);
  co_return std::move(connection);
}

void Transport::Impl::remember_peer_address(const tcp::socket& socket) {
  std::error_code gone;
  const auto remote = socket.remote_endpoint(gone);
  if (gone) return;
  peer_addresses_[group_of(remote.address())] = clock_.now();
  if (peer_addresses_.size() <= limits::kMaxSessions) return;
  peer_addresses_.erase(std::ranges::min_element(peer_addresses_, {},
                                                 [](const auto& entry) { return entry.second; }));
}

void Transport::Impl::count_handshake_failure(const Error& why) {
  auto& counts = totals_.handshakes_failed;
  switch (why.code) {
    case Errc::wrong_swarm:
      ++counts.wrong_swarm;
      break;
    case Errc::bad_signature:
      ++counts.bad_signature;
      break;
    case Errc::wrong_identity:
      ++counts.wrong_identity;
      break;
    case Errc::timed_out:
      ++counts.timed_out;
      break;
    case Errc::already_exists:
    case Errc::duplicate_identity:
      ++(why.doing == Doing::accepting ? counts.replayed : counts.refused);
      break;
    case Errc::refused:
      ++counts.refused;
      break;
    case Errc::too_many:
      ++counts.crowded;
      break;
    case Errc::closed:
      ++counts.closed;
      break;
    case Errc::cancelled:
      break;
    default:
      ++counts.bad_message;
      break;
  }
}

void Transport::Impl::fail_dial(const Endpoint& target, const Error& why) {
  if (stopping_ || why.code == Errc::cancelled) return;
  ++totals_.dials_failed;
  log_.debug("dial.failed", {{"target", to_string(target)}, {"reason", to_string(why)}});
  events_.on_dial_failed(target, why);
}

}  // namespace starling::transport
