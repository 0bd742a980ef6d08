#include "training/data/pack.h"

#include "node/base/posix_file.h"
#include "training/data/augment.h"
#include "training/data/packed.h"
#include "training/data/side_threads.h"

#include <fcntl.h>
#include <turbojpeg.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

namespace starling::training {

namespace {

namespace fs = std::filesystem;

// Samples that are converted before they are written: enough for every thread to have work.
constexpr std::uint32_t kPackChunk = 1'024;
constexpr std::uint32_t kMinSide = 8;

std::unexpected<Error> bad_option(const std::string& what) {
  return fail(Errc::bad_argument, Doing::parsing_arguments, what);
}

// Both sides in proportion, the shorter one `side` pixels; the same where it is smaller already.
ImageSize smaller(ImageSize size, std::uint32_t side) {
  const std::uint32_t shorter = std::min(size.height, size.width);
  if (side == 0 || shorter <= side) return size;
  const double scale = static_cast<double>(side) / shorter;
  const auto scaled = [scale](std::uint32_t pixels) {
    return std::max(1U, static_cast<std::uint32_t>(std::lround(pixels * scale)));
  };
  return {scaled(size.height), scaled(size.width)};
}

std::string count_of_channels(const Dataset& set) {
  return std::to_string(set.channels()) + (set.channels() == 1 ? " channel" : " channels");
}

// A file that grows, and takes its name when it is whole.
class PackFile {
 public:
  explicit PackFile(fs::path file)
      : file_(std::move(file)),
        partial_(file_.string() + ".partial"),
        // Not through a link: who can put one there would choose the file that is emptied.
        descriptor_(
            ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644)),
        errno_(descriptor_.ok() ? 0 : errno) {}
  ~PackFile() {
    if (!whole_ && descriptor_.ok()) (void)::unlink(partial_.c_str());
  }
  PackFile(const PackFile&) = delete;
  PackFile& operator=(const PackFile&) = delete;

  [[nodiscard]] Result<void> append(ByteView bytes) {
    TRY_VOID(write_at(end_, bytes));
    end_ += bytes.size();
    return {};
  }
  // Where the next bytes will lie.
  [[nodiscard]] std::uint64_t end() const { return end_; }

  // Replaces the first bytes, flushes, renames.
  [[nodiscard]] Result<void> complete(ByteView header) {
    TRY_VOID(write_at(0, header));
    if (::fsync(descriptor_.number()) != 0 || ::rename(partial_.c_str(), file_.c_str()) != 0)
      errno_ = errno;
    if (errno_ == 0) errno_ = flush_folder(file_.parent_path());
    TRY_VOID(said());
    whole_ = true;
    return {};
  }

 private:
  [[nodiscard]] Result<void> write_at(std::uint64_t at, ByteView bytes) {
    while (errno_ == 0 && !bytes.empty()) {
      const auto written =
          ::pwrite(descriptor_.number(), bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        errno_ = errno;
      } else {
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        at += static_cast<std::uint64_t>(written);
      }
    }
    return said();
  }
  [[nodiscard]] Result<void> said() const {
    if (errno_ == 0) return {};
    if (!descriptor_.ok() && errno_ == ELOOP)
      return fail(
          errc_of_errno(errno_), Doing::writing_file,
          partial_.string() + ": a symbolic link, through which nothing is written; remove it");
    return fail(errc_of_errno(errno_), Doing::writing_file,
                partial_.string() + ": " + std::generic_category().message(errno_));
  }

  fs::path file_;
  fs::path partial_;
  Descriptor descriptor_;
  int errno_;
  std::uint64_t end_ = 0;
  bool whole_ = false;
};

// A sample on its way from its set to the file.
struct Converted {
  Sample sample;
  std::optional<Error> error;
};

// Converts the samples from `begin` on, until the chunk is full or has that many bytes; how many.
std::size_t convert_chunk(const Dataset& set, std::uint32_t begin, std::span<Converted> chunk,
                          std::uint64_t most_bytes, std::vector<SampleConverter>& converters) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> bytes = 0;
  run_beside(converters.size(), [&](std::size_t number) {
    while (bytes < most_bytes) {
      const std::size_t at = next++;
      if (at >= chunk.size()) break;
      Converted& one = chunk[at];
      auto done = set.read(begin + static_cast<std::uint32_t>(at), one.sample);
      if (done) done = converters[number].convert(one.sample);
      if (!done) one.error = std::move(done).error();
      bytes += one.sample.bytes.size();
    }
  });
  return std::min<std::size_t>(next, chunk.size());
}

