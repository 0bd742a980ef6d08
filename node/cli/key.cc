// `starling id` and `starling key`: this node's identity, and the swarm's secret with its
// rotation. They work on files, whether or not a node runs: a running one sees the change.
#include "node/base/posix_file.h"
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/values.h"
#include "node/printable.h"
#include "node/secret_files.h"
#include "node/state_dir.h"
#include "node/wall_time.h"
#include "transport/identity.h"
#include "transport/member_certificate.h"
#include "transport/private_file.h"
#include "transport/revocation.h"
#include "transport/secret.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

namespace starling::node::verbs {

namespace {

namespace fs = std::filesystem;
using transport::SwarmSecret;

constexpr std::size_t kMaxPassphrase = 1'024;

// Which words behind `key` take a flag.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kFlagsOfWords{
    {{"--passphrase-file", "new"},
     {"--json", "show id"},
     {"--admin-key", "certify revoke rotate finish"},
     {"--role", "certify"},
     {"--ttl", "certify"},
     {"--list", "revoke rotate"},
     {"--no-list", "revoke rotate"}}};

SecretFiles files_of(const Config& config) {
  return SecretFiles::beside(config.swarm.secret_file.empty() ? fs::path(config.node.dir) / "secret"
                                                              : fs::path(config.swarm.secret_file));
}

Result<std::string> read_passphrase(const std::string& file) {
  TRY(auto text, file == "-" ? read_whole("/dev/stdin", kMaxPassphrase)
                             : transport::read_private_file(file, kMaxPassphrase,
                                                            transport::Ownership::mounted));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

Result<SwarmSecret> fresh_secret(const Arguments& arguments) {
  const auto given = arguments.given.find("--passphrase-file");
  if (given == arguments.given.end()) return SwarmSecret::generate();
  if (!arguments.config.forced("swarm.name"))
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                "--passphrase-file needs the swarm's name, which salts the passphrase: add --set "
                "swarm.name=NAME, the same on every node");
  TRY(auto passphrase, read_passphrase(given->second));
  auto secret = SwarmSecret::from_passphrase(passphrase, arguments.config.swarm.name);
  transport::wipe(std::as_writable_bytes(std::span(passphrase)));
  return secret;
}

Result<void> make_new(const Arguments& arguments, std::ostream& out) {
  const auto files = files_of(arguments.config);
  if (arguments.config.swarm.secret_file.empty())
    TRY_VOID(make_private_folder(arguments.config.node.dir, Doing::writing_file));
  TRY(const SwarmSecret secret, fresh_secret(arguments));
  const auto created = secret.create(files.current);
  if (!created && created.error().code == Errc::already_exists)
    return fail(Errc::already_exists, Doing::writing_file,
                files.current.string() +
                    " is there already: `starling key rotate` makes the next secret of its swarm; "
                    "remove the file to begin another swarm");
  if (!created) return created;
  out << fmt::format("swarm {}: a new secret is in {} (mode 0600)\n", short_form(secret.swarm()),
                     printable(files.current.string()));
  return {};
}

// One of the three files as people may see it: never the secret itself.
Result<nlohmann::json> describe(const fs::path& file) {
  auto secret = SwarmSecret::load(file);
  if (!secret && secret.error().code == Errc::not_found) return nullptr;
  if (!secret) return fail(std::move(secret).error());
  return nlohmann::json{{"file", file.string()},
                        {"swarm", to_hex(secret->swarm().view())},
                        {"epoch", secret->epoch()},
                        {"key", to_hex(transport::SwarmKey::of(*secret).current()->id)}};
}

// DIR/member.cert and DIR/revoked; null without.
Result<nlohmann::json> describe_membership(const fs::path& dir) {
  const auto text = read_whole(dir / "member.cert", transport::limits::kMaxMembershipText);
  if (!text && text.error().code == Errc::not_found) return nullptr;
  if (!text) return fail(text.error());
  TRY(const auto membership, transport::parse_membership(*text));
  const auto& own = membership.chain.own;
  nlohmann::json one{{"file", (dir / "member.cert").string()},
                     {"admin", to_hex(membership.admin.view())},
                     {"node", to_hex(own.node.view())},
                     {"role", std::string(transport::name_of(own.role))},
                     {"serial", fmt::format("{:016x}", own.serial)},
                     {"until", show_seconds(WallTime(std::chrono::seconds(own.until_s)))},
                     {"revocations", 0}};
  const auto revoked = read_whole(dir / "revoked", transport::kMaxRevocationsText);
  if (!revoked && revoked.error().code == Errc::not_found) return one;
  if (!revoked) return fail(revoked.error());
  TRY(const auto list, transport::parse_revocations(*revoked));
  one["revocations"] = list.number;
  one["revoked_nodes"] = list.nodes.size();
  one["revoked_serials"] = list.serials.size();
  return one;
}

Result<void> show_secrets(const Arguments& arguments, std::ostream& out) {
  const auto given = files_of(arguments.config);
  // What a node keeps in DIR where it cannot write beside its --secret-file; of its swarm only.
  const auto chosen = in_force(given, SecretFiles::ordered_in(arguments.config.node.dir));
  if (!chosen && chosen.error().code != Errc::not_found && chosen.error().code != Errc::wrong_swarm)
    return fail(chosen.error());
  const auto& files = chosen ? *chosen : given;
  nlohmann::json all{{"schema", 1}};
  TRY(all["current"], describe(files.current));
  TRY(all["next"], describe(files.next));
  TRY(all["previous"], describe(files.previous));
  TRY(all["certificate"], describe_membership(arguments.config.node.dir));
  if (all["current"].is_null())
    return fail(Errc::not_found, Doing::reading_file,
                files.current.string() +
                    ": there is no secret; say with --secret-file where the node has its own, or "
                    "make one with `starling key new`");
  if (arguments.has("--json")) {
    out << json_text(all) << '\n';
    return {};
  }
  for (const auto* which : {"current", "next", "previous"}) {
    const auto& one = all[which];
    if (!one.is_null())
      out << fmt::format("{:<9} swarm {}  epoch {}  key id {}  {}\n", which,
                         one["swarm"].get<std::string>().substr(0, 8),
                         one["epoch"].get<std::uint64_t>(), one["key"].get<std::string>(),
                         printable(one["file"].get<std::string>()));
  }
  const auto& certificate = all["certificate"];
  if (!certificate.is_null())
    out << fmt::format("{:<9} {}  serial {}  until {}  admin {}  revocations {}\n", "member",
                       certificate["role"].get<std::string>(),
                       certificate["serial"].get<std::string>(),
                       certificate["until"].get<std::string>(),
                       certificate["admin"].get<std::string>().substr(0, 8),
                       certificate["revocations"].get<std::uint64_t>());
  return {};
}

Result<void> rotate(const Arguments& arguments, std::ostream& out) {
  const auto files = files_of(arguments.config);
  if (arguments.has("--admin-key")) {
    TRY(const auto revocations, order_rotation(arguments, files));
    out << fmt::format(
        "the next secret, with the admin's order, is in {} (mode 0600). Beside the secret of one "
        "running node it is all that is needed:\nmembers that have list {} of what was revoked "
        "hand it on to each other, change to it when all of them hold it, and then\nforget the one "
        "before. `starling status` says how far they are.\n",
        printable(files.next.string()), revocations);
    return {};
  }
  for (const std::string_view flag : {"--list", "--no-list"})
    if (arguments.has(flag))
      return fail(Errc::bad_argument, Doing::parsing_arguments,
                  fmt::format("{} needs --admin-key here", flag));
  TRY_VOID(begin_rotation(files));
  out << fmt::format(
      "the next secret is in {} (mode 0600); this node accepts it from now on.\n"
      "Copy it beside the secret of every other node, with the same name ending; then run\n"
      "    starling key promote\n"
      "on each of them, in any order.\n",
      printable(files.next.string()));
  return {};
}

Result<void> promote(const Arguments& arguments, std::ostream& out) {
  const auto files = files_of(arguments.config);
  TRY(const auto epoch, promote_next(files));
  out << fmt::format(
      "the secret of epoch {} is in force; the one before it is in {} and opens this node's door "
      "for {} more\n",
      epoch, printable(files.previous.string()),
      show_duration(arguments.config.swarm.secret_overlap));
  return {};
}

Result<void> show_id(const Arguments& arguments, const Terminal& terminal) {
  const fs::path dir = arguments.config.node.dir;
  const auto file = dir / "identity.key";
  TRY_VOID(make_private_folder(dir, Doing::writing_file));
  std::error_code ignored;
  const bool existed = fs::exists(file, ignored);
  TRY(const auto identity, transport::Identity::load_or_create(file));
  if (!existed)
    terminal.err << fmt::format("made a new identity in {}\n", printable(file.string()));
  const auto id = to_hex(identity.id().view());
  const auto name = default_name(identity.id());
  if (arguments.has("--json"))
    terminal.out << json_text({{"schema", 1}, {"id", id}, {"name", name}}) << '\n';
  else
    terminal.out << id << ' ' << name << '\n';
  return {};
}

int finish(std::string_view verb, const Result<void>& done, const Terminal& terminal) {
  return done ? number_of(ExitCode::good) : report(verb, done.error(), terminal);
}

}  // namespace

