#include "node/observe/status.h"

#include "node/config/config.h"
#include "node/config/keys.h"
#include "node/wall_time.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>

namespace starling::node {

namespace {

using Json = nlohmann::json;

// An absent number is null, so that a field is always there.
template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json member_json(const MemberStatus& member) {
  return {
      {"id", member.id},           {"name", member.name},       {"state", name_of(member.state)},
      {"address", member.address}, {"samples", member.samples}, {"incarnation", member.incarnation},
      {"reason", member.reason},   {"self", member.self}};
}

Json certificate_json(const std::optional<CertificateStatus>& certificate) {
  if (!certificate) return nullptr;
  return {
      {"role", certificate->role}, {"serial", certificate->serial}, {"until", certificate->until}};
}

Json neighbour_json(const NeighbourStatus& neighbour) {
  return {{"id", neighbour.id},
          {"name", neighbour.name},
          {"state", name_of(neighbour.state)},
          {"edge", neighbour.edge},
          {"rtt_ms", or_null(neighbour.rtt_ms)},
          {"level", neighbour.level},
          {"level_reason", neighbour.level_reason},
          {"exchanges", neighbour.exchanges},
          {"bytes_sent", neighbour.bytes_sent},
          {"bytes_received", neighbour.bytes_received},
          {"queued_bytes", or_null(neighbour.queued_bytes)},
          {"disagreement_ratio", or_null(neighbour.disagreement_ratio)},
          {"last_exchange_s", or_null(neighbour.last_exchange_s)},
          {"resets", neighbour.resets},
          {"clipped", neighbour.clipped},
          {"clip_ratio", or_null(neighbour.clip_ratio)},
          {"refused", neighbour.refused},
          {"refused_why", neighbour.refused_why},
          {"offences", neighbour.offences},
          {"dropped", neighbour.dropped},
          {"closed_for_s", or_null(neighbour.closed_for_s)},
          {"parked", neighbour.parked},
          {"wanted", neighbour.wanted},
          {"certificate", certificate_json(neighbour.certificate)}};
}

template <class List, class ToJson>
Json list_json(const List& list, ToJson one) {
  Json array = Json::array();
  for (const auto& item : list) array.push_back(one(item));
  return array;
}

Json progress_part(const StatusSnapshot::Progress& progress) {
  return {{"step", progress.step},
          {"last_step_s", or_null(progress.last_step_s)},
          {"samples", progress.samples},
          {"swarm_samples", progress.swarm_samples},
          {"budget_samples", progress.budget_samples},
          {"share", progress.share},
          {"epoch", progress.epoch},
          {"left_s", or_null(progress.left_s)}};
}

Json train_part(const StatusSnapshot::Train& train) {
  return {{"loss", or_null(train.loss)},
          {"images_per_second", train.images_per_second},
          {"swarm_images_per_second", train.swarm_images_per_second},
          {"gossip_wait_ratio", train.gossip_wait_ratio},
          {"data_wait_ratio", train.data_wait_ratio},
          {"learning_rate", train.learning_rate},
          {"bad_samples", train.bad_samples},
          {"device", train.device},
          {"precision", train.precision},
          {"batch", train.batch}};
}

Json join_part(const std::optional<StatusSnapshot::Join>& join) {
  if (!join) return nullptr;
  return {{"phase", join->phase},
          {"sponsor", join->sponsor},
          {"bytes_done", join->bytes_done},
          {"bytes_total", join->bytes_total}};
}

Json access_part(const StatusSnapshot::Access& access) {
  if (access.admin.empty()) return nullptr;
  return {{"admin", access.admin},
          {"certificate", certificate_json(access.certificate)},
          {"revocations", access.revocations},
          {"revoked_nodes", access.revoked_nodes},
          {"revoked_serials", access.revoked_serials},
          {"secret_epoch", access.secret_epoch},
          {"rotation", access.rotation},
          {"rotation_waits_for", access.rotation_waits_for}};
}

Json eval_part(const std::optional<StatusSnapshot::Eval>& eval) {
  if (!eval) return nullptr;
  return {{"accuracy_ratio", eval->accuracy_ratio},
          {"accuracy_top5_ratio", eval->accuracy_top5_ratio},
          {"loss", eval->loss},
          {"images", eval->images},
          {"step", eval->step},
          {"of", name_of(eval->of)},
          {"references", eval->references}};
}

Json traffic_part(const StatusSnapshot::Traffic& traffic) {
  return {{"bytes_sent", traffic.bytes_sent},
          {"bytes_received", traffic.bytes_received},
          {"delta_bytes_sent", traffic.delta_bytes_sent},
          {"delta_bytes_received", traffic.delta_bytes_received},
          {"exchanges", traffic.exchanges},
          {"queued_bytes", traffic.queued_bytes}};
}

// The participants that are not alive now.
Json missing_json(const StatusSnapshot& status) {
  const std::set<std::string_view> participants(status.consensus.participants.begin(),
                                                status.consensus.participants.end());
  Json missing = Json::array();
  for (const auto& member : status.members)
    if (!member.self && member.state != MemberState::alive && participants.contains(member.id))
      missing.push_back(
          {{"id", member.id}, {"name", member.name}, {"state", name_of(member.state)}});
  return missing;
}

Json consensus_part(const StatusSnapshot& status) {
  const auto& consensus = status.consensus;
  return {{"state", consensus.state},
          {"epoch", consensus.epoch},
          {"hash", consensus.hash},
          {"participants", consensus.participants},
          {"identical", consensus.identical},
          {"missing", missing_json(status)},
          {"phase", consensus.phase},
          {"bytes_left", consensus.bytes_left},
          {"bytes_total", consensus.bytes_total},
          {"reason", consensus.reason}};
}

Json counts_by_state(const StatusSnapshot& status) {
  Json counts = Json::object();
  for (std::size_t i = 0; i < kMemberStates; ++i) {
    const auto state = static_cast<MemberState>(i);
    counts[std::string(name_of(state))] = status.members_in(state);
  }
  return counts;
}

// All members in the order of the snapshot, or the first of a larger number: see to_json().
Json some_members(const std::vector<MemberStatus>& members, std::size_t most) {
  if (members.size() <= most) return list_json(members, member_json);
  std::vector<const MemberStatus*> first;
  first.reserve(members.size());
  for (const auto& member : members) first.push_back(&member);
  std::ranges::partial_sort(
      first, first.begin() + static_cast<std::ptrdiff_t>(most), {}, [](const MemberStatus* one) {
        return std::tuple(!one->self, std::string_view(one->name), std::string_view(one->id));
      });
  first.resize(most);
  return list_json(first, [](const MemberStatus* one) { return member_json(*one); });
}

// "default", "file", "environment", "flag".
std::string_view name_of(Layer layer) {
  constexpr std::array<std::string_view, 4> kNames{"default", "file", "environment", "flag"};
  return kNames[static_cast<std::size_t>(layer)];
}

// What the swarm's settings say of a key; nothing where they do not.
std::optional<std::string> value_in(const std::map<std::string, std::string>& settings,
                                    const KeySpec& key) {
  if (key.scope != Scope::settings) return std::nullopt;
  const auto find = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = settings.find(std::string(name));
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  };
  if (key.name != "train.until") return find(key.name.substr(key.name.find('.') + 1));
  const auto samples = find("budget_samples");
  const auto time = find("budget_seconds");
  if (!samples || !time) return std::nullopt;
  return *samples != "0" ? "samples=" + *samples : "time=" + *time + "s";
}

Json key_json(const KeySpec& key, const Config& config,
              const std::map<std::string, std::string>& settings) {
  Json one{{"key", key.name},
           {"value", fmt::format("{}", fmt::join(shown_values(key, config), ","))},
           {"layer", name_of(Layer::fallback)},
           {"where", "default"},
           {"shadows", Json::array()}};
  if (const auto found = config.origins.find(key.name); found != config.origins.end()) {
    one["layer"] = name_of(found->second.layer);
    one["where"] = found->second.where;
    one["shadows"] = found->second.shadows;
  } else if (const auto adopted = value_in(settings, key)) {
    one["value"] = *adopted;
    one["layer"] = one["where"] = "swarm";
  }
  return one;
}

}  // namespace

