// Transport::Impl: see transport.h. Verbs and callbacks are in transport.cc, the coroutines of
// single connections in connections.cc.
#pragma once

#include "transport/admission.h"
#include "transport/channel.h"
#include "transport/dialer.h"
#include "transport/handshake.h"
#include "transport/listener.h"
#include "transport/session.h"
#include "transport/session_table.h"
#include "transport/transport.h"

#include <map>
#include <memory>
#include <set>
#include <variant>

namespace starling::transport {

class Transport::Impl final : public SessionHost {
 public:
  Impl(TransportHost host, const Identity& identity, SwarmKey key, TransportOptions options);

  Result<Endpoint> listen(const Endpoint& endpoint);
  void dial(DialTarget target, DialMet met) ON_IO_THREAD;
  Result<void> send(const NodeId& peer, Message message) ON_IO_THREAD;
  void close(const NodeId& peer, Error why) ON_IO_THREAD;
  Task<> stop(Duration patience);

  void set_key(SwarmKey key) ON_IO_THREAD;
  void set_peer_rules(PeerRules rules) ON_IO_THREAD;
  void set_certificate_of(const NodeId& newcomer, const CertificateChain& chain) ON_IO_THREAD;
  [[nodiscard]] TransportOptions& options() { return options_; }
  [[nodiscard]] const SessionTable& table() const { return table_; }
  [[nodiscard]] TransportTotals totals() const ON_IO_THREAD;

  void on_welcome(Session& session) override ON_IO_THREAD;
  void on_message(Session& session, Message message) override ON_IO_THREAD;
  [[nodiscard]] bool admit(Session& session, std::uint16_t type, ByteView body,
                           std::size_t attachment_bytes) override ON_IO_THREAD;
  void on_refused(Session& session, std::uint16_t type, ByteView body) override ON_IO_THREAD;
  void on_worn(Session& session) override ON_IO_THREAD;

 private:
  // A connection whose handshake is done.
  struct Connection {
    asio::ip::tcp::socket socket;
    HandshakeOutcome outcome;
    Purpose purpose = Purpose::fresh;  // of the side that dialled
  };

  Task<> serve(asio::ip::tcp::socket socket);
  Task<> decide(Connection connection);
  Task<> dial_and_run(DialTarget target, DialMet met);
  // Replaces a session that we dialled by a new one with the same process.
  Task<> renew(DialTarget target);
  // The node alone if the purpose is a fresh session and one with it exists already.
  Task<Result<std::variant<Connection, NodeId>>> connect(DialTarget target, Purpose purpose);
  // The awaiting coroutine owns the session.
  Task<Error> run(Session& session);

  [[nodiscard]] HandshakeContext context() const;
  // Why the rules give this peer no session, by what it showed.
  [[nodiscard]] std::optional<Error> refusal_of(const NodeId& peer,
                                                const std::optional<CertificateChain>& certificate,
                                                bool invited) const;
  [[nodiscard]] std::unique_ptr<Session> make_session(Connection connection, Direction direction);
  // For what is sent to other machines; on this one nothing is lost.
  void prefer_bbr(asio::ip::tcp::socket& socket, const Endpoint& remote);
  void install(Session& session) ON_IO_THREAD;
  void replace(Session& old, Session& session) ON_IO_THREAD;
  void on_end(Session& session, const Error& why) ON_IO_THREAD;
  // Whether what a session delivers goes to the layer above.
  [[nodiscard]] bool is_heard(const Session& session) const;
  [[nodiscard]] Session* find(const NodeId& peer) const;
  void on_socket(asio::ip::tcp::socket socket);
  void remember_peer_address(const asio::ip::tcp::socket& socket);
  void count_handshake_failure(const Error& why);
  void fail_dial(const Endpoint& target, const Error& why) ON_IO_THREAD;
  static void add(TransportTotals& totals, const SessionFigures& figures);

  asio::io_context& io_;
  const Identity& identity_;
  SwarmKey swarm_;
  PeerRules rules_;
  TransportOptions options_;
  SessionEvents& events_;
  Log& log_;
  InviteDesk* invites_;
  std::function<std::uint64_t()> calendar_;
  SteadyClock clock_;
  noise::KeyPair noise_static_ = noise::KeyPair::generate();
  mutable ReplayMemory replays_;  // handshakes get it through their context
  TransferBudget budget_;
  SessionTable table_;
  Admission admission_;
  TransportTotals totals_;
  std::map<std::uint64_t, asio::ip::tcp::socket*> unauthenticated_;  // by ticket
  std::map<AddressGroup, TimePoint> peer_addresses_;  // of sessions, at most kMaxSessions
  std::set<Session*> live_;  // also those that a newer one replaced or that are being refused
  std::set<const Session*> installed_;             // of the live ones: those that were up
  std::map<const Session*, Session*> successors_;  // of sessions that retired
  std::set<NodeId> renewing_;
  std::size_t pending_dials_ = 0;
  bool told_of_bbr_ = false;
  bool stopping_ = false;
  asio::steady_timer drained_;  // stop()'s wait for the last session
  Listener listener_;
  TaskGroup tasks_;
};

}  // namespace starling::transport
