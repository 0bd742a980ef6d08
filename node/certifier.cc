#include "node/certifier.h"

#include "node/state_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxText = 64;

// How many serials of this certificate were given away.
Result<std::uint32_t> read_given(const fs::path& file, std::uint64_t own_serial) {
  const auto text = read_whole(file, kMaxText);
  if (!text && text.error().code == Errc::not_found) return 0U;
  if (!text) return fail(text.error());
  std::uint64_t serial = 0;
  std::uint32_t given = 0;
  const char* const end = text->data() + text->size();
  const auto first = std::from_chars(text->data(), end, serial);
  const bool separated = first.ec == std::errc{} && first.ptr != end && *first.ptr == ' ';
  const auto second = separated ? std::from_chars(first.ptr + 1, end, given) : first;
  if (!separated || second.ec != std::errc{} || std::string_view(second.ptr, end) != "\n")
    return fail(Errc::corrupt, Doing::reading_file,
                file.string() +
                    " does not say how many serials were given: ask the admin for a "
                    "new certificate, then remove the file");
  return serial == own_serial ? given : 0U;
}

}  // namespace

std::optional<std::string> why_no_inviter(const transport::Membership& own, std::uint64_t now_s) {
  if (own.chain.own.role != transport::MemberRole::inviter)
    return "this node is no inviter: the admin makes one with `starling key certify ID --role "
           "inviter`";
  if (const auto fault = transport::fault_in(own.chain, own.admin, own.swarm, now_s))
    return "this node's own certificate " + *fault;
  return std::nullopt;
}

Result<transport::Membership> certify_newcomer(const transport::Membership& own,
                                               const Signer& signer, const NodeId& newcomer,
                                               const fs::path& serials, std::uint64_t now_s) {
  if (const auto why = why_no_inviter(own, now_s)) return fail(Errc::refused, Doing::signing, *why);
  const auto& inviter = own.chain.own;
  TRY(const auto given, read_given(serials, inviter.serial));
  if (given >= inviter.issues.count)
    return fail(Errc::too_many, Doing::signing,
                fmt::format("all {} serials of this inviter are given: ask the admin for a new "
                            "certificate",
                            inviter.issues.count));
  TRY_VOID(write_whole(serials, fmt::format("{} {}\n", inviter.serial, given + 1)));
  transport::MemberCertificate certificate{
      .role = transport::MemberRole::member,
      .node = newcomer,
      .serial = inviter.issues.first + given,
      .from_s = static_cast<std::uint32_t>(std::min<std::uint64_t>(now_s, inviter.until_s)),
      .until_s = inviter.until_s,
      .issues = {},
      .signature = {}};
  transport::sign(certificate, own.swarm, signer);
  return transport::Membership{own.swarm, own.admin, {certificate, inviter}};
}

}  // namespace starling::node