class Packer {
 public:
  Packer(const PackOptions& options, const fs::path& file)
      : max_bad_(options.max_bad),
        waiting_bytes_(std::max<std::uint64_t>(1, options.waiting_bytes)),
        file_(file) {
    for (unsigned t = 0; t < std::max(1U, options.threads); ++t) converters_.emplace_back(options);
  }

  [[nodiscard]] Result<PackReport> run(
      const DataSets& sets, const std::string& origin,
      const std::function<void(const PackProgress&)>& on_progress) {
    // The file has one number for all: encoded images beside gray pixels could not be read back.
    if (sets.val && sets.val->channels() != sets.train->channels())
      return fail(Errc::data_failed, Doing::loading_data,
                  sets.val->name() + " has " + count_of_channels(*sets.val) + ", " +
                      sets.train->name() + " has " + count_of_channels(*sets.train) +
                      ": pack each into a file of its own");
    index_.origin = origin;
    index_.classes = sets.train->class_names();
    index_.header.channels = sets.train->channels();
    index_.header.classes = sets.train->classes();
    progress_.all = sets.train->size() + (sets.val ? sets.val->size() : 0);
    TRY_VOID(file_.append(Bytes(kPackedHeaderBytes)));
    TRY(report_.train, add(*sets.train, on_progress));
    if (sets.val) {
      TRY(report_.val, add(*sets.val, on_progress));
    }
    if (report_.train == 0)
      return fail(Errc::data_failed, Doing::loading_data,
                  sets.train->name() + ": no sample of it can be read");
    index_.header.train = report_.train;
    index_.header.val = report_.val;
    const Bytes index = encode_index(index_);
    index_.header.index_at = file_.end();
    index_.header.index_bytes = index.size();
    index_.header.hash = hash_of(index_.header, index);
    TRY_VOID(file_.append(index));
    TRY_VOID(file_.complete(encode_header(index_.header)));
    report_.bytes = file_.end();
    return std::move(report_);
  }

 private:
  // Adds one part; how many samples of it are in the file.
  [[nodiscard]] Result<std::uint32_t> add(
      const Dataset& set, const std::function<void(const PackProgress&)>& on_progress) {
    std::uint32_t stored = 0;
    for (std::uint32_t begin = 0; begin < set.size();) {
      chunk_.clear();  // a sample kept for its memory would hold it beside the next ones'
      chunk_.resize(std::min(kPackChunk, set.size() - begin));
      chunk_.resize(convert_chunk(set, begin, chunk_, waiting_bytes_, converters_));
      for (std::size_t i = 0; i < chunk_.size(); ++i) {
        const Converted& one = chunk_[i];
        if (!one.error && one.sample.raw && one.sample.raw->channels != index_.header.channels)
          return fail(Errc::data_failed, Doing::loading_data,
                      set.name() + ": images of both one and three channels");
        if (!one.error) {
          TRY_VOID(store(one.sample));
          ++stored;
          continue;
        }
        report_.left_out.push_back(set.sample_name(begin + static_cast<std::uint32_t>(i)) + ": " +
                                   one.error->detail);
        if (report_.left_out.size() > max_bad_)
          return fail(
              Errc::data_failed, Doing::loading_data,
              "more than " + std::to_string(max_bad_) +
                  " unreadable images (data.max_bad); the last: " + report_.left_out.back());
      }
      begin += static_cast<std::uint32_t>(chunk_.size());
      progress_.done += chunk_.size();
      progress_.bytes = file_.end();
      on_progress(progress_);
    }
    return stored;
  }

  [[nodiscard]] Result<void> store(const Sample& sample) {
    PackedEntry entry{.at = file_.end(),
                      .bytes = static_cast<std::uint32_t>(sample.bytes.size()),
                      .label = static_cast<std::uint32_t>(sample.label),
                      .crc32 = crc32_of(sample.bytes)};
    if (sample.raw) {
      entry.height = static_cast<std::uint16_t>(sample.raw->size.height);
      entry.width = static_cast<std::uint16_t>(sample.raw->size.width);
    }
    index_.entries.push_back(entry);
    return file_.append(sample.bytes);
  }

  std::uint32_t max_bad_;
  std::uint64_t waiting_bytes_;
  PackFile file_;
  std::vector<SampleConverter> converters_;
  std::vector<Converted> chunk_;
  PackedIndex index_;
  PackReport report_;
  PackProgress progress_;
};

}  // namespace

