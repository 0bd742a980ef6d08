// Certificates that this node signs for those whom its invites bring in.
#pragma once

#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/member_certificate.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace starling::node {

// Why this node may not invite, as a sentence; nothing if it may: the admin made it an inviter and
// its certificate is valid now.
[[nodiscard]] std::optional<std::string> why_no_inviter(const transport::Membership& own,
                                                        std::uint64_t now_s);

// The membership of a newcomer, signed by this node, with a serial that was never given before and
// valid as long as this node's own. The count is on disk before it returns, so no crash gives a
// serial twice.
//
// File:    "<own serial> <given>", decimal numbers; a new certificate of this node begins anew.
// Errors:  refused with the words of why_no_inviter(); too_many when the serials are used up;
//          corrupt for a file that holds something else; those of write_whole.
// Thread:  one that may wait for a disk, one at a time.
[[nodiscard]] Result<transport::Membership> certify_newcomer(const transport::Membership& own,
                                                             const Signer& signer,
                                                             const NodeId& newcomer,
                                                             const std::filesystem::path& serials,
                                                             std::uint64_t now_s);

}  // namespace starling::node
