#include "training/saver.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "node/base/thread.h"
#include "training/torch_guard.h"

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

namespace starling::training {

void Saver::start(Checkpoint checkpoint, const CheckpointOptions& where, const OnSaved& on_saved) {
  STARLING_CHECK(!busy_);
  join();
  busy_ = true;
  // Owners: the thread that writes it, and this function until that one has started.
  const auto kept = std::make_shared<const Checkpoint>(std::move(checkpoint));
  try {
    if (fault::maybe("checkpoint.thread")) throw std::system_error(EAGAIN, std::generic_category());
    thread_ = std::thread([this, kept, where, on_saved] {
      name_this_thread("checkpoint");
      write(*kept, where, on_saved);
    });
  } catch (const std::system_error&) {
    write(*kept, where, on_saved);
  }
}

void Saver::write(const Checkpoint& checkpoint, const CheckpointOptions& where,
                  const OnSaved& on_saved) {
  auto saved =
      guarded(Doing::saving_checkpoint, [&] { return save_checkpoint(where, model_, checkpoint); });
  if (on_saved) on_saved(std::move(saved));
  busy_ = false;
  done_();
}

void Saver::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace starling::training
