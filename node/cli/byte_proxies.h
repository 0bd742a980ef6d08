// ByteProxies: a door in front of every node of a local swarm, so that lines can be cut without
// root: a node advertises its door, and what comes in there is carried on, or is not.
#pragma once

#include "node/base/mutex.h"
#include "node/base/result.h"

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace starling::node {

// The doors of `count` nodes, numbered from 0, on ports that the kernel chose and that stay theirs.
//
// Owned by `starling chaos`. Whoever dials a door is known by the process that holds the other end
// (/proc/net/tcp and the descriptors of the children), so that a line has two names. Between sides
// that are split nothing is read and nothing is closed: as on a cut line, bytes wait and come out
// when it is mended; who dials across is accepted and hears nothing.
// Threads: public functions may be called from any; one thread of its own carries the bytes.
// Cost:    two descriptors for each door; two and 64 KiB for each connection.
class ByteProxies {
 public:
  // Errors:  io_failed.
  [[nodiscard]] static Result<std::unique_ptr<ByteProxies>> start(std::size_t count);
  ~ByteProxies();
  ByteProxies(const ByteProxies&) = delete;
  ByteProxies& operator=(const ByteProxies&) = delete;

  // "127.0.0.1:PORT": what the node advertises.
  [[nodiscard]] std::string address(std::size_t node) const;
  // The process behind a door, and the file that tells where it listens. The door is open from now
  // on.
  //
  // Errors:  io_failed.
  [[nodiscard]] Result<void> open(std::size_t node, pid_t pid, std::filesystem::path address_file);
  // The process is gone: dials are refused, as they are where nobody listens.
  void close(std::size_t node);

  // One number for each node; nothing passes between nodes of different numbers.
  void split(std::vector<int> sides);
  void mend() { split({}); }

 private:
  struct Door {
    int keeper = -1;    // bound and never listening: nobody else is given the port
    int listener = -1;  // while the door is open
    std::uint16_t port = 0;
    pid_t pid = -1;
    std::filesystem::path address_file;
  };
  // One way of a connection.
  struct Way {
    int from = -1;
    int to = -1;
    std::vector<char> bytes;  // read and not yet written
    bool ended = false;
  };
  struct Line {
    std::size_t dialler = 0;
    std::size_t dialled = 0;
    int ends[2] = {-1, -1};  // the dialler's, and the dialled node's once it is connected
    Way ways[2];
  };

  ByteProxies() = default;
  void run();
  void accept_at(std::size_t node, int listener);
  // What waits at a door, if it is still the one that was polled; -1 if nothing is.
  [[nodiscard]] int accepted_at(std::size_t node, int listener);
  [[nodiscard]] std::optional<std::size_t> dialler_of(int accepted);
  [[nodiscard]] bool is_cut(const Line& line);
  void connect(Line& line);
  // False when the line is over.
  [[nodiscard]] bool carry(Line& line, short first_events, short second_events);
  static void close_line(Line& line);

  mutable Mutex mutex_;
  std::vector<Door> doors_ STARLING_GUARDED_BY(mutex_);
  std::vector<int> sides_ STARLING_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_ = false;
  std::vector<Line> lines_;  // the thread's
  std::thread thread_;
};

}  // namespace starling::node
