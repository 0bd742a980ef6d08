#include "node/state_transfer_bytes.h"

#include "training/model_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace starling::node {

namespace {

ByteView bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

std::unexpected<Error> refuse(std::string detail) {
  return fail(Errc::bad_message, Doing::transferring_state, std::move(detail));
}

// Copies the bytes of consecutive chunks into one place after the other.
class ChunkReader {
 public:
  explicit ChunkReader(const bootstrap::Snapshot& snapshot) : snapshot_(snapshot) {}

  void read(std::span<std::byte> out) {
    while (!out.empty()) {
      const Bytes& chunk = *snapshot_.chunks[chunk_];
      const std::size_t take = std::min(out.size(), chunk.size() - at_);
      std::memcpy(out.data(), chunk.data() + at_, take);
      out = out.subspan(take);
      at_ += take;
      if (at_ == chunk.size()) {
        ++chunk_;
        at_ = 0;
      }
    }
  }
  void read(std::vector<float>& out) { read(std::as_writable_bytes(std::span(out))); }

 private:
  const bootstrap::Snapshot& snapshot_;
  std::size_t chunk_ = 0;
  std::size_t at_ = 0;
};

// The number that the whole text is.
template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace

std::uint64_t state_bytes(const training::Model& model) {
  return sizeof(float) * (model.layout.size() + 2 * model.layout.bn_channels()) +
         sizeof(std::int64_t);
}

Result<bootstrap::SharedSnapshot> cut_replica(const training::Replica& replica,
                                              const bootstrap::Manifest& about) {
  // One that counted on from the largest number sends what is accepted.
  const std::int64_t batches = std::min(replica.batches_tracked, training::kMaxBatchesTracked);
  const std::vector<ByteView> parts{bytes_of(replica.parameters), bytes_of(replica.bn_mean),
                                    bytes_of(replica.bn_variance),
                                    std::as_bytes(std::span(&batches, 1))};
  TRY(bootstrap::Snapshot snapshot, bootstrap::cut_snapshot(parts, about));
  // Owners: the sponsor that serves it, and this until it is handed over.
  return std::make_shared<const bootstrap::Snapshot>(std::move(snapshot));
}

Result<training::Replica> replica_of(const bootstrap::Snapshot& snapshot,
                                     const training::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& chunk : snapshot.chunks) bytes += chunk ? chunk->size() : 0;
  if (bytes != state_bytes(model))
    return refuse("a snapshot of " + std::to_string(bytes) + " bytes where the model has " +
                  std::to_string(state_bytes(model)));
  training::Replica replica;
  replica.parameters.resize(model.layout.size());
  replica.bn_mean.resize(model.layout.bn_channels());
  replica.bn_variance.resize(model.layout.bn_channels());
  ChunkReader reader(snapshot);
  reader.read(replica.parameters);
  reader.read(replica.bn_mean);
  reader.read(replica.bn_variance);
  reader.read(std::as_writable_bytes(std::span(&replica.batches_tracked, 1)));
  if (!all_finite(replica.parameters) || !all_finite(replica.bn_mean) ||
      !all_finite(replica.bn_variance))
    return refuse("a snapshot with values that are not finite");
  const auto& variance = replica.bn_variance;
  if (replica.batches_tracked < 0 ||
      std::any_of(variance.begin(), variance.end(), [](float v) { return v < 0; }))
    return refuse("a snapshot with a negative variance or count");
  if (replica.batches_tracked > training::kMaxBatchesTracked)
    return refuse("a snapshot that counts more batches than any run has");
  for (std::size_t i = 0; i < replica.parameters.size(); ++i)
    if (replica.parameters[i] != 0 && !model.layout.is_real(i / gossip::kBlock, i % gossip::kBlock))
      return refuse("a snapshot with values in the padding");
  return replica;
}

std::string format_progress(const SavedProgress& progress) {
  const auto in_ms = [](Duration age) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(age).count());
  };
  std::string text = "age " + std::to_string(progress.age) + "\nrun_age_ms " +
                     in_ms(progress.run_age) + "\nsponsors_age_ms " + in_ms(progress.sponsors_age) +
                     "\n";
  for (const auto& counter : progress.counters)
    text += to_hex(counter.id.view()) + ' ' + std::to_string(counter.samples) + '\n';
  return text;
}

SavedProgress parse_progress(std::string_view text) {
  SavedProgress progress;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view key = line.substr(0, line.find(' '));
    if (key.size() == line.size()) continue;
    const std::string_view value = line.substr(key.size() + 1);
    if (key == "age") {
      progress.age = whole_number<double>(value).value_or(0);
      if (!std::isfinite(progress.age)) progress.age = 0;
    } else if (key == "run_age_ms" || key == "sponsors_age_ms") {
      constexpr std::uint64_t kMostMs = std::uint64_t{1} << 42;  // 139 years
      const auto ms = std::min(whole_number<std::uint64_t>(value).value_or(0), kMostMs);
      (key == "run_age_ms" ? progress.run_age : progress.sponsors_age) =
          std::chrono::milliseconds(static_cast<std::int64_t>(ms));
    } else {
      const auto id = NodeId::from_hex(key);
      const auto samples = whole_number<std::uint64_t>(value);
      if (id && samples) progress.counters.push_back({*id, *samples});
    }
  }
  return progress;
}

}  // namespace starling::node
