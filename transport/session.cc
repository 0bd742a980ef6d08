#include "transport/session.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "transport/tcp_options.h"

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace starling::transport {
namespace {

using namespace std::chrono_literals;

// One read brings at most two large records, so a handler stays far below 1 ms.
constexpr std::size_t kReadBuffer = 2 * limits::kMaxCiphertext;
// Control records are gathered into one write up to this size.
constexpr std::size_t kWriteBatch = 64 * 1024;
constexpr Duration kTick = 1s;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

constexpr auto kForEver = asio::steady_timer::time_point::max();

}  // namespace

class Session::ChannelAdmitter final : public Admitter {
 public:
  explicit ChannelAdmitter(Session& session) : session_(session) {}
  [[nodiscard]] bool admit(std::uint16_t type, ByteView body,
                           std::size_t attachment_bytes) override {
    assert_io_thread();
    return session_.services_.host.admit(session_, type, body, attachment_bytes);
  }

 private:
  Session& session_;
};

Session::Session(asio::ip::tcp::socket socket, const HandshakeOutcome& outcome, SessionInfo info,
                 SessionServices services)
    : socket_(std::move(socket)),
      info_(std::move(info)),
      services_(services),
      channel_(info_.direction == Direction::dialled ? End::initiator : End::responder,
               services_.budget),
      sealer_(outcome.send),
      opener_(outcome.receive),
      since_(services_.clock.now()),
      welcomed_(info_.direction == Direction::accepted),
      wake_(socket_.get_executor(), kForEver),
      hold_(socket_.get_executor(), kForEver),
      tick_(socket_.get_executor()),
      finished_(socket_.get_executor(), kForEver),
      tasks_(socket_.get_executor(), services_.log) {
  opener_.feed(outcome.rest);
  set_common_options(socket_);
  tune_socket();
}

Task<Error> Session::run() {
  tasks_.spawn("session.read", [this] { return read_loop(); });
  tasks_.spawn("session.write", [this] { return write_loop(); });
  tasks_.spawn("session.tick", [this] { return tick_loop(); });
  while (!over_) {
    // Before the wait: an owner that stopped while the handshake ended has said so already.
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      Error stopping{Errc::cancelled, Doing::stopping, "stopping"};
      finish(std::move(stopping), SessionEnd::orderly);
      break;
    }
    const auto [error] = co_await finished_.async_wait(as_result);
    (void)error;  // finish() wakes us, or our owner stops
  }
  co_await tasks_.stop();
  for (const auto& probe : probes_) probe->timer.cancel();
  std::error_code ignored;
  socket_.close(ignored);
  co_return *reason_;
}

void Session::say_welcome() {
  channel_.say_welcome();
  wake_writer();
}

Result<void> Session::send(Message message) {
  TRY_VOID(channel_.send(std::move(message)));
  wake_writer();
  return {};
}

void Session::close(Error why, Leave leave) {
  if (over_) return;
  const auto dropped = retired_ ? channel_.unfinished() : std::vector<Refused>();
  channel_.say_bye(why, leave);
  for (const auto& message : dropped) services_.host.on_refused(*this, message.type, message.body);
  if (!reason_) reason_ = std::move(why);
  const bool hands_over = retired_ && leave == Leave::after_messages;
  close_within(hands_over ? limits::kHandoverDeadline : limits::kCloseDeadline);
  wake_writer();
}

void Session::close_within(Duration time) {
  const auto by = services_.clock.now() + time;
  if (close_by_ && *close_by_ <= by) return;
  close_by_ = by;
  tick_.cancel();  // its next deadline is the one of closing
}

void Session::leave(const Error& why, Duration patience) {
  if (over_ || closing() || patience <= Duration::zero() || !channel_.sends_bulk()) {
    close(why, Leave::after_messages);
    return;
  }
  channel_.say_bye(why, Leave::after_attachments);
  reason_ = why;
  close_within(patience);
  wake_writer();
}

void Session::retire(Direction successor) {
  retired_ = true;
  retired_since_ = services_.clock.now();
  if (successor == Direction::accepted) return;
  Error why{Errc::closed, Doing::stopping, "a fresh handshake replaced this session"};
  close(std::move(why), Leave::after_messages);
}

void Session::release() {
  held_ = false;
  hold_.cancel();
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): not used after a wait.
Task<bool> Session::probe(Session& session) {
  const auto executor = co_await asio::this_coro::executor;
  // Owners: this coroutine and the session, see probes_.
  const auto probe = std::make_shared<Probe>(executor);
  probe->timer.expires_after(limits::kDuplicateProbe);
  session.probes_.push_back(probe);
  session.channel_.ping(0);
  session.wake_writer();
  const auto [error] = co_await probe->timer.async_wait(as_result);
  (void)error;  // an answer, or the session's end, cancels the timer
  co_return probe->answered;
}

