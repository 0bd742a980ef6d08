#include "training/file_io.h"

#include "node/base/fault.h"
#include "node/base/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace starling::training {
namespace {

// Large enough for any disk's full rate, and nothing against the memory of a node.
constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;

std::unexpected<Error> os_error(Doing doing, const std::filesystem::path& path, int number) {
  return fail(errc_of_errno(number), doing,
              path.string() + ": " + std::generic_category().message(number));
}

}  // namespace

Result<FilePrefix> read_prefix(const std::filesystem::path& path, std::uint64_t max_bytes) {
  // Not to wait at a FIFO for somebody who writes.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) return os_error(Doing::reading_file, path, errno);
  struct stat status{};
  if (::fstat(file.number(), &status) != 0) return os_error(Doing::reading_file, path, errno);
  if (!S_ISREG(status.st_mode)) {
    return fail(Errc::permission, Doing::reading_file,
                path.string() + ": not a regular file: put a file there, or remove it");
  }
  FilePrefix prefix;
  prefix.file_bytes = static_cast<std::uint64_t>(status.st_size);
  Bytes& bytes = prefix.bytes;
  bytes.resize(static_cast<std::size_t>(std::min(prefix.file_bytes, max_bytes)));
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.number(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os_error(Doing::reading_file, path, errno);
    if (count == 0) break;  // the file shrank while we read
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
  return prefix;
}

Result<Bytes> read_whole_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  // Nothing is reserved for a file that is too large.
  TRY(const FilePrefix nothing, read_prefix(path, 0));
  if (nothing.file_bytes > max_bytes) {
    return fail(Errc::too_large, Doing::reading_file,
                path.string() + ": " + std::to_string(nothing.file_bytes) + " bytes, at most " +
                    std::to_string(max_bytes) + " are read");
  }
  TRY(FilePrefix whole, read_prefix(path, max_bytes));
  return std::move(whole.bytes);
}

Result<void> write_whole_file(const std::filesystem::path& path, std::string_view text) {
  TRY(OutputFile file, OutputFile::create(path));
  TRY_VOID(file.write(as_bytes(text)));
  return file.close_durably();
}

Result<void> flush_folder(const std::filesystem::path& path) {
  if (fault::maybe("folder.flush")) return os_error(Doing::writing_file, path, EIO);
  const int failed = starling::flush_folder(path);
  if (failed != 0) return os_error(Doing::writing_file, path, failed);
  return {};
}

OutputFile::OutputFile(int descriptor, std::filesystem::path path)
    : descriptor_(descriptor), path_(std::move(path)) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      written_(other.written_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(written_, other.written_);
  return *this;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0644;
  if (fault::maybe("file.create")) return os_error(Doing::writing_file, path, EIO);
  // Not through a link: whoever can put one into the folder would choose the file that is emptied.
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kMode);
  if (descriptor < 0 && errno == ELOOP)
    return fail(errc_of_errno(ELOOP), Doing::writing_file,
                path.string() + ": a symbolic link, through which nothing is written; remove it");
  if (descriptor < 0) return os_error(Doing::writing_file, path, errno);
  return OutputFile(descriptor, path);
}

Result<void> OutputFile::write(ByteView bytes) {
  if (fault::maybe("file.write")) return os_error(Doing::writing_file, path_, ENOSPC);
  while (!bytes.empty()) {
    const auto piece = static_cast<std::size_t>(kPiece - written_ % kPiece);
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), piece));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os_error(Doing::writing_file, path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    written_ += static_cast<std::uint64_t>(count);
    if (written_ % kPiece == 0) TRY_VOID(drop_behind());
  }
  return {};
}

// The disk begins with the piece just written, and the one before leaves the cache when it has
// ended with that: two pieces at most are in memory and unwritten.
Result<void> OutputFile::drop_behind() {
  constexpr auto kAll =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const auto piece = static_cast<off_t>(kPiece);
  const auto last = static_cast<off_t>(written_) - piece;
  int failed = ::sync_file_range(descriptor_, last, piece, SYNC_FILE_RANGE_WRITE) == 0 ? 0 : errno;
  if (last >= piece) {
    if (::sync_file_range(descriptor_, last - piece, piece, kAll) != 0) failed = errno;
    (void)::posix_fadvise(descriptor_, last - piece, piece, POSIX_FADV_DONTNEED);
  }
  // The kernel reports a write that failed once, so fsync() would not say it again. Where a file
  // system knows nothing of ranges (EINVAL, ESPIPE, ENOSYS), fsync() does all.
  if (failed == EIO || failed == ENOSPC || failed == EDQUOT)
    return os_error(Doing::writing_file, path_, failed);
  return {};
}

Result<void> OutputFile::close_durably() {
  if (fault::maybe("file.flush")) return os_error(Doing::writing_file, path_, EIO);
  if (::fsync(descriptor_) != 0) return os_error(Doing::writing_file, path_, errno);
  fault::pass("file.flushed");
  // close() reports what a network file system could not write; the descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    return os_error(Doing::writing_file, path_, errno);
  }
  return {};
}

}  // namespace starling::training
