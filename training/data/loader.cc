#include "training/data/loader.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "node/base/random.h"
#include "node/base/thread.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

namespace starling::training {

namespace {

// Samples that a thread takes at once: few enough that a batch is finished by all threads together.
constexpr std::size_t kGrab = 4;
// Other samples that are tried in the place of one that its storage does not give, before the
// storage counts as away.
constexpr std::size_t kReplacements = 16;
// How often the wait for it is doubled; where it has been waited for longer than that and no sample
// of the data set is good, nobody waits any more.
constexpr int kMostDoublings = 8;
// How often an evaluation waits for one sample, 6.3 s in all: training may stand still for it.
constexpr int kEvaluationWaits = 6;

}  // namespace

AlignedFloats::AlignedFloats(std::size_t count)
    : data_(static_cast<float*>(::operator new[](count * sizeof(float), kBatchAlignment))),
      size_(count) {}

void AlignedFloats::Free::operator()(float* p) const { ::operator delete[](p, kBatchAlignment); }

// What one thread works with.
struct Loader::Scratch {
  explicit Scratch(DecodeLimits limits) : decoder(limits) {}

  Decoder decoder;
  Resampler resampler;
  Sample sample;
  Image image;
  bool stored = false;  // the storage gave the last sample, whatever it holds
};

// What storage did not give in a row.
struct Loader::Unread {
  std::vector<std::uint32_t> samples;
  std::size_t counted = 0;  // of them: bad for the first time, part of in_rows_
  std::string reason;       // of the last
  int waits = 0;
};

LoaderOptions loader_options_for(const Dataset& dataset, Pass pass, std::uint32_t target,
                                 std::uint32_t channels) {
  LoaderOptions options;
  options.pass = pass;
  options.target = target;
  options.channels = channels;
  options.augment = pass == Pass::training
                        ? training_augmentation(dataset.uniform_size(), dataset.channels())
                        : evaluation_augmentation(dataset.uniform_size());
  options.normalisation = default_normalisation(channels);
  return options;
}

Loader::Loader(const Dataset& dataset, LoaderOptions options, Log& log)
    : dataset_(dataset), options_(std::move(options)), log_(log) {
  STARLING_CHECK(dataset_.size() > 0);
  STARLING_CHECK(options_.batch > 0 && options_.threads > 0 && options_.prefetch > 0);
  STARLING_CHECK(options_.target > 0 && (options_.channels == 1 || options_.channels == 3));
  STARLING_CHECK(options_.first_side <= options_.target);
  {
    const MutexLock lock(mutex_);
    if (options_.pass == Pass::training) cursor_ = options_.start;
    members_ = options_.members;
    batch_ = options_.batch;
    side_ = options_.first_side > 0 ? options_.first_side : options_.target;
  }
  start_threads();
}

void Loader::start_threads() {
  try {
    while (threads_.size() < options_.threads) {
      if (fault::maybe("loader.thread"))
        throw std::system_error(EAGAIN, std::generic_category(), "no more");
      threads_.emplace_back([this, number = threads_.size()] { run(number); });
    }
  } catch (const std::system_error& refusal) {
    constexpr std::string_view kRemedy =
        "allow this process more (ulimit -u, TasksMax of its unit, pids.max of its cgroup)";
    const std::string reason = refusal.code().message();
    if (!threads_.empty()) {
      log_.warn("data.few_threads", {{"started", threads_.size()},
                                     {"wanted", options_.threads},
                                     {"reason", reason},
                                     {"did", "goes on with these"},
                                     {"remedy", kRemedy}});
      return;
    }
    const MutexLock lock(mutex_);
    failed_ = Error{Errc::no_memory, Doing::loading_data,
                    "not one thread to read images with could be started: " + reason + "; " +
                        std::string(kRemedy)};
  }
}

Loader::~Loader() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void Loader::stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  stop_.notify_all();
  work_.notify_all();
  ready_.notify_all();
}

std::size_t Loader::bad_samples() const {
  const MutexLock lock(mutex_);
  return bad_.size();
}

void Loader::set_members(std::vector<NodeId> members) {
  if (options_.sampler.partition != Partition::members) return;
  const MutexLock lock(mutex_);
  if (members == members_) return;
  members_ = std::move(members);
  deal_anew_ = true;
}

void Loader::set_side(std::uint32_t side) {
  STARLING_CHECK(side > 0 && side <= options_.target);
  const MutexLock lock(mutex_);
  side_ = side;
}

void Loader::set_batch(std::size_t images) {
  STARLING_CHECK(images > 0 && images <= options_.batch);
  const MutexLock lock(mutex_);
  batch_ = images;
}

