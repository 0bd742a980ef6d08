// `starling data`: what a data set holds, whether all of it can be read, and packing it.
#include "node/base/cores.h"
#include "node/base/mutex.h"
#include "node/cli/arguments.h"
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/log_backend.h"
#include "node/printable.h"
#include "training/data/decode.h"
#include "training/data/pack.h"
#include "training/data/side_threads.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <new>
#include <ostream>
#include <system_error>
#include <utility>
#include <vector>

namespace starling::node {

namespace {

using Json = nlohmann::json;
using training::Dataset;
using training::DataSets;

// Samples of one label, and the rest that `scan` tells of a part.
struct Counts {
  std::vector<std::uint64_t> of_class;
  std::uint64_t bytes = 0;
  std::vector<std::string> bad;  // name and reason
};

enum class Depth : std::uint8_t {
  read,    // the bytes are there
  decode,  // and make an image
};

// How often a long piece of work says how far it has come.
constexpr std::uint64_t kTold = 20;

// Looks at every sample, on all cores. Throws std::bad_alloc where one thread of them had no
// memory: nothing above a thread would catch it.
Counts look_at(const Dataset& set, Depth depth,
               const std::function<void(std::uint64_t)>& on_progress) {
  Counts counts;
  counts.of_class.resize(set.classes());
  std::map<std::uint32_t, std::string> bad;  // in order, whichever thread found it
  Mutex mutex;
  std::atomic<std::uint32_t> next = 0;
  std::atomic<bool> no_memory = false;
  const auto every = std::max<std::uint32_t>(1'000, set.size() / kTold);
  const auto look_at_all = [&] {
    training::Sample sample;
    training::Decoder decoder;
    training::Image image;
    for (std::uint32_t i = next++; i < set.size() && !no_memory; i = next++) {
      auto done = set.read(i, sample);
      if (done && depth == Depth::decode && !sample.raw)
        done = decoder.decode(sample.bytes, 1, image);
      const MutexLock lock(mutex);
      if (done) {
        ++counts.of_class[static_cast<std::size_t>(sample.label)];
        counts.bytes += sample.bytes.size();
      } else {
        bad.emplace(i, set.sample_name(i) + ": " + done.error().detail);
      }
      if ((i + 1) % every == 0) on_progress(i + 1);
    }
  };
  const auto look = [&](std::size_t) {
    try {
      look_at_all();
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
  };
  training::run_beside(static_cast<std::size_t>(usable_cores()), look);
  if (no_memory) throw std::bad_alloc();
  for (auto& [index, what] : bad) counts.bad.push_back(std::move(what));
  return counts;
}

// Names of files need not be UTF-8, keys must be, and no two may become one: bytes that are none
// are written as \xNN, and a name that is taken gets its class's number behind it.
std::string key_of_class(const Json& classes, const std::string& name, std::size_t number) {
  std::string key = valid_utf8(name) == name ? name : printable(name);
  while (classes.contains(key)) key += fmt::format(" ({})", number);
  return key;
}

Json json_of(const Dataset& set, Depth depth, const Counts& counts) {
  Json classes = Json::object();
  for (std::size_t c = 0; c < counts.of_class.size(); ++c)
    classes[key_of_class(classes, set.class_names()[c], c)] = counts.of_class[c];
  return {{"name", set.name()},
          {"images", set.size()},
          {"classes", std::move(classes)},
          {"bytes", counts.bytes},
          {"bad", counts.bad},
          {"decoded", depth == Depth::decode},
          {"channels", set.channels()},
          {"id", to_hex(set.id().view())}};
}

// Bytes that were only read may still be no image.
std::string verdict(Depth depth, std::size_t bad) {
  if (depth == Depth::decode) return fmt::format("{} unreadable", bad);
  return fmt::format("{}not decoded (`starling data verify` does that)",
                     bad > 0 ? fmt::format("{} unreadable, the others ", bad) : "");
}

void print(const Dataset& set, Depth depth, const Counts& counts, std::ostream& out) {
  out << fmt::format("{}: {} images, {} classes, {:.1f} MB, {}\n", printable(set.name()),
                     set.size(), set.classes(), static_cast<double>(counts.bytes) / 1e6,
                     verdict(depth, counts.bad.size()));
  for (std::size_t c = 0; c < counts.of_class.size(); ++c)
    out << fmt::format("  {:>9}  {}\n", counts.of_class[c], printable(set.class_names()[c]));
  for (const std::string& what : counts.bad) out << "  unreadable: " << printable(what) << '\n';
}

// scan and verify. Exit code data where an image is unreadable and that was asked.
Result<ExitCode> examine(const DataSets& sets, Depth depth, const Arguments& arguments,
                         const Terminal& terminal) {
  Json parts = Json::array();
  bool bad = false;
  for (const Dataset* set : {sets.train.get(), sets.val.get()}) {
    if (set == nullptr) continue;
    const Counts counts = look_at(*set, depth, [&](std::uint64_t done) {
      terminal.err << fmt::format("{}: {} of {}\n", printable(set->name()), done, set->size())
                   << std::flush;
    });
    bad = bad || !counts.bad.empty();
    if (arguments.has("--json"))
      parts.push_back(json_of(*set, depth, counts));
    else
      print(*set, depth, counts, terminal.out);
  }
  if (arguments.has("--json"))
    terminal.out << json_text({{"schema", 1}, {"parts", std::move(parts)}}) << '\n';
  return bad && depth == Depth::decode ? ExitCode::data : ExitCode::good;
}

Result<training::PackOptions> pack_options(const Arguments& arguments) {
  training::PackOptions options;
  if (const auto form = arguments.given.find("--form"); form != arguments.given.end()) {
    if (form->second == "raw")
      options.form = training::PackedForm::raw;
    else if (form->second != "jpeg")
      return fail(Errc::bad_argument, Doing::parsing_arguments,
                  fmt::format("--form is jpeg or raw, not '{}'", printable(form->second)));
  }
  TRY(const auto side, count_of(arguments, {"--side", options.side, 0, training::kMaxPackSide}));
  TRY(const auto quality, count_of(arguments, {"--quality", 90, 1, 100}));
  options.side = static_cast<std::uint32_t>(side);
  options.quality = static_cast<int>(quality);
  options.threads = static_cast<unsigned>(usable_cores());
  options.max_bad =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(arguments.config.data.max_bad, ~0U));
  return options;
}

// What can be said before the data is opened: that takes minutes, and packing it hours.
Result<void> check_flags(const std::string& what, const Arguments& arguments) {
  const auto wrong = [](std::string detail) {
    return fail(Errc::bad_argument, Doing::parsing_arguments, std::move(detail));
  };
  if (what != "pack") {
    for (const auto& [flag, value] : arguments.given)
      if (flag != "--json")
        return wrong(
            fmt::format("{} belongs to: data pack; data {} does not look at it", flag, what));
    return {};
  }
  const auto file = arguments.given.find("--out");
  if (file == arguments.given.end() || file->second.empty())
    return wrong("needs --out FILE: what to write");
  // The packed file takes the place of what has its name, which a folder or a device is not for.
  std::error_code ignored;
  const auto there = std::filesystem::status(file->second, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    return wrong(
        fmt::format("--out {} is there already and is no file that can be replaced: name "
                    "a new one",
                    printable(file->second)));
  return {};
}

Result<ExitCode> pack(const DataSets& sets, const Arguments& arguments, const Terminal& terminal) {
  const auto file = arguments.given.find("--out");
  TRY(const auto options, pack_options(arguments));
  std::uint64_t told = 0;
  const auto on_progress = [&](const training::PackProgress& progress) {
    const auto part = kTold * progress.done / std::max<std::uint64_t>(1, progress.all);
    if (std::exchange(told, part) == part) return;
    terminal.err << fmt::format("{} of {} images, {:.1f} MB\n", progress.done, progress.all,
                                static_cast<double>(progress.bytes) / 1e6)
                 << std::flush;
  };
  TRY(const auto report,
      training::pack(sets, arguments.config.data.train, options, file->second, on_progress));
  for (const std::string& what : report.left_out)
    terminal.err << "left out: " << printable(what) << '\n';
  if (arguments.has("--json"))
    terminal.out << json_text({{"schema", 1},
                               {"file", file->second},
                               {"train", report.train},
                               {"val", report.val},
                               {"bytes", report.bytes},
                               {"left_out", report.left_out}})
                 << '\n';
  else
    terminal.out << fmt::format(
        "{}: {} images for training, {} for validation, {:.1f} MB, {} left out\n"
        "    starling run --data packed:{}\n",
        printable(file->second), report.train, report.val, static_cast<double>(report.bytes) / 1e6,
        report.left_out.size(), printable(file->second));
  return ExitCode::good;
}

Result<ExitCode> carry_out(const Arguments& arguments, const Terminal& terminal, Log& log) {
  const std::string& what = arguments.words.front();
  constexpr std::array<std::string_view, 3> kWords{"scan", "verify", "pack"};
  TRY_VOID(check_word(what, kWords));
  if (arguments.config.data.train.empty())
    return fail(Errc::bad_argument, Doing::parsing_arguments, "needs --data SPEC");
  TRY_VOID(check_flags(what, arguments));
  const Config& config = arguments.config;
  TRY(const DataSets sets, training::open_data(config.data.train, config.data.val, log));
  if (what == "pack") return pack(sets, arguments, terminal);
  return examine(sets, what == "verify" ? Depth::decode : Depth::read, arguments, terminal);
}

}  // namespace

int data_verb(const Arguments& arguments, const Terminal& terminal) {
  const SteadyClock clock;
  LogBackend log(log_options(arguments.config, terminal), clock, terminal.err);
  const auto code = carry_out(arguments, terminal, log);
  if (code) return number_of(*code);
  terminal.err << "starling data: " << printable(to_string(code.error())) << '\n';
  return number_of(exit_code_of(code.error().code));
}

}  // namespace starling::node
