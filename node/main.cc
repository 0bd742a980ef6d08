// starling: reads the command line and carries out its verb.
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/config/load.h"
#include "training/device.h"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace starling::node;
  // Keys and secrets are in memory: no core dumps. A peer that closes is an error code, not a
  // signal.
  const rlimit none{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &none);
  (void)::signal(SIGPIPE, SIG_IGN);
  (void)::signal(SIGXFSZ, SIG_IGN);  // so is a file that may not grow (ulimit -f), as a full disk
  // The first process of a container is spared every signal that it does not handle, and whoever
  // stops it would have to wait and kill it. A node that is up has handlers of its own.
  if (::getpid() == 1)
    for (const int number : {SIGINT, SIGTERM})
      (void)::signal(number, [](int came) { ::_exit(128 + came); });
  // Every session is a descriptor, and the soft limit is often 1,024.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }

  // What is freed is used again instead of faulted in anew: attachments and the buffers of jobs
  // come and go at 1 to 26 MiB each, and the default gives them back from 128 KiB on. For an encode
  // of L6 page faults were as much work as everything else.
  (void)::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)::mallopt(M_TRIM_THRESHOLD, 64 << 20);

  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string torch_version = starling::training::libtorch_version();
  const Surroundings surroundings{
      process_environment(),
      Terminal{std::cout, std::cerr, ::isatty(STDOUT_FILENO) == 1, ::isatty(STDERR_FILENO) == 1,
               STDOUT_FILENO, STDERR_FILENO},
      VerbHooks{&run_verb, &eval_verb, &bench_verb, &data_verb, torch_version}};
  const int code = run_command_line(words, surroundings);
  // A certificate or an invite that was redirected to a full disk is not there, whatever was done.
  // A reader that has gone, as `head` does, had enough.
  pollfd reader{STDOUT_FILENO, 0, 0};
  const bool read = ::poll(&reader, 1, 0) != 1 || (reader.revents & POLLERR) == 0;
  if (!std::cout.flush() && read && code == number_of(ExitCode::good)) {
    std::cerr << "starling: standard output cannot be written: what was printed is lost\n";
    return number_of(ExitCode::temporary);
  }
  return code;
}