void Loader::reserve(Batch& batch) const {
  const std::size_t floats = floats_per_image(options_.target);
  if (options_.form == BatchForm::floats) {
    batch.images = AlignedFloats(options_.batch * floats);
  } else {
    // A part that is larger than the finished floats is sent as these.
    const std::size_t part_bytes = floats * sizeof(float);
    try {
      batch.pixels = PixelBatch(options_.batch, part_bytes, options_.memory);
    } catch (const std::bad_alloc&) {
      // Pinned pages may be few where there is memory (limits, containers), and a device copies
      // from any: with a stop, which costs less than the end of training.
      const HostMemory ordinary = ordinary_memory();
      if (options_.memory.take == ordinary.take) throw;
      batch.pixels = PixelBatch(options_.batch, part_bytes, ordinary);
      log_.warn("data.not_pinned", {{"bytes", batch.pixels.capacity()},
                                    {"did", "takes ordinary memory for this batch"}});
    }
  }
}

bool Loader::is_ours(const Batch& batch) const {
  const std::size_t floats = options_.batch * floats_per_image(options_.target);
  return options_.form == BatchForm::floats ? batch.images.size() == floats
                                            : batch.pixels.images() == options_.batch;
}

void Loader::recycle(Batch batch) {
  if (!is_ours(batch)) return;
  const MutexLock lock(mutex_);
  if (spare_.size() < options_.prefetch) spare_.push_back(std::move(batch));
}

Result<std::optional<Batch>> Loader::next() {
  const MutexLock lock(mutex_);
  while (true) {
    if (failed_) return fail(*failed_);
    if (stopping_) return fail(Errc::cancelled, Doing::loading_data, "the loader was stopped");
    if (auto batch = take_finished()) return batch;
    if (slots_.empty() && exhausted_) {
      if (bad_.size() == dataset_.size()) return nothing_readable();
      return std::optional<Batch>();
    }
    if (std::exchange(woken_, false))
      return fail(Errc::cancelled, Doing::loading_data, "no batch is there yet");
    ready_.wait(mutex_);
  }
}

void Loader::wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  ready_.notify_all();
}

std::unexpected<Error> Loader::nothing_readable() const {
  return fail(Errc::data_failed, Doing::loading_data,
              dataset_.name() + ": no image of it can be read; the first: " +
                  dataset_.sample_name(first_bad_.index) + ": " + first_bad_.reason);
}

std::optional<Batch> Loader::try_next() {
  const MutexLock lock(mutex_);
  if (failed_ || stopping_) return std::nullopt;
  return take_finished();
}

std::optional<Batch> Loader::take_finished() {
  while (!slots_.empty() && slots_.front()->pending == 0) {
    const std::unique_ptr<Slot> slot = std::move(slots_.front());
    slots_.pop_front();
    work_.notify_all();
    // A batch in which every sample is bad tells an evaluation nothing.
    if (slot->batch.size > 0) return std::move(slot->batch);
  }
  return std::nullopt;
}

void Loader::run(std::size_t number) {
  name_this_thread(("data-" + std::to_string(number)).c_str());
  Scratch scratch(options_.limits);
  std::optional<Error> error;
  try {
    work(scratch);
  } catch (const std::bad_alloc&) {
    error = Error{Errc::no_memory, Doing::loading_data, "no memory left for a batch of images"};
  } catch (const std::exception& thrown) {
    error = Error{Errc::internal, Doing::loading_data, thrown.what()};
  }
  if (!error) return;
  const MutexLock lock(mutex_);
  if (!failed_) failed_ = std::move(error);
  ready_.notify_all();
}

void Loader::work(Scratch& scratch) {
  while (true) {
    Slot* slot = nullptr;
    std::size_t begin = 0;
    std::size_t end = 0;
    {
      const MutexLock lock(mutex_);
      while (true) {
        if (stopping_ || failed_) return;
        slot = slot_with_work();
        if (slot != nullptr) break;
        if (exhausted_) return;
        work_.wait(mutex_);
      }
      begin = slot->next;
      end = std::min(begin + kGrab, slot->items.size());
      slot->next = end;
    }
    // The slot stays where it is until its last item is finished, and nobody else touches these.
    std::optional<Error> error;
    for (std::size_t at = begin; at < end && !error; ++at) {
      const Result<void> done = prepare(*slot, at, scratch);
      if (!done) error = done.error();
    }
    const MutexLock lock(mutex_);
    if (error && !failed_) failed_ = std::move(error);
    slot->pending -= end - begin;
    if (slot->pending == 0 && !failed_) finish(*slot);
    if (slot->pending == 0 || failed_) ready_.notify_all();
  }
}

