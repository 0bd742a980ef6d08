// AccessFiles: the files that say who may have a session with this node, watched for changes.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/secret_files.h"
#include "node/wall_time.h"
#include "transport/member_certificate.h"
#include "transport/peer_rules.h"
#include "transport/secret.h"

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace starling::node {

// Whether the node may be without a list of allowed nodes and without an admin's certificate.
enum class AllowList : std::uint8_t { optional, required };

struct AccessPaths {
  std::optional<SecretFiles> secret;  // nothing in an open swarm, and before there is one
  std::filesystem::path allow;
  std::filesystem::path deny;
  std::filesystem::path membership;  // not read in an open swarm, nor the next one
  std::filesystem::path revoked;
  // In DIR, where the secret is elsewhere: for what the admin orders and cannot be written there.
  std::optional<SecretFiles> ordered = std::nullopt;
};

// What the files say.
struct Access {
  std::optional<SecretsAtHand> secrets;  // nothing in an open swarm
  transport::PeerRules rules;
  // This node's own certificate, where the swarm has an admin: then the swarm is closed.
  std::optional<transport::Membership> membership;
};

// Reads DIR/peers.allow, DIR/peers.deny, DIR/member.cert, DIR/revoked and the files of the secret,
// and notices when they change.
//
// peers.allow and member.cert restrict as soon as they are there; an empty peers.allow allows
// nobody. A file that was read and is gone later is an error, not "everybody": an editor that
// replaces a file, or a mount that failed, opens no door. Whoever reads an error goes on with what
// the files said before.
//
// Owned by the node; used by one thread at a time, one that may wait for a disk. Cost: twelve
// stats a look, and reading what there is when one differs.
class AccessFiles {
 public:
  // `self` is whom a certificate has to be for.
  AccessFiles(AccessPaths paths, AllowList allow_list, Duration secret_overlap, NodeId self);

  // Errors:  those of load_secrets; bad_config for a line that is no node id, with file, line,
  // value
  //          and remedy, and for a missing list that is required; permission for a list that others
  //          may write; too_large; too_many; io_failed; corrupt and bad_signature for a certificate
  //          or a list of revocations; wrong_identity and wrong_swarm for another's certificate.
  [[nodiscard]] Result<Access> read(WallTime now);

  // The secret is in these files from now on: a newcomer was given it.
  void set_secret(SecretFiles files) {
    paths_.secret = std::move(files);
    in_force_ = paths_.secret;
  }
  // Whether a newcomer that reads this here can keep what an invite to this swarm brings, its
  // secret in these files: to be asked before the invite is spent.
  //
  // Errors:  wrong_swarm for the certificate of another swarm, with the remedy; those of
  //          check_leftovers.
  [[nodiscard]] Result<void> check_newcomer(const Access& access, const SecretFiles& secret,
                                            const SwarmId& swarm) const;
  // Those that counted at the last read. Nothing in an open swarm, and at a newcomer.
  [[nodiscard]] const std::optional<SecretFiles>& secret() const { return in_force_; }
  // Keeps the text of a secret as the next one: beside the secret in force or, where that folder
  // cannot be written, in DIR.
  //
  // Returns: the file that has it now.
  // Errors:  not_found without a secret; those of write_whole.
  [[nodiscard]] Result<std::filesystem::path> keep_next(ByteView text) const;
  // The next secret takes over, in the same places.
  //
  // Errors:  not_found without a secret; those of promote_next.
  [[nodiscard]] Result<void> promote() const;

  // read(), if any file is not what it was at the last read and is what it was at the last look:
  // one that is being written in place is let be until it rests. Also if the previous secret has
  // had its time, or the last read failed for a reason that may pass without a change of a file; a
  // failure that goes on is told once. Otherwise nothing. Meant to be called once a second.
  [[nodiscard]] std::optional<Result<Access>> look(WallTime now);

 private:
  // What a stat tells of a change, of who may read or write it too: a file that was refused for its
  // mode is mended by that alone. All zero: no file.
  struct Trace {
    std::uint64_t inode = 0;
    std::uint64_t mode = 0;
    std::uint64_t owner = 0;
    std::int64_t modified_s = 0;
    std::int64_t modified_ns = 0;
    std::int64_t size = 0;
    friend bool operator==(const Trace&, const Trace&) = default;
  };
  struct Traces {
    std::array<Trace, 10> files;
    std::array<bool, 2> previous_counts{};
    friend bool operator==(const Traces&, const Traces&) = default;
  };

  [[nodiscard]] static Trace trace(const std::filesystem::path& file);
  [[nodiscard]] Traces traces(WallTime now) const;
  [[nodiscard]] Result<Access> read_all(WallTime now);
  [[nodiscard]] static Result<std::optional<std::set<NodeId>>> read_list(
      const std::filesystem::path& file, bool was_there);
  // The text of a file that only its owner may write; nothing where there is none.
  [[nodiscard]] static Result<std::optional<std::string>> read_guarded(
      const std::filesystem::path& file, std::size_t max_bytes, bool was_there);
  // Nothing without an admin.
  [[nodiscard]] Result<std::optional<transport::Membership>> read_membership() const;
  [[nodiscard]] Result<transport::Revocations> read_revoked(
      const transport::Membership& membership) const;

  AccessPaths paths_;
  std::optional<SecretFiles> in_force_;
  AllowList allow_list_;
  Duration secret_overlap_;
  NodeId self_;
  Traces read_;                         // at the last read
  Traces looked_;                       // at the last look
  std::optional<std::string> passing_;  // why the last read failed, where that may pass by itself
  bool had_allow_ = false;
  bool had_deny_ = false;
  bool had_membership_ = false;
  bool had_revoked_ = false;
};

}  // namespace starling::node
