#include "training/data/idx.h"

#include "node/base/hash.h"
#include "training/data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace starling::training {

namespace {

constexpr std::uint32_t kMaxSide = 4'096;
constexpr std::size_t kUnpackStep = std::size_t{1} << 20;

std::unexpected<Error> bad_idx(const std::string& name, const std::string& what) {
  return fail(Errc::data_failed, Doing::loading_data, name + ": " + what);
}

bool is_gzip(ByteView file) {
  return file.size() >= 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
}

struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

// Unpacks gzip, all members of it, at most `limit` bytes.
Result<Bytes> unpack(const std::string& name, ByteView file, std::uint64_t limit) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzip) != Z_OK) return bad_idx(name, "zlib cannot start");
  const std::unique_ptr<z_stream, InflateEnd> end(&stream);
  if (file.size() > std::numeric_limits<uInt>::max()) return bad_idx(name, "a file above 4 GiB");
  // zlib's interface predates const.
  stream.next_in =
      const_cast<Bytef*>(reinterpret_cast<const Bytef*>(file.data()));  // NOLINT: see above
  stream.avail_in = static_cast<uInt>(file.size());
  Bytes out;
  std::size_t size = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    if (size > limit) break;
    if (size == out.size()) out.resize(size + kUnpackStep);
    const std::size_t room = out.size() - size;
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + size);
    stream.avail_out = static_cast<uInt>(room);
    code = inflate(&stream, Z_NO_FLUSH);
    size += room - stream.avail_out;
    // Members one after the other are one file, as gzip(1) has it: `cat a.gz b.gz`, bgzip, pigz -i.
    if (code == Z_STREAM_END && is_gzip(file.last(stream.avail_in))) code = inflateReset(&stream);
  }
  if (size > limit)
    return bad_idx(name, "unpacks to more than " + std::to_string(limit) + " bytes");
  if (code != Z_STREAM_END) return bad_idx(name, "damaged or truncated gzip");
  out.resize(size);
  return out;
}

std::uint32_t big_endian(ByteView bytes) {
  std::uint32_t value = 0;
  for (const std::byte b : bytes) value = value << 8 | std::to_integer<std::uint32_t>(b);
  return value;
}

// Images and labels of one split, in memory.
class IdxDataset final : public Dataset {
 public:
  IdxDataset(std::string name, std::string folder, IdxArray images, IdxArray labels)
      : name_(std::move(name)),
        folder_(std::move(folder)),
        images_(std::move(images)),
        labels_(std::move(labels)) {
    Hasher hasher;
    hasher.add("starling data idx");
    for (const std::uint32_t extent : images_.shape) hasher.add(std::uint64_t{extent});
    id_ = hasher.add(labels_.bytes).finish();
  }

  std::uint32_t size() const override { return images_.shape[0]; }
  std::uint32_t channels() const override { return 1; }
  std::optional<ImageSize> uniform_size() const override {
    return ImageSize{images_.shape[1], images_.shape[2]};
  }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    const std::size_t pixels = std::size_t{images_.shape[1]} * images_.shape[2];
    const ByteView view = ByteView(images_.bytes).subspan(index * pixels, pixels);
    out.bytes.assign(view.begin(), view.end());
    out.label = std::to_integer<std::int64_t>(labels_.bytes[index]);
    out.raw = Sample::Raw{{images_.shape[1], images_.shape[2]}, 1};
    return {};
  }
  std::string sample_name(std::uint32_t index) const override {
    return folder_ + ": image " + std::to_string(index);
  }

  // One past the largest label.
  std::uint32_t label_end() const {
    const auto largest = std::max_element(labels_.bytes.begin(), labels_.bytes.end());
    return std::to_integer<std::uint32_t>(*largest) + 1;
  }
  void name_classes(std::uint32_t count) {
    for (std::uint32_t c = 0; c < count; ++c) classes_.push_back(std::to_string(c));
  }

 private:
  std::string name_;
  std::string folder_;
  IdxArray images_;
  IdxArray labels_;
  std::vector<std::string> classes_;
  Hash id_;
};

// The path of one file of the set under any of the names in use; nothing if there is none.
std::optional<std::filesystem::path> find_part(const std::filesystem::path& folder,
                                               std::string_view split, std::string_view what) {
  for (const std::string_view between : {"-", "."}) {
    for (const std::string_view packed : {"", ".gz"}) {
      std::string file(split);
      file += what == "images" ? "-images" : "-labels";
      file += between;
      file += what == "images" ? "idx3-ubyte" : "idx1-ubyte";
      file += packed;
      std::error_code ignored;
      if (std::filesystem::exists(folder / file, ignored)) return folder / file;
    }
  }
  return std::nullopt;
}

