#include "node/precision.h"

#include "node/base/cores.h"
#include "node/printable.h"
#include "node/state_dir.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

namespace starling::node {

namespace {

using Json = nlohmann::json;
using training::PrecisionCost;

constexpr std::size_t kMaxFile = 4'096;

// What a measurement is of: another one is needed as soon as any of these differs.
std::string subject_of(const PrecisionQuestion& question) {
  const training::ModelSpec& model = question.model;
  return fmt::format("{} {} px {} classes, batch {}, {} threads, {}, LibTorch {}", model.name,
                     model.image_size, model.classes, question.batch, question.device.threads,
                     cpu_model(), training::libtorch_version());
}

std::optional<PrecisionCost> read_kept(const std::filesystem::path& file,
                                       const std::string& subject) {
  const auto text = read_whole(file, kMaxFile);
  if (!text) return std::nullopt;
  const auto json = Json::parse(*text, nullptr, false);
  if (!json.is_object() || json.value("schema", Json()) != 1 ||
      json.value("subject", Json()) != subject)
    return std::nullopt;
  const auto fp32 = json.value("fp32_cpu_ms", Json());
  const auto bf16 = json.value("bf16_cpu_ms", Json());
  if (!fp32.is_number() || !bf16.is_number()) return std::nullopt;
  const PrecisionCost cost{fp32.get<double>() * 1e-3, bf16.get<double>() * 1e-3};
  if (!(cost.fp32 > 0) || !(cost.bf16 > 0)) return std::nullopt;
  return cost;
}

PrecisionChoice chosen(const PrecisionCost& cost) {
  return {cost.cheaper(), fmt::format("an image costs {:.3g} ms of CPU in bf16, {:.3g} in fp32",
                                      cost.bf16 * 1e3, cost.fp32 * 1e3)};
}

PrecisionChoice measure(const PrecisionQuestion& question, const std::filesystem::path& file,
                        Log& log) {
  const auto cost = training::measure_precisions(question.model, question.batch,
                                                 question.device.threads, question.stop);
  if (!cost) {
    log.warn("precision.not_measured",
             {{"why", to_string(cost.error())}, {"did", "computes in bf16"}});
    return {training::Precision::bf16, "not measured: " + cost.error().detail};
  }
  const Json json{{"schema", 1},
                  {"subject", subject_of(question)},
                  {"fp32_cpu_ms", cost->fp32 * 1e3},
                  {"bf16_cpu_ms", cost->bf16 * 1e3}};
  if (const auto kept = write_whole(file, json_text(json, 2) + "\n"); !kept)
    log.warn("precision.not_kept",
             {{"why", to_string(kept.error())}, {"did", "measures again at the next start"}});
  return chosen(*cost);
}

}  // namespace

PrecisionChoice choose_precision(const PrecisionQuestion& question,
                                 const std::filesystem::path& file, Log& log) {
  if (question.device.precision != training::Precision::automatic)
    return {question.device.precision, "as set"};
  const auto device = training::resolve_device(question.device);
  if (!device) return {training::Precision::automatic, to_string(device.error())};
  if (device->cuda) return {device->precision, "a CUDA device"};
  if (!training::cpu_has_bf16())
    return {training::Precision::fp32, "a CPU without bf16 instructions"};
  if (const auto kept = read_kept(file, subject_of(question))) {
    PrecisionChoice choice = chosen(*kept);
    choice.why += ", measured before";
    return choice;
  }
  return measure(question, file, log);
}

}  // namespace starling::node
