#include "bootstrap/driver.h"

#include "bootstrap/message_codec.h"
#include "transport/dialer.h"
#include "transport/resolver.h"

#include <asio/ip/tcp.hpp>

#include <algorithm>
#include <utility>

namespace starling::bootstrap {

namespace {

using asio::ip::tcp;

// How long a name may take: where the first two lines of resolv.conf name nobody who answers, the
// system asks the third after 10 s. Shorter than DiallerOptions::outcome, after which the name is
// asked for anew.
constexpr Duration kResolveTime = std::chrono::seconds(15);

// How long a probe of a peer's port may take: longer than two retransmissions of a SYN.
constexpr Duration kProbeTime = std::chrono::seconds(4);

transport::Task<Result<void>> open_and_close(tcp::endpoint endpoint) {
  tcp::socket socket(co_await asio::this_coro::executor);
  const auto [error] = co_await socket.async_connect(endpoint, transport::as_result);
  if (error) co_return fail(Errc::connect_failed, Doing::probing, error.message());
  co_return Result<void>{};
}

}  // namespace

Driver::Driver(asio::io_context& io, const Clock& clock, transport::Transport& transport,
               Join& join, BootstrapHost& host, Log& log)
    : clock_(clock),
      transport_(transport),
      join_(join),
      host_(host),
      timer_(io),
      tasks_(io.get_executor(), log) {}

void Driver::start() {
  stopped_ = false;
  arm();
}

transport::Task<> Driver::stop() {
  stopped_ = true;
  timer_.cancel();
  co_await tasks_.stop();
}

void Driver::carry_out(JoinEffects effects) {
  for (auto& effect : effects) carry_out_one(std::move(effect));
  arm();
}

void Driver::carry_out_one(JoinEffect effect) {
  if (auto* outgoing = std::get_if<BootstrapOutgoing>(&effect)) {
    const auto sent = transport_.send(outgoing->to, encode(outgoing->message));
    if (!sent && sent.error().code == Errc::too_many) transport_.close(outgoing->to, sent.error());
  } else if (const auto* offence = std::get_if<BootstrapOffence>(&effect)) {
    transport_.close(offence->peer, offence->error);
  } else if (const auto* dial = std::get_if<Dial>(&effect)) {
    transport_.dial(dial->target, [this, endpoint = dial->target.endpoint](const NodeId& peer) {
      assert_io_thread();
      if (!stopped_) carry_out(join_.on_dial_met(clock_.now(), endpoint, peer));
    });
  } else if (auto* name = std::get_if<Resolve>(&effect)) {
    tasks_.spawn("resolve", [this, wanted = std::move(name->name)] { return resolve(wanted); });
  } else if (const auto* wanted = std::get_if<ProbePort>(&effect)) {
    std::string host;
    for (const auto& session : transport_.sessions())
      if (session.peer == wanted->peer) host = session.remote.host;
    tasks_.spawn("probe",
                 [this, probe_wanted = *wanted, host] { return probe(probe_wanted, host); });
  } else {
    host_.on_effect(std::move(effect));
  }
}

transport::Task<> Driver::resolve(transport::Endpoint name) {
  auto resolving = transport::resolve(name, kResolveTime);
  const auto found = co_await std::move(resolving);
  assert_io_thread();
  if (stopped_) co_return;
  Result<std::vector<transport::Endpoint>> addresses;
  if (found) {
    for (const auto& endpoint : *found) addresses->push_back(transport::endpoint_of(endpoint));
  } else {
    addresses = fail(found.error());
  }
  carry_out(join_.on_resolved(clock_.now(), name, addresses));
}

transport::Task<> Driver::probe(ProbePort wanted, std::string host) {
  std::error_code bad;
  const auto address = asio::ip::make_address(host, bad);
  Result<void> opened = fail(Errc::closed, Doing::probing, "the session is gone");
  if (!bad) {
    auto attempt = open_and_close(tcp::endpoint(address, wanted.port));
    opened =
        co_await transport::with_deadline<void>(kProbeTime, Doing::probing, std::move(attempt));
  }
  assert_io_thread();
  if (stopped_) co_return;
  DialBackReply found{.port = wanted.port,
                      .reachable = opened.has_value(),
                      .address = transport::to_string(transport::Endpoint{host, wanted.port}),
                      .detail = opened ? std::string() : opened.error().detail};
  carry_out(join_.on_probed(clock_.now(), wanted.peer, std::move(found)));
}

void Driver::on_session_up(const transport::SessionInfo& info) {
  std::optional<transport::Endpoint> dialled;
  if (info.direction == transport::Direction::dialled) dialled = info.remote;
  carry_out(join_.on_session_up(clock_.now(), info.peer, dialled));
}

void Driver::on_session_down(const NodeId& peer) {
  carry_out(join_.on_session_down(clock_.now(), peer));
}

void Driver::on_message(const NodeId& peer, const transport::Message& message) {
  const auto decoded = decode_bootstrap(message);
  if (!decoded) return transport_.close(peer, decoded.error());
  carry_out(join_.on_message(clock_.now(), peer, *decoded));
}

void Driver::on_dial_failed(const transport::Endpoint& target, const Error& why) {
  carry_out(join_.on_dial_failed(clock_.now(), target, why));
}

void Driver::arm() {
  if (stopped_) return;
  const TimePoint next = join_.next_deadline();
  if (next == kNever) return;
  timer_.expires_at(next);
  timer_.async_wait([this](const std::error_code& error) {
    if (error || stopped_) return;
    assert_io_thread();
    carry_out(join_.on_tick(clock_.now()));
  });
}

}  // namespace starling::bootstrap
