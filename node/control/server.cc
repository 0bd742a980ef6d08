#include "node/control/server.h"

#include "node/base/fault.h"
#include "node/control/socket_path.h"
#include "node/printable.h"

#include <asio/buffer.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <set>
#include <utility>

namespace starling::node {

namespace {

using Protocol = asio::local::stream_protocol;

constexpr std::size_t kMaxCallers = 16;
constexpr auto kRequestDeadline = std::chrono::seconds(10);
// What one slow reader may make us keep; a status of a large swarm is 4 MiB.
constexpr std::size_t kMaxQueued = 2 * kMaxControlReply;

}  // namespace

// What the connections need of the server.
class ControlServer::Impl : public std::enable_shared_from_this<ControlServer::Impl> {
 public:
  class Connection;

  Impl(asio::io_context& io, SnapshotBox& snapshots, ControlHandler& handler, Log& log,
       Duration sign_of_life)
      : acceptor_(io),
        retry_(io),
        snapshots_(snapshots),
        handler_(handler),
        log_(log),
        sign_of_life_(sign_of_life) {}

  Result<void> listen(const std::filesystem::path& dir);
  void stop();
  void on_request(const std::shared_ptr<Connection>& connection, std::string_view line);
  void forget(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }

 private:
  void accept();
  void on_accepted(const asio::error_code& error, Protocol::socket socket);

  Protocol::acceptor acceptor_;
  asio::steady_timer retry_;
  SnapshotBox& snapshots_;
  ControlHandler& handler_;
  Log& log_;
  const Duration sign_of_life_;
  std::filesystem::path dir_;
  // Owners of a connection: this set until it ends, and the callbacks that Asio holds.
  std::set<std::shared_ptr<Connection>> connections_;
  bool stopped_ = false;
};

// One verb's connection: reads one line, then writes lines until the last one.
//
// Owned by the server's set and by its own callbacks. Lives on the io thread.
class ControlServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The server is told weakly: a connection may outlive it by a callback.
  Connection(Protocol::socket socket, std::weak_ptr<Impl> server, Duration patience)
      : socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        server_(std::move(server)),
        patience_(patience) {}

  void start() {
    close_after(kRequestDeadline);
    read();
  }

  // Sends a line; after the last one the connection closes.
  void send(const ControlAnswer& answer) {
    if (closed_ || last_queued_) return;
    fault::pass("control.reply");
    auto line = encode_answer(answer);
    if (line.size() > kMaxControlReply)
      line = encode_answer({ControlAnswer::Kind::error,
                            "",
                            {Errc::too_large, Doing::controlling, "the answer is too large"}});
    queued_bytes_ += line.size();
    if (queued_bytes_ > kMaxQueued) return close();
    last_queued_ = answer.kind != ControlAnswer::Kind::progress;
    // A verb that was stopped and never reads its answer must not keep its place for ever.
    if (last_queued_) close_after(patience_);
    queue_.push_back(std::move(line));
    if (queue_.size() == 1) write();
  }

  [[nodiscard]] bool closed() const { return closed_; }

  // Says every now and then that the answer is on its way; to a verb that reads, and until it is.
  void show_life(std::string_view verb, Duration period) {
    if (closed_ || last_queued_) return;
    timer_.expires_after(period);
    timer_.async_wait([self = shared_from_this(), verb, period](const asio::error_code& error) {
      if (error) return;
      if (self->queue_.empty())
        self->send({ControlAnswer::Kind::progress,
                    json_text({{"message", fmt::format("the node is still at work on {}", verb)}}),
                    {}});
      self->show_life(verb, period);
    });
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    timer_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    if (const auto server = server_.lock()) server->forget(shared_from_this());
  }

 private:
  void close_after(Duration time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->close();
    });
  }

  void read() {
    socket_.async_read_some(
        asio::buffer(chunk_),
        [self = shared_from_this()](const asio::error_code& error, std::size_t count) {
          self->on_read(error, count);
        });
  }

  void on_read(const asio::error_code& error, std::size_t count) {
    if (closed_) return;
    if (error) return close();
    // After its line a verb has nothing to say; reading goes on only to notice that it went.
    if (asked_) return read();
    line_.append(chunk_.data(), count);
    const auto end = line_.find('\n');
    if (end == std::string::npos && line_.size() <= kMaxControlRequest) return read();
    asked_ = true;
    timer_.cancel();
    line_.resize(std::min(end, line_.size()));
    read();
    if (const auto server = server_.lock()) server->on_request(shared_from_this(), line_);
  }

  void write() {
    asio::async_write(socket_, asio::buffer(queue_.front()),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->on_written(error);
                      });
  }

  void on_written(const asio::error_code& error) {
    if (closed_) return;
    if (error) return close();
    queued_bytes_ -= queue_.front().size();
    queue_.pop_front();
    if (!queue_.empty()) return write();
    if (last_queued_) close();
  }

  Protocol::socket socket_;
  asio::steady_timer timer_;  // for the request, then for signs of life, then for its reader
  std::weak_ptr<Impl> server_;
  const Duration patience_;
  std::array<char, 4'096> chunk_{};
  std::string line_;
  std::deque<std::string> queue_;
  std::size_t queued_bytes_ = 0;
  bool asked_ = false;
  bool last_queued_ = false;
  bool closed_ = false;
};

