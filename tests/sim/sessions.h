// Sessions of one simulated process: the real Channel and SessionTable over the simulated wire.
//
// Stands for transport::Transport without sockets, cryptography and coroutines. What decides
// anything is the real code: which of two connections stays, what a full queue does, credit, the
// order of control and bulk, refusals, goodbyes. What only carries bytes is copied in outline from
// transport/session.cc and transport/connections.cc.
#pragma once

#include "node/base/error.h"
#include "node/base/ids.h"
#include "tests/sim/schedule.h"
#include "tests/sim/wire.h"
#include "transport/channel.h"
#include "transport/session_table.h"

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace starling::sim {

class Sessions;

// What a process reports to its shell; see transport::SessionEvents.
class SessionShell {
 public:
  virtual ~SessionShell() = default;
  virtual void on_session_up(const transport::SessionInfo& info) = 0;
  virtual void on_session_down(const NodeId& peer, const Error& why) = 0;
  virtual void on_message(const NodeId& peer, transport::Message message) = 0;
  [[nodiscard]] virtual bool admit(const NodeId& peer, std::uint16_t type, std::size_t bytes) = 0;
  virtual void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) = 0;
  // The process at a dialled address has a session with this one already.
  virtual void on_dial_met(const transport::Endpoint& target, const NodeId& peer) = 0;
  virtual void on_dial_failed(const transport::Endpoint& target, const Error& why) = 0;
};

// What sessions know of the other machines.
class Hosts {
 public:
  virtual ~Hosts() = default;
  [[nodiscard]] virtual std::optional<Host> find(const transport::Endpoint& endpoint) const = 0;
  // Whether connections can be opened to this host at all (no NAT in front of it).
  [[nodiscard]] virtual bool is_dialable(Host host) const = 0;
  // The sessions of the process that runs there now; null: none runs.
  [[nodiscard]] virtual Sessions* process(Host host) = 0;
  // Runs an action of the process with this number when it gets processor time; never if it ended.
  virtual void run(Host host, std::uint64_t process, Action action) = 0;
};

struct ProcessIdentity {
  Host host = 0;
  std::uint64_t process = 0;  // number of the process, unlike any other
  NodeId id;
  Instance instance;
  transport::Endpoint endpoint;
};

// Owned by the process; everything passed by reference outlives it.
class Sessions {
 public:
  Sessions(Schedule& schedule, Wire& wire, Hosts& hosts, SessionShell& shell,
           ProcessIdentity identity);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  void dial(const transport::DialTarget& target);
  [[nodiscard]] Result<void> send(const NodeId& peer, transport::Message message);
  void close(const NodeId& peer, const Error& why);
  // Says goodbye to everybody; nothing is reported any more.
  void stop();
  // Call about once a second.
  void tick();

  [[nodiscard]] const ProcessIdentity& identity() const { return self_; }
  [[nodiscard]] bool has_session(const NodeId& peer) const { return current_.contains(peer); }
  [[nodiscard]] std::vector<NodeId> peers() const;
  [[nodiscard]] std::vector<std::pair<NodeId, double>> goodputs() const;
  // The most bytes of control that any session holds for its peer.
  [[nodiscard]] std::size_t largest_queue() const;
  [[nodiscard]] bool drained() const { return sessions_.empty(); }

 private:
  struct Session {
    Session(ConnectionId connection, transport::SessionInfo about, transport::End end,
            transport::TransferBudget& budget)
        : id(connection), info(std::move(about)), channel(end, budget) {}
    ConnectionId id;
    transport::SessionInfo info;
    Host peer_host = 0;
    transport::Channel channel;
    bool welcomed = false;
    TimePoint since{};
    std::optional<TimePoint> closing_since;
    std::optional<Error> reason;
    std::uint64_t attempt = 0;          // of the dial that it came from
    std::vector<std::uint64_t> probes;  // connections that wait for a sign of life
  };
  // A dial, until its session is welcomed or it has failed.
  struct Attempt {
    transport::DialTarget target;
    Host to = 0;
    TimePoint began{};
    bool dialling = false;  // counted in pending_dials_
  };
  // Somebody who finished the handshake with us and waits for the decision.
  struct Knock {
    transport::Candidate candidate;
    ProcessIdentity from;
    std::uint64_t attempt = 0;
    int decisions = 0;
  };
  class Door;

  // sessions_dialling.cc
  void syn(std::uint64_t attempt, Duration patience);
  void fail_dial(std::uint64_t attempt, const Error& why);
  void shake_hands(std::uint64_t attempt);
  void on_hello(std::uint64_t attempt, const ProcessIdentity& peer);
  void on_knock(std::uint64_t knock);
  void decide(std::uint64_t knock, transport::DecisionWithReason decision);
  void probe(std::uint64_t knock);
  void on_probed(std::uint64_t knock, bool answered);
  void admit_session(std::uint64_t knock, std::optional<Error> refusal);
  void await_other_session(std::uint64_t attempt, const Error& why);
  void hop(Host from, Host to, int tries, std::uint64_t process, Action action);

  // sessions.cc
  Session& add_session(ConnectionId id, transport::SessionInfo info, transport::End end);
  void hear(ConnectionId id, WireEvent event);
  void on_frame(Session& session, const Frame& frame);
  void on_event(Session& session, transport::ChannelEvent event);
  void install(Session& session);
  void begin_close(Session& session, const Error& why, transport::Leave leave);
  void finish(ConnectionId id, const Error& why);
  void on_end(const Session& session, const Error& why);
  void tick_after(Duration wait, ConnectionId id);
  void tick_one(ConnectionId id);
  void pump(Session& session);
  [[nodiscard]] Session* find(ConnectionId id);
  [[nodiscard]] TimePoint now() const { return schedule_.now(); }

  Schedule& schedule_;
  Wire& wire_;
  Hosts& hosts_;
  SessionShell& shell_;
  ProcessIdentity self_;
  transport::TransferBudget budget_;
  transport::SessionTable table_;
  std::map<ConnectionId, std::unique_ptr<Session>> sessions_;
  std::map<NodeId, ConnectionId> current_;
  std::map<std::uint64_t, Attempt> attempts_;
  std::map<std::uint64_t, Knock> knocks_;
  std::uint64_t numbers_ = 0;
  std::size_t pending_dials_ = 0;
  bool stopping_ = false;
};

}  // namespace starling::sim
