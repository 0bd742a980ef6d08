// The files of the swarm's secret, and how one secret follows another in them.
//
//   FILE            FILE.next         FILE.previous     means
//   -------------   ---------------   ---------------   -----------------------------------------
//   the secret      -                 -                 no rotation is under way
//   the secret      the next one      -                 both are accepted, dials use the first
//   the next one    -                 the secret        promoted: dials use the new one, the old
//                                                       one is accepted for swarm.secret_overlap
//
// A crash while promoting leaves the secret in FILE and in FILE.previous, and the next one still in
// FILE.next: promoting again goes on from there.
//
// Where the folder of FILE cannot be written, as where an orchestrator mounts it, secrets that the
// admin ordered are kept in three files of DIR of the same meaning (decision 0067).
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/wall_time.h"
#include "transport/admin_key.h"
#include "transport/secret.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace starling::node {

struct SecretFiles {
  std::filesystem::path current;
  std::filesystem::path next;
  std::filesystem::path previous;

  [[nodiscard]] static SecretFiles beside(const std::filesystem::path& current);
  // What a node keeps in its DIR where it cannot write beside the FILE that it was given.
  [[nodiscard]] static SecretFiles ordered_in(const std::filesystem::path& dir);
};

// Which files count where a node has both: of the two secrets the later one with its previous one,
// and of the next ones the later one. With one epoch the given ones.
//
// Errors:  those of SwarmSecret::load for given.current; wrong_swarm for a file of another swarm.
[[nodiscard]] Result<SecretFiles> in_force(const SecretFiles& given, const SecretFiles& ordered);

// Makes FILE.next: fresh random bytes of the same swarm, one epoch later. With an admin's key it
// has the admin's order, for members that have the list of revocations with that number.
//
// Errors:  those of SwarmSecret::load; already_exists while a rotation is under way; wrong_swarm
// for
//          the admin key of another one.
[[nodiscard]] Result<void> begin_rotation(const SecretFiles& files,
                                          const transport::AdminKey* admin = nullptr,
                                          std::uint64_t revocations = 0);

// Copies FILE to FILE.previous and renames FILE.next to FILE; the new epoch. A FILE.next that is a
// copy of FILE was promoted before: it is removed.
//
// Errors:  not_found without FILE.next; wrong_swarm if it belongs to another swarm; bad_argument if
//          it is another secret and not later than the one in force; those of write_whole. FILE is
//          whole always.
[[nodiscard]] Result<std::uint64_t> promote_next(const SecretFiles& files);

// The same in `ordered`, for files that in_force() chose: what lies elsewhere is copied there
// first. A crash in between changes nothing of what counts.
//
// Errors:  those of promote_next().
[[nodiscard]] Result<std::uint64_t> promote_into(const SecretFiles& files,
                                                 const SecretFiles& ordered);

// Whether FILE.previous still counts: it was written, by the promotion, less than `overlap` ago.
[[nodiscard]] bool previous_counts(const SecretFiles& files, Duration overlap, WallTime now);

// What the files stand for at one time.
struct SecretsAtHand {
  transport::SwarmKey key;        // for handshakes
  transport::SwarmSecret newest;  // the next one where there is one
  bool is_next = false;
  bool previous = false;  // the one before still opens the door
  // Why FILE.next counts for nothing, for the log: it is not later than FILE.
  std::optional<std::string> ignored;
};

// Errors:  those of SwarmSecret::load, for whichever file is there; wrong_swarm for a file of
//          another swarm, naming it and the remedy. A FILE.next that is not later than FILE is no
//          error: what is forgotten there shuts nobody out.
[[nodiscard]] Result<SecretsAtHand> load_secrets(const SecretFiles& files, Duration overlap,
                                                 WallTime now);

// Whether a secret of this swarm, once it is in FILE, can be loaded with what is beside it: to be
// asked before an invite is spent on it.
//
// Errors:  those of load_secrets for FILE, FILE.next and FILE.previous, each where it is there.
[[nodiscard]] Result<void> check_leftovers(const SecretFiles& files, const SwarmId& swarm);

}  // namespace starling::node
