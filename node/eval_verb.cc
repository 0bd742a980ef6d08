// `starling eval`: how good a model file is on a data set.
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/log_backend.h"
#include "node/options.h"
#include "node/printable.h"
#include "node/training_settings.h"
#include "training/data/dataset.h"
#include "training/data/spec.h"
#include "training/evaluate.h"
#include "training/model_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace starling::node {

namespace {

struct Measured {
  training::ModelSpec model;
  std::string data;
  training::EvaluationReport report;
};

// A file says which model it is. What a flag says of it must be the same; what a container says to
// every verb is for the node.
Result<void> check_named(const Config& config, const std::filesystem::path& file,
                         const training::ModelSpec& model) {
  const auto is_flag = [&](std::string_view key) {
    const auto origin = config.origins.find(key);
    return origin != config.origins.end() && origin->second.layer == Layer::flag;
  };
  const auto differs = [&](std::string_view key, const std::string& named,
                           const std::string& held) {
    return fail(
        Errc::bad_config, Doing::evaluating,
        fmt::format("{} = {} ({}), and {} holds {}: leave it out, a file is evaluated as "
                    "what it is",
                    key, named, config.origins.find(key)->second.where, file.string(), held));
  };
  if (is_flag("train.model") && config.train.model != model.name)
    return differs("train.model", config.train.model, "a " + model.name);
  if (is_flag("train.img") && config.train.img &&
      std::int64_t{*config.train.img} != model.image_size)
    return differs("train.img", std::to_string(*config.train.img),
                   fmt::format("a model of images of {} pixels", model.image_size));
  return {};
}

Result<Measured> measure(const Config& config, const EvalArguments& arguments, Log& log) {
  const std::string& text = config.data.val.empty() ? config.data.train : config.data.val;
  if (text.empty())
    return fail(Errc::bad_config, Doing::evaluating,
                "no data to evaluate on; name it with --data or --val");
  TRY(const auto spec, training::parse_data_spec(text));
  TRY(const training::ModelSpec model_spec, training::model_of_file(arguments.model));
  TRY_VOID(check_named(config, arguments.model, model_spec));
  TRY(const auto data, training::open_evaluation_data(spec, log));
  TRY(const training::Model model, training::make_model(model_spec));
  TRY(const training::Replica replica, training::read_model(arguments.model, model));
  TRY_VOID(check_classes(model_spec, *data, Doing::evaluating));
  auto options = training::loader_options_for(*data, training::Pass::evaluation,
                                              static_cast<std::uint32_t>(model_spec.image_size),
                                              static_cast<std::uint32_t>(model_spec.channels));
  options.batch = config.train.batch.value_or(64);
  options.threads = data_threads(config);
  options.max_bad = config.data.max_bad;
  auto source = std::make_unique<training::LoaderSource>(
      std::make_unique<training::Loader>(*data, options, log));
  TRY(const auto report,
      training::evaluate(model, replica, device_options(config), std::move(source)));
  return Measured{model_spec, data->name(), report};
}

}  // namespace

int eval_verb(const Config& config, const EvalArguments& arguments, const Terminal& terminal) {
  const SteadyClock clock;
  LogBackend log(log_options(config, terminal), clock, terminal.err);
  const auto measured = measure(config, arguments, log);
  if (!measured) {
    terminal.err << "starling eval: " << printable(to_string(measured.error())) << '\n';
    return number_of(exit_code_of(measured.error().code));
  }
  const training::EvaluationReport& report = measured->report;
  if (arguments.json) {
    const nlohmann::json json{{"schema", 1},
                              {"model", measured->model.name},
                              {"data", measured->data},
                              {"images", report.images},
                              {"left_out", report.left_out},
                              {"accuracy_ratio", report.top1},
                              {"accuracy_top5_ratio", report.top5},
                              {"loss", report.loss},
                              {"seconds", report.seconds}};
    terminal.out << json_text(json) << '\n';
  } else {
    terminal.out << measured->model.name << " on " << printable(measured->data) << ": top-1 "
                 << 100 * report.top1 << " %  top-5 " << 100 * report.top5 << " %  loss "
                 << report.loss << "  (" << report.images << " images in " << report.seconds
                 << " s";
    if (report.left_out > 0) terminal.out << "; left out: " << report.left_out;
    terminal.out << ")\n";
  }
  return number_of(ExitCode::good);
}

}  // namespace starling::node
