// Which thread may call what, checked by clang at compile time.
//
// Three kinds of thread exist (design section 3): `io` runs protocol logic and sockets, `train`
// owns the model, `pool` runs pure functions. A function that belongs to one says so with
// ON_IO_THREAD or ON_TRAIN_THREAD; a thread's entry function takes its capability with
// assert_io_thread() or assert_train_thread().
#pragma once

#if defined(__clang__)
#define STARLING_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define STARLING_THREAD_ATTRIBUTE(x)
#endif

#define STARLING_CAPABILITY(name) STARLING_THREAD_ATTRIBUTE(capability(name))
#define STARLING_SCOPED_CAPABILITY STARLING_THREAD_ATTRIBUTE(scoped_lockable)
#define STARLING_GUARDED_BY(x) STARLING_THREAD_ATTRIBUTE(guarded_by(x))
#define STARLING_REQUIRES(...) STARLING_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define STARLING_ACQUIRE(...) STARLING_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define STARLING_RELEASE(...) STARLING_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define STARLING_EXCLUDES(...) STARLING_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define STARLING_ASSERT_CAPABILITY(x) STARLING_THREAD_ATTRIBUTE(assert_capability(x))

namespace starling {

class STARLING_CAPABILITY("io thread") IoThread {};
class STARLING_CAPABILITY("train thread") TrainThread {};

extern const IoThread io_thread;
extern const TrainThread train_thread;

// Names the calling thread for debuggers and `top -H` (15 characters are kept).
void name_this_thread(const char* name);

// Tells the compiler that the calling thread is the io (or train) thread. Called by a thread's
// entry function and by callbacks that Asio runs there.
void assert_io_thread() STARLING_ASSERT_CAPABILITY(io_thread);
void assert_train_thread() STARLING_ASSERT_CAPABILITY(train_thread);

}  // namespace starling

#define ON_IO_THREAD STARLING_REQUIRES(::starling::io_thread)
#define ON_TRAIN_THREAD STARLING_REQUIRES(::starling::train_thread)
