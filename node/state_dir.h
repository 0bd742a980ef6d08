// DIR: the folder that holds everything a node keeps.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace starling::node {

enum class FileMode : std::uint16_t { shared = 0644, secret = 0600 };

// Replaces a file so that a reader, or a crash at any moment, sees the old or the new bytes, never
// a mixture: temporary file, fsync, rename, fsync of the folder.
//
// Errors:  disk_full, permission, io_failed; the old file is untouched.
// Cost:    two fsyncs; not for the io thread while training.
[[nodiscard]] Result<void> write_whole(const std::filesystem::path& file, ByteView bytes,
                                       FileMode mode = FileMode::shared);
[[nodiscard]] Result<void> write_whole(const std::filesystem::path& file, std::string_view text,
                                       FileMode mode = FileMode::shared);
// A file of at most `max_bytes`; also a pipe, where the name is one of the process's own open
// descriptors (/dev/stdin, /dev/fd/63), and /dev/null.
//
// Errors:  not_found, too_large, io_failed; permission, also for what is no regular file and for a
//          link that leads nowhere.
[[nodiscard]] Result<std::string> read_whole(const std::filesystem::path& file,
                                             std::size_t max_bytes);

// A folder that its owner alone enters, with those above it; nothing new where it is there already.
//
// Returns: its path without a slash behind it.
// Errors:  of the system, told as found while `doing`.
[[nodiscard]] Result<std::filesystem::path> make_private_folder(std::filesystem::path folder,
                                                                Doing doing);

// The locked folder. While this object lives no other process can open it.
//
// Owned by main; opened before anything else of the node.
class StateDir {
 public:
  // Makes the folder (0700) where it is missing and locks it.
  //
  // Errors:  already_exists when another process holds it, with that process's id; permission,
  //          disk_full, io_failed.
  [[nodiscard]] static Result<StateDir> open(const std::filesystem::path& dir);
  // The folder as open() would find it, to read from: makes, locks and removes nothing, and the
  // folder need not be there.
  //
  // Errors:  those that open() would have now.
  [[nodiscard]] static Result<StateDir> look(const std::filesystem::path& dir);
  ~StateDir();
  StateDir(StateDir&& other) noexcept;
  StateDir& operator=(StateDir&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path identity_key() const { return path_ / "identity.key"; }
  [[nodiscard]] std::filesystem::path secret() const { return path_ / "secret"; }
  // Which nodes may have a session with this one, and which may not (access_files.h).
  [[nodiscard]] std::filesystem::path allow_list() const { return path_ / "peers.allow"; }
  [[nodiscard]] std::filesystem::path deny_list() const { return path_ / "peers.deny"; }
  // What the swarm's admin says about this node, and what the admin revoked (access_files.h).
  [[nodiscard]] std::filesystem::path membership() const { return path_ / "member.cert"; }
  [[nodiscard]] std::filesystem::path revoked() const { return path_ / "revoked"; }
  // How many of its serials this node gave away as an inviter (certifier.h).
  [[nodiscard]] std::filesystem::path serials() const { return path_ / "serials"; }
  // Invites that this node made and nobody has used (invites.h).
  [[nodiscard]] std::filesystem::path invites() const { return path_ / "invites"; }
  [[nodiscard]] std::filesystem::path address_file() const { return path_ / "address"; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  [[nodiscard]] std::filesystem::path events() const { return path_ / "events.jsonl"; }
  // What the swarm trains, as this node last knew it (kept_settings.h).
  [[nodiscard]] std::filesystem::path settings() const { return path_ / "settings"; }
  // In which precision a step costs less here (precision.h).
  [[nodiscard]] std::filesystem::path precision() const { return path_ / "precision"; }
  [[nodiscard]] std::filesystem::path final_dir() const { return path_ / "final"; }
  // The newest status of a process that ended, or was sent SIGQUIT: what `demo` and scripts read
  // afterwards.
  [[nodiscard]] std::filesystem::path last_status() const { return path_ / "status.json"; }

  // The address really bound, one line; removed when the folder is opened and when it is closed, so
  // that whoever waits for it never reads one of an earlier process.
  [[nodiscard]] Result<void> write_address(std::string_view address) const;

  // The lowest incarnation that was never used: the ceiling that an earlier process stored, 0 in a
  // new folder (rulings 28).
  [[nodiscard]] Result<Incarnation> read_incarnation() const;
  // Stores a ceiling; every incarnation below it may then be used.
  [[nodiscard]] Result<void> write_incarnation_ceiling(Incarnation ceiling) const;

 private:
  StateDir(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::filesystem::path path_;
  int lock_ = -1;
};

// How far ahead of the incarnations in use the stored ceiling is.
inline constexpr std::uint64_t kIncarnationStride = 1'000;

}  // namespace starling::node