Result<void> Loader::prepare(Slot& slot, std::size_t at, Scratch& scratch) {
  Item& item = slot.items[at];
  Rng rng(item.seed);
  std::uint32_t index = item.index;
  Unread unread;
  while (true) {
    const Result<std::int64_t> label = render(index, rng, {slot, at}, scratch);
    if (scratch.stored) TRY_VOID(settle(unread));
    if (label) {
      slot.batch.labels[at] = *label;
      return {};
    }
    const bool evaluates = options_.pass == Pass::evaluation;
    if (evaluates && !scratch.stored && (patient_ || unread.waits > 0)) {
      // No other sample stands for this one.
      if (unread.waits < kEvaluationWaits) {
        unread.samples.assign(1, index);
        TRY_VOID(wait_for_storage(unread, label.error()));
        continue;
      }
      patient_ = false;
    }
    const bool waits = !scratch.stored && !evaluates;
    const Result<void> noted = note_bad(index, label.error(), waits ? &unread : nullptr);
    // However many threads read: an absence of seconds ends no run.
    if (!noted && (!waits || unread.waits >= kMostDoublings)) return noted;
    if (evaluates) {
      item.outcome = Outcome::missing;
      return {};
    }
    if (!waits || unread.waits > kMostDoublings) TRY_VOID(check_any_good());
    if (waits) {
      unread.samples.push_back(index);
      if (unread.samples.size() > kReplacements) TRY_VOID(wait_for_storage(unread, label.error()));
    }
    item.outcome = Outcome::replaced;
    index = static_cast<std::uint32_t>(rng.below(dataset_.size()));
  }
}

Result<void> Loader::wait_for_storage(Unread& unread, const Error& error) {
  const Duration wait = options_.first_wait * (1 << std::min(unread.waits, kMostDoublings));
  ++unread.waits;
  log_.warn("data.unreadable", {{"data", dataset_.name()},
                                {"in_a_row", unread.samples.size()},
                                {"reason", error.detail},
                                {"did", "waits and tries again"},
                                {"wait_s", seconds(wait)},
                                {"remedy", "bring the storage back; all goes on by itself"}});
  const MutexLock lock(mutex_);
  if (!stopping_ && !failed_) stop_.wait_for(mutex_, wait);
  if (stopping_ || failed_) return fail(Errc::cancelled, Doing::loading_data, "the loader ends");
  return {};
}

Result<void> Loader::settle(Unread& unread) {
  if (unread.samples.empty()) return {};
  const Unread row = std::exchange(unread, {});
  bool too_many = false;
  {
    const MutexLock lock(mutex_);
    in_rows_ -= row.counted;
    // Fewer are what bad images look like. More are no fault of theirs: storage that is away
    // for a minute must not bring a run closer to max_bad for good.
    if (row.waits > 0)
      for (const std::uint32_t index : row.samples) bad_.erase(index);
    too_many = row.waits == 0 && bad_.size() > options_.max_bad + in_rows_;
  }
  if (row.waits > 0)
    log_.info("data.readable_again", {{"data", dataset_.name()}, {"waits", row.waits}});
  if (too_many) return too_many_bad(row.samples.back(), row.reason);
  return {};
}

Result<void> Loader::check_any_good() const {
  const MutexLock lock(mutex_);
  if (stopping_ || failed_) return fail(Errc::cancelled, Doing::loading_data, "the loader ends");
  if (bad_.size() == dataset_.size()) return nothing_readable();
  return {};
}

Result<std::int64_t> Loader::render(std::uint32_t index, Rng& rng, const Spot& spot,
                                    Scratch& scratch) {
  const Batch& batch = spot.slot.batch;
  TRY(const View view, read(index, rng, batch.side, scratch));
  if (options_.form == BatchForm::pixels) {
    write_pixels(view, spot, scratch);
  } else {
    const InputForm form{batch.side, options_.channels, options_.normalisation};
    scratch.resampler.render(scratch.image, view, form, floats_of(spot));
  }
  return scratch.sample.label;
}

