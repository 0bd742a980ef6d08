// A control server on a thread of its own, as the io thread of a node has one.
#pragma once

#include "node/control/server.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <doctest/doctest.h>

#include <filesystem>
#include <thread>
#include <utility>

namespace starling::node {

// `Handler` is a ControlHandler with drop_held(), which gives up every question that it keeps.
template <class Handler>
struct ControlRig {
  explicit ControlRig(const std::filesystem::path& dir, Duration sign_of_life = kSignOfLife)
      : server(io, snapshots, handler, log, sign_of_life) {
    auto listening = server.listen(dir);
    REQUIRE(listening);
    thread = std::thread([this] { io.run(); });
  }
  ~ControlRig() { stop(); }
  ControlRig(const ControlRig&) = delete;
  ControlRig& operator=(const ControlRig&) = delete;

  void stop() {
    if (!thread.joinable()) return;
    asio::post(io, [this] {
      handler.drop_held();
      server.stop();
    });
    thread.join();  // that the context drains is the proof that nothing is left
  }

  asio::io_context io;
  SnapshotBox snapshots;
  Handler handler;
  NullLog log;
  ControlServer server;
  std::thread thread;
};

}  // namespace starling::node
