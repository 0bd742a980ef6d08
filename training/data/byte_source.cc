#include "training/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace starling::training {

namespace {

std::unexpected<Error> file_failed(const std::string& name, std::string_view what) {
  return fail(Errc::data_failed, Doing::loading_data, name + ": " + std::string(what));
}

std::string system_text(int code) { return std::generic_category().message(code); }

Error ends_early(const std::string& name, std::uint64_t at, std::size_t wanted) {
  return {Errc::data_failed, Doing::loading_data,
          name + ": ends before byte " + std::to_string(at) + " + " + std::to_string(wanted)};
}

class FileSource final : public ByteSource {
 public:
  FileSource(std::string name, int descriptor, std::uint64_t size)
      : name_(std::move(name)), descriptor_(descriptor), size_(size) {}
  ~FileSource() override { ::close(descriptor_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }

  Result<void> read_at(std::uint64_t at, std::span<std::byte> out) const override {
    if (at > size_ || out.size() > size_ - at) return fail(ends_early(name_, at, out.size()));
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t count =
          ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(at + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_failed(name_, system_text(errno));
      if (count == 0) return fail(ends_early(name_, at, out.size()));  // it shrank meanwhile
      done += static_cast<std::size_t>(count);
    }
    return {};
  }

 private:
  std::string name_;
  int descriptor_;
  std::uint64_t size_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // NONBLOCK: a FIFO in the place of a file must not hang the start.
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return file_failed(name, system_text(errno));
  struct stat info{};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return file_failed(name, "not a regular file");
  }
  return std::make_unique<FileSource>(name, descriptor, static_cast<std::uint64_t>(info.st_size));
}

Result<Bytes> read_whole(const std::filesystem::path& path, std::uint64_t max_bytes) {
  TRY(const std::unique_ptr<ByteSource> file, open_file(path));
  if (file->size() > max_bytes) {
    return file_failed(file->name(), std::to_string(file->size()) + " bytes, more than " +
                                         std::to_string(max_bytes));
  }
  Bytes bytes(static_cast<std::size_t>(file->size()));
  TRY_VOID(file->read_at(0, bytes));
  return bytes;
}

Result<void> MemorySource::read_at(std::uint64_t at, std::span<std::byte> out) const {
  if (at > bytes_.size() || out.size() > bytes_.size() - at) {
    return fail(ends_early(name_, at, out.size()));
  }
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
  return {};
}

}  // namespace starling::training
