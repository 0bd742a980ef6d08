// The table of verbs, and the way from a command line to one of them.
#include "node/base/fault.h"
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/values.h"
#include "node/control/request.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>

namespace starling::node {

namespace {

constexpr VerbFlag kJson{"--json", "", "Print one JSON object instead of text."};
constexpr std::array<VerbFlag, 1> kJsonOnly{kJson};
constexpr std::array<VerbFlag, 2> kStatusFlags{
    {kJson, {"--quiet", "", "Print nothing; the exit code says it (0 healthy, 1 not)."}}};
constexpr std::array<VerbFlag, 1> kRunFlags{
    {{"--dry-run", "", "Check everything that can be checked, print the plan, change nothing."}}};
constexpr std::array<VerbFlag, 1> kDemoFlags{{{"--nodes", "N", "How many nodes (1 to 32)."}}};
constexpr std::array<VerbFlag, 5> kChaosFlags{
    {{"--json", "", "Print one JSON object at the end instead of text."},
     {"--nodes", "N", "How many nodes begin (3 to 16); without it 5."},
     {"--faults", "LIST",
      "What happens, each as often as it is named: kill, stop, partition, join, leave; without it "
      "each of them once."},
     {"--each", "D", "How long a fault lasts, and the calm before it (3s to 1h); without it 10s."},
     {"--schedule", "N",
      "Seed of the order of the faults and of whom they happen to; without it 1."}}};
constexpr std::array<VerbFlag, 2> kLeaveFlags{
    {kJson, {"--timeout", "D", "Time for the last exchange and the checkpoint."}}};
constexpr std::array<VerbFlag, 2> kInviteFlags{
    {kJson, {"--ttl", "D", "How long it is good (1m to 30d); without it 24h."}}};
constexpr std::array<VerbFlag, 2> kFinishFlags{
    {kJson,
     {"--order", "FILE|-",
      "The admin's order, which `starling key finish` prints; needed where finish.by is admin."}}};
constexpr std::array<VerbFlag, 7> kKeyFlags{
    {{"--json", "", "Print one JSON object instead of text (show, id)."},
     {"--passphrase-file", "FILE|-",
      "Derive the secret from a passphrase and swarm.name instead of random bytes (new)."},
     {"--admin-key", "FILE",
      "The admin's key, which stays off the nodes (certify, revoke, finish). With it, rotate makes "
      "a next "
      "secret that members hand on by themselves."},
     {"--role", "member|inviter",
      "What the certificate makes of the node; an inviter's invites bring in members (certify)."},
     {"--ttl", "D", "How long the certificate is valid (1h to 3650d); without it 90d (certify)."},
     {"--list", "FILE",
      "The list of what was revoked; without it the admin key's file with .revoked (revoke, rotate "
      "with --admin-key)."},
     {"--no-list", "",
      "There is no such list yet, because nothing was ever revoked (revoke, which begins it; "
      "rotate "
      "with --admin-key)."}}};
constexpr std::array<VerbFlag, 1> kConfigFlags{
    {{"--origin", "", "Show where each value comes from, and what it shadows (show)."}}};

constexpr std::array<VerbFlag, 5> kDataFlags{
    {kJson,
     {"--out", "FILE", "The packed file (pack)."},
     {"--side", "N", "Pixels of the shorter side, 0 for as it is (pack); without it 256."},
     {"--form", "jpeg|raw", "Encoded images, or pixels that need no decoding (pack)."},
     {"--quality", "N", "Of JPEG, 1 to 100 (pack); without it 90."}}};

constexpr std::array<VerbFlag, 15> kBenchFlags{
    {kJson,
     {"--n", "N", "Values of the vector (codec, optim, round); without it ResNet-50's."},
     {"--level", "L", "One level of the ladder, L0 to L6 (codec, round); without it all, or L2."},
     {"--isa", "ISA", "scalar, avx2 or avx512 (codec); without it the widest."},
     {"--bytes", "N", "Bytes of the attachment each way (wire); without it ResNet-50's in fp32."},
     {"--cipher", "chacha20poly1305|none",
      "none: plain sockets instead of a session, to compare with (wire)."},
     {"--classes", "N", "Classes of the model (step); without it 1,000."},
     {"--steps", "N",
      "Steps (step, swarm) or batches (data) of one repeat; without it 3 (20 on a GPU), 50 or 16."},
     {"--repeats", "N", "How often each figure is measured; medians and quartiles are shown."},
     {"--warm-up", "N",
      "Steps of every node before the first repeat (swarm); without it 5. The period between two "
      "offers takes some 20 to settle."},
     {"--nodes", "N", "Nodes on this machine (swarm); without it 8."},
     {"--gossip", "on|off", "off: each node is a swarm of its own (swarm)."},
     {"--fault", "none|slow|stop|kill",
      "What happens to the last node (swarm): it runs a quarter of the time, and the others are "
      "measured; or it is stopped for 10 s or killed after them, and the first one's longest pause "
      "is shown."},
     {"--pin", "", "Node k stays on the k-th core (swarm)."},
     {"--finish", "", "Ends with the final consensus, and says how long that took (swarm)."}}};

constexpr std::size_t kAny = kMaxJoinAddresses;

constexpr std::array kVerbs{
    Verb{"demo", "", "Train with several nodes on this machine, to the final consensus.",
         KeyFlags::all, kDemoFlags, 0, 0, &verbs::demo},
    Verb{"chaos", "",
         "Train with several nodes on this machine, kill, stop, part, add and remove some, and "
         "tell what that did to the training of the others.",
         KeyFlags::all, kChaosFlags, 0, 0, &verbs::chaos},
    Verb{"run", "--data SPEC", "Run a node in the foreground.", KeyFlags::all, kRunFlags, 0, 0,
         &verbs::run},
    Verb{"status", "", "Show the running node; exit 0 when it is healthy, 1 otherwise.",
         KeyFlags::folder, kStatusFlags, 0, 0, &verbs::status},
    Verb{"top",
         "",
         "Watch the running node: a screen that goes on, for a terminal.",
         KeyFlags::folder,
         {},
         0,
         0,
         &verbs::top},
    Verb{"members", "", "List the members of the swarm as the running node sees them.",
         KeyFlags::folder, kJsonOnly, 0, 0, &verbs::members},
    Verb{"neighbours", "", "List the edges of the running node.", KeyFlags::folder, kJsonOnly, 0, 0,
         &verbs::neighbours},
    Verb{"join", "ADDR...", "Let the running node contact these addresses as well.",
         KeyFlags::folder, kJsonOnly, 1, kAny, &verbs::join},
    Verb{"leave", "", "Let the running node leave: last exchange, checkpoint, goodbye.",
         KeyFlags::folder, kLeaveFlags, 0, 0, &verbs::leave},
    Verb{"finish", "", "Ask the swarm for the final consensus now.", KeyFlags::folder, kFinishFlags,
         0, 0, &verbs::finish},
    Verb{"merge", "", "Average all replicas once, in the middle of the run.", KeyFlags::folder,
         kJsonOnly, 0, 0, &verbs::merge},
    Verb{"eval", "[MODEL.safetensors --data SPEC]",
         "Evaluate a model file on --data; without one, the running node's replica.", KeyFlags::all,
         kJsonOnly, 0, 1, &verbs::eval},
    Verb{"data", "scan|verify|pack --data SPEC",
         "Count the images of --data (scan), decode them all and name those that cannot be "
         "(verify), or pack them into one file (pack).",
         KeyFlags::all, kDataFlags, 1, 1, &verbs::data},
    Verb{"bench", "step|optim|codec|wire|round|swarm|data",
         "Measure one part of the program on this machine.", KeyFlags::all, kBenchFlags, 1, 1,
         &verbs::bench},
    Verb{"invite", "",
         "Print a one-time invite of the running node: what one new machine needs instead of the "
         "secret.",
         KeyFlags::folder, kInviteFlags, 0, 0, &verbs::invite},
    Verb{"id", "", "Print this node's id and name, as a line of peers.allow; makes the identity.",
         KeyFlags::folder, kJsonOnly, 0, 0, &verbs::id},
    Verb{"key",
         "new|show|rotate|promote|id|admin FILE|certify ID|revoke ID|SERIAL...|finish FINGERPRINT",
         "Make the swarm's secret, show which ones are accepted (never a secret), make the next "
         "one, let it take over; or, for a closed swarm, make an admin key, certify a node, take "
         "that back, and order the end of a run (its fingerprint is in `starling status`).",
         KeyFlags::all, kKeyFlags, 1, 65, &verbs::key},
    Verb{"log-level",
         "LEVEL",
         "Change how much the running node logs.",
         KeyFlags::folder,
         {},
         1,
         1,
         &verbs::log_level},
    Verb{"config", "show|default|check [FILE]",
         "Show the effective configuration or the defaults, or check what is configured: a file, "
         "--config, the environment and flags.",
         KeyFlags::all, kConfigFlags, 1, 2, &verbs::config},
    Verb{"completion",
         "bash",
         "Print a completion script: source <(starling completion bash).",
         KeyFlags::none,
         {},
         1,
         1,
         &verbs::completion},
    Verb{"version", "", "Print the versions of this program and of its libraries.", KeyFlags::none,
         kJsonOnly, 0, 0, &verbs::version},
    Verb{"help", "[VERB]", "Explain a verb and its flags.", KeyFlags::none, {}, 0, 1, &verbs::help},
};

}  // namespace

std::span<const Verb> all_verbs() { return kVerbs; }

std::string unknown_verb(std::string_view name) {
  std::array<std::string_view, kVerbs.size()> names;
  std::ranges::transform(kVerbs, names.begin(), &Verb::name);
  return fmt::format("unknown verb {}{}", escape_value(name.substr(0, 80)),
                     did_you_mean(name, names));
}

const Verb* find_verb(std::string_view name) {
  const auto found = std::ranges::find(kVerbs, name, &Verb::name);
  return found == kVerbs.end() ? nullptr : &*found;
}

int run_command_line(std::span<const std::string> words, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  if (const std::string wrong = fault::arm_from_environment(); !wrong.empty()) {
    terminal.err << "starling: " << wrong << '\n';
    return number_of(ExitCode::usage);
  }
  if (words.empty()) {
    terminal.err << help_text();
    return number_of(ExitCode::usage);
  }
  const auto& first = words.front();
  if (first == "--help" || first == "-h") {
    terminal.out << help_text();
    return number_of(ExitCode::good);
  }
  const auto* verb = find_verb(first == "--version" ? std::string_view("version") : first);
  if (verb == nullptr) {
    terminal.err << "starling: " << unknown_verb(first) << "\nsee `starling help`\n";
    return number_of(ExitCode::usage);
  }
  const auto rest = words.subspan(1);
  if (std::ranges::any_of(rest, [](const auto& w) { return w == "--help" || w == "-h"; })) {
    terminal.out << help_text(*verb);
    return number_of(ExitCode::good);
  }
  const auto arguments = parse_arguments(*verb, rest, surroundings);
  if (!arguments) {
    (void)report(verb->name, arguments.error(), terminal);
    // A configuration file that is missing is a wrong argument, not a broken machine.
    return number_of(ExitCode::usage);
  }
  for (const auto& notice : arguments->config.notices)
    terminal.err << "starling " << verb->name << ": " << printable(notice) << '\n';
  try {
    return verb->carry_out(*arguments, surroundings);
  } catch (...) {  // no memory, or a bug: there is no core to look at, but a code to restart by
    return report(verb->name, current_error(Doing::starting, Errc::internal), terminal);
  }
}

}  // namespace starling::node