SessionFigures Session::figures() const {
  SessionFigures figures;
  figures.peer = info_.peer;
  figures.sent = sent_;
  figures.received = received_;
  figures.records_sent = sealer_.records();
  figures.records_received = opener_.records();
  figures.goodput = channel_.goodput();
  figures.queued_control_bytes = channel_.queued_control_bytes();
  figures.queued_bulk_bytes = channel_.queued_bulk_bytes();
  return figures;
}

Task<> Session::read_loop() {
  assert_io_thread();
  // The handshake's last read may have brought the first records.
  while (take_records()) {
    if (held_) {
      const auto [released] = co_await hold_.async_wait(as_result);
      assert_io_thread();
      (void)released;  // release() cancels the wait
      if (tasks_.stopping()) co_return;
      continue;
    }
    const auto room = opener_.room(kReadBuffer);
    auto buffer = asio::buffer(room.data(), room.size());
    auto [error, size] = co_await socket_.async_read_some(buffer, as_result);
    assert_io_thread();
    if (!error && fault::maybe("net.read")) error = asio::error::connection_reset;
    if (over_) co_return;
    if (error) {
      on_stream_end(error);
      co_return;
    }
    opener_.came(size);
  }
}

bool Session::take_records() {
  ChannelAdmitter admitter(*this);
  // Before the welcome a hold waits for it; behind it, it holds.
  while (!over_ && !(held_ && welcomed_)) {
    auto record = opener_.next();
    if (!record) {
      on_violation(std::move(record).error());
      return false;
    }
    if (!*record) break;
    auto& count = (*record)->type == RecordType::bulk ? received_.bulk : received_.control;
    count += (*record)->wire_bytes;
    const auto now = services_.clock.now();
    auto taken = channel_.on_record(now, **record, admitter, events_);
    if (!taken) {
      on_violation(std::move(taken).error());
      return false;
    }
    for (auto& event : std::exchange(events_, {})) on_event(std::move(event));
  }
  wake_writer();
  return !over_;
}

void Session::on_event(ChannelEvent event) {
  auto& host = services_.host;
  const auto visitor = Overloaded{
      [&](Welcomed&) {
        assert_io_thread();
        if (closing()) return;
        welcomed_ = true;
        host.on_welcome(*this);
      },
      [&](Delivered& delivered) {
        assert_io_thread();
        if (listening()) host.on_message(*this, std::move(delivered.message));
      },
      [&](Refused& refused) {
        assert_io_thread();
        if (listening()) host.on_refused(*this, refused.type, refused.body);
      },
      [&](Ponged&) {
        assert_io_thread();
        on_pong();
      },
      [&](Farewell& farewell) {
        assert_io_thread();
        peer_said_bye_ = true;
        if (closing()) {
          finish(std::move(farewell.why), end_);
          return;
        }
        reason_ = std::move(farewell.why);
        Error answer{Errc::closed, Doing::stopping, "goodbye"};
        close(std::move(answer), Leave::after_messages);
      },
  };
  std::visit(visitor, event);
}

void Session::on_pong() {
  for (const auto& probe : std::exchange(probes_, {})) {
    probe->answered = true;
    probe->timer.cancel();
  }
}

void Session::on_violation(Error why) {
  end_ = SessionEnd::violation;
  if (closing()) {
    finish(std::move(why), SessionEnd::violation);
    return;
  }
  close(std::move(why), Leave::at_once);
}

void Session::on_stream_end(const std::error_code& error) {
  // Whoever dialled the successor ends its stream after its goodbye, and goes on reading until
  // ours.
  const bool waits_for_us = error == asio::error::eof && retired_ && peer_said_bye_;
  if (waits_for_us && !bye_written_) {
    peer_ended_ = true;
    return;
  }
  if (closing()) {
    Error ended{Errc::closed, Doing::reading_record, "the connection ended"};
    finish(std::move(ended), end_of_closing());
    return;
  }
  Error why{Errc::closed, Doing::reading_record,
            "the connection was cut without a goodbye: " + error.message()};
  finish(std::move(why), SessionEnd::truncated);
}

Task<> Session::write_loop() {
  assert_io_thread();
  while (!over_) {
    out_.clear();
    seal_next();
    if (out_.empty()) {
      const auto [error] = co_await wake_.async_wait(as_result);
      assert_io_thread();
      (void)error;  // wake_writer() cancels the wait
      wake_.expires_at(kForEver);
      if (tasks_.stopping()) co_return;
      continue;
    }
    auto buffer = asio::buffer(out_);
    auto [error, size] = co_await asio::async_write(socket_, buffer, as_result);
    assert_io_thread();
    if (!error && fault::maybe("net.write")) error = asio::error::broken_pipe;
    if (over_) co_return;
    if (error) {
      on_stream_end(error);
      co_return;
    }
    if (channel_.bye_taken()) {
      // The reader waits for the peer's end of the stream, or the ticker for the deadline.
      std::error_code ignored;
      socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      bye_written_ = true;
      if (!retired_) close_within(limits::kCloseDeadline);  // what is left of leave()'s patience
      if (peer_ended_) on_stream_end(asio::error::eof);
      co_return;
    }
  }
}