std::string_view name_of(Evaluated evaluated) {
  constexpr std::array<std::string_view, 3> kNames{"replica", "neighbourhood", "consensus"};
  return kNames[static_cast<std::size_t>(evaluated)];
}

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames{"starting",  "joining",  "training",
                                                         "finishing", "finished", "leaving"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view name_of(MemberState state) {
  constexpr std::array<std::string_view, kMemberStates> kNames{"joining", "alive", "suspect",
                                                               "dead", "left"};
  return kNames[static_cast<std::size_t>(state)];
}

bool StatusSnapshot::healthy() const {
  const bool at_work =
      phase == Phase::training || phase == Phase::finishing || phase == Phase::finished;
  return at_work && warnings.empty();
}

std::vector<std::string> warnings_of(const Troubles& troubles) {
  std::vector<std::string> warnings;
  if (troubles.no_step_s)
    warnings.push_back("no step for " + show_left(*troubles.no_step_s) +
                       ": data that cannot be read, or a device that hangs (http.train_limit)");
  if (!troubles.checkpoint.empty())
    warnings.push_back("the last checkpoint was not written, what was saved before is whole: " +
                       troubles.checkpoint);
  if (!troubles.certificate.empty()) warnings.push_back(troubles.certificate);
  if (troubles.isolated)
    warnings.emplace_back("no other member is in reach: trains on alone and looks for the swarm");
  if (troubles.cloned)
    warnings.emplace_back(
        "another process uses this node's identity.key: give every node a folder of its own");
  if (troubles.events_lost > 0)
    warnings.push_back(std::to_string(troubles.events_lost) + " lines are missing in events.jsonl");
  return warnings;
}

std::size_t StatusSnapshot::members_in(MemberState state) const {
  return static_cast<std::size_t>(std::ranges::count(members, state, &MemberStatus::state));
}

std::size_t StatusSnapshot::open_edges() const {
  return static_cast<std::size_t>(std::ranges::count(neighbours, "open", &NeighbourStatus::edge));
}

Json to_json(const StatusSnapshot& status, std::size_t most_members) {
  const auto left_out = status.members.size() - std::min(status.members.size(), most_members);
  return {{"schema", 1},
          {"node",
           {{"id", status.node.id},
            {"name", status.node.name},
            {"version", status.node.version},
            {"uptime_s", status.node.uptime_s},
            {"instance", status.node.instance}}},
          {"phase", name_of(status.phase)},
          {"healthy", status.healthy()},
          {"address", status.address},
          {"http", status.http},
          {"swarm",
           {{"id", status.swarm.id},
            {"mode", status.swarm.mode},
            {"fingerprint", status.swarm.fingerprint}}},
          {"join", join_part(status.join)},
          {"access", access_part(status.access)},
          {"model",
           {{"name", status.model.name},
            {"parameters", status.model.parameters},
            {"classes", status.model.classes},
            {"img", status.model.img}}},
          {"progress", progress_part(status.progress)},
          {"train", train_part(status.train)},
          {"eval", eval_part(status.eval)},
          {"traffic", traffic_part(status.traffic)},
          {"period", {{"steps", status.period.steps}, {"reason", status.period.reason}}},
          {"host", {{"cpu_ratio", status.host.cpu_ratio}, {"rss_bytes", status.host.rss_bytes}}},
          {"disagreement_ratio", or_null(status.disagreement_ratio)},
          {"reachable", status.reachable},
          {"checkpoint", status.checkpoint},
          {"members", some_members(status.members, most_members)},
          {"members_left_out", left_out},
          {"members_by_state", counts_by_state(status)},
          {"neighbours", list_json(status.neighbours, neighbour_json)},
          {"consensus", consensus_part(status)},
          {"warnings", status.warnings}};
}

Json members_json(const StatusSnapshot& status) {
  return {{"schema", 1}, {"members", list_json(status.members, member_json)}};
}

Json neighbours_json(const StatusSnapshot& status) {
  return {{"schema", 1}, {"neighbours", list_json(status.neighbours, neighbour_json)}};
}

Json config_json(const StatusSnapshot& status, const Config& config) {
  Json keys = Json::array();
  for (const auto& key : all_keys()) keys.push_back(key_json(key, config, status.swarm.settings));
  return {{"schema", 1}, {"keys", std::move(keys)}, {"settings", status.swarm.settings}};
}

std::vector<std::string> shown_values(const KeySpec& key, const Config& config) {
  auto texts = key.show(config);
  for (auto& text : texts)
    if (text.contains("starling1:")) text = "starling1:(hidden)";
  return texts;
}

void SnapshotBox::put(StatusSnapshot snapshot) {
  // Owners: see Pointer.
  auto fresh = std::make_shared<const StatusSnapshot>(std::move(snapshot));
  const MutexLock lock(mutex_);
  snapshot_.swap(fresh);
}

SnapshotBox::Pointer SnapshotBox::get() const {
  const MutexLock lock(mutex_);
  // Owners: see Pointer.
  return snapshot_ != nullptr ? snapshot_ : std::make_shared<const StatusSnapshot>();
}

}  // namespace starling::node
