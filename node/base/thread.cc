#include "node/base/thread.h"

#include <pthread.h>

namespace starling {

const IoThread io_thread{};
const TrainThread train_thread{};

void name_this_thread(const char* name) {
  // A name longer than 15 characters is refused by the kernel; a thread without a name still works.
  (void)pthread_setname_np(pthread_self(), name);
}

void assert_io_thread() {}
void assert_train_thread() {}

}  // namespace starling
