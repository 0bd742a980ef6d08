#include "training/row_walk.h"

#include <algorithm>

namespace starling::training {

void RowWalk::before(std::size_t end) {
  if (tasks_ == nullptr || end <= before_end_) return;
  if (tasks_->before.run) tasks_->before.run(from_, {before_end_, end});
  before_end_ = end;
}

void RowWalk::after(std::size_t end) {
  if (tasks_ == nullptr || end <= after_end_) return;
  if (tasks_->after.run) tasks_->after.run(to_, {after_end_, end});
  after_end_ = end;
}

void RowWalk::expect(std::size_t read_end, std::size_t written_end) {
  if (tasks_ == nullptr) return;
  spans_count_ = 0;
  span_ = 0;
  for (const RowMemory& memory : tasks_->after.reads) expect(memory, {after_end_, written_end});
  for (const RowMemory& memory : tasks_->before.reads) expect(memory, {before_end_, read_end});
  expect(beside_, {before_end_, read_end});
}

void RowWalk::expect(const RowMemory& memory, Rows rows) {
  if (memory.values == nullptr || rows.end <= rows.begin || spans_count_ == kMostSpans) return;
  const auto* const values = static_cast<const std::byte*>(memory.values);
  spans_[spans_count_++] = {values + rows.begin * memory.row_bytes,
                            values + rows.end * memory.row_bytes};
}

Ahead* RowWalk::ahead() {
  while (span_ < spans_count_ && spans_[span_].at >= spans_[span_].end) ++span_;
  return span_ < spans_count_ ? &spans_[span_] : nullptr;
}

}  // namespace starling::training
