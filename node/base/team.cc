#include "node/base/team.h"

#include "node/base/check.h"

#include <atomic>
#include <system_error>
#include <utility>

namespace starling {

Team::Team(std::string name, int size) : name_(std::move(name)), size_(size) {
  STARLING_CHECK_OP(size, >, 0);
  {
    const MutexLock lock(mutex_);
    thrown_.resize(static_cast<std::size_t>(size));
  }
  try {
    for (int part = 1; part < size; ++part) threads_.emplace_back([this, part] { serve(part); });
  } catch (const std::system_error&) {
    return;  // no more threads: run() does without them
  }
}

Team::~Team() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
  {
    const MutexLock lock(mutex_);
    job_ = &job;
    open_ = static_cast<int>(threads_.size());
    ++round_;
  }
  called_.notify_all();
  do_part(job, 0);
  for (int part = static_cast<int>(threads_.size()) + 1; part < size_; ++part) do_part(job, part);
  std::exception_ptr first;
  {
    const MutexLock lock(mutex_);
    while (open_ > 0) done_.wait(mutex_);
    job_ = nullptr;
    for (std::exception_ptr& thrown : thrown_) {
      if (!first) first = thrown;
      thrown = nullptr;
    }
  }
  if (first) std::rethrow_exception(first);
}

void Team::share(std::size_t parts, const std::function<void(std::size_t)>& job) {
  std::atomic<std::size_t> next = 0;
  run([&](int) {
    for (std::size_t part = next++; part < parts; part = next++) job(part);
  });
}

void Team::serve(int part) {
  name_this_thread((name_ + "-" + std::to_string(part)).c_str());
  std::uint64_t served = 0;
  while (true) {
    const std::function<void(int)>* job = nullptr;
    {
      const MutexLock lock(mutex_);
      while (!ending_ && round_ == served) called_.wait(mutex_);
      if (ending_) return;
      served = round_;
      job = job_;
    }
    do_part(*job, part);
    {
      const MutexLock lock(mutex_);
      --open_;
    }
    done_.notify_one();
  }
}

void Team::do_part(const std::function<void(int)>& job, int part) {
  try {
    job(part);
  } catch (...) {
    const MutexLock lock(mutex_);
    thrown_[static_cast<std::size_t>(part)] = std::current_exception();
  }
}

}  // namespace starling
