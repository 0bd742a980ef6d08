// The files of a node's web page, embedded in the program. There is no data in them: the page's
// script asks /api/v1 for it.
#pragma once

#include <string_view>

namespace starling::node {

struct PageFile {
  std::string_view path;  // "/page.js"
  std::string_view type;  // as in Content-Type
  std::string_view text;
};

// What a browser may do with the page: load and ask what this node serves, nothing from elsewhere,
// no script or style between the lines, and no text made HTML.
inline constexpr std::string_view kPagePolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'";

// The file at a path; null where there is none.
//
// Thread:  any; pure.
[[nodiscard]] const PageFile* find_page_file(std::string_view path);

}  // namespace starling::node
