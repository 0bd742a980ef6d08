#include "node/config/keys.h"

#include "node/config/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ranges>

namespace starling::node {

namespace {

using fields::Choice;
using fields::Count;
using fields::CountOrAuto;
using fields::Decimal;
using fields::Time;

constexpr std::array<std::string_view, 5> kUiWords{"auto", "tui", "plain", "json", "none"};
constexpr std::array<std::string_view, 3> kModeWords{"secret", "open", "closed"};
constexpr std::array<std::string_view, 3> kAdoptWords{"auto", "always", "never"};
constexpr std::array<std::string_view, 3> kPrecisionWords{"auto", "fp32", "bf16"};
constexpr std::array<std::string_view, 9> kCodecWords{"auto", "L0", "L1", "L2",  "L3",
                                                      "L4",   "L5", "L6", "none"};
constexpr std::array<std::string_view, 2> kPartitionWords{"none", "members"};
constexpr std::array<std::string_view, 4> kExchangeRuleWords{"mean", "clip", "median", "trimmed"};
constexpr std::array<std::string_view, 3> kFinishRuleWords{"mean", "median", "trimmed"};
constexpr std::array<std::string_view, 2> kFinishByWords{"any", "admin"};
constexpr std::array<std::string_view, 2> kEvalOfWords{"replica", "neighbourhood"};
constexpr std::array<std::string_view, 2> kThenWords{"exit", "serve"};
constexpr std::array<std::string_view, 5> kLevelWords{"trace", "debug", "info", "warn", "error"};
constexpr std::array<std::string_view, 3> kFormatWords{"auto", "text", "json"};
constexpr std::array<std::string_view, 2> kColourWords{"auto", "never"};
constexpr std::array<std::string_view, 5> kModels{"small", "resnet18", "resnet34", "resnet50",
                                                  "resnet101"};

constexpr std::int64_t kSecond = 1'000;
constexpr std::int64_t kDay = 86'400 * kSecond;

bool printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 32 && c < 127; });
}