int id(const Arguments& arguments, const Surroundings& surroundings) {
  return finish("id", show_id(arguments, surroundings.terminal), surroundings.terminal);
}

int key(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  const auto& what = arguments.words.front();
  const auto no = [&](std::string detail) {
    return report("key", {Errc::bad_argument, Doing::parsing_arguments, std::move(detail)},
                  terminal);
  };
  constexpr std::array<std::string_view, 9> kWords{"new",   "show",    "rotate", "promote", "id",
                                                   "admin", "certify", "revoke", "finish"};
  if (const auto known = check_word(what, kWords); !known)
    return report("key", known.error(), terminal);
  for (const auto& [flag, where] : kFlagsOfWords)
    if (arguments.has(flag) && !fmt::format(" {} ", where).contains(fmt::format(" {} ", what)))
      return no(fmt::format("{} belongs to: key {}", flag, where));
  const bool takes_more =
      what == "admin" || what == "certify" || what == "revoke" || what == "finish";
  if (!takes_more && arguments.words.size() > 1)
    return no(fmt::format("`key {}` takes no further words", printable(what)));
  if (what == "id") return id(arguments, surroundings);
  if (arguments.config.swarm.mode == SwarmMode::open) return no("an open swarm has no secret");
  if (what == "new") return finish("key", make_new(arguments, terminal.out), terminal);
  if (what == "show") return finish("key", show_secrets(arguments, terminal.out), terminal);
  if (what == "rotate") return finish("key", rotate(arguments, terminal.out), terminal);
  if (what == "promote") return finish("key", promote(arguments, terminal.out), terminal);
  if (what == "admin") return finish("key", make_admin(arguments, terminal), terminal);
  if (what == "certify") return finish("key", certify(arguments, terminal), terminal);
  if (what == "revoke") return finish("key", revoke(arguments, terminal), terminal);
  return finish("key", order_end(arguments, terminal), terminal);
}

}  // namespace starling::node::verbs