// What all copies of a ControlReply share; the last one to go answers, if nobody did.
class ControlReply::Question {
 public:
  // Owners: see ControlServer::Impl::Connection.
  explicit Question(std::shared_ptr<ControlServer::Impl::Connection> connection)
      : connection_(std::move(connection)) {}
  ~Question() {
    if (answered_) return;
    connection_->send({ControlAnswer::Kind::error,
                       "",
                       {Errc::internal, Doing::controlling, "the node dropped this request"}});
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  void send(const ControlAnswer& answer) {
    if (answered_) return;
    answered_ = true;
    connection_->send(answer);
  }
  [[nodiscard]] bool gone() const { return connection_->closed(); }

 private:
  // Owners: see the constructor.
  std::shared_ptr<ControlServer::Impl::Connection> connection_;
  bool answered_ = false;
};

ControlReply::ControlReply(std::shared_ptr<Question> question) : question_(std::move(question)) {}

void ControlReply::done(const nlohmann::json& body) {
  question_->send({ControlAnswer::Kind::result, json_text(body), {}});
}
void ControlReply::fail(const Error& error) {
  question_->send({ControlAnswer::Kind::error, "", error});
}
bool ControlReply::gone() const { return question_->gone(); }

Result<void> ControlServer::Impl::listen(const std::filesystem::path& dir) {
  const auto refuse = [&](std::string_view reason) {
    asio::error_code ignored;
    acceptor_.close(ignored);
    return starling::fail(Errc::listen_failed, Doing::controlling,
                          fmt::format("{}: {}", (dir / kControlSocket).string(), reason));
  };
  const auto path = SocketPath::in(dir);
  if (!path) return refuse(path.error().detail);
  ::unlink(path->text().c_str());
  asio::error_code error;
  acceptor_.open(Protocol(), error);
  if (!error) acceptor_.bind(Protocol::endpoint(path->text()), error);
  // Nobody can connect before listen(), so the mode is right from the first connection on.
  if (!error && ::chmod(path->text().c_str(), 0600) != 0)
    error = asio::error_code(errno, asio::error::get_system_category());
  if (!error) acceptor_.listen(static_cast<int>(kMaxCallers), error);
  if (error) return refuse(error.message());
  dir_ = dir;
  accept();
  return {};
}

void ControlServer::Impl::accept() {
  acceptor_.async_accept(
      [self = shared_from_this()](const asio::error_code& error, Protocol::socket socket) {
        self->on_accepted(error, std::move(socket));
      });
}

void ControlServer::Impl::on_accepted(const asio::error_code& error, Protocol::socket socket) {
  if (stopped_) return;
  if (error) {
    // No descriptor left, most likely: an immediate retry would spin (accept() fails at once).
    log_.warn("control.accept_failed", {{"reason", error.message()}});
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
      if (!cancelled && !self->stopped_) self->accept();
    });
    return;
  }
  // Owners: see connections_.
  const auto connection =
      std::make_shared<Connection>(std::move(socket), weak_from_this(), sign_of_life_);
  connections_.insert(connection);
  if (connections_.size() > kMaxCallers)
    connection->send({ControlAnswer::Kind::error,
                      "",
                      {Errc::too_many, Doing::controlling, "16 verbs are being answered already"}});
  else
    connection->start();
  accept();
}

void ControlServer::Impl::on_request(const std::shared_ptr<Connection>& connection,
                                     std::string_view line) {
  // Owners: the copies of the reply.
  ControlReply reply(std::make_shared<ControlReply::Question>(connection));
  const auto request = parse_request(line);
  if (!request) {
    log_.debug("control.bad_request", {{"reason", request.error().detail}});
    return reply.fail(request.error());
  }
  log_.debug("control.request", {{"verb", verb_of(*request)}});
  const auto snapshot = snapshots_.get();
  if (std::holds_alternative<StatusRequest>(*request)) return reply.done(to_json(*snapshot));
  if (std::holds_alternative<MembersRequest>(*request)) return reply.done(members_json(*snapshot));
  if (std::holds_alternative<NeighboursRequest>(*request))
    return reply.done(neighbours_json(*snapshot));
  handler_.on_request(*request, std::move(reply));
  connection->show_life(verb_of(*request), sign_of_life_);
}

void ControlServer::Impl::stop() {
  if (std::exchange(stopped_, true)) return;
  retry_.cancel();
  if (acceptor_.is_open()) {
    asio::error_code ignored;
    acceptor_.close(ignored);
    if (const auto path = SocketPath::in(dir_)) ::unlink(path->text().c_str());
  }
  const auto open = std::exchange(connections_, {});
  for (const auto& connection : open) connection->close();
}

ControlServer::ControlServer(asio::io_context& io, SnapshotBox& snapshots, ControlHandler& handler,
                             Log& log, Duration sign_of_life)
    : impl_(std::make_shared<Impl>(io, snapshots, handler, log, sign_of_life)) {}

ControlServer::~ControlServer() { stop(); }

Result<void> ControlServer::listen(const std::filesystem::path& dir) { return impl_->listen(dir); }

void ControlServer::stop() { impl_->stop(); }

}  // namespace starling::node
