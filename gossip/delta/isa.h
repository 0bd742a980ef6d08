// Which instructions the codec uses. All paths make the same bytes; they differ in speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace starling::gossip {

enum class Isa : std::uint8_t { scalar, avx2, avx512 };

// The widest path that this build and this processor have.
[[nodiscard]] Isa detected_isa();
// Whether this build and this processor can run a path.
[[nodiscard]] bool is_available(Isa isa);

// Whether this processor, shown where a page of 4 KiB begins, reads on by itself faster than it
// could be asked line by line: Intel's (node/decisions/0069).
[[nodiscard]] bool reads_pages_ahead();

[[nodiscard]] std::string_view name_of(Isa isa);
// "scalar", "avx2" or "avx512", as STARLING_ISA spells them; nothing for any other text.
[[nodiscard]] std::optional<Isa> parse_isa(std::string_view text);

}  // namespace starling::gossip
