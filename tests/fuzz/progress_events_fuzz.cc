// A sequence of events for the Progress of one node. Inputs that begin with an even byte are of
// anything that files, sponsors and members may say: P never falls within one run, counts nothing
// that nobody said of it, and own samples and ages are kept to the last one over restarts. Others
// are of a swarm in which one of four lies, also as the sponsor of another one: it adds to P what
// the factor allows and no more, ages nobody's run, and holds nobody's samples down.
#include "gossip/membership/progress.h"
#include "node/base/check.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace starling;
using namespace starling::gossip;
using namespace std::chrono_literals;
using consensus::testing::node_id;

constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 62;
constexpr Duration kCentury = 100 * 365 * 24h;
constexpr TimePoint kStart = TimePoint{} + 1000h;

Hash settings_of(std::uint8_t number) {
  Hash hash;
  hash.bytes[0] = std::byte{number};
  return hash;
}

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return std::min(std::min(a, kMostSamples) + std::min(b, kMostSamples), kMostSamples);
}

class Input {
 public:
  explicit Input(ByteView bytes) : bytes_(bytes) {}
  [[nodiscard]] bool more() const { return bytes_.left() > 0; }
  std::uint8_t byte() { return bytes_.read<std::uint8_t>().value_or(0); }
  // Small ones meet what is held, the rest is far away, up to the last.
  std::uint64_t number() {
    const std::uint8_t value = byte();
    if (value < 160) return value * 10U;
    if (value < 255) return (std::uint64_t{1} << (value % 64)) + byte();
    return ~std::uint64_t{0};
  }
  // Of a run: nothing to far beyond a century.
  Duration age() {
    const std::uint8_t value = byte();
    if (value < 200) return std::chrono::seconds(value * 20U);
    if (value < 250) return Duration(std::int64_t{1} << (value % 62));
    return value % 2 == 0 ? Duration::max() : Duration(-value);
  }

 private:
  ByteReader bytes_;
};

std::uint64_t in_ms(Duration age) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(age / 1ms, 0));
}

// Anything may be said to this one by anybody, its own file included.
class Anything {
 public:
  explicit Anything(Input& input) : input_(input), node_(node_id(0), options()) {}

  void run() {
    for (int events = 0; events < 300 && input_.more(); ++events) {
      event();
      check();
    }
  }

 private:
  static constexpr std::size_t kMostIds = 8;
  static constexpr std::uint64_t kIds = 12;  // more than there is room for

  static ProgressOptions options() {
    ProgressOptions options;
    options.max_ids = kMostIds;
    return options;
  }
  NodeId any() { return node_id(input_.byte() % kIds); }
  Hash settings() { return settings_of(input_.byte() % 3); }

