// The tables that `starling status`, `members` and `neighbours` print.
#include "node/observe/fields.h"
#include "node/observe/status.h"
#include "node/printable.h"
#include "node/wall_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace starling::node {

namespace {

using Json = nlohmann::json;
using namespace fields;

// Nothing waits for somebody with whom there is no session.
std::string queued(const Json& edge) {
  const auto& bytes = at(edge, {"queued_bytes"});
  return bytes.is_number() ? show_bytes(bytes.get<double>()) : "-";
}

std::string table(std::span<const std::vector<std::string>> rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - width_of(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

const Json& list_of(const Json& object, std::string_view name) { return at(object, {name}); }

std::string progress_of(const Json& status) {
  std::string line = fmt::format(
      "{:.1f} %  step {} (ended {} ago)  {}", number(status, {"progress", "share"}) * 100,
      show(status, {"progress", "step"}), with_unit(at(status, {"progress"}), "last_step_s", "s"),
      show(status, {"progress", "swarm_samples"}));
  // A run that ends by time, or when a person says so, has no budget of samples.
  if (number(status, {"progress", "budget_samples"}) > 0)
    line += " of " + show(status, {"progress", "budget_samples"});
  line += " samples";
  if (number(status, {"progress", "left_s"}) > 0)
    line += "  left " + show_left(number(status, {"progress", "left_s"}));
  return line;
}

// What the admin decided, for a swarm that has one.
void add_access(const Json& status, std::vector<std::vector<std::string>>& rows) {
  if (!at(status, {"access", "admin"}).is_string()) return;
  rows.push_back({"access", fmt::format("{} until {}  revocations {} ({} nodes, {} serials)",
                                        show(status, {"access", "certificate", "role"}),
                                        show(status, {"access", "certificate", "until"}),
                                        show(status, {"access", "revocations"}),
                                        show(status, {"access", "revoked_nodes"}),
                                        show(status, {"access", "revoked_serials"}))});
  std::string secret = fmt::format("epoch {}  {}", show(status, {"access", "secret_epoch"}),
                                   show(status, {"access", "rotation"}));
  if (number(status, {"access", "rotation_waits_for"}) > 0)
    secret += fmt::format("  waits for {} members", show(status, {"access", "rotation_waits_for"}));
  rows.push_back({"secret", std::move(secret)});
}

// Why the period between two offers is what it is; the JSON has the word of the protocol.
std::string period_reason(const std::string& word) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kSentences{
      {{"pinned", "as gossip.tau says"},
       {"fits", "as the lines and the codec allow"},
       {"nothing_fits", "doubled: most lines carry no more"},
       {"codec_time", "codec jobs take their share of the training time"},
       {"room_for_half", "halved: most lines carry more"},
       {"waiting", "half of it would fit, not yet for long enough"},
       {"left_before", "half of it was too much a while ago"},
       {"longest", "the longest there is, and most lines cannot carry it"}}};
  const auto* const found =
      std::ranges::find(kSentences, word, &std::pair<std::string_view, std::string_view>::first);
  return found == kSentences.end() ? word : std::string(found->second);
}

}  // namespace

std::string status_table(const Json& status) {
  const auto& neighbours = list_of(status, "neighbours");
  std::vector<std::vector<std::string>> rows{
      {"node", fmt::format("{}  {}", show(status, {"node", "name"}),
                           show(status, {"node", "id"}).substr(0, 8))},
      {"phase", show(status, {"phase"})},
      {"address", show(status, {"address"})},
      {"swarm", fmt::format("{}  {}", show(status, {"swarm", "id"}).substr(0, 8),
                            show(status, {"swarm", "mode"}))},
      {"settings", show(status, {"swarm", "fingerprint"})},
      {"model", fmt::format("{}  {} parameters", show(status, {"model", "name"}),
                            show(status, {"model", "parameters"}))},
      {"progress", progress_of(status)},
      {"training",
       fmt::format("loss {}  {:.0f} img/s (swarm {:.0f})  gossip wait {:.1f} %",
                   show(status, {"train", "loss"}), number(status, {"train", "images_per_second"}),
                   number(status, {"train", "swarm_images_per_second"}),
                   number(status, {"train", "gossip_wait_ratio"}) * 100)}};
  if (const auto join = join_of(status); !join.empty()) rows.push_back({"join", join});
  rows.push_back({"reachable", reachable_of(status)});
  add_access(status, rows);
  if (at(status, {"eval", "accuracy_ratio"}).is_number())
    rows.push_back(
        {"accuracy",
         fmt::format("{:.2f} % at step {} ({})", number(status, {"eval", "accuracy_ratio"}) * 100,
                     show(status, {"eval", "step"}), show(status, {"eval", "of"}))});
  rows.push_back({"members", members_by_state(status)});
  rows.push_back({"neighbours", fmt::format("{} of {} open  disagreement {}",
                                            count_where(neighbours, "edge", "open"),
                                            neighbours.is_array() ? neighbours.size() : 0,
                                            show(status, {"disagreement_ratio"}))});
  rows.push_back(
      {"traffic",
       fmt::format("sent {}  received {}", show_bytes(number(status, {"traffic", "bytes_sent"})),
                   show_bytes(number(status, {"traffic", "bytes_received"})))});
  if (number(status, {"period", "steps"}) > 0)
    rows.push_back({"offers", fmt::format("every {} steps: {}", show(status, {"period", "steps"}),
                                          period_reason(show(status, {"period", "reason"})))});
  rows.push_back({"consensus", fmt::format("{}  {}", show(status, {"consensus", "state"}),
                                           show(status, {"consensus", "hash"}))});
  const auto& warnings = list_of(status, "warnings");
  if (warnings.is_array())
    for (const auto& warning : warnings) rows.push_back({"warning", show(warning)});
  return table(rows);
}

std::string members_table(const Json& members) {
  std::vector<std::vector<std::string>> rows{{"ID", "NAME", "STATE", "ADDRESS", "SAMPLES", "NOTE"}};
  const auto& list = list_of(members, "members");
  if (list.is_array()) {
    for (const auto& member : list) {
      const bool self = at(member, {"self"}) == true;
      rows.push_back({short_id(member), show(member, {"name"}), show(member, {"state"}),
                      show(member, {"address"}), show(member, {"samples"}),
                      self ? "this node" : show(member, {"reason"})});
    }
  }
  return table(rows);
}

std::string neighbours_table(const Json& neighbours) {
  std::vector<std::vector<std::string>> rows{{"ID", "NAME", "STATE", "EDGE", "RTT", "LEVEL",
                                              "EXCHANGES", "SENT", "RECEIVED", "QUEUED",
                                              "DISAGREEMENT", "LAST", "SERIAL"}};
  const auto& list = list_of(neighbours, "neighbours");
  if (list.is_array()) {
    for (const auto& edge : list) {
      rows.push_back({short_id(edge), show(edge, {"name"}), show(edge, {"state"}),
                      show(edge, {"edge"}), with_unit(edge, "rtt_ms", "ms"), show(edge, {"level"}),
                      show(edge, {"exchanges"}), show_bytes(number(edge, {"bytes_sent"})),
                      show_bytes(number(edge, {"bytes_received"})), queued(edge),
                      show(edge, {"disagreement_ratio"}), with_unit(edge, "last_exchange_s", "s"),
                      show(edge, {"certificate", "serial"})});
    }
  }
  return table(rows);
}

}  // namespace starling::node
