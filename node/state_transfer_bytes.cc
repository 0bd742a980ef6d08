#include "node/state_transfer_bytes.h"

#include "node/base/bytes.h"
#include "node/bridge.h"
#include "training/model_file.h"

#include <algorithm>
#include <bit>
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

// Without a way out of the loop, and by integers: so a compiler makes vector instructions of it.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f80'0000;  // all of it set: infinite, or no number
  std::uint32_t bad = 0;
  for (const float value : values)
    bad |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  return bad == 0;
}

// Whether a block is zero wherever the layout has no value.
bool padding_is_zero(const gossip::Layout& layout, std::size_t block,
                     std::span<const float> values) {
  const std::size_t width = layout.width(block);
  bool zero = true;
  layout.for_each_padding(block, 0, width,
                          [&](std::size_t index) { zero = zero && values[index] == 0; });
  return zero && std::ranges::all_of(values.subspan(width), [](float value) { return value == 0; });
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
  const gossip::Layout& layout = model.layout;
  training::Replica replica;
  // Page faults would take longer than the copy.
  replica.parameters.reserve(layout.size());
  prefer_huge_pages(replica.parameters.data(), layout.size() * sizeof(float));
  replica.parameters.resize(layout.size());
  replica.bn_mean.resize(layout.bn_channels());
  replica.bn_variance.resize(layout.bn_channels());
  ChunkReader reader(snapshot);
  bool finite = true;
  bool padded = true;
  // Block by block: what was copied is looked at while it is in the cache.
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const auto values =
        std::span(replica.parameters).subspan(block * gossip::kBlock, gossip::kBlock);
    reader.read(std::as_writable_bytes(values));
    finite = all_finite(values) && finite;
    padded = padding_is_zero(layout, block, values) && padded;
  }
  reader.read(replica.bn_mean);
  reader.read(replica.bn_variance);
  reader.read(std::as_writable_bytes(std::span(&replica.batches_tracked, 1)));
  if (!finite || !all_finite(replica.bn_mean) || !all_finite(replica.bn_variance))
    return refuse("a snapshot with values that are not finite");
  const auto& variance = replica.bn_variance;
  if (replica.batches_tracked < 0 ||
      std::any_of(variance.begin(), variance.end(), [](float v) { return v < 0; }))
    return refuse("a snapshot with a negative variance or count");
  if (replica.batches_tracked > training::kMaxBatchesTracked)
    return refuse("a snapshot that counts more batches than any run has");
  if (!padded) return refuse("a snapshot with values in the padding");
  return replica;
}

ReplicaReader::ReplicaReader(asio::thread_pool& pool, transport::TaskGroup& tasks, Read read)
    : pool_(pool), tasks_(tasks), read_(std::move(read)) {}

void ReplicaReader::read(bootstrap::SharedSnapshot snapshot, training::Model model, Done done) {
  Wanted wanted{++asked_, std::move(snapshot), std::move(model), std::move(done)};
  // Owners: this call and the task, until its job on the pool has read the snapshot.
  tasks_.spawn("read replica",
               [this, wanted = std::move(wanted)]() mutable { return run(std::move(wanted)); });
}

transport::Task<> ReplicaReader::run(Wanted wanted) {
  auto work = [this, snapshot = std::move(wanted.snapshot),
               model = std::move(wanted.model)]() mutable -> Result<training::Replica> {
    // Let go here, not on the io thread.
    const bootstrap::SharedSnapshot last = std::move(snapshot);
    return read_(*last, model);
  };
  Result<training::Replica> replica;
  try {
    replica = co_await transport::on_pool(pool_, std::move(work));
  } catch (...) {
    replica = fail(current_error(Doing::transferring_state, Errc::internal));
  }
  assert_io_thread();
  if (wanted.number == asked_) co_return wanted.done(std::move(replica));
  if (replica) free_on(pool_, std::move(*replica));
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
