#include "node/training_settings.h"

#include "gossip/delta/codec.h"
#include "gossip/delta/format.h"
#include "node/config/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

namespace starling::node {

namespace {

// Above every run that anybody pays for, below what a counter of samples loses.
constexpr std::uint64_t kMaxBudget = std::uint64_t{1} << 50;
static_assert(kMaxDegree == gossip::kMaxDegree, "what can be set, the topology can give");
constexpr std::uint64_t kMaxBudgetSeconds = std::uint64_t{100} * 366 * 24 * 3600;

// In the order of gossip::consensus::Rule.
constexpr std::array<std::string_view, 3> kRules{"mean", "median", "trimmed"};
constexpr const char* kByAdmin = "admin";

gossip::consensus::Rule rule_of(FinishRule rule) {
  switch (rule) {
    case FinishRule::mean:
      return gossip::consensus::Rule::mean;
    case FinishRule::median:
      return gossip::consensus::Rule::median;
    case FinishRule::trimmed:
      return gossip::consensus::Rule::trimmed;
  }
  return gossip::consensus::Rule::mean;
}

// What is wrong with training this model on images of these sides; empty if nothing is.
std::string wrong_with(const std::vector<training::ImageStage>& stages,
                       const training::ModelSpec& model) {
  if (stages.empty()) return {};
  if (stages.back().side >= model.image_size)
    return fmt::format("trains on {} pixels a side, which is not below the model's own {}",
                       stages.back().side, model.image_size);
  training::ModelSpec smallest = model;
  smallest.image_size = stages.front().side;
  const auto plan = training::make_plan(smallest);
  return plan ? std::string() : plan.error().detail;
}

bool is_small_image(const training::ModelSpec& model) { return model.image_size <= 64; }

// Reads one key after the other and remembers the first that was wrong.
class Reader {
 public:
  explicit Reader(const SettingsText& text) : text_(text) {}

  std::string word(const std::string& key) {
    ++read_;
    const auto found = text_.find(key);
    if (found == text_.end()) return note(key, "is missing"), std::string();
    if (found->second.size() > 64) return note(key, "is too long"), std::string();
    return found->second;
  }
  std::uint64_t count(const std::string& key, std::uint64_t low, std::uint64_t high) {
    const auto value = parse_count(word(key), low, high);
    if (!value) note(key, "is not " + value.error());
    return value.value_or(low);
  }
  // 0 for "auto".
  std::uint32_t count_or_auto(const std::string& key, std::uint32_t high) {
    const auto found = text_.find(key);
    if (found == text_.end() || found->second != "auto")
      return static_cast<std::uint32_t>(count(key, 1, high));
    ++read_;
    return 0;
  }
  gossip::consensus::Rule rule(const std::string& key) {
    const std::string named = word(key);
    const auto found = std::ranges::find(kRules, named);
    // The mean is what a swarm has that says nothing.
    if (found == kRules.end() || found == kRules.begin()) {
      note(key, "is neither median nor trimmed");
      return gossip::consensus::Rule::mean;
    }
    return static_cast<gossip::consensus::Rule>(found - kRules.begin());
  }
  double number(const std::string& key, double low, double high) {
    const auto value = parse_number(word(key), low, high);
    if (!value) note(key, "is not " + value.error());
    return value.value_or(low);
  }
  std::vector<training::ImageStage> resize(const std::string& key) {
    const auto stages = parse_resize(word(key));
    // No stages is what a swarm has that says nothing.
    if (!stages || stages->empty()) note(key, "is no schedule of image sides");
    return stages.value_or(std::vector<training::ImageStage>());
  }
  std::optional<Hash> hash(const std::string& key) {
    const auto value = Hash::from_hex(word(key));
    if (!value) note(key, "is no hash of 64 hexadecimal digits");
    return value;
  }
  void same(const std::string& key, const std::string& ours) {
    const std::string theirs = word(key);
    if (theirs != ours) note(key, "is " + theirs + " there and can only be " + ours + " here");
  }
  void note(const std::string& key, const std::string& what) {
    if (wrong_.empty()) wrong_ = "setting " + key + " " + what;
  }
  [[nodiscard]] std::string wrong() const {
    if (!wrong_.empty() || read_ == text_.size()) return wrong_;
    return "settings with keys that this version does not know";
  }