Result<std::unique_ptr<IdxDataset>> open_split(const DataSpec& spec, std::string_view split,
                                               std::string_view split_name) {
  const std::filesystem::path& folder = spec.paths.front();
  const auto images_path = find_part(folder, split, "images");
  const auto labels_path = find_part(folder, split, "labels");
  if (!images_path || !labels_path) {
    std::string what = "has no " + std::string(split) + "-images-idx3-ubyte[.gz] with its labels";
    if (spec.text == "fashion-mnist") what += "; install the Debian package dataset-fashion-mnist";
    return bad_idx(folder.string(), what);
  }
  TRY(const Bytes images_file, read_whole(*images_path, kMaxIdxBytes));
  TRY(IdxArray images, parse_idx(images_path->string(), images_file));
  TRY(const Bytes labels_file, read_whole(*labels_path, kMaxIdxBytes));
  TRY(IdxArray labels, parse_idx(labels_path->string(), labels_file));
  if (images.shape.size() != 3) return bad_idx(images_path->string(), "does not hold images");
  if (labels.shape.size() != 1) return bad_idx(labels_path->string(), "does not hold labels");
  if (images.shape[0] != labels.shape[0]) {
    return bad_idx(labels_path->string(), std::to_string(labels.shape[0]) + " labels for " +
                                              std::to_string(images.shape[0]) + " images");
  }
  if (images.shape[0] == 0) return bad_idx(images_path->string(), "holds no image");
  if (images.shape[1] == 0 || images.shape[2] == 0 || images.shape[1] > kMaxSide ||
      images.shape[2] > kMaxSide) {
    return bad_idx(images_path->string(), "images of an impossible size");
  }
  return std::make_unique<IdxDataset>(spec.text + " " + std::string(split_name), folder.string(),
                                      std::move(images), std::move(labels));
}

}  // namespace

Result<IdxArray> parse_idx(const std::string& name, ByteView file, std::uint64_t max_bytes) {
  Bytes unpacked;
  if (is_gzip(file)) {
    TRY(Bytes bytes, unpack(name, file, max_bytes));
    unpacked = std::move(bytes);
    file = unpacked;
  }
  // Two zero bytes, the type (8 is unsigned byte), the number of dimensions; then their extents.
  if (file.size() < 4 || big_endian(file.first(2)) != 0) return bad_idx(name, "not an IDX file");
  if (file[2] != std::byte{8}) return bad_idx(name, "an IDX file of something else than bytes");
  const auto dimensions = std::to_integer<std::size_t>(file[3]);
  if (dimensions < 1 || dimensions > 3) {
    return bad_idx(name, "an IDX file with " + std::to_string(dimensions) + " dimensions");
  }
  const std::size_t head = 4 + 4 * dimensions;
  if (file.size() < head) return bad_idx(name, "truncated header");
  IdxArray array;
  std::uint64_t expected = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint32_t extent = big_endian(file.subspan(4 + 4 * d, 4));
    array.shape.push_back(extent);
    if (extent != 0 && expected > max_bytes / extent) return bad_idx(name, "too large");
    expected *= extent;
  }
  if (file.size() - head != expected) {
    return bad_idx(name, "holds " + std::to_string(file.size() - head) +
                             " bytes, its header says " + std::to_string(expected));
  }
  array.bytes.assign(file.begin() + static_cast<std::ptrdiff_t>(head), file.end());
  return array;
}

Result<DataSets> open_idx(const DataSpec& spec) {
  TRY(std::unique_ptr<IdxDataset> train, open_split(spec, "train", "train"));
  std::uint32_t classes = std::max(2U, train->label_end());
  const bool has_test = find_part(spec.paths.front(), "t10k", "images").has_value();
  std::unique_ptr<IdxDataset> val;
  if (has_test) {
    TRY(std::unique_ptr<IdxDataset> test, open_split(spec, "t10k", "test"));
    val = std::move(test);
    if (val->label_end() > classes) {
      return bad_idx(val->name(), "has labels that the training set lacks");
    }
    val->name_classes(classes);
  }
  train->name_classes(classes);
  return DataSets{std::move(train), std::move(val)};
}

}  // namespace starling::training