struct SampleConverter::Impl {
  explicit Impl(const PackOptions& chosen) : options(chosen), decoder(chosen.limits) {}
  ~Impl() {
    if (turbo != nullptr) (void)tjDestroy(turbo);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] Result<void> encode(const Image& image, Sample& out);

  PackOptions options;
  Decoder decoder;
  Resampler resampler;
  Image decoded;
  Image resized;
  tjhandle turbo = tjInitCompress();
};

SampleConverter::SampleConverter(const PackOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
SampleConverter::~SampleConverter() = default;
SampleConverter::SampleConverter(SampleConverter&&) noexcept = default;

Result<void> SampleConverter::Impl::encode(const Image& image, Sample& out) {
  out.raw.reset();
  // A decoder makes three channels of every JPEG: gray stays pixels.
  if (options.form == PackedForm::raw || image.channels == 1) {
    out.raw = Sample::Raw{image.size, image.channels};
    out.bytes = to_bytes(std::as_bytes(std::span(image.pixels)));
    return {};
  }
  unsigned char* jpeg = nullptr;
  unsigned long bytes = 0;
  const int done = turbo == nullptr
                       ? -1
                       : tjCompress2(turbo, image.pixels.data(), static_cast<int>(image.size.width),
                                     0, static_cast<int>(image.size.height), TJPF_RGB, &jpeg,
                                     &bytes, TJSAMP_420, options.quality, TJFLAG_ACCURATEDCT);
  if (done == 0) out.bytes = to_bytes(std::as_bytes(std::span(jpeg, bytes)));
  tjFree(jpeg);
  if (done == 0) return {};
  return fail(Errc::data_failed, Doing::loading_data,
              std::string("cannot be encoded: ") + tjGetErrorStr2(turbo));
}

Result<void> SampleConverter::convert(Sample& sample) {
  Image& decoded = impl_->decoded;
  if (sample.raw) {
    const ImageSize to = smaller(sample.raw->size, impl_->options.side);
    const bool kept = to == sample.raw->size;
    const std::uint32_t longer = std::max(to.height, to.width);
    // A JPEG of an icon is as large as its pixels, and there is none of gray ones.
    const bool stays =
        impl_->options.form == PackedForm::raw || sample.raw->channels == 1 || longer <= kSmallSide;
    if (kept && stays && longer <= kMaxPackedSide) return {};
    decoded.size = sample.raw->size;
    decoded.channels = sample.raw->channels;
    const auto* pixels = reinterpret_cast<const std::uint8_t*>(sample.bytes.data());
    decoded.pixels.assign(pixels, pixels + sample.bytes.size());
    if (kept && !stays) return impl_->encode(decoded, sample);
    impl_->resampler.resize(decoded, to, impl_->resized);
    return impl_->encode(impl_->resized, sample);
  }
  TRY(const ImageHeader header, impl_->decoder.probe(sample.bytes));
  const ImageSize to = smaller(header.size, impl_->options.side);
  if (std::max(to.height, to.width) > kMaxPackedSide)
    return fail(Errc::data_failed, Doing::loading_data, "a side of more than 65,535 pixels");
  const bool fits = impl_->options.form == PackedForm::jpeg && header.format == ImageFormat::jpeg;
  if (fits && to == header.size) {
    // Already as it should be: encoding it again would only cost quality. It must decode, though.
    return impl_->decoder.decode(sample.bytes, 1, decoded);
  }
  const CropBox whole{0, 0, static_cast<double>(header.size.height),
                      static_cast<double>(header.size.width)};
  const std::uint32_t reduce = reduction_for(whole, std::min(to.height, to.width));
  TRY_VOID(impl_->decoder.decode(sample.bytes, reduce, decoded));
  if (decoded.size == to) return impl_->encode(decoded, sample);
  impl_->resampler.resize(decoded, to, impl_->resized);
  return impl_->encode(impl_->resized, sample);
}

Result<PackReport> pack(const DataSets& sets, const std::string& origin, const PackOptions& options,
                        const fs::path& file,
                        const std::function<void(const PackProgress&)>& on_progress) {
  if (options.quality < 1 || options.quality > 100)
    return bad_option("a JPEG quality is 1 to 100, not " + std::to_string(options.quality));
  if (options.side != 0 && (options.side < kMinSide || options.side > kMaxPackSide))
    return bad_option("the shorter side is 8 to 8,192 pixels, or 0 for as it is, not " +
                      std::to_string(options.side));
  return Packer(options, file).run(sets, origin, on_progress);
}

}  // namespace starling::training