Result<View> Loader::read(std::uint32_t index, Rng& rng, std::uint32_t side,
                          Scratch& scratch) const {
  const Result<void> got = dataset_.read(index, scratch.sample);
  scratch.stored = got || got.error().code == Errc::corrupt;  // it came, whatever it is
  if (!got) return fail(got.error());
  const Sample& sample = scratch.sample;
  Image& image = scratch.image;
  if (sample.raw) {
    image.size = sample.raw->size;
    image.channels = sample.raw->channels;
    image.pixels.resize(sample.bytes.size());
    std::memcpy(image.pixels.data(), sample.bytes.data(), sample.bytes.size());
    return choose_view(options_.augment, image.size, rng);
  }
  TRY(const ImageHeader header, scratch.decoder.probe(sample.bytes));
  View view = choose_view(options_.augment, header.size, rng);
  const std::uint32_t reduce = reduction_for(view.box, side);
  TRY_VOID(scratch.decoder.decode(sample.bytes, reduce, image));
  // The box was chosen on the full image; the decoder may have left out every second pixel.
  const double down = static_cast<double>(image.size.height) / header.size.height;
  const double across = static_cast<double>(image.size.width) / header.size.width;
  view.box.top *= down;
  view.box.height *= down;
  view.box.left *= across;
  view.box.width *= across;
  return view;
}

void Loader::write_pixels(const View& view, const Spot& spot, Scratch& scratch) const {
  const PixelBatch& pixels = spot.slot.batch.pixels;
  const std::uint32_t side = spot.slot.batch.side;
  const std::size_t finished = floats_per_image(side) * sizeof(float);
  const std::size_t planned = scratch.resampler.plan_part(scratch.image, view, side);
  const bool fits = planned <= pixel_aligned(floats_per_image(options_.target) * sizeof(float));
  // What is sent is decided by the sample alone; where it lies, by which thread came first.
  const std::size_t bytes = fits ? planned : pixel_aligned(finished);
  const std::size_t offset = spot.slot.used.fetch_add(bytes);
  STARLING_CHECK(offset + bytes <= pixels.capacity());
  const std::span<std::byte> out(pixels.data() + offset, bytes);
  PixelPlace& place = pixels.places()[spot.at];
  if (fits) {
    place = scratch.resampler.write_part(scratch.image, view, offset, out);
    return;
  }
  place = PixelPlace{.pixels = offset};
  const InputForm form{side, options_.channels, options_.normalisation};
  const std::span<float> floats(reinterpret_cast<float*>(out.data()), floats_per_image(side));
  scratch.resampler.render(scratch.image, view, form, floats);
}

std::span<float> Loader::floats_of(const Spot& spot) const {
  const std::size_t floats = floats_per_image(spot.slot.batch.side);
  return spot.slot.batch.images.span().subspan(spot.at * floats, floats);
}

Result<void> Loader::note_bad(std::uint32_t index, const Error& error, Unread* row) {
  std::size_t count = 0;
  bool is_new = false;
  bool too_many = false;
  if (row != nullptr) row->reason = error.detail;
  {
    const MutexLock lock(mutex_);
    is_new = bad_.insert(index).second;
    count = bad_.size();
    if (count == 1) first_bad_ = {index, error.detail};
    if (row != nullptr && is_new) {
      ++row->counted;
      ++in_rows_;
    }
    // What other threads wait for may yet be taken back.
    too_many = count > options_.max_bad + (row != nullptr ? 0 : in_rows_);
  }
  if (is_new)
    log_.warn("data.bad_image",
              {{"image", dataset_.sample_name(index)}, {"reason", error.detail}, {"count", count}});
  if (too_many) return too_many_bad(index, error.detail);
  return {};
}

std::unexpected<Error> Loader::too_many_bad(std::uint32_t last, const std::string& reason) const {
  return fail(Errc::data_failed, Doing::loading_data,
              dataset_.name() + ": more than " + std::to_string(options_.max_bad) +
                  " bad images (data.max_bad); the last: " + dataset_.sample_name(last) + ": " +
                  reason);
}

void Loader::finish(Slot& slot) const {
  Batch& batch = slot.batch;
  std::size_t to = 0;
  for (std::size_t from = 0; from < slot.items.size(); ++from) {
    if (slot.items[from].outcome != Outcome::good) ++batch.bad;
    if (slot.items[from].outcome == Outcome::missing) continue;
    if (to != from) {
      if (options_.form == BatchForm::pixels) {
        batch.pixels.places()[to] = batch.pixels.places()[from];
      } else {
        std::ranges::copy(floats_of({slot, from}), floats_of({slot, to}).begin());
      }
      batch.labels[to] = batch.labels[from];
    }
    ++to;
  }
  batch.size = to;
  batch.labels.resize(to);
  if (options_.form == BatchForm::pixels) {
    batch.pixels.used = slot.used;
    std::ranges::copy(batch.labels, batch.pixels.labels());
  }
}

}  // namespace starling::training
