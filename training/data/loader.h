// Loader: batches of normalised images, prepared ahead of the training thread.
#pragma once

#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/log.h"
#include "node/base/mutex.h"
#include "node/base/result.h"
#include "training/data/augment.h"
#include "training/data/dataset.h"
#include "training/data/decode.h"
#include "training/data/pixels.h"
#include "training/data/sampler.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace starling::training {

// Floats on a 64-byte boundary (torch::from_blob and vector loads like it).
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(std::size_t count);

  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<float> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> data_;
  std::size_t size_ = 0;
};

// Where a stream of epochs stands: the next sample is the first of this node's from number
// `position` on in the order of epoch `epoch`.
struct DataCursor {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;

  friend bool operator==(const DataCursor&, const DataCursor&) = default;
};

// Images with their labels. `images` holds `size` images first; where size is below the loader's
// batch (the end of an evaluation pass), the rest is undefined.
struct Batch {
  AlignedFloats images;              // size x side x side x channels (NHWC), normalised
  PixelBatch pixels;                 // instead of them, where LoaderOptions::form says so
  std::vector<std::int64_t> labels;  // size entries
  std::size_t size = 0;
  std::uint32_t side = 0;  // pixels; 0 is what the model sees in full
  DataCursor end;          // where the stream stands after this batch
  std::size_t bad = 0;     // samples that had to be replaced (or left out, evaluating)
};

enum class Pass : std::uint8_t {
  training,    // endless: epoch after epoch, shuffled and augmented; every batch is full
  evaluation,  // once, in order, no randomness; the last batch may be smaller
};

enum class BatchForm : std::uint8_t {
  floats,  // Batch::images: what a CPU trains on
  pixels,  // Batch::pixels: a device makes the same values of them
};

struct LoaderOptions {
  Pass pass = Pass::training;
  BatchForm form = BatchForm::floats;
  HostMemory memory = ordinary_memory();  // of pixels
  std::size_t batch = 64;                 // images, until set_batch() says fewer
  std::uint32_t target = 224;             // pixels a side of what the model sees
  // Pixels a side until set_side() says another, up to target; 0 is target. The first batches are
  // prepared before anybody can call that.
  std::uint32_t first_side = 0;
  std::uint32_t channels = 3;  // channels of what the model sees: 1 or 3
  AugmentOptions augment;
  Normalisation normalisation;
  SamplerOptions sampler;
  // Who shares the data set when the pass begins (Partition::members).
  std::vector<NodeId> members;
  DataCursor start;  // training: where to go on after a restart
  // Threads that read and decode. One core prepares about 1,400 photographs of 224 pixels a second
  // (11 KB of JPEG each); more threads than cores take time from training.
  std::size_t threads = 2;
  // Batches that may be finished or in work at once. Raising it rides out slower disks and costs a
  // batch of memory each (38 MB for 64 x 224 x 224 x 3).
  std::size_t prefetch = 3;
  // Distinct bad samples after which the run stops; one in a million is normal, a thousand is a
  // broken disk.
  std::size_t max_bad = 1'000;
  // How long a thread waits once that it could not read 17 samples in a row from their storage; it
  // waits twice as long each time after, up to 256 times this. Raising it makes a run that goes on
  // lose more time, and lets it outlast longer absences of the storage before max_bad is reached.
  // An evaluation waits for one sample that it could not read, up to 32 times this, and for none
  // any more once it did so in vain.
  Duration first_wait = std::chrono::milliseconds(100);
  DecodeLimits limits;
};

// Options of an ordinary training (or evaluation) pass over a data set; the caller changes what it
// knows better.
[[nodiscard]] LoaderOptions loader_options_for(const Dataset& dataset, Pass pass,
                                               std::uint32_t target, std::uint32_t channels);

