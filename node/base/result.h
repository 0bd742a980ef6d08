// Result<T>: a value, or the Error that explains its absence.
#pragma once

#include "node/base/error.h"

#include <expected>
#include <utility>

namespace starling {

template <class T = void>
using Result = std::expected<T, Error>;

// Ends a function that returns Result: `return fail(Errc::too_large, Doing::reading_record,
// "...")`.
[[nodiscard]] inline std::unexpected<Error> fail(Errc code, Doing doing, std::string detail) {
  return std::unexpected<Error>(Error{code, doing, std::move(detail)});
}

// Passes an error upwards unchanged.
[[nodiscard]] inline std::unexpected<Error> fail(Error error) {
  return std::unexpected<Error>(std::move(error));
}

}  // namespace starling

#define STARLING_CONCAT_INNER(a, b) a##b
#define STARLING_CONCAT(a, b) STARLING_CONCAT_INNER(a, b)

// TRY(auto value, expression): `value` becomes the result's value, or the function returns its
// error. For plain functions only: a coroutine writes the two lines, because no macro may hide a
// co_await.
#define TRY(declaration, expression)                                                \
  auto STARLING_CONCAT(try_, __LINE__) = (expression);                              \
  if (!STARLING_CONCAT(try_, __LINE__))                                             \
    return ::std::unexpected(::std::move(STARLING_CONCAT(try_, __LINE__)).error()); \
  declaration = ::std::move(*STARLING_CONCAT(try_, __LINE__))

// TRY_VOID(expression): the same for Result<void>.
#define TRY_VOID(expression)                                                              \
  do {                                                                                    \
    auto try_void_result = (expression);                                                  \
    if (!try_void_result) return ::std::unexpected(::std::move(try_void_result).error()); \
  } while (false)
