// `starling key admin|certify|revoke|finish`: what is done with the admin's key, on a machine that
// need not be a node.
#include "node/cli/verb_list.h"
#include "node/config/values.h"
#include "node/printable.h"
#include "node/state_dir.h"
#include "node/wall_time.h"
#include "transport/admin_key.h"
#include "transport/finish_order.h"
#include "transport/member_certificate.h"
#include "transport/revocation.h"
#include "transport/secret.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

namespace starling::node::verbs {

namespace {

namespace fs = std::filesystem;
using transport::AdminKey;

constexpr Duration kUsualValidity = std::chrono::days(90);
constexpr Duration kShortest = std::chrono::hours(1);
constexpr Duration kLongest = std::chrono::days(3'650);

std::unexpected<Error> wrong(std::string what) {
  return fail(Errc::bad_argument, Doing::parsing_arguments, std::move(what));
}

Result<AdminKey> load_admin(const Arguments& arguments) {
  const auto given = arguments.given.find("--admin-key");
  if (given == arguments.given.end())
    return wrong("--admin-key is missing: the file that `starling key admin FILE` made");
  return AdminKey::load(given->second);
}

Result<NodeId> node_of(std::string_view word) {
  const auto id = NodeId::from_hex(word);
  if (!id)
    return wrong(
        fmt::format("\"{}\" is no node id: the 64 hexadecimal digits that `starling id` "
                    "prints on that node",
                    printable(std::string(word.substr(0, 80)))));
  return *id;
}

Result<transport::MemberRole> role_of(const Arguments& arguments) {
  const auto given = arguments.given.find("--role");
  if (given == arguments.given.end() || given->second == "member")
    return transport::MemberRole::member;
  if (given->second == "inviter") return transport::MemberRole::inviter;
  return wrong(fmt::format("--role \"{}\": member or inviter", printable(given->second)));
}

Result<Duration> validity_of(const Arguments& arguments) {
  const auto given = arguments.given.find("--ttl");
  if (given == arguments.given.end()) return kUsualValidity;
  const auto ttl = parse_duration(given->second);
  if (!ttl || *ttl < kShortest || *ttl > kLongest)
    return wrong(
        fmt::format("--ttl \"{}\": a duration from 1h to 3650d", printable(given->second)));
  return *ttl;
}

// Adds what a word names; false if it was there already.
Result<bool> add(transport::Revocations& list, std::string_view word) {
  const auto bytes = word.size() == 16 ? from_hex(word) : std::nullopt;
  if (!bytes) {
    TRY(const auto node, node_of(word));
    return list.nodes.insert(node).second;
  }
  std::uint64_t serial = 0;
  for (const auto byte : *bytes) serial = (serial << 8U) | std::to_integer<std::uint64_t>(byte);
  return list.serials.insert(serial).second;
}

// The list that the next one, or an order, is made from. A list that is missing is no empty one:
// made anew, it would have the number of the one that the swarm obeys, and not its content.
Result<transport::Revocations> load_list(const fs::path& file, const AdminKey& admin,
                                         const Arguments& arguments) {
  const auto text = read_whole(file, transport::kMaxRevocationsText);
  const bool missing = !text && text.error().code == Errc::not_found;
  if (missing && arguments.has("--no-list")) return transport::Revocations{};
  if (missing)
    return fail(Errc::not_found, Doing::reading_file,
                fmt::format("{}: there is no list of what was revoked. If there never was one, add "
                            "--no-list; otherwise name it with --list: every running node of the "
                            "swarm has it, as `revoked` in its folder",
                            file.string()));
  if (!text) return fail(text.error());
  if (arguments.has("--no-list"))
    return wrong(
        fmt::format("--no-list, and {} is there: leave --no-list out, or remove the file "
                    "if it is none of this swarm's",
                    printable(file.string())));
  TRY(auto list, transport::parse_revocations(*text));
  if (!transport::signed_by(admin.key.id(), list, admin.swarm))
    return fail(Errc::bad_signature, Doing::reading_file,
                file.string() + " was not signed by this admin key");
  return list;
}

fs::path list_file(const Arguments& arguments) {
  const auto given = arguments.given.find("--list");
  if (given != arguments.given.end()) return given->second;
  return arguments.given.find("--admin-key")->second + ".revoked";
}

}  // namespace

Result<void> make_admin(const Arguments& arguments, const Terminal& terminal) {
  if (arguments.words.size() != 2)
    return wrong("`key admin` takes one word: the file that the admin key goes to");
  const fs::path secret = arguments.config.swarm.secret_file.empty()
                              ? fs::path(arguments.config.node.dir) / "secret"
                              : fs::path(arguments.config.swarm.secret_file);
  TRY(const auto current, transport::SwarmSecret::load(secret));
  const fs::path file = arguments.words[1];
  TRY(const auto admin, AdminKey::create(file, current.swarm()));
  terminal.out << fmt::format(
      "admin key {} of swarm {} is in {} (mode 0600): keep it, and a copy, off the nodes.\n"
      "The swarm is closed for every node that has a certificate. For each node:\n"
      "    starling id                                        (there; prints its ID)\n"
      "    starling key certify ID --admin-key {} > member.cert\n"
      "and member.cert into the folder of that node, the nodes that are to invite with --role "
      "inviter.\n",
      short_form(admin.key.id()), short_form(admin.swarm), printable(file.string()),
      printable(file.string()));
  return {};
}

Result<void> certify(const Arguments& arguments, const Terminal& terminal) {
  if (arguments.words.size() != 2) return wrong("`key certify` takes one word: a node's id");
  TRY(const auto node, node_of(arguments.words[1]));
  TRY(const auto role, role_of(arguments));
  TRY(const auto validity, validity_of(arguments));
  TRY(const auto admin, load_admin(arguments));
  const auto now = wall_now();
  const auto until = now + std::chrono::duration_cast<std::chrono::milliseconds>(validity);
  if (seconds_of(until) > std::numeric_limits<std::uint32_t>::max())
    return wrong("a certificate cannot be valid beyond the year 2106");
  transport::MemberCertificate certificate{.role = role,
                                           .node = node,
                                           .serial = transport::fresh_serial(),
                                           .from_s = static_cast<std::uint32_t>(seconds_of(now)),
                                           .until_s = static_cast<std::uint32_t>(seconds_of(until)),
                                           .issues = {},
                                           .signature = {}};
  if (role == transport::MemberRole::inviter)
    certificate.issues = {certificate.serial + 1, transport::kSerialsOfAnInviter - 1};
  transport::sign(certificate, admin.swarm, admin.key);
  terminal.out << transport::print_membership(
                      {admin.swarm, admin.key.id(), {certificate, std::nullopt}})
               << std::flush;
  terminal.err << fmt::format(
      "certificate {:016x}: node {} is {} of swarm {} until {}. It goes to member.cert in that "
      "node's folder (--dir); a running node sees it come.\n",
      certificate.serial, short_form(node),
      role == transport::MemberRole::inviter ? "an inviter" : "a member", short_form(admin.swarm),
      show_seconds(until));
  return {};
}

Result<void> revoke(const Arguments& arguments, const Terminal& terminal) {
  if (arguments.words.size() < 2)
    return wrong("`key revoke` takes node ids (64 digits) and serials of certificates (16 digits)");
  TRY(const auto admin, load_admin(arguments));
  const fs::path file = list_file(arguments);
  TRY(auto list, load_list(file, admin, arguments));
  std::size_t added = 0;
  for (std::size_t i = 1; i < arguments.words.size(); ++i) {
    TRY(const bool is_new, add(list, arguments.words[i]));
    if (is_new) ++added;
  }
  if (added == 0) {
    terminal.out << fmt::format("list {} in {} has that already\n", list.number,
                                printable(file.string()));
    return {};
  }
  ++list.number;
  transport::sign(list, admin.swarm, admin.key);
  TRY(const auto text, transport::print_revocations(list));
  TRY_VOID(write_whole(file, text));
  terminal.out << fmt::format(
      "list {} with {} nodes and {} serials is in {}.\n"
      "Copy it to the folder of one running node, as `revoked`: the swarm passes it on, and ends "
      "every session with\nthose nodes. Who was revoked still knows the secret: rotate it "
      "(`starling key rotate "
      "--admin-key {}{}`).\n",
      list.number, list.nodes.size(), list.serials.size(), printable(file.string()),
      printable(arguments.given.at("--admin-key")),
      arguments.has("--list") ? " --list " + printable(file.string()) : std::string());
  return {};
}

Result<void> order_end(const Arguments& arguments, const Terminal& terminal) {
  constexpr std::string_view kForm =
      "the 64 hexadecimal digits that `starling status` shows as the settings of the run";
  if (arguments.words.size() != 2)
    return wrong(fmt::format("`key finish` takes one word: {}", kForm));
  const auto settings = Hash::from_hex(arguments.words[1]);
  if (!settings)
    return wrong(fmt::format("\"{}\" is no fingerprint: {}",
                             printable(arguments.words[1].substr(0, 80)), kForm));
  TRY(const auto admin, load_admin(arguments));
  terminal.out << transport::print_finish_order(
                      transport::order_finish(admin.swarm, *settings, admin.key))
               << std::flush;
  terminal.err << fmt::format(
      "order to end the run with the settings {} of swarm {}, and no other. At any one of its "
      "nodes:\n    starling finish --order FILE      (FILE has the line above; - reads it from "
      "standard input)\n",
      short_form(*settings), short_form(admin.swarm));
  return {};
}

Result<std::uint64_t> order_rotation(const Arguments& arguments, const SecretFiles& files) {
  TRY(const auto admin, load_admin(arguments));
  // An order that names no list lets members hand the secret to whom they do not know as revoked.
  TRY(const auto list, load_list(list_file(arguments), admin, arguments));
  TRY_VOID(begin_rotation(files, &admin, list.number));
  return list.number;
}

}  // namespace starling::node::verbs
