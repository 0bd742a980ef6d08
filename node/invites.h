// Invites: those that this node made and that nobody has used yet, on disk.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "node/wall_time.h"
#include "transport/invite.h"
#include "transport/task.h"

#include <asio/thread_pool.hpp>

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace starling::node {

inline constexpr std::size_t kMaxOpenInvites = 256;

// One file of mode 0600 for each open invite, in DIR/invites. Using an invite removes its file, and
// so does a person who takes it back.
//
// Owned by the node. Lives on the io thread; `files` does what waits for a disk, and outlives it.
// Holds this node's invites only: no other node honours them.
class Invites final : public transport::InviteDesk {
 public:
  Invites(std::filesystem::path folder, asio::thread_pool& files, Log& log);

  // Reads the folder, which need not be there; what has expired is removed, what cannot be read is
  // told and left alone, the folder itself included. Blocks: before the node begins.
  void load(WallTime now) ON_IO_THREAD;

  // Makes an invite and keeps it on disk; its text.
  //
  // Errors:  bad_config without an address that fits; too_many above kMaxOpenInvites; those of
  // create_private_file.
  [[nodiscard]] transport::Task<Result<std::string>> issue(
      SwarmId swarm, std::vector<transport::Endpoint> own_addresses, WallTime expires);

  [[nodiscard]] std::optional<transport::noise::Key> find(const transport::KeyId& id) override
      ON_IO_THREAD;
  [[nodiscard]] transport::Task<bool> redeem(transport::KeyId id) override;

 private:
  struct Open {
    transport::noise::Key key{};
    std::uint64_t expires_s = 0;
  };

  [[nodiscard]] std::filesystem::path file_of(const transport::KeyId& id) const;
  void load_file(const std::filesystem::path& file, WallTime now) ON_IO_THREAD;
  // Forgets what has expired; their files.
  [[nodiscard]] std::vector<std::filesystem::path> sweep(WallTime now) ON_IO_THREAD;

  std::filesystem::path folder_;
  asio::thread_pool& files_;
  Log& log_;
  std::map<transport::KeyId, Open> open_;
};

}  // namespace starling::node
