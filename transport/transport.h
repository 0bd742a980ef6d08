// Transport: authenticated sessions with other nodes. The one class that the rest of the program
// talks to; everything else in this folder stands behind it.
#pragma once

#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "transport/endpoint.h"
#include "transport/figures.h"
#include "transport/identity.h"
#include "transport/invite.h"
#include "transport/limits.h"
#include "transport/message.h"
#include "transport/peer_rules.h"
#include "transport/secret.h"
#include "transport/session_info.h"
#include "transport/task.h"

#include <asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace starling::transport {

// What Transport reports. Implemented by the layer above, which outlives Transport.
//
// Thread:  io. Every callback may call any verb of Transport.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;

  // A session is usable. One session per peer: a second `up` for a peer never comes before `down`.
  virtual void on_session_up(const SessionInfo& info) ON_IO_THREAD = 0;
  // It is not any more; what was queued for it is lost. Both sides are told, also where the session
  // was renewed and only messages of the one before were lost: nothing that follows a loss is
  // delivered. After Transport::stop() began, `why` is cancelled.
  virtual void on_session_down(const NodeId& peer, const Error& why) ON_IO_THREAD = 0;

  // A whole message. Messages without attachment arrive in the order in which they were sent; one
  // with an attachment arrives when its last byte did, so later ones overtake it unless they are
  // in_order.
  virtual void on_message(const NodeId& peer, Message message) ON_IO_THREAD = 0;

  // Asked once for each attachment that a peer wants to send, before any memory is reserved for it.
  // False refuses: the peer is told, and drops it.
  [[nodiscard]] virtual bool admit(const NodeId& peer, std::uint16_t type, ByteView body,
                                   std::size_t attachment_bytes) ON_IO_THREAD = 0;
  // The attachment of a message that send() took was refused by the peer, given up by it after
  // limits::kTransferStall without progress, or cut by the renewal of a session that could not
  // wait. The message was not delivered; after a renewal it may have been all the same, if only the
  // peer's confirmation of its last byte was still to come.
  virtual void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) ON_IO_THREAD = 0;

  // A dial ended without a session to the node at that address.
  virtual void on_dial_failed(const Endpoint& target, const Error& why) ON_IO_THREAD = 0;
};

struct TransportOptions {
  // Shown to peers, at most limits::kMaxName bytes.
  std::string name;
  // Random per process.
  Instance instance;
  // Where peers can dial this node, at most limits::kMaxAdvertised.
  std::vector<Endpoint> advertised;
  // What this node shows of the swarm's admin's word about itself.
  std::optional<CertificateChain> certificate = {};
  // Handshakes that one address may start each second; loopback is exempt. Raising it helps nodes
  // behind one NAT address; a flood then costs that many times 0.13 ms.
  double handshakes_per_address = limits::kHandshakesPerAddress;
  // Age at which a session that we dialled is replaced by a fresh handshake, in a quiet moment.
  // Lowering it limits what a stolen session key opens, for 0.25 ms of both sides each time.
  Duration renew_after = limits::kRenewAfter;
  // BBR instead of the system's congestion control for sessions with other machines, where the
  // kernel has it.
  bool prefer_bbr = true;
  // Sessions in all; above it, accepted connections are refused by name.
  std::size_t max_sessions = limits::kMaxSessions;
};

// Who answered a dial to an address whose node has a session with us already. Thread: io.
using DialMet = std::function<void(const NodeId& peer)>;

// Where a Transport lives and whom it tells; everything outlives it.
struct TransportHost {
  asio::io_context& io;
  SessionEvents& events;
  Log& log;
  InviteDesk* invites = nullptr;  // null: newcomers with an invite are strangers
  // Seconds since 1970, for the validity of certificates; may be empty where nobody has any.
  std::function<std::uint64_t()> calendar = {};
};

// Owner of listener, dials and sessions.
//
// Constructed once by the node; `stop()` must have finished before it is destroyed. Lives on the io
// thread. Holds this node's sessions: who is a member of the swarm is not its business. Cost: a
// session has two coroutines and about 200 KiB of buffers.
class Transport {
 public:
  // `identity` outlives the Transport.
  Transport(TransportHost host, const Identity& identity, SwarmKey key, TransportOptions options);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // The endpoint that is listened on from now on; with port 0 the kernel chose the port. "::" is
  // every address, IPv4's too. May be called several times.
  //
  // Errors:  listen_failed, with the address and the system's reason; resolve_failed for a host
  //          that is no address.
  Result<Endpoint> listen(const Endpoint& endpoint) ON_IO_THREAD;

  // Dials in the background. The outcome is on_session_up or on_dial_failed; a dial that loses to
  // another session with the same node tells `met` alone, which must outlive stop().
  void dial(DialTarget target, DialMet met = {}) ON_IO_THREAD;

  // Changes where this node says it can be dialled, for handshakes from now on.
  void set_advertised(std::vector<Endpoint> advertised) ON_IO_THREAD;
  // Changes what this node shows of the admin's word about itself, for handshakes from now on.
  void set_certificate(std::optional<CertificateChain> certificate) ON_IO_THREAD;

  // The keys for handshakes from now on, of the same swarm: a rotation, or the secret that a
  // newcomer was given. Sessions stay; where the current key is another one, those that we dialled
  // are soon replaced by a fresh handshake.
  void set_key(SwarmKey key) ON_IO_THREAD;

  // Who may have a session from now on. Sessions with others are closed at once, with the reason.
  void set_peer_rules(PeerRules rules) ON_IO_THREAD;

  // The certificate that this node gives a newcomer in its first session, in which it has none to
  // show: the session is judged by it from now on, and ends when it is revoked.
  void set_certificate_of(const NodeId& newcomer, const CertificateChain& chain) ON_IO_THREAD;

  // Queues a message.
  //
  // Errors:  not_found without a session; too_many when its queue is full (nothing is queued);
  //          too_large for a body above the maximum of its room or an attachment above
  //          limits::kMaxAttachment.
  Result<void> send(const NodeId& peer, Message message) ON_IO_THREAD;

  // Ends a session with a goodbye that names the reason. on_session_down follows.
  void close(const NodeId& peer, Error why) ON_IO_THREAD;

  [[nodiscard]] bool has_session(const NodeId& peer) const ON_IO_THREAD;
  // One entry for each session that is up.
  [[nodiscard]] std::vector<SessionInfo> sessions() const ON_IO_THREAD;
  [[nodiscard]] std::vector<SessionFigures> figures() const ON_IO_THREAD;
  [[nodiscard]] TransportTotals totals() const ON_IO_THREAD;

  // Says goodbye on every session and joins every task; within about limits::kCloseDeadline, and
  // `patience` before it for attachments under way. Idempotent.
  Task<> stop(Duration patience = Duration::zero());

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace starling::transport
