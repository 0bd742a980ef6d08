// The fields of a status that came as JSON, as people read them: for tables and for the live
// screen. A field that is missing shows as "-"; texts are escaped.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace starling::node::fields {

// The value at the end of the path, or the last one on the way to it that there is: never of the
// kind that is looked for, unless it is there.
[[nodiscard]] const nlohmann::json& at(const nlohmann::json& object,
                                       std::initializer_list<std::string_view> path);
// A leaf as text; "-" for what is not there or not known.
[[nodiscard]] std::string show(const nlohmann::json& value);
[[nodiscard]] std::string show(const nlohmann::json& object,
                               std::initializer_list<std::string_view> path);
// A number with so many digits, or all those before its point: "0.0037", "24300". Below 1e-4 with
// an exponent: "3.7e-5". The page's script writes it the same way.
[[nodiscard]] std::string show_figure(double value, int digits);
// 0 for what is no number.
[[nodiscard]] double number(const nlohmann::json& object,
                            std::initializer_list<std::string_view> path);
// "12 ms", with three digits.
[[nodiscard]] std::string with_unit(const nlohmann::json& item, std::string_view key,
                                    std::string_view unit);
// "1.5 MB": powers of 1,000.
[[nodiscard]] std::string show_bytes(double bytes);
// The first digits of what an item has as "id".
[[nodiscard]] std::string short_id(const nlohmann::json& item);
// How many items of a list say so.
[[nodiscard]] std::size_t count_where(const nlohmann::json& list, std::string_view key,
                                      std::string_view value);
// "8 alive, 1 suspect": the members of a status by their state.
[[nodiscard]] std::string members_by_state(const nlohmann::json& status);

// "loading  61.0 MB of 205 MB from 3f2a91c0": the search for a model; empty once the node has one.
[[nodiscard]] std::string join_of(const nlohmann::json& status);
// "yes", "unknown", or "no" with what to do about it.
[[nodiscard]] std::string reachable_of(const nlohmann::json& status);

// Characters, not bytes, so that columns stay straight.
[[nodiscard]] std::size_t width_of(std::string_view text);

}  // namespace starling::node::fields