// Prepares batches on threads of its own.
//
// The order and content of batches depend on the options, set_members() and set_side() alone, never
// on the number of threads. Owned by the trainer (or an evaluation); next() and recycle() belong to
// one thread, the owner's. Starts its threads when constructed; stop() or the destructor joins
// them. Where the system allows fewer of them than options.threads, it works with those, and the
// log says so. While no sample can be read from its storage, it waits and tries again
// (LoaderOptions::first_wait). `dataset` and `log` must outlive it.
// Limits:  holds at most prefetch + 1 batches, plus one image and one file per thread.
class Loader {
 public:
  Loader(const Dataset& dataset, LoaderOptions options, Log& log);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; waits for it. Nothing at the end of an evaluation pass.
  //
  // Errors:  data_failed when more than max_bad samples are bad, naming the last, and where all
  //          are (an evaluation pass: at its end); no_memory also where not one thread could start;
  //          cancelled after stop(), and once after wake(), which alone is not final.
  [[nodiscard]] Result<std::optional<Batch>> next();

  // The next batch if it is finished, and nothing otherwise: waits for nobody. Errors are left to
  // next().
  [[nodiscard]] std::optional<Batch> try_next();

  // Gives a batch's memory back for a later one. Optional, but saves an allocation a step.
  void recycle(Batch batch);

  // Members that share this data set from now on (Partition::members, otherwise nothing happens):
  // where they are others than before, what is left of the epoch under way is dealt anew with the
  // sample that is drawn next (EpochWalk). Any thread.
  void set_members(std::vector<NodeId> members);

  // Pixels a side of the images in batches that are begun from now on, up to options.target.
  // Any thread.
  void set_side(std::uint32_t side);
  // Images in batches that are begun from now on, up to options.batch. Any thread.
  void set_batch(std::size_t images);

  // Makes a next() that waits, or else the first that would have to, fail with cancelled. Any
  // thread.
  void wake();

  // Ends all threads; next() fails from now on. Any thread may call it, any number of times.
  void stop();

  [[nodiscard]] BatchForm form() const { return options_.form; }
  // Distinct bad samples so far; what an evaluation leaves out. Those that could not be read while
  // the storage was away are taken back once that is over.
  [[nodiscard]] std::size_t bad_samples() const;

 private:
  enum class Outcome : std::uint8_t { good, replaced, missing };
  // One sample of a batch in work.
  struct Item {
    std::uint32_t index = 0;
    std::uint64_t seed = 0;
    Outcome outcome = Outcome::good;
  };
  // A batch in work or finished, in stream order.
  struct Slot {
    Batch batch;
    std::vector<Item> items;
    std::size_t next = 0;               // first item that no thread has taken
    std::size_t pending = 0;            // items that are not finished
    std::atomic<std::size_t> used = 0;  // of the pixels' memory
  };
  // Where a sample goes.
  struct Spot {
    Slot& slot;
    std::size_t at;
  };
  struct BadSample {
    std::uint32_t index = 0;
    std::string reason;
  };
  struct Scratch;
  struct Unread;
  enum class Deal : std::uint8_t { epoch, rest };

