#include "node/control/request.h"

#include "node/base/json_depth.h"
#include "node/config/values.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <type_traits>

namespace starling::node {

namespace {

using Json = nlohmann::json;

constexpr int kMaxRequestDepth = 4;
// A status is 5 deep in its answer.
constexpr int kMaxAnswerDepth = 16;
constexpr std::size_t kMaxAddress = 512;

// The verbs in the order of ControlRequest's alternatives.
constexpr std::array<std::string_view, 10> kRequestNames{
    "status", "members", "neighbours", "join",      "leave",
    "finish", "merge",   "eval",       "log-level", "invite"};
static_assert(kRequestNames.size() == std::variant_size_v<ControlRequest>);

std::unexpected<Error> bad_request(std::string detail) {
  return fail(Errc::bad_argument, Doing::controlling, std::move(detail));
}

std::string shown_value(std::string_view text) { return escape_value(text.substr(0, 80)); }

// One JSON object, without exceptions and without deep nesting.
std::optional<Json> parse_object(std::string_view line, int max_depth) {
  if (!nests_at_most(line, max_depth)) return std::nullopt;
  auto object = Json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) return std::nullopt;
  return object;
}

Result<ControlRequest> parse_join(const Json& args) {
  const auto found = args.find("addresses");
  if (args.size() != 1 || found == args.end() || !found->is_array() || found->empty())
    return bad_request("join needs addresses: a list of texts");
  if (found->size() > kMaxJoinAddresses)
    return bad_request(fmt::format("join takes at most {} addresses at a time", kMaxJoinAddresses));
  JoinRequest request;
  for (const auto& address : *found) {
    if (!address.is_string()) return bad_request("join needs addresses: a list of texts");
    const auto& text = address.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxAddress || printable(text) != text)
      return bad_request("an address of join is empty, too long or not printable");
    request.addresses.push_back(text);
  }
  return request;
}

Result<ControlRequest> parse_leave(const Json& args) {
  LeaveRequest request;
  if (args.empty()) return request;
  const auto found = args.find("timeout");
  if (args.size() != 1 || found == args.end() || !found->is_string())
    return bad_request("leave takes a timeout, such as 90s, or nothing");
  const auto& given = found->get_ref<const std::string&>();
  const auto timeout = parse_duration(given);
  if (!timeout)
    return bad_request(fmt::format("--timeout {} needs {}", shown_value(given), timeout.error()));
  if (*timeout < kMinLeaveTimeout || *timeout > kMaxLeaveTimeout)
    return bad_request(fmt::format("--timeout {} is not from {} to {}", shown_value(given),
                                   show_duration(kMinLeaveTimeout),
                                   show_duration(kMaxLeaveTimeout)));
  request.timeout = *timeout;
  return request;
}

Result<ControlRequest> parse_finish(const Json& args) {
  if (args.empty()) return FinishRequest{};
  const auto found = args.find("order");
  if (args.size() != 1 || found == args.end() || !found->is_string())
    return bad_request("finish takes an order: the text that `starling key finish` prints");
  auto order = transport::parse_finish_order(found->get_ref<const std::string&>());
  if (!order) return bad_request("--order: " + order.error().detail);
  return FinishRequest{*order};
}

Result<ControlRequest> parse_log_level(const Json& args) {
  const auto found = args.find("level");
  if (args.size() != 1 || found == args.end() || !found->is_string())
    return bad_request("log-level needs a level: a text");
  const auto& given = found->get_ref<const std::string&>();
  const auto level = std::ranges::find(kLogLevels, given);
  if (level == kLogLevels.end())
    return bad_request(fmt::format("{} is no level: one of {}{}", shown_value(given),
                                   fmt::join(kLogLevels, ", "), did_you_mean(given, kLogLevels)));
  return LogLevelRequest{static_cast<LogLevel>(level - kLogLevels.begin())};
}

Result<ControlRequest> parse_invite(const Json& args) {
  InviteRequest request;
  if (args.empty()) return request;
  const auto found = args.find("ttl");
  if (args.size() != 1 || found == args.end() || !found->is_string())
    return bad_request("invite takes a ttl, such as 24h, or nothing");
  const auto& given = found->get_ref<const std::string&>();
  const auto ttl = parse_duration(given);
  if (!ttl) return bad_request(fmt::format("--ttl {} needs {}", shown_value(given), ttl.error()));
  if (*ttl < kMinInviteTtl || *ttl > kMaxInviteTtl)
    return bad_request(fmt::format("--ttl {} is not from {} to {}", shown_value(given),
                                   show_duration(kMinInviteTtl), show_duration(kMaxInviteTtl)));
  request.ttl = *ttl;
  return request;
}

// A request without arguments, by its place in kRequestNames.
template <std::size_t I = 0>
ControlRequest plain_request(std::size_t index) {
  if constexpr (I + 1 < std::variant_size_v<ControlRequest>) {
    if (index != I) return plain_request<I + 1>(index);
  }
  return ControlRequest(std::in_place_index<I>);
}

Json arguments_of(const ControlRequest& request) {
  Json args = Json::object();
  if (const auto* join = std::get_if<JoinRequest>(&request)) args["addresses"] = join->addresses;
  if (const auto* leave = std::get_if<LeaveRequest>(&request); leave != nullptr && leave->timeout)
    args["timeout"] = show_duration(*leave->timeout);
  if (const auto* finish = std::get_if<FinishRequest>(&request); finish != nullptr && finish->order)
    args["order"] = transport::print_finish_order(*finish->order);
  if (const auto* invite = std::get_if<InviteRequest>(&request))
    args["ttl"] = show_duration(invite->ttl);
  if (const auto* level = std::get_if<LogLevelRequest>(&request))
    args["level"] = kLogLevels[static_cast<std::size_t>(level->level)];
  return args;
}

