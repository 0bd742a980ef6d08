#include "transport/resolver.h"

#include "node/base/check.h"
#include "node/base/mutex.h"
#include "node/base/thread.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace starling::transport {

using asio::ip::tcp;

// A name, and all who wait for its addresses.
struct Resolver::Question {
  Question(const asio::any_io_executor& executor, std::string name)
      : host(std::move(name)), answered(executor) {
    answered.expires_at(asio::steady_timer::time_point::max());
  }

  std::string host;
  bool started = false;
  std::size_t waiting = 0;
  asio::steady_timer answered;  // is cancelled, which wakes all
  std::optional<Result<Addresses>> answer;
};

// How a thread's answer gets to the io thread, until there is none.
struct Resolver::WayBack {
  Mutex mutex;
  std::optional<asio::any_io_executor> executor STARLING_GUARDED_BY(mutex);
};

Resolver::Resolver(asio::execution_context& context, LookUp look_up)
    : asio::execution_context::service(context),
      look_up_(std::move(look_up)),
      way_back_(std::make_shared<WayBack>()) {}

Resolver::~Resolver() = default;

// The io_context ends: from here on threads keep their answers to themselves.
void Resolver::shutdown() {
  {
    const MutexLock lock(way_back_->mutex);
    way_back_->executor.reset();
  }
  questions_.clear();
}

Task<Result<Addresses>> Resolver::addresses_of(std::string host) {
  const auto question = ask(co_await asio::this_coro::executor, host);
  ++question->waiting;
  const auto [error] = co_await question->answered.async_wait(as_result);
  (void)error;  // cancelled in both cases: by on_answer(), or because the caller stops
  --question->waiting;
  if (question->answer) co_return *question->answer;
  // A look-up that has begun is left to itself.
  if (question->waiting == 0 && !question->started) questions_.remove(question);
  co_return fail(Errc::cancelled, Doing::resolving, "stopping");
}

Resolver::SharedQuestion Resolver::ask(const asio::any_io_executor& executor,
                                       const std::string& host) {
  for (const auto& question : questions_)
    if (question->host == host) return question;
  auto question = std::make_shared<Question>(executor, host);
  questions_.push_back(question);
  start_next();
  return question;
}

void Resolver::start_next() {
  const auto is_started = [](const auto& question) { return question->started; };
  if (std::ranges::count_if(questions_, is_started) >= kMaxLookUps) return;
  const auto next = std::ranges::find_if_not(questions_, is_started);
  if (next != questions_.end()) start(**next);
}

void Resolver::start(Question& question) {
  question.started = true;
  const auto executor = question.answered.get_executor();
  {
    const MutexLock lock(way_back_->mutex);
    way_back_->executor = executor;
  }
  auto look_up_here = [this, look_up = look_up_, way_back = way_back_, host = question.host] {
    name_this_thread("resolve");
    auto answer = look_up(host);
    const MutexLock lock(way_back->mutex);
    if (!way_back->executor) return;  // and nothing behind `this`
    auto hand_over = [this, host, answer = std::move(answer)]() mutable {
      on_answer(host, std::move(answer));
    };
    asio::post(*way_back->executor, std::move(hand_over));
  };
  try {
    std::thread thread(std::move(look_up_here));
    thread.detach();  // joining it would be waiting for the look-up
  } catch (const std::system_error& error) {
    auto none = [this, host = question.host, why = error.code().message()] {
      on_answer(host, fail(Errc::resolve_failed, Doing::resolving,
                           host + ": no thread to look it up: " + why));
    };
    asio::post(executor, std::move(none));
  }
}

void Resolver::on_answer(const std::string& host, Result<Addresses> answer) {
  const auto at =
      std::ranges::find(questions_, host, [](const auto& asked) { return asked->host; });
  STARLING_CHECK(at != questions_.end());
  const auto question = std::move(*at);
  questions_.erase(at);
  question->answer.emplace(std::move(answer));
  question->answered.cancel();
  start_next();
}

Result<Addresses> look_up(const std::string& host) {
  // The node's own io_context may end before there is an answer.
  asio::io_context nobodys;
  tcp::resolver resolver(nobodys);
  std::error_code error;
  const auto found = resolver.resolve(host, "", error);
  if (error) return fail(Errc::resolve_failed, Doing::resolving, host + ": " + error.message());
  Addresses addresses;
  for (const auto& entry : found) addresses.push_back(entry.endpoint().address());
  return addresses;
}

Task<Result<std::vector<tcp::endpoint>>> resolve(Endpoint target, Duration time) {
  std::vector<tcp::endpoint> endpoints;
  std::error_code no_number;
  const auto number = asio::ip::make_address(target.host, no_number);
  if (!no_number) {
    endpoints.emplace_back(number, target.port);
    co_return endpoints;
  }
  // Who was cancelled before this wait is not told so again, and would sit out the deadline.
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none)
    co_return fail(Errc::cancelled, Doing::resolving, "stopping");
  const auto executor = co_await asio::this_coro::executor;
  auto& resolver = asio::use_service<Resolver>(asio::query(executor, asio::execution::context));
  auto asking = resolver.addresses_of(target.host);
  auto found = co_await with_deadline(time, Doing::resolving, std::move(asking));
  if (!found) {
    auto why = std::move(found).error();
    if (why.code == Errc::timed_out) why.detail = target.host + ": no answer within the deadline";
    co_return fail(std::move(why));
  }
  if (found->empty())
    co_return fail(Errc::resolve_failed, Doing::resolving, target.host + ": has no address");
  for (const auto& address : *found) endpoints.emplace_back(address, target.port);
  co_return endpoints;
}

}  // namespace starling::transport
