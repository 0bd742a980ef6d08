#include "node/observe/progress_lines.h"

#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace starling::node {

std::string progress_line(const StatusSnapshot& status, WallTime time) {
  const auto& progress = status.progress;
  const auto& train = status.train;
  std::string line = fmt::format("{} INFO {} step={} epoch={:.2f} samples={}", show_seconds(time),
                                 status.phase == Phase::training ? "train" : name_of(status.phase),
                                 progress.step, progress.epoch, progress.swarm_samples);
  if (status.join) line += fmt::format(" join={}", status.join->phase);
  if (status.join && status.join->bytes_total > 0)
    line += fmt::format(" state={:.1f}%", 100 * static_cast<double>(status.join->bytes_done) /
                                              static_cast<double>(status.join->bytes_total));
  if (progress.budget_samples > 0 || progress.share > 0)
    line += fmt::format(" progress={:.1f}%", progress.share * 100);
  if (train.loss) line += fmt::format(" loss={:.3f}", *train.loss);
  if (status.eval)
    line += fmt::format(" accuracy={:.1f}% of={}", status.eval->accuracy_ratio * 100,
                        name_of(status.eval->of));
  line += fmt::format(" img_s={:.0f} swarm_img_s={:.0f} peers={}", train.images_per_second,
                      train.swarm_images_per_second, status.open_edges());
  if (status.disagreement_ratio)
    line += fmt::format(" disagreement={:.1e}", *status.disagreement_ratio);
  line += fmt::format(" gossip_wait={:.1f}%", train.gossip_wait_ratio * 100);
  if (progress.left_s) line += fmt::format(" left={}", show_left(*progress.left_s));
  return line;
}

std::string progress_json(const StatusSnapshot& status, WallTime time) {
  const auto& progress = status.progress;
  const auto& train = status.train;
  nlohmann::ordered_json line;
  line["schema"] = 1;
  line["time"] = show_milliseconds(time);
  line["event"] = "progress";
  line["phase"] = name_of(status.phase);
  if (status.join)
    line["join"] = {{"phase", status.join->phase},
                    {"bytes_done", status.join->bytes_done},
                    {"bytes_total", status.join->bytes_total}};
  line["step"] = progress.step;
  line["epoch"] = progress.epoch;
  line["samples"] = progress.samples;
  line["swarm_samples"] = progress.swarm_samples;
  line["budget_samples"] = progress.budget_samples;
  line["share"] = progress.share;
  if (progress.left_s) line["left_s"] = *progress.left_s;
  if (train.loss) line["loss"] = *train.loss;
  if (status.eval) {
    line["accuracy_ratio"] = status.eval->accuracy_ratio;
    line["of"] = name_of(status.eval->of);
  }
  line["images_per_second"] = train.images_per_second;
  line["swarm_images_per_second"] = train.swarm_images_per_second;
  line["neighbours"] = status.open_edges();
  line["members_alive"] = status.members_in(MemberState::alive);
  if (status.disagreement_ratio) line["disagreement_ratio"] = *status.disagreement_ratio;
  line["gossip_wait_ratio"] = train.gossip_wait_ratio;
  return json_text(line);
}

std::optional<std::string> ProgressLines::on_tick(TimePoint now, const StatusSnapshot& status,
                                                  WallTime time) {
  if (form_ == ProgressForm::none) return std::nullopt;
  if (phase_ == status.phase && now < due_) return std::nullopt;
  phase_ = status.phase;
  due_ = now + kProgressPeriod;
  return form_ == ProgressForm::json ? progress_json(status, time) : progress_line(status, time);
}

}  // namespace starling::node
