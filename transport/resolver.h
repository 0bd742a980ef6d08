// Resolving: from a host name to addresses. Nobody who leaves waits for the answer.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "transport/endpoint.h"
#include "transport/limits.h"
#include "transport/task.h"

#include <asio/any_io_executor.hpp>
#include <asio/execution_context.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace starling::transport {

// The addresses behind an endpoint, in the resolver's order, each with its port. A host that is a
// number needs no resolver.
//
// Errors:  resolve_failed, "HOST: why"; timed_out, after which the next who asks for this name
//          waits for the same look-up while it goes on; cancelled.
[[nodiscard]] Task<Result<std::vector<asio::ip::tcp::endpoint>>> resolve(
    Endpoint target, Duration time = limits::kResolveDeadline);

using Addresses = std::vector<asio::ip::address>;

// What is asked for a name: it may take minutes, and cannot be stopped.
//
// Thread:  one of its own for each name; several at a time. Must not throw.
using LookUp = std::function<Result<Addresses>(const std::string& host)>;

// Asks as the system is set up to (nsswitch.conf, hosts, resolv.conf): names of a home network are
// not in the DNS, which is all that a library of ours could ask.
//
// Errors:  resolve_failed, "HOST: why".
[[nodiscard]] Result<Addresses> look_up(const std::string& host);

// The names that one io_context's coroutines ask for, which resolve() does.
//
// A service of the io_context, made on first use and gone with it. Asio's own resolver, which this
// replaces, has one thread and joins it at the end: a name that got no answer held up all others,
// and leaving took the 10 to 24 s until the system gave it up. Here each name has a thread, which
// is never joined: nothing can interrupt a look-up of the system. What such a thread shares with
// the rest outlives both, so it may end at any time, also after the io_context. Lives on the io
// thread. Cost: a thread for each name that is being looked up, kMaxLookUps at most. Others wait
// their turn while their caller does; callers are bounded (seeds, limits::kMaxPendingDials), and so
// is the queue.
class Resolver final : public asio::execution_context::service {
 public:
  // Names that are looked up at the same time. One that gets no answer keeps its place until the
  // system gives it up, and takes no second one when it is asked for again. Raising this costs a
  // thread each; with as many such names as this, others wait for the system.
  static constexpr int kMaxLookUps = 16;

  using key_type = Resolver;  // by which asio finds it

  // A test gives its own answers with asio::make_service<Resolver>(io, look_up).
  explicit Resolver(asio::execution_context& context, LookUp look_up = transport::look_up);
  ~Resolver() override;

  // Errors:  those of the look-up; cancelled.
  [[nodiscard]] Task<Result<Addresses>> addresses_of(std::string host);

 private:
  struct Question;
  struct WayBack;
  // Owners: questions_ until the answer, and the coroutines that wait for it.
  using SharedQuestion = std::shared_ptr<Question>;

  void shutdown() override;
  SharedQuestion ask(const asio::any_io_executor& executor, const std::string& host);
  void start_next();
  void start(Question& question);
  void on_answer(const std::string& host, Result<Addresses> answer);

  LookUp look_up_;
  // Owners: this, and each thread.
  std::shared_ptr<WayBack> way_back_;
  std::list<SharedQuestion> questions_;  // without an answer, in the order in which they were asked
};

}  // namespace starling::transport
