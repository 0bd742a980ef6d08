// The node's side of DIR/control.sock.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "node/control/request.h"
#include "node/observe/status.h"

#include <asio/io_context.hpp>
#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace starling::node {

// One open question of a verb. Copies are the same question; it may be answered long after
// on_request returned, from the io thread. A question that is dropped without an answer is answered
// with an error, so no verb ever hangs on a bug.
//
// Thread:  io.
class ControlReply {
 public:
  class Question;
  explicit ControlReply(std::shared_ptr<Question> question);

  // The end. Later calls do nothing.
  void done(const nlohmann::json& body);
  void fail(const Error& error);
  // The person pressed Ctrl-C: nobody reads the answer any more.
  [[nodiscard]] bool gone() const;

 private:
  // Owners: every copy of this reply.
  std::shared_ptr<Question> question_;
};

// Carries out what verbs ask. Implemented by the node, which outlives the server.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;

  // A join, leave, finish, merge, eval, log-level or invite request: status, members and neighbours
  // are answered by the server from the newest snapshot.
  //
  // Thread:  io.
  virtual void on_request(const ControlRequest& request, ControlReply reply) = 0;
};

// Owner of the socket and its connections: at most 16 at a time, each with 10 s to send its line
// and as long to read its answer as lies between two signs of life.
//
// Constructed by the node; stop() (idempotent, also by the destructor) closes everything, after
// which the io context drains. The socket's mode is 0600. Knows nothing about training.
//
// Thread:  io.
class ControlServer {
 public:
  // All references outlive the server.
  ControlServer(asio::io_context& io, SnapshotBox& snapshots, ControlHandler& handler, Log& log,
                Duration sign_of_life = kSignOfLife);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Binds DIR/control.sock, replacing one that a dead process left: only the holder of the folder's
  // lock may call this. Paths of any length work: the socket is bound through the descriptor of its
  // folder, because an address has room for 107 characters only.
  //
  // Errors:  listen_failed.
  [[nodiscard]] Result<void> listen(const std::filesystem::path& dir);
  void stop();

 private:
  class Impl;
  friend class ControlReply;
  // Owners: this object and the callbacks that Asio still holds.
  std::shared_ptr<Impl> impl_;
};

}  // namespace starling::node
