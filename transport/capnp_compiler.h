// Two operators that Cap'n Proto 0.9.2's headers need to compile as C++20 or later with clang:
// forced into every file that includes them, before anything else.
#pragma once

#include <kj/string.h>

namespace kj {

inline bool operator==(const char* a, const StringPtr& b) { return b == StringPtr(a); }
inline bool operator!=(const char* a, const StringPtr& b) { return !(b == StringPtr(a)); }

}  // namespace kj