  void event() {
    switch (input_.byte() % 16) {
      case 0:
      case 1:
        now_ += 1ms * (1 << (input_.byte() % 25));
        return;
      case 2:
        return train();
      case 3:
        return node_.set_members(now_, input_.byte() % 32 == 0 ? 100'000 : input_.byte() % 6);
      case 4:
        return hear_file();
      case 5:
        return hear_sponsor();
      case 6:
        return begin(settings());
      case 7: {
        const NodeId id = any();
        return node_.on_settings(now_, id, settings());
      }
      case 8:
        return node_.on_departed(now_, any());
      case 9:
        return say();
      case 10:
        return restart();
      default:
        return hear();
    }
  }

  void train() {
    word_ += std::uint64_t{input_.byte()} << (input_.byte() % 40);
    own_ = last_word_ ? plus(own_, word_ - *last_word_)
                      : std::max(own_, std::min(word_, kMostSamples));
    last_word_ = word_;
    node_.on_local_samples(now_, word_);
  }

  std::vector<SavedCounter> counters() {
    std::vector<SavedCounter> counters;
    for (int left = input_.byte() % 4; left > 0; --left) {
      const NodeId id = any();
      counters.push_back({id, input_.number()});
    }
    return counters;
  }
  void told(const SavedCounter& counter) {
    auto& most = told_[counter.id];
    most = std::max(most, std::min(counter.samples, kMostSamples));
  }

  void hear_file() {
    const auto said = counters();
    for (const auto& counter : said) {
      told(counter);
      if (counter.id == node_id(0)) own_ = std::max(own_, std::min(counter.samples, kMostSamples));
    }
    node_.merge(now_, said);
    // What a file holds is bounded by who reads it.
    const Duration age = std::min(input_.age(), 2 * kCentury);
    asked_ = now_;
    node_.merge_age(now_, age);
    genesis_ = std::min(genesis_, now_ - std::max(age, Duration{0}));
  }

  void hear_sponsor() {
    auto said = counters();
    const Duration age = input_.age();
    node_.merge_of_sponsor(now_, said, age);
    asked_ = now_;
    sponsors_ = std::min(sponsors_, now_ - std::clamp(age, Duration{0}, kCentury));
    for (const auto& counter : said) told(counter);
  }

  void begin(const Hash& settings) {
    node_.set_settings(now_, settings);
    if (settings == settings_) return;
    if (!settings_.is_zero()) {
      told_.clear();
      genesis_ = now_;
      sponsors_ = kNever;
    }
    settings_ = settings;
    asked_ = now_;
    least_ = 0;
    counted_.clear();
  }

  void hear() {
    ProgressReport report;
    report.id = any();
    report.samples = input_.number();
    report.rate_millisamples = input_.number();
    report.run_age_ms = input_.byte() % 4 == 0 ? ~std::uint64_t{0} : in_ms(input_.age());
    const bool news = node_.is_news(report);
    const bool own = report.id == node_id(0);
    const auto taken = node_.on_report(now_, report, settings());
    STARLING_CHECK((taken == Progress::News::fresh) == (news && !own));
    if (!own) STARLING_CHECK(!node_.is_news(report));
    const std::uint64_t samples = std::min(report.samples, kMostSamples);
    if (own) own_ = std::max(own_, samples);
    if (taken != Progress::News::fresh) return;
    STARLING_CHECK(*node_.report_of(report.id) == report);
    auto& most = reported_[report.id];
    most = std::max(most, samples);
    const auto age = std::chrono::milliseconds(std::min(report.run_age_ms, in_ms(kCentury)));
    claimed_ = std::min(claimed_, now_ - age);
  }

  void say() {
    const auto report = node_.take_due_report(now_, {1});
    if (!report) return;
    STARLING_CHECK(report->id == node_id(0));
    STARLING_CHECK_OP(report->samples, ==, own_);
    STARLING_CHECK_OP(report->run_age_ms, ==, in_ms(node_.own_age(now_)));
    if (said_) STARLING_CHECK(now_ - *said_ >= 1s);
    said_ = now_;
  }

  // A process that begins with what the one before kept.
  void restart() {
    const auto saved = node_.saved();
    const Duration age = node_.run_age(now_);
    const Duration own = node_.own_age(now_);
    const Duration sponsors = node_.sponsors_age(now_);
    node_ = Progress(node_id(0), options());
    said_.reset();
    asked_ = now_;
    node_.merge(now_, saved);
    node_.merge_age(now_, own);
    node_.merge_of_sponsor(now_, {}, sponsors);
    // No sponsor is believed more than a century.
    STARLING_CHECK(node_.run_age(now_) == age || age > kCentury);
    STARLING_CHECK(node_.saved() == saved);
    node_.set_settings(now_, settings_);
    genesis_ = now_ - own;
    sponsors_ = now_ - std::min(sponsors, kCentury);
    claimed_ = kNever;
    reported_.clear();
    told_.clear();
    for (const auto& counter : saved) told(counter);
    least_ = 0;
    last_word_.reset();
    word_ = own_;
  }

  void check() {
    STARLING_CHECK_OP(node_.own_samples(), ==, own_);
    const auto saved = node_.saved();
    STARLING_CHECK(saved.size() <= kMostIds + 1);
    std::uint64_t sum = 0;
    for (std::size_t k = 0; k < saved.size(); ++k) {
      const auto& [id, samples] = saved[k];
      STARLING_CHECK(k == 0 || saved[k - 1].id < id);
      STARLING_CHECK_OP(samples, ==, node_.samples_of(id));
      sum = plus(sum, samples);
      if (id == node_id(0)) continue;
      STARLING_CHECK_OP(samples, <=, std::max(told_[id], reported_[id]));
      STARLING_CHECK_OP(samples, >=, counted_[id]);
      counted_[id] = samples;
    }
    // Whoever made room for another begins anew.
    std::erase_if(counted_, [&](const auto& item) { return node_.samples_of(item.first) == 0; });
    const std::uint64_t total = node_.total(now_);
    STARLING_CHECK_OP(total, >=, least_);
    STARLING_CHECK_OP(total, <=, kMostSamples);
    // Asked twice within 100 ms it may say the same.
    if (!asked_ || now_ - *asked_ >= 100ms) {
      STARLING_CHECK_OP(total, >=, sum);
      asked_ = now_;
    }
    least_ = total;
    check_ages();
    const double rate = node_.rate(now_);
    STARLING_CHECK(rate >= 0 && std::isfinite(rate));
    STARLING_CHECK(node_.rate(now_ + 1h) <= rate);
    STARLING_CHECK(node_.report_interval() >= 1s);
  }

  void check_ages() {
    const Duration age = node_.run_age(now_);
    const Duration own = node_.own_age(now_);
    STARLING_CHECK(node_.sponsors_age(now_) == now_ - std::min(sponsors_, now_));
    STARLING_CHECK(own >= Duration{0} && age >= own && age >= node_.sponsors_age(now_));
    if (genesis_ != kNever) STARLING_CHECK(own >= now_ - genesis_);
    STARLING_CHECK(own <= now_ - std::min({genesis_, claimed_, now_}));
    STARLING_CHECK(age <= now_ - std::min({genesis_, claimed_, sponsors_, now_}));
  }

  Input& input_;
  TimePoint now_ = kStart;
  Progress node_;
  Hash settings_;
  std::uint64_t own_ = 0;
  std::uint64_t word_ = 0;  // what the process says of itself, the checkpoint's own included
  std::optional<std::uint64_t> last_word_;
  TimePoint genesis_ = kNever;                // as files said
  TimePoint sponsors_ = kNever;               // as sponsors said
  TimePoint claimed_ = kNever;                // as reports said
  std::map<NodeId, std::uint64_t> told_;      // by files and sponsors, of this run
  std::map<NodeId, std::uint64_t> reported_;  // by its author, who brings it along from run to run
  std::map<NodeId, std::uint64_t> counted_;
  std::uint64_t least_ = 0;
  std::optional<TimePoint> asked_;
  std::optional<TimePoint> said_;
};

// Nodes 0 to 2 train at a rate of their own each, and the fourth says anything. Node 0 is looked
// at; node 2 has the liar for its sponsor.
class OneLiar {
 public:
  explicit OneLiar(Input& input)
      : input_(input), age_(std::chrono::seconds(input.byte() * 60U)), node_(node_id(0)) {
    for (auto& rate : rates_) rate = 100U + input_.byte() % 64U;
    // The run began elsewhere, and whoever gave this node the model knows of it.
    const std::uint64_t earlier = truth(1);
    if (input_.byte() % 2 == 0) {
      node_.merge(now_, {{node_id(1), earlier}});
      node_.merge_age(now_, age_);
    } else {
      node_.merge_age(now_, Duration{0});
      node_.merge_of_sponsor(now_, {{node_id(1), earlier}}, age_);
    }
    known_settings_ = input_.byte() % 2 == 0;
    for (auto* const one : {&node_, &joiner_}) {
      if (known_settings_) one->set_settings(now_, ours());
      one->on_local_samples(now_, 0);
      one->set_members(now_, kMembers);
    }
    joiner_.merge_age(now_, Duration{0});
    joiner_.merge_of_sponsor(now_, {{node_id(2), kMostSamples}, {node_id(1), input_.number()}},
                             input_.age());
  }

