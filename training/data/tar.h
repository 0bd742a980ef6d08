// Where the files inside a tar archive are: ustar, PAX and GNU long names, bounded.
#pragma once

#include "node/base/result.h"
#include "training/data/byte_source.h"

#include <cstdint>
#include <optional>
#include <string>

namespace starling::training {

// A regular file inside an archive.
struct TarMember {
  std::string name;
  std::uint64_t header_at = 0;  // first byte of its first header, extensions included
  std::uint64_t data_at = 0;
  std::uint64_t size = 0;
};

// Walks an archive from header to header. The bytes of the members are not read.
//
// A small value; the source must outlive it. Trusts nothing: header checksums are compared, sizes
// are checked against the size of the source, names are at most kMaxTarName bytes, and each step
// moves forward, so any input ends.
class TarReader {
 public:
  explicit TarReader(const ByteSource& source, std::uint64_t at = 0) : source_(source), at_(at) {}

  // The next regular file; nothing at the end of the archive (two zero blocks, one, or the end of
  // the file right after a member). Folders, links and devices are passed over.
  //
  // Errors:  data_failed naming source, place and what is wrong: damaged header, member that
  //          reaches beyond the end ("truncated"), sparse file, oversized extension.
  [[nodiscard]] Result<std::optional<TarMember>> next();

 private:
  struct Header;
  struct Extensions;

  Result<std::optional<Header>> read_header();
  Result<std::string> read_text(std::uint64_t at, std::uint64_t size, std::uint64_t limit) const;
  Result<void> read_pax(const Header& header, Extensions& extensions) const;
  std::unexpected<Error> damaged(std::uint64_t at, const std::string& what) const;

  const ByteSource& source_;
  std::uint64_t at_;
};

inline constexpr std::uint64_t kMaxTarName = 4'096;
// All PAX records of one member.
inline constexpr std::uint64_t kMaxTarExtension = 1ULL << 20;

}  // namespace starling::training
