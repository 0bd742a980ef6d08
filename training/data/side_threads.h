// Work that several threads take from one place, for as long as the caller waits for it.
#pragma once

#include <cstddef>
#include <functional>

namespace starling::training {

// Calls work(0) here and work(1) to work(count - 1) beside it, each on a thread of its own; all of
// them have ended when it returns.
//
// Rule:    a system that refuses a thread (ulimit -u, TasksMax, pids.max) is no error: the calls
//          that there are do all the work, only later. So what is to be done next has to be taken
//          from one place, never be split among the numbers beforehand.
// Thread:  any.
void run_beside(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace starling::training
