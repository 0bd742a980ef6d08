// Team: a fixed number of parts of one job, done together by so many threads.
#pragma once

#include "node/base/mutex.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace starling {

// Runs job(0) on the caller's thread and job(1) to job(size - 1) on threads of its own, and returns
// when all are done. Nobody spins: on a machine that has something else to do, a part that is
// preempted costs its own delay and no other part's processor time.
//
// Where the system gives it fewer threads (a limit of processes in a container), the caller does
// the parts that have none, after its own: slower, and the same result.
//
// Owned by whoever has the job, on the train thread or the codec lane; one thread calls it. Its
// threads start with the constructor and end with the destructor. Cost of a run: two wake-ups,
// about 20 us.
class Team {
 public:
  // So many parts; its threads are called NAME-1 and so on.
  Team(std::string name, int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Exceptions: after all parts have ended, that of the lowest part that threw is thrown again.
  void run(const std::function<void(int)>& job);
  // job(0) to job(parts - 1), however many: each thread takes the next part when it is done with
  // one. Exceptions: as run(), and a thread that threw takes no other part.
  void share(std::size_t parts, const std::function<void(std::size_t)>& job);

  [[nodiscard]] int size() const { return size_; }

 private:
  void serve(int part);
  void do_part(const std::function<void(int)>& job, int part);

  const std::string name_;
  const int size_;
  Mutex mutex_;
  CondVar called_;
  CondVar done_;
  const std::function<void(int)>* job_ STARLING_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t round_ STARLING_GUARDED_BY(mutex_) = 0;
  int open_ STARLING_GUARDED_BY(mutex_) = 0;  // parts of this round that are not done
  bool ending_ STARLING_GUARDED_BY(mutex_) = false;
  std::vector<std::exception_ptr> thrown_ STARLING_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace starling
