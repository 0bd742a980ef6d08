// What the verbs of the command line ask a running node, as one line of JSON each.
//
// Protocol of DIR/control.sock. The verb connects and sends one line
//   {"schema":1,"verb":"join","args":{"addresses":["10.0.0.7:7700"]}}
// and reads lines until one whose kind is not "progress", then either side closes:
//   {"schema":1,"kind":"progress","body":{...}}                  any number of them
//   {"schema":1,"kind":"result","body":{...}}                    the end, good
//   {"schema":1,"kind":"error","code":"...","detail":"..."}      the end, bad
// Whoever can connect owns the folder, so nothing here is authenticated; everything is bounded and
// checked all the same, because a stray `nc` must not hurt a run of three days.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "transport/finish_order.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace starling::node {

// Bounds of a request line and of a reply line. A status of 16,384 members is 4 MiB.
inline constexpr std::size_t kMaxControlRequest = std::size_t{16} << 10;
inline constexpr std::size_t kMaxControlReply = std::size_t{16} << 20;
inline constexpr std::size_t kMaxJoinAddresses = 64;
// How often a verb that waits for its answer hears that the node is at work on it: an evaluation, a
// merge or a final consensus may take hours, and a verb does not wait in silence for so long.
inline constexpr Duration kSignOfLife = std::chrono::minutes(1);
// How long an invite is good: unless said otherwise, and at the least and the most.
inline constexpr Duration kInviteTtl = std::chrono::hours(24);
inline constexpr Duration kMinInviteTtl = std::chrono::minutes(1);
inline constexpr Duration kMaxInviteTtl = std::chrono::days(30);
// What may be said of the time for leaving; of leave.timeout the same.
inline constexpr Duration kMinLeaveTimeout = std::chrono::milliseconds(100);
inline constexpr Duration kMaxLeaveTimeout = std::chrono::minutes(10);

struct StatusRequest {};
struct MembersRequest {};
struct NeighboursRequest {};
// Also contact these; the reply comes with the first session with one of them (at once where there
// is one), and fails after 15 s without.
struct JoinRequest {
  std::vector<std::string> addresses;
};
struct LeaveRequest {
  std::optional<Duration> timeout;  // default: leave.timeout
};
struct FinishRequest {
  std::optional<transport::FinishOrder> order;  // needed where only the admin ends the run
};
struct MergeRequest {};
// Evaluate this node's replica now.
struct EvalRequest {};
struct LogLevelRequest {
  LogLevel level = LogLevel::info;
};
// Make an invite for one machine.
struct InviteRequest {
  Duration ttl = kInviteTtl;
};

using ControlRequest =
    std::variant<StatusRequest, MembersRequest, NeighboursRequest, JoinRequest, LeaveRequest,
                 FinishRequest, MergeRequest, EvalRequest, LogLevelRequest, InviteRequest>;

[[nodiscard]] std::string_view verb_of(const ControlRequest& request);

// The request of one line (without its line end).
//
// Errors:  bad_argument for anything that is not exactly one known verb with its arguments;
//          too_large above kMaxControlRequest.
// Thread:  any; pure.
// Tested:  tests/fuzz/node/control_fuzz.cc.
[[nodiscard]] Result<ControlRequest> parse_request(std::string_view line);
// The line of a request, with its line end; parse_request gives the same request back.
[[nodiscard]] std::string encode_request(const ControlRequest& request);

// The run of the node that is asked to end it.
struct RunToEnd {
  SwarmId swarm;
  Hash settings;
  std::optional<NodeId> admin;  // whose order alone ends it; zeros: nobody's whom the node knows
};
// Whether that run may end. Where any member ends it no order is needed, but one for another run
// was not meant for this node.
//
// Errors:  refused, wrong_swarm, settings_mismatch, with what to do about it.
// Thread:  any; pure.
[[nodiscard]] Result<void> check_finish(const FinishRequest& request, const RunToEnd& run);

// One line from the node.
struct ControlAnswer {
  enum class Kind : std::uint8_t { progress, result, error };
  Kind kind = Kind::result;
  std::string body;  // JSON text, for progress and result
  Error error;       // for error
};

// Errors:  bad_message.
[[nodiscard]] Result<ControlAnswer> parse_answer(std::string_view line);
[[nodiscard]] std::string encode_answer(const ControlAnswer& answer);

}  // namespace starling::node
