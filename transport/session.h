// Session: one live connection after its handshake; the coroutines around Channel and records.
#pragma once

#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "transport/channel.h"
#include "transport/figures.h"
#include "transport/handshake.h"
#include "transport/record.h"
#include "transport/session_info.h"
#include "transport/task.h"
#include "transport/task_group.h"

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace starling::transport {

class Session;

// Whom a session tells. Implemented by Transport, which outlives its sessions. Thread: io.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // The responder accepted the session that we dialled.
  virtual void on_welcome(Session& session) ON_IO_THREAD = 0;
  virtual void on_message(Session& session, Message message) ON_IO_THREAD = 0;
  [[nodiscard]] virtual bool admit(Session& session, std::uint16_t type, ByteView body,
                                   std::size_t attachment_bytes) ON_IO_THREAD = 0;
  virtual void on_refused(Session& session, std::uint16_t type, ByteView body) ON_IO_THREAD = 0;
  // A session that we dialled is so old, or carried so much, that another handshake should replace
  // it. Told about once a second from then on.
  virtual void on_worn(Session& session) ON_IO_THREAD = 0;
};

// What all sessions of a process share; everything outlives them.
struct SessionServices {
  TransferBudget& budget;
  const Clock& clock;
  SessionHost& host;
  Log& log;
  Duration renew_after = limits::kRenewAfter;
};

// How a session ended, for the counters.
enum class SessionEnd : std::uint8_t {
  orderly,    // the peer said goodbye, or we did
  truncated,  // the connection ended without a goodbye, or a replaced one without the peer's
  violation,  // the peer broke a rule, or a record was changed on the way
};

// | event                | starting              | up                    | ending    |
// |----------------------|-----------------------|-----------------------|-----------|
// | welcome (dialled)    | -> up                 | violation             | -         |
// | record breaks a rule | bye at once -> ending | bye at once -> ending | over      |
// | bye came             | over, its why         | bye -> ending         | over      |
// | close()              | bye -> ending         | bye -> ending         | may hurry |
// | end of stream        | over, truncated       | over, truncated       | over      |
// `ending` lasts at most limits::kCloseDeadline, after leave() its patience before that; for a
// session that was replaced, whose queue still counts, limits::kHandoverDeadline. An accepted
// session starts `up`.
//
// Owned by the coroutine that awaits run(); destroyed after it returned. Thread: io. Cost: three
// coroutines, 128 KiB to read into, about as much to write from.
class Session {
 public:
  Session(asio::ip::tcp::socket socket, const HandshakeOutcome& outcome, SessionInfo info,
          SessionServices services);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs until the session is over: why.
  [[nodiscard]] Task<Error> run();

  // Accepts the peer that dialled us: call before run().
  void say_welcome() ON_IO_THREAD;
  // Errors:  those of Channel::send.
  [[nodiscard]] Result<void> send(Message message) ON_IO_THREAD;
  // Ends the session with a goodbye; what arrives from now on is dropped.
  void close(Error why, Leave leave) ON_IO_THREAD;
  // The same where the peer is to have all that was sent: attachments under way have `patience`.
  void leave(const Error& why, Duration patience) ON_IO_THREAD;

  // Another session with the same process takes over. The side that dialled it says goodbye after
  // what is queued, the other side waits for that; both go on delivering until the end. Attachments
  // that are under way then are reported as refused.
  void retire(Direction successor) ON_IO_THREAD;
  // A session that we dialled is replaced by a fresh handshake as soon as that costs nothing.
  void wear_out() { worn_out_ = true; }
  // Until release(), nothing after the welcome is read: the session that this one replaces delivers
  // its last messages first.
  void hold() { held_ = true; }
  void release();
  [[nodiscard]] bool held() const { return held_; }

  // Asks for a sign of life and waits at most limits::kDuplicateProbe for it. False also if the
  // session ended meanwhile. The caller does not touch the session afterwards without looking it up
  // again.
  [[nodiscard]] static Task<bool> probe(Session& session);

  // What this node itself gave a peer that had no certificate to show.
  void set_certificate(const CertificateChain& chain) { info_.certificate = chain; }

  [[nodiscard]] const SessionInfo& info() const { return info_; }
  [[nodiscard]] bool welcomed() const { return welcomed_; }
  [[nodiscard]] bool closing() const { return close_by_.has_value(); }
  // Why it ends; nothing as long as nobody said so.
  [[nodiscard]] const std::optional<Error>& reason() const { return reason_; }
  // Either side's Hello said so.
  [[nodiscard]] bool renews() const { return info_.purpose == Purpose::renew; }
  [[nodiscard]] SessionEnd how_it_ended() const { return end_; }
  [[nodiscard]] SessionFigures figures() const ON_IO_THREAD;

 private:
  // What a probe shares with the session it asks, which may be gone before the answer.
  struct Probe {
    explicit Probe(const asio::any_io_executor& executor) : timer(executor) {}
    asio::steady_timer timer;
    bool answered = false;
  };
  class ChannelAdmitter;

  Task<> read_loop();
  Task<> write_loop();
  Task<> tick_loop();
  // Reads records until the channel has no more to say; false when reading is over.
  [[nodiscard]] bool take_records() ON_IO_THREAD;
  void on_event(ChannelEvent event) ON_IO_THREAD;
  void on_pong() ON_IO_THREAD;
  // What arrives still counts: not after close(), but until the end of a retired session.
  [[nodiscard]] bool listening() const { return !closing() || retired_; }
  [[nodiscard]] bool worn(TimePoint now) const;
  void close_within(Duration time);
  // How a session ends that is closing and waits no longer for the peer.
  [[nodiscard]] SessionEnd end_of_closing() const;
  void on_violation(Error why) ON_IO_THREAD;
  void on_stream_end(const std::error_code& error) ON_IO_THREAD;
  // Fills `out_` with sealed records, control before bulk, of which there is one at most.
  void seal_next() ON_IO_THREAD;
  [[nodiscard]] std::size_t bulk_record_bytes() const;
  void tune_socket();
  void wake_writer();
  void finish(Error why, SessionEnd end);

  asio::ip::tcp::socket socket_;
  SessionInfo info_;
  SessionServices services_;
  Channel channel_;
  RecordSealer sealer_;
  RecordOpener opener_;
  std::vector<ChannelEvent> events_;
  Bytes out_;
  TimePoint since_;
  bool welcomed_;
  std::optional<TimePoint> close_by_;
  std::optional<Error> reason_;
  SessionEnd end_ = SessionEnd::orderly;
  bool over_ = false;
  bool retired_ = false;
  bool peer_said_bye_ = false;
  bool peer_ended_ = false;  // its stream, after its goodbye, while ours was still to be written
  bool bye_written_ = false;
  TimePoint retired_since_{};
  bool held_ = false;
  bool worn_out_ = false;
  ByteCount sent_;
  ByteCount received_;
  std::size_t lowat_ = 0;
  // Owners: the waiting coroutine of probe() and this session, which may each be gone first.
  std::vector<std::shared_ptr<Probe>> probes_;
  asio::steady_timer wake_;      // the writer's
  asio::steady_timer hold_;      // the reader's
  asio::steady_timer tick_;      // the ticker's
  asio::steady_timer finished_;  // run()'s
  TaskGroup tasks_;
};

}  // namespace starling::transport