  void start_threads();
  void run(std::size_t number);
  void work(Scratch& scratch);
  // The oldest slot with work to take, begun if there is room; null if there is nothing to do now.
  // Lets go of the mutex where it has to deal().
  Slot* slot_with_work() STARLING_REQUIRES(mutex_);
  std::unique_ptr<Slot> begin_slot() STARLING_REQUIRES(mutex_);
  std::optional<Item> draw() STARLING_REQUIRES(mutex_);
  // Shares out the cursor's epoch from its start, or what is left of it, without the mutex: a
  // finished batch can be taken while a thousand members' shares are dealt. Meanwhile no slot is
  // begun.
  void deal(Deal what) STARLING_REQUIRES(mutex_);
  // Fills item `at` of the slot; an error ends the loader.
  Result<void> prepare(Slot& slot, std::size_t at, Scratch& scratch);
  // Waits, longer each time. Errors: cancelled where the loader ends meanwhile.
  Result<void> wait_for_storage(Unread& unread, const Error& error) STARLING_EXCLUDES(mutex_);
  // The storage gives samples: what it did not give while it was waited for counts as bad no more,
  // and what it did not give meanwhile stays bad; an error where that is more than max_bad.
  Result<void> settle(Unread& unread) STARLING_EXCLUDES(mutex_);
  Result<void> check_any_good() const STARLING_EXCLUDES(mutex_);
  // Reads sample `index` and renders it; its label.
  Result<std::int64_t> render(std::uint32_t index, Rng& rng, const Spot& spot, Scratch& scratch);
  // Reads sample `index` into scratch.sample and scratch.image; what its view looks at there.
  Result<View> read(std::uint32_t index, Rng& rng, std::uint32_t side, Scratch& scratch) const;
  void write_pixels(const View& view, const Spot& spot, Scratch& scratch) const;
  // Counts a bad sample and names it the first time; an error, however often, where more than
  // max_bad are known. `row` is where it belongs to if it could not be read from its storage.
  Result<void> note_bad(std::uint32_t index, const Error& error, Unread* row)
      STARLING_EXCLUDES(mutex_);
  [[nodiscard]] std::unexpected<Error> too_many_bad(std::uint32_t last,
                                                    const std::string& reason) const;
  [[nodiscard]] std::size_t floats_per_image(std::uint32_t side) const {
    return std::size_t{side} * side * options_.channels;
  }
  [[nodiscard]] std::span<float> floats_of(const Spot& spot) const;
  // A batch's memory, for the most and the largest images.
  void reserve(Batch& batch) const;
  [[nodiscard]] bool is_ours(const Batch& batch) const;
  [[nodiscard]] std::optional<Batch> take_finished() STARLING_REQUIRES(mutex_);
  [[nodiscard]] std::unexpected<Error> nothing_readable() const STARLING_REQUIRES(mutex_);
  // Closes the gaps that missing samples left.
  void finish(Slot& slot) const;

  const Dataset& dataset_;
  const LoaderOptions options_;
  Log& log_;

  mutable Mutex mutex_;
  CondVar work_;   // a thread may find something to do
  CondVar stop_;   // a wait for the storage ends
  CondVar ready_;  // the first slot may be finished, or nothing more will come
  std::deque<std::unique_ptr<Slot>> slots_ STARLING_GUARDED_BY(mutex_);
  std::vector<Batch> spare_ STARLING_GUARDED_BY(mutex_);
  std::optional<EpochWalk> walk_ STARLING_GUARDED_BY(mutex_);  // through the cursor's epoch
  std::vector<NodeId> members_ STARLING_GUARDED_BY(mutex_);
  std::uint32_t side_ STARLING_GUARDED_BY(mutex_) = 0;
  std::size_t batch_ STARLING_GUARDED_BY(mutex_) = 0;
  bool deal_anew_ STARLING_GUARDED_BY(mutex_) = false;  // the members changed in mid epoch
  bool dealing_ STARLING_GUARDED_BY(mutex_) = false;    // a thread does, without the mutex
  DataCursor cursor_ STARLING_GUARDED_BY(mutex_);
  std::unordered_set<std::uint32_t> bad_ STARLING_GUARDED_BY(mutex_);
  std::size_t in_rows_ STARLING_GUARDED_BY(mutex_) = 0;  // of bad_: in rows that have not ended
  BadSample first_bad_ STARLING_GUARDED_BY(mutex_);
  std::optional<Error> failed_ STARLING_GUARDED_BY(mutex_);
  bool exhausted_ STARLING_GUARDED_BY(mutex_) = false;  // an evaluation has drawn its last sample
  bool stopping_ STARLING_GUARDED_BY(mutex_) = false;
  bool woken_ STARLING_GUARDED_BY(mutex_) = false;
  std::atomic<bool> patient_ = true;  // no wait of an evaluation was in vain
  std::vector<std::thread> threads_;
};

}  // namespace starling::training
