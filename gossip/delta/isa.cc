#include "gossip/delta/isa.h"

#include <algorithm>
#include <array>

namespace starling::gossip {

namespace {
constexpr std::array<std::string_view, 3> kIsaNames{"scalar", "avx2", "avx512"};
}

bool is_available(Isa isa) {
#ifdef STARLING_X86_KERNELS
  // The processor flags alone are not enough: the operating system must save the wide registers,
  // which __builtin_cpu_supports looks at as well.
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") != 0;
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  }
  return false;
#else
  return isa == Isa::scalar;
#endif
}

Isa detected_isa() {
  if (is_available(Isa::avx512)) return Isa::avx512;
  if (is_available(Isa::avx2)) return Isa::avx2;
  return Isa::scalar;
}

bool reads_pages_ahead() {
#ifdef STARLING_X86_KERNELS
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

std::string_view name_of(Isa isa) { return kIsaNames[static_cast<std::size_t>(isa)]; }

std::optional<Isa> parse_isa(std::string_view text) {
  const auto found = std::ranges::find(kIsaNames, text);
  if (found == kIsaNames.end()) return std::nullopt;
  return static_cast<Isa>(found - kIsaNames.begin());
}

}  // namespace starling::gossip