Parsed<std::string> any_path(std::string_view text) {
  if (text.find('\0') != std::string_view::npos || text.size() > 4'096)
    return std::unexpected("a path of at most 4096 bytes");
  return std::string(text);
}

Parsed<std::string> some_path(std::string_view text) {
  if (text.empty()) return std::unexpected("a path");
  return any_path(text);
}

Parsed<std::string> a_name(std::string_view text) {
  if (text == fields::kAuto) return std::string();
  if (text.size() > 64 || !printable_ascii(text))
    return std::unexpected("auto, or at most 64 printable ASCII characters");
  return std::string(text);
}

Parsed<std::string> swarm_name(std::string_view text) {
  if (text.empty() || text.size() > 64 || !printable_ascii(text))
    return std::unexpected("1 to 64 printable ASCII characters");
  return std::string(text);
}

// "[ID@]HOST[:PORT]", "@FILE", "dns:NAME[:PORT]": the shape only; who dials resolves.
Parsed<std::string> a_peer(std::string_view text) {
  constexpr std::string_view kForm = "HOST:PORT, ID@HOST:PORT, @FILE or dns:NAME:PORT";
  if (text.empty() || text.size() > 400 || !printable_ascii(text))
    return std::unexpected(std::string(kForm));
  if (text.starts_with('@')) {
    if (text.size() == 1) return std::unexpected(std::string(kForm));
    return std::string(text);
  }
  auto host = text;
  if (host.starts_with("dns:")) host.remove_prefix(4);
  if (const auto at = host.find('@'); at != std::string_view::npos) {
    const auto id = host.substr(0, at);
    const bool hex = std::ranges::all_of(
        id, [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
    if (id.size() != 64 || !hex || text.starts_with("dns:"))
      return std::unexpected(std::string(kForm));
    host.remove_prefix(at + 1);
  }
  const bool has_port = host.find(':') != std::string_view::npos && !host.ends_with(']');
  const auto checked = parse_address(has_port ? std::string(host) : fmt::format("{}:7700", host));
  if (!checked || host.empty() || host.starts_with(':')) return std::unexpected(std::string(kForm));
  return std::string(text);
}

Parsed<std::string> an_advertised(std::string_view text) {
  const bool has_port = text.find(':') != std::string_view::npos && !text.ends_with(']');
  const auto checked = parse_address(has_port ? std::string(text) : fmt::format("{}:7700", text));
  if (!checked || text.empty() || text.starts_with(':'))
    return std::unexpected("HOST or HOST:PORT where peers can dial this node");
  return std::string(text);
}

Parsed<std::string> http_address(std::string_view text) {
  if (text == "off") return std::string(text);
  auto checked = parse_address(text);
  if (!checked) return std::unexpected("off, or HOST:PORT, such as 127.0.0.1:7780");
  return checked;
}

Parsed<std::string> an_invite(std::string_view text) {
  const bool good =
      text.empty() || text == "-" || text.starts_with('@') || text.starts_with("starling1:");
  if (!good || text.size() > 4'096 || !printable_ascii(text))
    return std::unexpected("an invite (starling1:...), @FILE or -");
  return std::string(text);
}

Parsed<std::string> a_model(std::string_view text) {
  if (std::ranges::find(kModels, text) == kModels.end())
    return std::unexpected(
        fmt::format("one of {}{}", fmt::join(kModels, ", "), did_you_mean(text, kModels)));
  return std::string(text);
}

Parsed<std::string> a_device(std::string_view text) {
  constexpr std::string_view kNumbered = "cuda:";
  const auto is_number = [](auto part) {
    return parse_count(std::string_view(part.begin(), part.end()), 0, 127).has_value();
  };
  const bool numbered =
      text.starts_with(kNumbered) && text.size() > kNumbered.size() &&
      std::ranges::all_of(std::views::split(text.substr(kNumbered.size()), ','), is_number);
  if (text != "auto" && text != "cpu" && text != "cuda" && !numbered)
    return std::unexpected("auto, cpu, cuda, cuda:N or cuda:N,M");
  return std::string(text);
}

Parsed<std::string> a_data_spec(std::string_view text) {
  if (text.size() > 65'536 || text.find('\0') != std::string_view::npos)
    return std::unexpected(
        "fashion-mnist, idx:DIR, cifar10:DIR, a folder, tar shards, packed:FILE or synthetic");
  return std::string(text);
}

// A row: the reader and writer come from the kind of the field.
template <class FieldKind>
constexpr KeySpec row(std::string_view name, std::string_view flag, std::string_view value,
                      std::string_view help) {
  return {name, flag, value, Scope::local, help, &FieldKind::read, &FieldKind::show, false};
}
template <class FieldKind>
constexpr KeySpec setting(std::string_view name, std::string_view flag, std::string_view value,
                          std::string_view help) {
  return {name, flag, value, Scope::settings, help, &FieldKind::read, &FieldKind::show, false};
}
template <class FieldKind>
constexpr KeySpec list(std::string_view name, std::string_view flag, std::string_view value,
                       std::string_view help) {
  return {name, flag, value, Scope::local, help, &FieldKind::read, &FieldKind::show, true};
}

template <auto G, auto M, Parsed<std::string> (*C)(std::string_view)>
using Text = fields::Text<G, M, C>;
template <auto G, auto M, Parsed<std::string> (*C)(std::string_view)>
using List = fields::List<G, M, C>;

using C = Config;

constexpr std::array kKeys{
    row<Text<&C::node, &NodeConfig::dir, some_path>>(
        "node.dir", "--dir", "DIR",
        "Folder that holds everything the node keeps: identity, secret, checkpoints, events. One "
        "node at a time. Default: $XDG_STATE_HOME/starling, or ~/.local/state/starling; "
        "/var/lib/starling where HOME is not set."),
    row<Text<&C::node, &NodeConfig::name, a_name>>(
        "node.name", "--name", "NAME",
        "What people see instead of the node's key, at most 64 characters; it identifies nothing. "
        "auto: two words made from the key, because host names collide on cloned machines."),
    row<CountOrAuto<&C::node, &NodeConfig::threads, 1, 1'024>>(
        "node.threads", "--threads", "N",
        "Threads that compute on the CPU, each its own slice of a batch; a slice has 8 images at "
        "least. auto: the cores that the process may use. Nodes that share a machine want their "
        "share of its cores: more threads than cores gain nothing."),
    row<Choice<&C::node, &NodeConfig::ui, kUiWords>>(
        "node.ui", "--ui", "auto|tui|plain|json|none",
        "How progress is shown: plain is one line every 10 s, json the same as an object, none "
        "nothing. tui is the screen of `starling top`, for a terminal: lines are printed once it "
        "is closed (q), and the node goes on. auto is plain."),

    row<Text<&C::net, &NetConfig::listen, parse_address>>(
        "net.listen", "--listen", "HOST:PORT",
        "Address of the one port of the swarm's traffic. Port 0 lets the kernel choose; the "
        "address "
        "really bound is in DIR/address. The default port moves to a free one where it is taken, "
        "one that was chosen is an error (exit 3)."),
    list<List<&C::net, &NetConfig::advertise, an_advertised>>(
        "net.advertise", "--advertise", "HOST[:PORT]",
        "Where other nodes can dial this one, if that is not the address that its sockets see "
        "(address translation, containers). Repeat or separate by commas; at most 4."),
    list<List<&C::net, &NetConfig::peers, a_peer>>(
        "net.peers", "--peer", "HOST:PORT",
        "Any member of the swarm; none is special, and more are better. Also ID@HOST:PORT (refuses "
        "another identity), @FILE (one a line), dns:NAME:PORT (all addresses of a name). Repeat or "
        "separate by commas. Retried for ever."),
    row<Count<&C::net, &NetConfig::require_peers, 0, 16'384>>(
        "net.require_peers", "--require-peers", "N",
        "End with exit 4 (5 if the swarm refused) unless this many peers were met within the join "
        "timeout. 0: train alone and keep trying."),
    row<Time<&C::net, &NetConfig::join_timeout, kSecond, 7 * kDay>>(
        "net.join_timeout", "--join-timeout", "D",
        "How long --require-peers waits. Means nothing without it."),
    row<Time<&C::net, &NetConfig::join_grace, 0, kDay>>(
        "net.join_grace", "--join-grace", "D",
        "How long a node with peers to try waits for them before it trains alone (it goes on "
        "trying). Longer avoids a merge of two beginnings; shorter starts sooner. Unless it is "
        "set, at most a quarter of a run of --until time=D."),
    row<Count<&C::net, &NetConfig::handshake_rate, 1, 10'000>>(
        "net.handshake_rate", "", "N",
        "Handshakes per second that one address may start; loopback is exempt. Raise it for many "
        "nodes behind one translated address; a flood then costs that many times 0.13 ms."),
    row<fields::Switch<&C::net, &NetConfig::bbr>>(
        "net.bbr", "", "true|false",
        "Congestion control of what is sent to other machines: BBR where the kernel has it, which "
        "keeps its rate on lines that lose packets. false: what the system says (net.ipv4."
        "tcp_congestion_control)."),

    row<Choice<&C::swarm, &SwarmConfig::mode, kModeWords>>(
        "swarm.mode", "", "secret|open|closed",
        "secret: only nodes that hold the swarm's secret take part. open: anybody with an address, "
        "who may then also invent identities. closed: as secret, and only nodes that are listed in "
        "DIR/peers.allow or have a certificate; without that list and without DIR/member.cert the "
        "node does not start. DIR/member.cert makes it closed whatever is said here."),
    row<Text<&C::swarm, &SwarmConfig::name, swarm_name>>(
        "swarm.name", "", "NAME",
        "Names the swarm in open mode: nodes with the same name are the same swarm."),
    row<Text<&C::swarm, &SwarmConfig::secret_file, any_path>>(
        "swarm.secret_file", "--secret-file", "FILE",
        "File with the swarm's secret, mode 0600. Without it DIR/secret is used, and made where it "
        "is missing: a new swarm. A later one that the admin orders is kept in DIR/secret.ordered "
        "where this file's folder cannot be written."),
    row<Time<&C::swarm, &SwarmConfig::secret_overlap, 0, 30 * kDay>>(
        "swarm.secret_overlap", "", "D",
        "How long the previous secret still opens this node's door after a rotation. Shorter shuts "
        "a lost copy out sooner; nodes without the new secret are then alone."),
    row<Text<&C::swarm, &SwarmConfig::invite, an_invite>>(
        "swarm.invite", "--invite", "STRING|@FILE|-",
        "A one-time invite (starling1:...) instead of peers and a secret; - reads it from standard "
        "input, which keeps it out of the process list."),
    setting<CountOrAuto<&C::swarm, &SwarmConfig::degree, 1, kMaxDegree>>(
        "swarm.degree", "--degree", "N",
        "Neighbours of a node, rounded up to an even number. auto: 4, and 6 above 64 members. More "
        "agree in fewer exchanges and hold one reference (the model's size) each."),
    row<Choice<&C::swarm, &SwarmConfig::adopt, kAdoptWords>>(
        "swarm.adopt", "", "auto|always|never",
        "Whether a node takes over the swarm's settings where they differ from its own. auto: all "
        "but those that were set here by hand; a budget in epochs or steps is taken over. always: "
        "those too. never: none."),

    setting<Text<&C::train, &TrainConfig::model, a_model>>(
        "train.model", "--model", "NAME",
        "small (a residual net for tests and demos), resnet18, resnet34, resnet50 or resnet101. "
        "Unless it is named: small where the data's images are too small for resnet50."),
    setting<CountOrAuto<&C::train, &TrainConfig::img, 8, 1'024>>(
        "train.img", "--img", "N",
        "Side of the images in pixels. auto: 224 for photographs, the data's own size for data of "
        "one small size. Time and memory grow with its square."),
    setting<fields::ResizeField<&C::train, &TrainConfig::resize>>(
        "train.resize", "", "SIDE@SHARE,...|off",
        "Smaller images for the first part of the run: 160@0.4,192@0.8 trains on 160 pixels a side "
        "up to 40 % of the budget, then on 192 up to 80 %, then on train.img. A step costs in "
        "proportion to the square of the side; evaluations always use train.img."),
    row<CountOrAuto<&C::train, &TrainConfig::batch, 1, 65'536>>(
        "train.batch", "--batch", "N|auto",
        "Images in a step of this node. auto: 64 of at most 64 pixels, otherwise 16, and half as "
        "many where the device has too little memory for them. Larger fills an accelerator better "
        "and makes fewer steps of the same budget."),
    row<Choice<&C::train, &TrainConfig::precision, kPrecisionWords>>(
        "train.precision", "--precision", "auto|fp32|bf16",
        "What forward and backward compute in; the master parameters are fp32 always. auto: bf16 "
        "on a GPU, on a CPU what a short measurement finds cheaper (kept in DIR/precision)."),
    setting<Decimal<&C::train, &TrainConfig::lr, 0, 100'000>>(
        "train.lr", "--lr", "X",
        "Learning rate at the end of the warm-up. auto: 0.1, and in proportion less for a batch "
        "below 64. Higher trains faster until it diverges."),
    setting<Decimal<&C::train, &TrainConfig::momentum, 0, 999>>(
        "train.momentum", "", "X",
        "Share of the last step's velocity that is kept. Private to each node, never averaged."),
    setting<Decimal<&C::train, &TrainConfig::weight_decay, 0, 1'000>>(
        "train.weight_decay", "", "X", "Pull of weights towards zero, per unit of learning rate."),
    setting<Decimal<&C::train, &TrainConfig::warmup, 0, 900>>(
        "train.warmup", "", "X",
        "Share of the budget over which the learning rate rises from 0 to train.lr."),
    setting<Decimal<&C::train, &TrainConfig::label_smoothing, 0, 900>>(
        "train.label_smoothing", "", "X",
        "Share of the target probability spread over all classes. 0 is plain cross-entropy."),
    row<Text<&C::train, &TrainConfig::device, a_device>>(
        "train.device", "--device", "auto|cpu|cuda[:N[,M]]",
        "Where to compute. auto: the first accelerator that works, otherwise the CPU; one that was "
        "asked for and is missing is an error (exit 3). cuda:0,1: several GPUs of this host share "
        "each batch and sum their gradients (NCCL); the first has the replica. That has not run on "
        "a machine with two GPUs yet (decision 0032)."),
    setting<fields::UntilField<&C::train, &TrainConfig::until>>(
        "train.until", "--until", "samples=N|epochs=E|steps=N|time=D",
        "When the run ends: images trained on by the whole swarm, passes over the data of the node "
        "that starts the swarm, its steps, or time since its first node was up, waiting for peers "
        "(--join-grace) included. Such as epochs=18, samples=1.2M, steps=12k, time=2h."),
    setting<Count<&C::train, &TrainConfig::seed, 0, ~std::uint64_t{0}>>(
        "train.seed", "--seed", "N",
        "Draws the first parameters and, with the node's key, the order of the data."),

    row<Choice<&C::gossip, &GossipConfig::codec, kCodecWords>>(
        "gossip.codec", "--codec", "auto|L0..L6|none",
        "How deltas are compressed. auto: the cheapest level that keeps the replicas together, "
        "from L2 up, chosen per edge; L0 to L6 pin a level; none (fp32) is not in this version."),
    row<CountOrAuto<&C::gossip, &GossipConfig::tau, 1, 1'024>>(
        "gossip.tau", "", "N",
        "Own steps between two offers. auto: from 2 upwards, as the line carries it and the codec "
        "leaves training its processors."),
    row<Choice<&C::gossip, &GossipConfig::aggregator, kExchangeRuleWords>>(
        "gossip.aggregator", "", "mean|clip|median|trimmed",
        "What becomes of the neighbours' increments. mean: added as they come, clipped where far "
        "above the edge's own history. clip: clipped at what is usual on most edges, against "
        "members that lie within it; honest nodes mix a little more slowly. median, trimmed: "
        "coordinate by coordinate over this node and its neighbours; needs three of them and a "
        "dense codec (auto is L3 then), and replicas stay further apart."),
    row<CountOrAuto<&C::gossip, &GossipConfig::max_rate_ratio, 1, 1'000'000>>(
        "gossip.max_rate_ratio", "", "N",
        "How many times as fast as the median member another one counts at most, where this node "
        "adds up what the swarm has trained. auto: 10000 where members trust each other (one "
        "secret, and the aggregator mean), else 16, so that one that lies ends no run. More where "
        "machines differ by more."),

    row<Text<&C::data, &DataConfig::train, a_data_spec>>(
        "data.train", "--data", "SPEC",
        "What to train on: fashion-mnist, idx:DIR, cifar10:DIR, a folder of class folders, tar "
        "shards (x-{000..012}.tar), packed:FILE or synthetic."),
    row<Text<&C::data, &DataConfig::val, a_data_spec>>(
        "data.val", "--val", "SPEC",
        "What to evaluate on. Default: the validation part of --data where it has one."),
    row<Choice<&C::data, &DataConfig::partition, kPartitionWords>>(
        "data.partition", "", "none|members",
        "members: nodes with the same data set share out each epoch among themselves. none: each "
        "shuffles all of its own data."),
    row<Count<&C::data, &DataConfig::max_bad, 0, 1'000'000'000>>(
        "data.max_bad", "", "N",
        "Distinct unreadable samples after which the run stops (exit 7); each is replaced, counted "
        "and named once. While the storage gives nothing, the node waits and tries again, and that "
        "counts only until it is back. One in a million is normal, a thousand is a broken disk."),
    row<CountOrAuto<&C::data, &DataConfig::threads, 1, 256>>(
        "data.threads", "", "N",
        "Threads that read and decode; one decodes about 1,400 photographs of 224 pixels a second. "
        "auto: half the cores that this process may use, from 1 to 4. More than cores takes time "
        "from training."),

    row<Text<&C::http, &HttpConfig::listen, http_address>>(
        "http.listen", "--http", "HOST:PORT|off",
        "Address of the page, metrics, probes and read-only JSON. The default port moves to a free "
        "one where "
        "it is taken, one that was chosen is an error (exit 3)."),
    row<fields::Switch<&C::http, &HttpConfig::exposed>>(
        "http.exposed", "", "true|false",
        "Allows an address other than loopback without a token: metrics and probes are then "
        "readable by anyone who can reach them; /api still needs the token."),
    row<Text<&C::http, &HttpConfig::token_file, any_path>>(
        "http.token_file", "", "FILE",
        "File with the token that the page and /api then ask for (Authorization: Bearer ...), mode "
        "0600."),
    row<Time<&C::http, &HttpConfig::train_limit, kSecond, kDay>>(
        "http.train_limit", "", "D",
        "How long a node that trains may go without a step before /livez fails and an orchestrator "
        "starts it again. More than the longest step: the first one of a GPU takes a minute."),

    row<Choice<&C::log, &LogConfig::level, kLevelWords>>(
        "log.level", "--log-level", "trace|debug|info|warn|error",
        "The least important lines that are written. `starling log-level` changes it in a running "
        "node."),
    row<Choice<&C::log, &LogConfig::format, kFormatWords>>(
        "log.format", "--log-format", "auto|text|json",
        "Form of log lines. auto is text; json is one object a line, without a banner."),
    row<Choice<&C::log, &LogConfig::color, kColourWords>>(
        "log.color", "", "auto|never",
        "auto: warnings and errors are coloured on a terminal, unless NO_COLOR is set."),
    row<Count<&C::log, &LogConfig::per_event, 0, 1'000'000>>(
        "log.per_event", "", "N",
        "Lines of one event per minute; more are counted and told with the next one. 0: no limit."),

    setting<Count<&C::run, &RunConfig::extend, 0, kMaxExtensions>>(
        "run.extend", "", "N",
        "How often this run was extended. With N > 0 a node goes on from the model in DIR/final, "
        "with a budget (train.until), a warm-up and a learning rate of its own; all members need "
        "the same N. Who has no such folder joins with --peer and without this key."),

    row<Time<&C::finish, &FinishConfig::linger, 0, kDay>>(
        "finish.linger", "", "D",
        "How long a finished node stays for members that fetch the result late (it goes at once "
        "when "
        "all have it), and how long one that has signed the result waits for a member that "
        "vanished: "
        "the same on all nodes; outages that are longer may part them."),
    row<Choice<&C::finish, &FinishConfig::then, kThenWords>>(
        "finish.then", "", "exit|serve",
        "After the final consensus: exit, or stay and serve the model to nodes that join later."),
    setting<Choice<&C::finish, &FinishConfig::aggregator, kFinishRuleWords>>(
        "finish.aggregator", "", "mean|median|trimmed",
        "How the final consensus, and a merge, make one model of all replicas. mean: exact, "
        "checked by each node against its own. median, trimmed (without the smallest and the "
        "largest quarter): coordinate by coordinate, for up to 64 participants, mean above; every "
        "replica then goes to one node for each chunk."),
    setting<Choice<&C::finish, &FinishConfig::by, kFinishByWords>>(
        "finish.by", "", "any|admin",
        "Who may end the run before its budget is spent. any: every member, with `starling "
        "finish`. admin: who has the admin key of the closed swarm, with an order that `starling "
        "key finish` signs; a stolen node then ends nobody's run. Every member needs a "
        "certificate (DIR/member.cert), which names the admin."),
    row<Time<&C::leave, &LeaveConfig::timeout, 100, 600 * kSecond>>(
        "leave.timeout", "", "D",
        "Time for the last exchange and the checkpoint when the node leaves; then it goes anyway. "
        "Keep it below what systemd or Kubernetes allow."),
    row<Time<&C::eval, &EvalConfig::every, 0, 30 * kDay>>(
        "eval.every", "", "D", "Time between the beginnings of evaluations. 0: only at the end."),
    row<Choice<&C::eval, &EvalConfig::of, kEvalOfWords>>(
        "eval.of", "", "replica|neighbourhood",
        "What is evaluated during training. neighbourhood: the mean of this node's references, "
        "near to what a final consensus would make now; the replica where no edge has settled or "
        "gossip.aggregator guards against neighbours. replica: this node's own parameters, noisier "
        "while the learning rate is high. status and events say which it was."),
    row<Decimal<&C::eval, &EvalConfig::share, 1, 900>>(
        "eval.share", "", "X",
        "Share of the training thread's time that an evaluation takes until it has ended. More of "
        "it shows the figures sooner and trains less meanwhile."),
    row<Time<&C::checkpoint, &CheckpointConfig::every, 0, 30 * kDay>>(
        "checkpoint.every", "", "D",
        "Time between checkpoints: what a crash can cost. 0: only when leaving."),
    row<Count<&C::checkpoint, &CheckpointConfig::keep, 1, 1'000>>(
        "checkpoint.keep", "", "N",
        "Checkpoints that are kept; each takes twice the model's size (ResNet-50: 205 MB)."),
    row<CountOrAuto<&C::debug, &DebugConfig::seed, 0, ~std::uint64_t{0}>>(
        "debug.seed", "", "N",
        "Seed of the protocol's random choices, to repeat a run. auto: from the system."),
};

