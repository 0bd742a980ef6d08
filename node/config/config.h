// Config: everything that a person can choose about this node, one struct per part of the program.
//
// What each key means, its unit and what raising it costs is written once, in the table of
// config/keys.cc, from which --help, `starling config` and the names of environment variables come.
// The defaults below are the only ones; an empty optional means "chosen by the program".
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "training/schedule.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

enum class Ui : std::uint8_t { automatic, tui, plain, json, none };
enum class SwarmMode : std::uint8_t { secret, open, closed };
enum class Adopt : std::uint8_t { automatic, always, never };
enum class Precision : std::uint8_t { automatic, fp32, bf16 };
enum class Codec : std::uint8_t { automatic, l0, l1, l2, l3, l4, l5, l6, none };
enum class DataPartition : std::uint8_t { none, members };
// What the increments of neighbours become, and how the final consensus makes one model of all.
enum class ExchangeRule : std::uint8_t { mean, clip, median, trimmed };
enum class FinishRule : std::uint8_t { mean, median, trimmed };
// Who may end the run by command.
enum class FinishBy : std::uint8_t { any, admin };
// What a node evaluates while it trains.
enum class EvalOf : std::uint8_t { replica, neighbourhood };
enum class AfterFinish : std::uint8_t { exit, serve };
enum class LogFormat : std::uint8_t { automatic, text, json };
enum class Colour : std::uint8_t { automatic, never };

// When a run ends (rulings 24). Epochs and steps become samples of the swarm at the node that makes
// the swarm, which knows its data and its batch.
struct Until {
  enum class Kind : std::uint8_t { samples, epochs, steps, time };
  Kind kind = Kind::epochs;
  double amount = 18;  // samples, epochs or steps; a whole number except for epochs
  Duration time{0};    // for Kind::time
  friend bool operator==(const Until&, const Until&) = default;
};

struct NodeConfig {
  std::string dir;                       // never empty after loading
  std::string name;                      // empty: two words from the public key
  std::optional<std::uint32_t> threads;  // compute threads
  Ui ui = Ui::automatic;
};

struct NetConfig {
  std::string listen = "[::]:7700";
  std::vector<std::string> advertise;  // empty: what the sockets say
  std::vector<std::string> peers;
  std::uint32_t require_peers = 0;
  Duration join_timeout = std::chrono::minutes(5);
  Duration join_grace = std::chrono::seconds(10);
  std::uint32_t handshake_rate = 20;
  bool bbr = true;
};

inline constexpr std::uint32_t kMaxDegree = 16;

struct SwarmConfig {
  SwarmMode mode = SwarmMode::secret;
  std::string name = "starling";  // decides the swarm in open mode only
  std::string secret_file;  // empty: DIR/secret, made where it is missing and there is no invite
  Duration secret_overlap = std::chrono::hours(24);
  std::string invite;
  std::optional<std::uint32_t> degree;
  Adopt adopt = Adopt::automatic;
};

struct TrainConfig {
  std::string model = "resnet50";
  std::optional<std::uint32_t> img;
  std::vector<training::ImageStage> resize;
  std::optional<std::uint32_t> batch;
  Precision precision = Precision::automatic;
  std::optional<double> lr;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double warmup = 0.05;
  double label_smoothing = 0.1;
  std::string device = "auto";
  Until until;
  std::uint64_t seed = 1;
};

struct GossipConfig {
  Codec codec = Codec::automatic;
  std::optional<std::uint32_t> tau;
  ExchangeRule aggregator = ExchangeRule::mean;
  std::optional<std::uint32_t> max_rate_ratio;
};

struct DataConfig {
  std::string train;
  std::string val;
  DataPartition partition = DataPartition::none;
  std::uint64_t max_bad = 1'000;
  std::optional<std::uint32_t> threads;
};

struct HttpConfig {
  std::string listen = "127.0.0.1:7780";  // or "off"
  bool exposed = false;
  std::string token_file;
  Duration train_limit = std::chrono::minutes(10);
};

struct LogConfig {
  LogLevel level = LogLevel::info;
  LogFormat format = LogFormat::automatic;
  Colour color = Colour::automatic;
  std::uint32_t per_event = 60;
};

inline constexpr std::uint32_t kMaxExtensions = 1'000;

struct RunConfig {
  std::uint32_t extend = 0;
};

struct FinishConfig {
  Duration linger = std::chrono::seconds(30);
  AfterFinish then = AfterFinish::exit;
  FinishRule aggregator = FinishRule::mean;
  FinishBy by = FinishBy::any;
};

struct LeaveConfig {
  Duration timeout = std::chrono::seconds(8);
};

struct EvalConfig {
  Duration every = std::chrono::minutes(5);
  EvalOf of = EvalOf::neighbourhood;
  double share = 0.1;
};

struct CheckpointConfig {
  Duration every = std::chrono::minutes(10);
  std::uint32_t keep = 3;
};

struct DebugConfig {
  std::optional<std::uint64_t> seed;
};

// Where a value came from; later layers win.
enum class Layer : std::uint8_t { fallback, file, environment, flag };

struct Origin {
  Layer layer = Layer::fallback;
  std::string where;  // "default", "starling.toml:7:3", "env STARLING_NET__LISTEN", "--listen"
  std::vector<std::string> shadows;  // weaker places that also set the key, strongest first
};

// The effective configuration of one process.
//
// A value: made once by load_config(), then read only; any thread. Owned by the node. Holds this
// node's choices, never the swarm's: what the swarm decided is in the settings.
struct Config {
  NodeConfig node;
  NetConfig net;
  SwarmConfig swarm;
  TrainConfig train;
  GossipConfig gossip;
  DataConfig data;
  HttpConfig http;
  LogConfig log;
  RunConfig run;
  FinishConfig finish;
  LeaveConfig leave;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  DebugConfig debug;

  // By key; a key that is not in the map has its default.
  std::map<std::string, Origin, std::less<>> origins;
  // What the person should know but what stops nothing ("STARLING_X__Y means nothing here").
  std::vector<std::string> notices;

  // Whether a person set this key (rulings 23): such settings are never adopted from a swarm.
  [[nodiscard]] bool forced(std::string_view key) const { return origins.contains(key); }
};

}  // namespace starling::node
