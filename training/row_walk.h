// Work on the rows of a convolution's operands, done while they lie in the cache.
//
// A row is what one pixel has in all channels (channels_last); the rows of a batch are numbered
// image after image, line after line.
#pragma once

#include "training/cpu/conv_kernels.h"

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

namespace starling::training {

struct Rows {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The images whose rows they are.
struct ImageSizes {
  std::size_t images = 0;
  std::size_t height = 0;
  std::size_t width = 0;
};

// Rows that lie one behind the other.
struct RowMemory {
  const void* values = nullptr;  // of row 0
  std::size_t row_bytes = 0;
};

// Called with each row once, in their order, a few at a time or all at once.
struct RowTask {
  std::function<void(void* values, Rows rows)> run;  // `values` of row 0
  std::vector<RowMemory> reads;                      // what it reads beside them
};

// What is done along with a convolution: to rows of what it reads, just before it reads them, and
// to rows of what it writes, just after. Either may be empty.
struct RowTasks {
  RowTask before;
  RowTask after;
};

// One walk over the rows of one convolution: runs its tasks when their turn comes, and says what
// memory is wanted soon.
//
// Lives as long as the convolution is computed; one thread. Views the tasks and the values.
class RowWalk {
 public:
  // Does nothing.
  RowWalk() = default;
  // `from` is row 0 of what is read, `to` of what is written; rows of `beside` are read along with
  // those of `from`.
  RowWalk(const RowTasks& tasks, void* from, void* to, RowMemory beside = {})
      : tasks_(&tasks), from_(from), to_(to), beside_(beside) {}

  // Rows before `end` are read next.
  void before(std::size_t end);
  // Rows before `end` have been written.
  void after(std::size_t end);
  // What comes next: rows before `read_end` will be read, and those before `written_end` be there.
  void expect(std::size_t read_end, std::size_t written_end);
  // For the next product: what it is to ask for.
  [[nodiscard]] Ahead* ahead();

 private:
  static constexpr std::size_t kMostSpans = 6;
  void expect(const RowMemory& memory, Rows rows);

  const RowTasks* tasks_ = nullptr;
  void* from_ = nullptr;
  void* to_ = nullptr;
  RowMemory beside_;
  std::size_t before_end_ = 0;
  std::size_t after_end_ = 0;
  std::array<Ahead, kMostSpans> spans_{};
  std::size_t spans_count_ = 0;
  std::size_t span_ = 0;  // the one that is being asked for
};

}  // namespace starling::training