  void run() {
    for (int events = 0; events < 300 && input_.more(); ++events) {
      event();
      check();
    }
  }

 private:
  static constexpr std::size_t kMembers = 4;
  static constexpr std::uint64_t kMostRate = 165;  // measured in whole samples, so a little more
  static constexpr std::uint64_t kFactor = 16;

  static Hash ours() { return settings_of(1); }

  // Samples that this one has processed by now.
  [[nodiscard]] std::uint64_t truth(std::size_t node) const {
    const double since = seconds(now_ - kStart) + (node == 1 ? seconds(age_) : 0);
    return static_cast<std::uint64_t>(static_cast<double>(rates_[node]) * since);
  }
  [[nodiscard]] Duration true_age() const { return age_ + (now_ - kStart); }

  void event() {
    switch (input_.byte() % 12) {
      case 0:
      case 1:
      case 2:
        return pass();
      case 3:
        return hear_first();
      case 4:
        return hear_joiner();
      case 5:
        return node_.on_settings(now_, node_id(3), settings_of(input_.byte() % 3));
      case 6: {
        const std::size_t gone = 1 + input_.byte() % 3;
        sound_[gone] = false;
        return node_.on_departed(now_, node_id(gone));
      }
      case 7:
        return input_.byte() % 4 == 0 ? restart() : void();
      default:
        return lie();
    }
  }