constexpr std::array<FlagAlias, 4> kAliases{{
    {"--open", "swarm.mode", "open", "Take part in an open swarm: no secret."},
    {"--adopt", "swarm.adopt", "always",
     "Take over the swarm's settings, also those that were set here by hand."},
    {"--no-adopt", "swarm.adopt", "never", "Keep all settings; a difference is then refused."},
    {"--no-color", "log.color", "never", "No colours."},
}};

}  // namespace

std::span<const KeySpec> all_keys() { return kKeys; }
std::span<const FlagAlias> flag_aliases() { return kAliases; }

const KeySpec* find_key(std::string_view name) {
  for (const auto& key : kKeys)
    if (key.name == name) return &key;
  return nullptr;
}

std::string_view nearest_key(std::string_view name) {
  std::array<std::string_view, kKeys.size()> names;
  std::ranges::transform(kKeys, names.begin(), &KeySpec::name);
  const auto whole = nearest(name, names);
  if (!whole.empty()) return whole;
  // The right key in the wrong table, or without one: "batch", "net.batch".
  const auto last = name.substr(name.rfind('.') + 1);
  for (const auto candidate : names)
    if (candidate.substr(candidate.find('.') + 1) == last) return candidate;
  return {};
}

std::string show_value(const KeySpec& key, const Config& config) {
  return fmt::format("{}", fmt::join(key.show(config), ","));
}

}  // namespace starling::node
