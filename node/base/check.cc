#include "node/base/check.h"

#include <cstdlib>
#include <iostream>

namespace starling {

void check_failed(const char* file, int line, const char* text, const std::string& operands) {
  std::cerr << file << ':' << line << ": CHECK failed: " << text;
  if (!operands.empty()) std::cerr << " (" << operands << ')';
  std::cerr << std::endl;
  std::abort();
}

}  // namespace starling