  // Each node says at once what it has done, as one that trains does after every step.
  void pass() {
    now_ += 1ms * (1 << (input_.byte() % 15));
    node_.on_local_samples(now_, truth(0));
    node_.set_members(now_, kMembers);
    joiner_.on_local_samples(now_, truth(2));
    joiner_.set_members(now_, kMembers);
    if (now_ - began_ >= 1s) compared_ = true;
  }

  ProgressReport report_of_first() const {
    ProgressReport report;
    report.id = node_id(1);
    report.samples = truth(1);
    report.rate_millisamples = rates_[1] * 1000;
    report.run_age_ms = in_ms(true_age());
    return report;
  }

  void hear_first() {
    const auto report = report_of_first();
    joiner_.on_report(now_, report, ours());
    take(1, report);
  }

  void hear_joiner() {
    const auto report = joiner_.take_due_report(now_, {1});
    if (report) take(2, *report);
  }

  // Once all of it was counted, all of it is counted whatever the liar says.
  void take(std::size_t node, const ProgressReport& report) {
    STARLING_CHECK_OP(report.samples, <=, truth(node));
    STARLING_CHECK_OP(report.run_age_ms, <=, in_ms(true_age()));
    const bool counts = sound_[node] && compared_;
    if (node_.on_report(now_, report, ours()) != Progress::News::fresh) return;
    const std::uint64_t counted = node_.samples_of(node_id(node));
    if (counts) STARLING_CHECK_OP(counted, ==, report.samples);
    sound_[node] = compared_ && counted == report.samples;
    least_[node] = counted;
  }

  void lie() {
    ProgressReport report;
    report.id = node_id(3);
    report.samples = input_.number();
    report.rate_millisamples = input_.number();
    report.run_age_ms = input_.byte() % 4 == 0 ? ~std::uint64_t{0} : in_ms(input_.age());
    const Hash settings = settings_of(input_.byte() % 3);
    node_.on_report(now_, report, settings);
    if (input_.byte() % 4 != 0) joiner_.on_report(now_, report, settings);
  }

  void restart() {
    const auto saved = node_.saved();
    const Duration own = node_.own_age(now_);
    const Duration sponsors = node_.sponsors_age(now_);
    node_ = Progress(node_id(0));
    node_.merge(now_, saved);
    node_.merge_age(now_, own);
    node_.merge_of_sponsor(now_, {}, sponsors);
    node_.set_settings(now_, ours());
    node_.on_local_samples(now_, truth(0));
    node_.set_members(now_, kMembers);
    began_ = now_;
    compared_ = false;
    sound_ = {};
    least_total_ = 0;
  }

  void check() {
    STARLING_CHECK(node_.run_age(now_) <= true_age());
    STARLING_CHECK(node_.run_age(now_) >= true_age());
    const std::uint64_t honest = truth(0) + truth(1) + truth(2);
    const auto longest = static_cast<std::uint64_t>(seconds(true_age())) + 2;
    const std::uint64_t lied = kFactor * kMostRate * longest;
    STARLING_CHECK_OP(node_.samples_of(node_id(3)), <=, lied);
    const std::uint64_t total = node_.total(now_);
    STARLING_CHECK_OP(total, >=, least_total_);
    // What is not reported yet is made of rates, for two intervals.
    STARLING_CHECK_OP(total, <=, honest + lied + 2 * kFactor * kMostRate);
    least_total_ = total;
    for (std::size_t node = 1; node <= 2; ++node)
      STARLING_CHECK_OP(node_.samples_of(node_id(node)), >=, least_[node]);
    STARLING_CHECK(node_.rate(now_) <= static_cast<double>((kFactor + 3) * kMostRate));
  }

  Input& input_;
  TimePoint now_ = kStart;
  Duration age_;  // of the run when this node came to it
  std::array<std::uint64_t, 3> rates_{};
  Progress node_;
  Progress joiner_{node_id(2)};
  bool known_settings_ = false;
  TimePoint began_ = kStart;     // this process
  bool compared_ = false;        // its own rate is known
  std::array<bool, 4> sound_{};  // all that it said the last time was counted
  std::array<std::uint64_t, 4> least_{};
  std::uint64_t least_total_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(ByteView(reinterpret_cast<const std::byte*>(data), size));
  if (input.byte() % 2 == 0)
    Anything(input).run();
  else
    OneLiar(input).run();
  return 0;
}