 private:
  const SettingsText& text_;
  std::size_t read_ = 0;
  std::string wrong_;
};

std::uint64_t samples_of(double amount, double each) {
  return static_cast<std::uint64_t>(
      std::min(std::ceil(amount * each), static_cast<double>(kMaxBudget)));
}

gossip::Budget budget_of(const Until& until, std::uint32_t images, std::uint32_t batch) {
  switch (until.kind) {
    case Until::Kind::samples:
      return {.samples = samples_of(until.amount, 1)};
    case Until::Kind::epochs:
      return {.samples = samples_of(until.amount, images)};
    case Until::Kind::steps:
      return {.samples = samples_of(until.amount, batch)};
    case Until::Kind::time:
      return {.samples = 0, .time = until.time};
  }
  return {};
}

}  // namespace

bool operator==(const TrainingSettings& a, const TrainingSettings& b) {
  return to_text(a, Hash{}) == to_text(b, Hash{});
}

std::uint32_t batch_of(const Config& config, const training::ModelSpec& model) {
  return config.train.batch.value_or(is_small_image(model) ? 64 : 16);
}

Result<TrainingSettings> settings_of(const Config& config, const training::Dataset& train) {
  TrainingSettings made;
  made.model.name = config.train.model;
  made.model.classes = train.classes();
  made.model.class_names = training::names_of_classes(train);
  made.model.channels = train.channels();
  made.model.image_size =
      config.train.img.value_or(training::default_image_size(train.uniform_size()));
  // Nobody chose the default, which takes no images of this size: a node that is given only its
  // data and a peer takes the swarm's model anyway, and would end before it has met it.
  if (!config.forced("train.model") && !config.train.img && !training::make_plan(made.model))
    made.model.name = "small";
  const auto batch = batch_of(config, made.model);
  made.schedule.peak = config.train.lr.value_or(0.1 * std::min(1.0, batch / 64.0));
  made.schedule.warmup_share = config.train.warmup;
  made.optimizer.momentum = static_cast<float>(config.train.momentum);
  made.optimizer.weight_decay = static_cast<float>(config.train.weight_decay);
  made.label_smoothing = config.train.label_smoothing;
  made.resize = config.train.resize;
  made.seed = config.train.seed;
  made.degree = config.swarm.degree.value_or(0);
  made.budget = budget_of(config.train.until, train.size(), batch);
  made.extension = config.run.extend;
  made.rule = rule_of(config.finish.aggregator);
  made.finish_by = config.finish.by;
  // Settings say it in seconds: a part of one would be a run of another length, or without an end.
  if (made.budget.time % std::chrono::seconds(1) != Duration::zero())
    return fail(Errc::bad_config, Doing::reading_config,
                "train.until = " + show_until(config.train.until) +
                    " is not a number of whole seconds; a budget of time is at least one second, "
                    "such as time=1s, and has no part of another");
  if (made.budget.samples == 0 && made.budget.time <= Duration::zero())
    return fail(Errc::bad_config, Doing::reading_config,
                "train.until = " + show_until(config.train.until) +
                    " is a run of nothing; a run needs at least one sample or second");
  // A model that nobody has is told apart where it is made.
  if (training::make_plan(made.model)) {
    if (const auto wrong = wrong_with(made.resize, made.model); !wrong.empty())
      return fail(Errc::bad_config, Doing::reading_config,
                  fmt::format("train.resize = {} {}", show_resize(config.train.resize), wrong));
  }
  return made;
}

SettingsText to_text(const TrainingSettings& settings, const Hash& genesis) {
  SettingsText text{
      {"model", settings.model.name},
      {"classes", std::to_string(settings.model.classes)},
      {"channels", std::to_string(settings.model.channels)},
      {"img", std::to_string(settings.model.image_size)},
      {"lr", show_number(settings.schedule.peak)},
      {"warmup", show_number(settings.schedule.warmup_share)},
      {"momentum", show_number(static_cast<double>(settings.optimizer.momentum))},
      {"weight_decay", show_number(static_cast<double>(settings.optimizer.weight_decay))},
      {"label_smoothing", show_number(settings.label_smoothing)},
      {"seed", std::to_string(settings.seed)},
      {"degree", settings.degree == 0 ? "auto" : std::to_string(settings.degree)},
      {"budget_samples", std::to_string(settings.budget.samples)},
      {"budget_seconds",
       std::to_string(
           std::chrono::duration_cast<std::chrono::seconds>(settings.budget.time).count())},
      {"extend", std::to_string(settings.extension)},
      {"block", std::to_string(gossip::kBlock)},
      {"codec", std::to_string(gossip::kCodecVersion)},
      {"genesis", to_hex(genesis.view())},
  };
  // Only where there is one, so that swarms which never heard of it keep their fingerprint.
  if (settings.rule != gossip::consensus::Rule::mean)
    text.emplace("aggregator", kRules.at(static_cast<std::size_t>(settings.rule)));
  if (settings.finish_by == FinishBy::admin) text.emplace("finish_by", kByAdmin);
  if (settings.model.class_names)
    text.emplace("class_names", to_hex(settings.model.class_names->view()));
  if (!settings.resize.empty()) text.emplace("resize", show_resize(settings.resize));
  return text;
}

Result<TrainingSettings> parse_settings(const SettingsText& text) {
  Reader reader(text);
  TrainingSettings made;
  made.model.name = reader.word("model");
  made.model.classes = static_cast<std::int64_t>(reader.count("classes", 1, training::kMaxClasses));
  made.model.channels = static_cast<std::int64_t>(reader.count("channels", 1, 3));
  made.model.image_size = static_cast<std::int64_t>(reader.count("img", 8, 1024));
  made.schedule.peak = reader.number("lr", 0, 1e6);
  made.schedule.warmup_share = reader.number("warmup", 0, 1);
  made.optimizer.momentum = static_cast<float>(reader.number("momentum", 0, 1));
  made.optimizer.weight_decay = static_cast<float>(reader.number("weight_decay", 0, 1));
  made.label_smoothing = reader.number("label_smoothing", 0, 1);
  made.seed = reader.count("seed", 0, std::numeric_limits<std::uint64_t>::max());
  made.degree = reader.count_or_auto("degree", gossip::kMaxDegree);
  made.budget.samples = reader.count("budget_samples", 0, kMaxBudget);
  made.budget.time = std::chrono::seconds(reader.count("budget_seconds", 0, kMaxBudgetSeconds));
  if (made.budget.samples == 0 && made.budget.time == Duration::zero())
    reader.note("budget_samples", "is 0, and so is budget_seconds: that run would have no end");
  made.extension = static_cast<std::uint32_t>(reader.count("extend", 0, kMaxExtensions));
  reader.same("block", std::to_string(gossip::kBlock));
  reader.same("codec", std::to_string(gossip::kCodecVersion));
  (void)reader.word("genesis");
  if (text.contains("aggregator")) made.rule = reader.rule("aggregator");
  if (text.contains("finish_by")) {
    // Any member is what a swarm has that says nothing.
    if (reader.word("finish_by") != kByAdmin) reader.note("finish_by", "is not admin");
    made.finish_by = FinishBy::admin;
  }
  if (text.contains("class_names")) made.model.class_names = reader.hash("class_names");
  if (text.contains("resize")) made.resize = reader.resize("resize");
  if (!training::make_plan(made.model)) reader.note("model", "names no model that this node has");
  if (const auto wrong = wrong_with(made.resize, made.model); !wrong.empty())
    reader.note("resize", wrong);
  if (const std::string wrong = reader.wrong(); !wrong.empty())
    return fail(Errc::bad_message, Doing::joining, wrong);
  return made;
}

Result<void> check_classes(const training::ModelSpec& model, const training::Dataset& data,
                           Doing doing) {
  const auto names = training::names_of_classes(data);
  const auto count = static_cast<std::int64_t>(data.classes());
  const auto refuse = [&](std::string_view why) {
    return fail(Errc::data_failed, doing,
                fmt::format("the model is for {} classes, {} has {}{}", model.classes, data.name(),
                            data.classes(), why));
  };
  if (count > model.classes) return refuse("");
  if (names && model.class_names && *names != *model.class_names)
    return refuse(
        " and other names or another order of them, so that its labels would mean other classes; "
        "give it the same folders, an empty one for each class that it has no image of");
  if (names && !model.class_names && count < model.classes)
    return refuse(
        ", and which of them only numbers tell; give it a folder for each class, "
        "an empty one where it has no image");
  return {};
}

std::optional<NodeId> ends_by_order_of(const TrainingSettings& settings,
                                       const std::optional<transport::Membership>& membership) {
  if (settings.finish_by == FinishBy::any) return std::nullopt;
  return membership ? membership->admin : NodeId{};
}

Result<void> check_ends_by_order(const TrainingSettings& settings,
                                 const std::optional<transport::Membership>& membership,
                                 const NodeId& node, Doing doing) {
  if (settings.finish_by == FinishBy::any || membership) return {};
  return fail(Errc::bad_config, doing,
              fmt::format("only the admin ends this run (finish.by = admin), and without a "
                          "certificate this node does not know the admin: where the admin key is, "
                          "`starling key certify {} --admin-key FILE > member.cert` makes one; put "
                          "it into this node's folder (--dir) and start again",
                          to_hex(node.view())));
}

bool is_local(const Until& until) {
  return until.kind == Until::Kind::epochs || until.kind == Until::Kind::steps;
}

std::set<std::string> settings_by_hand(const Config& config) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kKeys{{
      {"swarm.degree", "degree"},
      {"train.model", "model"},
      {"train.img", "img"},
      {"train.resize", "resize"},
      {"train.lr", "lr"},
      {"train.warmup", "warmup"},
      {"train.momentum", "momentum"},
      {"train.weight_decay", "weight_decay"},
      {"train.label_smoothing", "label_smoothing"},
      {"train.seed", "seed"},
      {"train.until", "budget_samples"},
      {"run.extend", "extend"},
      {"finish.aggregator", "aggregator"},
      {"finish.by", "finish_by"},
  }};
  std::set<std::string> forced;
  if (config.swarm.adopt == Adopt::always) return forced;
  for (const auto& [key, setting] : kKeys)
    if (config.swarm.adopt == Adopt::never || config.forced(key))
      forced.insert(std::string(setting));
  if (forced.contains("budget_samples")) forced.insert("budget_seconds");
  return forced;
}

std::set<std::string> forced_settings(const Config& config) {
  std::set<std::string> forced = settings_by_hand(config);
  if (is_local(config.train.until) && config.swarm.adopt != Adopt::never) {
    forced.erase("budget_samples");
    forced.erase("budget_seconds");
  }
  return forced;
}

}  // namespace starling::node