void Session::seal_next() {
  const auto now = services_.clock.now();
  while (out_.size() < kWriteBatch) {
    auto record = channel_.next_record(now, bulk_record_bytes());
    if (!record) break;
    sealer_.seal(*record, out_);
    const bool bulk = record->type == RecordType::bulk;
    (bulk ? sent_.bulk : sent_.control) += record->wire_size();
    if (bulk) break;  // control that comes now waits for it
  }
}

SessionEnd Session::end_of_closing() const {
  // Whoever is replaced has all that the peer sent only if its goodbye came, the last record.
  const bool cut = retired_ && !peer_said_bye_ && end_ == SessionEnd::orderly;
  return cut ? SessionEnd::truncated : end_;
}

bool Session::worn(TimePoint now) const {
  // One change at a time: while it is held, the session before it is still delivering.
  if (info_.direction != Direction::dialled || !welcomed_ || held_) return false;
  const auto age = now - since_;
  if (sent_.total() + received_.total() > limits::kRenewAfterBytes) return true;
  // Between two attachments it costs nothing; later it has to be now, before the session is too
  // old.
  return (worn_out_ || age > services_.renew_after) &&
         (!channel_.has_transfers() || age > services_.renew_after + limits::kRenewPatience);
}

std::size_t Session::bulk_record_bytes() const {
  const double goodput = channel_.goodput();
  if (goodput == 0) return limits::kMaxBulkRecord / 2;  // unknown yet
  const double bytes = goodput * seconds(limits::kBulkRecordTime);
  return static_cast<std::size_t>(
      std::clamp(bytes, double{limits::kMinBulkRecord}, double{limits::kMaxBulkRecord}));
}

void Session::tune_socket() {
  const double goodput = channel_.goodput();
  const double bytes =
      goodput == 0 ? double{limits::kMaxNotSentLowat} : goodput * seconds(limits::kNotSentTime);
  const auto lowat = static_cast<std::size_t>(
      std::clamp(bytes, double{limits::kMinNotSentLowat}, double{limits::kMaxNotSentLowat}));
  if (lowat == lowat_) return;
  lowat_ = lowat;
  limit_not_sent(socket_, lowat);
}

Task<> Session::tick_loop() {
  assert_io_thread();
  while (!over_) {
    const auto now = services_.clock.now();
    auto wait = kTick;
    if (close_by_ && now >= *close_by_ && channel_.finishing()) {
      // The patience of leave() is over.
      channel_.say_bye(*reason_, Leave::after_messages);
      close_by_ = now + limits::kCloseDeadline;
    }
    if (close_by_) {
      const auto left = *close_by_ - now;
      if (left <= Duration{0}) {
        Error late{Errc::timed_out, Doing::stopping, "the goodbye took too long"};
        finish(std::move(late), end_of_closing());
        co_return;
      }
      wait = std::min(wait, left);
    } else if (!welcomed_ && now - since_ > limits::kHandshakeDeadline) {
      Error silent{Errc::timed_out, Doing::handshaking, "the peer neither accepts nor refuses"};
      close(std::move(silent), Leave::at_once);
    } else if (retired_) {
      if (now - retired_since_ > limits::kHandoverDeadline) {
        Error forgotten{Errc::timed_out, Doing::stopping,
                        "the peer kept a session that was replaced"};
        finish(std::move(forgotten), SessionEnd::truncated);
        co_return;
      }
    } else if (now - since_ > limits::kMaxSessionAge) {
      Error old{Errc::closed, Doing::stopping, "the session is too old: dial again"};
      close(std::move(old), Leave::after_messages);
    } else if (worn(now)) {
      services_.host.on_worn(*this);
    }
    channel_.on_tick(now);
    tune_socket();
    wake_writer();
    tick_.expires_after(wait);
    const auto [error] = co_await tick_.async_wait(as_result);
    assert_io_thread();
    (void)error;  // close() cancels the wait to set an earlier deadline
    if (tasks_.stopping()) co_return;
  }
}

void Session::wake_writer() {
  if (channel_.has_record()) wake_.cancel();
}

void Session::finish(Error why, SessionEnd end) {
  if (over_) return;
  over_ = true;
  end_ = end;
  if (!reason_) reason_ = std::move(why);
  finished_.cancel();
}

}  // namespace starling::transport
