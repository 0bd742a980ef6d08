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
  if (order_.empty()) deal(Deal::epoch);
  if (deal_anew_) deal(Deal::rest);
  if (cursor_.position >= order_.size()) {
    // Also where a restart finds a smaller share than it left: the next epoch begins.
    cursor_ = {.epoch = cursor_.epoch + 1, .position = 0};
    deal(Deal::epoch);
  }
  const std::uint64_t position = cursor_.position++;
  return Item{.index = order_[position],
              .seed = sample_seed(options_.sampler, cursor_.epoch, position),
              .outcome = {}};
}

void Loader::deal(Deal what) {
  std::vector<std::uint32_t> order;
  if (what == Deal::rest) {
    order = std::move(order_);
    order.resize(std::min<std::size_t>(order.size(), cursor_.position));
  }
  const std::vector<NodeId> members = members_;
  const std::uint64_t epoch = cursor_.epoch;
  deal_anew_ = false;
  dealing_ = true;
  std::exception_ptr thrown;
  mutex_.unlock();
  try {
    if (what == Deal::epoch) {
      order = epoch_order(options_.sampler, epoch, dataset_.size(), members);
    } else {
      deal_rest_anew(order, options_.sampler, epoch, dataset_.size(), members);
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  mutex_.lock();
  dealing_ = false;
  if (thrown) std::rethrow_exception(thrown);
  order_ = std::move(order);
}

}  // namespace starling::training
