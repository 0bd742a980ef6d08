// The half of a Loader that decides which samples come next.
#include "training/data/loader.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace starling::training {

Loader::Slot* Loader::slot_with_work() {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->next < slot->items.size()) return slot.get();
  }
  if (exhausted_ || dealing_ || slots_.size() >= options_.prefetch) return nullptr;
  std::unique_ptr<Slot> slot = begin_slot();
  if (slot->items.empty()) {
    ready_.notify_all();
    return nullptr;
  }
  slots_.push_back(std::move(slot));
  work_.notify_all();
  return slots_.back().get();
}

std::unique_ptr<Loader::Slot> Loader::begin_slot() {
  auto slot = std::make_unique<Slot>();
  while (slot->items.size() < batch_) {
    const std::optional<Item> item = draw();
    if (!item) break;
    slot->items.push_back(*item);
  }
  slot->pending = slot->items.size();
  if (!spare_.empty()) {
    slot->batch = std::move(spare_.back());
    spare_.pop_back();
  } else if (slot->pending > 0) {
    reserve(slot->batch);
  }
  if (!slot->batch.pixels.empty()) {
    slot->used = slot->batch.pixels.first_part();
    slot->batch.pixels.form = pixel_form(
        {.target = side_, .channels = options_.channels, .normalisation = options_.normalisation});
  }
  slot->batch.size = slot->items.size();
  slot->batch.side = side_;
  slot->batch.labels.assign(slot->items.size(), 0);
  slot->batch.bad = 0;
  slot->batch.end = cursor_;
  return slot;
}

std::optional<Loader::Item> Loader::draw() {
  if (options_.pass == Pass::evaluation) {
    if (cursor_.position >= dataset_.size()) {
      exhausted_ = true;
      return std::nullopt;
    }
    return Item{.index = static_cast<std::uint32_t>(cursor_.position++), .seed = 0, .outcome = {}};
  }
  if (!walk_) deal(Deal::epoch);
  if (deal_anew_) deal(Deal::rest);
  std::optional<EpochWalk::Draw> drawn = walk_->next();
  while (!drawn) {
    cursor_ = {.epoch = cursor_.epoch + 1, .position = 0};
    deal(Deal::epoch);
    drawn = walk_->next();
  }
  cursor_.position = walk_->position();
  return Item{.index = drawn->index,
              .seed = sample_seed(options_.sampler, cursor_.epoch, drawn->place),
              .outcome = {}};
}

void Loader::deal(Deal what) {
  const std::vector<NodeId> members = members_;
  const DataCursor at = cursor_;
  std::vector<std::uint32_t> order;
  std::vector<bool> share;
  deal_anew_ = false;
  dealing_ = true;
  std::exception_ptr thrown;
  mutex_.unlock();
  try {
    const std::uint32_t size = dataset_.size();
    share = epoch_share(options_.sampler, at.epoch, size, members);
    if (what == Deal::epoch) order = epoch_order(options_.sampler, at.epoch, size);
  } catch (...) {
    thrown = std::current_exception();
  }
  mutex_.lock();
  dealing_ = false;
  if (thrown) std::rethrow_exception(thrown);
  if (what == Deal::epoch) walk_.emplace(std::move(order), at.position);
  walk_->share_out(std::move(share));
}

}  // namespace starling::training