Errc code_of(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Errc::internal); ++i)
    if (name_of(static_cast<Errc>(i)) == name) return static_cast<Errc>(i);
  return Errc::internal;
}

std::string line_of(const Json& object) { return json_text(object) + "\n"; }

}  // namespace

std::string_view verb_of(const ControlRequest& request) { return kRequestNames[request.index()]; }

Result<ControlRequest> parse_request(std::string_view line) {
  if (line.size() > kMaxControlRequest)
    return fail(Errc::too_large, Doing::controlling, "a request is longer than 16 KiB");
  const auto object = parse_object(line, kMaxRequestDepth);
  if (!object) return bad_request("a request is one JSON object");
  const auto verb = object->find("verb");
  if (verb == object->end() || !verb->is_string()) return bad_request("a request needs a verb");
  Json args = Json::object();
  for (const auto& [key, value] : object->items()) {
    if (key == "args" && value.is_object())
      args = value;
    else if (key == "schema" && value != 1)
      return bad_request("only schema 1 is understood");
    else if (key != "verb" && key != "schema")
      return bad_request(
          fmt::format("a request has no field \"{}\"", printable(key).substr(0, 64)));
  }
  const auto& name = verb->get_ref<const std::string&>();
  if (name == "join") return parse_join(args);
  if (name == "leave") return parse_leave(args);
  if (name == "finish") return parse_finish(args);
  if (name == "log-level") return parse_log_level(args);
  if (name == "invite") return parse_invite(args);
  for (std::size_t i = 0; i < kRequestNames.size(); ++i) {
    if (kRequestNames[i] != name) continue;
    if (!args.empty()) return bad_request(fmt::format("{} takes no arguments", name));
    return plain_request(i);
  }
  return bad_request(
      fmt::format("no verb \"{}\" in a running node", printable(name).substr(0, 64)));
}

std::string encode_request(const ControlRequest& request) {
  return line_of(Json{{"schema", 1}, {"verb", verb_of(request)}, {"args", arguments_of(request)}});
}

Result<void> check_finish(const FinishRequest& request, const RunToEnd& run) {
  const auto refuse = [](Errc code, std::string detail) {
    return fail(code, Doing::agreeing, std::move(detail) + "; the run goes on");
  };
  const std::string sign = fmt::format(
      "where the admin key is, `starling key finish {} --admin-key FILE > finish.order` signs one",
      to_hex(run.settings.view()));
  if (!request.order) {
    if (!run.admin) return {};
    return refuse(Errc::refused,
                  fmt::format("only the admin's order ends this run (finish.by = admin): {}, and "
                              "`starling finish --order finish.order` gives it to any member",
                              sign));
  }
  const auto& [swarm, settings, signature] = *request.order;
  if (swarm != run.swarm)
    return refuse(Errc::wrong_swarm, fmt::format("the order is for swarm {}, and this node is in "
                                                 "swarm {}",
                                                 short_form(swarm), short_form(run.swarm)));
  if (settings != run.settings)
    return refuse(Errc::settings_mismatch,
                  fmt::format("the order is for a run with the settings {}, and this node trains "
                              "{}: {}",
                              short_form(settings), short_form(run.settings), sign));
  if (!run.admin || transport::signed_by(*run.admin, *request.order)) return {};
  if (*run.admin == NodeId{})
    return refuse(Errc::refused,
                  "this node has no certificate and does not know the admin: give the order to "
                  "another member, or put a certificate into this node's folder (`starling key "
                  "certify`)");
  return refuse(Errc::refused,
                fmt::format("the order was not signed by the admin {} of this swarm: {}",
                            short_form(*run.admin), sign));
}

Result<ControlAnswer> parse_answer(std::string_view line) {
  // The body is kept as text, so only its bounds matter here.
  const auto object = parse_object(line, kMaxAnswerDepth);
  const auto broken = fail(Errc::bad_message, Doing::controlling,
                           "the node's answer is not what this version understands");
  if (!object) return broken;
  const auto text_of = [&](const char* key) {
    const auto found = object->find(key);
    return found != object->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto kind = text_of("kind");
  if (kind == "error")
    return ControlAnswer{ControlAnswer::Kind::error,
                         "",
                         {code_of(text_of("code")), Doing::controlling, text_of("detail")}};
  if ((kind != "progress" && kind != "result") || !object->contains("body")) return broken;
  return ControlAnswer{
      kind == "result" ? ControlAnswer::Kind::result : ControlAnswer::Kind::progress,
      json_text((*object)["body"]),
      {}};
}

std::string encode_answer(const ControlAnswer& answer) {
  if (answer.kind == ControlAnswer::Kind::error)
    return line_of(Json{{"schema", 1},
                        {"kind", "error"},
                        {"code", name_of(answer.error.code)},
                        {"detail", answer.error.detail}});
  // The body is JSON text already; taking it apart again would cost more than it proves.
  return fmt::format("{{\"schema\":1,\"kind\":\"{}\",\"body\":{}}}\n",
                     answer.kind == ControlAnswer::Kind::result ? "result" : "progress",
                     answer.body);
}

}  // namespace starling::node
