#include "training/model_file.h"

#include "node/base/check.h"
#include "training/optimizer.h"
#include "training/safetensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ranges>
#include <utility>
#include <vector>

namespace starling::training {
namespace {

constexpr std::string_view kMean = ".running_mean";
constexpr std::string_view kVariance = ".running_var";
constexpr std::string_view kTracked = ".num_batches_tracked";

// The largest file that a model can have: fp32 parameters and statistics, a header, and room for
// alignment. Published files in fp64 do not exist.
std::uint64_t max_file_bytes(const Model& model) {
  return kMaxSafetensorsHeader + 4 * (model.layout.size() + 4 * model.layout.bn_channels()) +
         8 * model.norms.size();
}

std::unexpected<Error> corrupt_model(std::string what) {
  return fail(Errc::corrupt, Doing::reading_file, std::move(what));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? "," : "") + std::to_string(size);
  return text + "]";
}

float half_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return NAN;  // infinity too: neither belongs in a model
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024.0F, exponent - 25);
}

// The values of a tensor as fp32, whatever floating type the file has.
Result<void> read_floats(const SafetensorsFile& file, const TensorEntry& entry,
                         std::span<float> out) {
  ByteReader reader(file.data(entry));
  for (float& value : out) {
    switch (entry.dtype) {
      case DType::f32:
        value = reader.read<float>().value_or(NAN);
        break;
      case DType::bf16:
        value = to_float(Bf16{reader.read<std::uint16_t>().value_or(0x7fc0)});
        break;
      case DType::f16:
        value = half_to_float(reader.read<std::uint16_t>().value_or(0x7c00));
        break;
      default:
        return corrupt_model("tensor " + entry.name + " is " + std::string(name_of(entry.dtype)) +
                             ", expected F32, F16 or BF16");
    }
    if (!std::isfinite(value)) return corrupt_model("tensor " + entry.name + " is not finite");
  }
  return {};
}

// A tensor of this name and shape.
Result<const TensorEntry*> require(const SafetensorsFile& file, const std::string& name,
                                   std::span<const std::int64_t> shape) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) return corrupt_model("tensor " + name + " is missing");
  if (!std::ranges::equal(entry->shape, shape)) {
    return corrupt_model("tensor " + name + " has shape " + shape_text(entry->shape) +
                         ", expected " + shape_text(shape));
  }
  return entry;
}

Result<void> read_parameters(const SafetensorsFile& file, const Model& model,
                             std::span<float> out) {
  std::vector<float> values;
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    TRY(const TensorEntry* entry, require(file, place.name, place.dims));
    values.resize(place.count);
    TRY_VOID(read_floats(file, *entry, values));
    gossip::to_canonical(place, values, out.subspan(place.offset, place.count));
  }
  return {};
}

Result<void> read_statistics(const SafetensorsFile& file, const Model& model, Replica& replica) {
  for (const NormSpec& norm : model.norms) {
    const auto at = static_cast<std::size_t>(norm.offset);
    const auto count = static_cast<std::size_t>(norm.channels);
    const std::array shape{norm.channels};
    const std::span means = std::span(replica.bn_mean).subspan(at, count);
    const std::span variances = std::span(replica.bn_variance).subspan(at, count);
    TRY(const TensorEntry* mean, require(file, norm.name + std::string(kMean), shape));
    TRY_VOID(read_floats(file, *mean, means));
    TRY(const TensorEntry* variance, require(file, norm.name + std::string(kVariance), shape));
    TRY_VOID(read_floats(file, *variance, variances));
    if (std::ranges::any_of(variances, [](float value) { return value < 0; })) {
      return corrupt_model("tensor " + variance->name + " has a negative variance");
    }
    TRY(const TensorEntry* tracked, require(file, norm.name + std::string(kTracked), {}));
    const auto batches = ByteReader(file.data(*tracked)).read<std::int64_t>();
    if (tracked->dtype != DType::i64 || !batches || *batches < 0) {
      return corrupt_model("tensor " + tracked->name + " is no count in I64");
    }
    if (*batches > kMaxBatchesTracked) {
      return corrupt_model("tensor " + tracked->name + " counts more batches than any run has");
    }
    replica.batches_tracked = std::max(replica.batches_tracked, *batches);
  }
  return {};
}

Result<void> refuse_unknown(const SafetensorsFile& file, std::size_t expected, const Model& model) {
  if (file.tensors().size() == expected) return {};
  const auto known = [&model](const std::string& name) {
    if (model.layout.find(name) != nullptr) return true;
    const std::string layer = name.substr(0, name.rfind('.'));
    return std::ranges::binary_search(model.norms, layer, {}, &NormSpec::name);
  };
  for (const TensorEntry& entry : file.tensors()) {
    if (!known(entry.name)) return corrupt_model("tensor " + entry.name + " is unknown");
  }
  return corrupt_model("the file has " + std::to_string(file.tensors().size()) +
                       " tensors, expected " + std::to_string(expected));
}

std::vector<TensorEntry> parameter_entries(const Model& model) {
  std::vector<TensorEntry> entries;
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    entries.push_back({place.name, DType::f32, place.dims, 0, 0});
  }
  return entries;
}

Result<void> append_parameters(SafetensorsWriter& writer, const Model& model,
                               std::span<const float> values) {
  const auto& tensors = model.layout.tensors();
  std::vector<float> room(std::ranges::max(tensors, {}, &gossip::TensorPlace::count).count);
  for (const gossip::TensorPlace& place : tensors) {
    const auto in_file_order = std::span(room).first(place.count);
    gossip::to_file_order(place, values.subspan(place.offset, place.count), in_file_order);
    TRY_VOID(writer.append(std::as_bytes(in_file_order)));
  }
  return {};
}

Metadata with_model(const Metadata& metadata, const ModelSpec& spec) {
  Metadata all = metadata;
  all["format"] = "pt";  // what Python's loaders look for
  all["model"] = spec.name;
  all["classes"] = std::to_string(spec.classes);
  all["channels"] = std::to_string(spec.channels);
  all["image_size"] = std::to_string(spec.image_size);
  if (spec.class_names) all["class_names"] = to_hex(spec.class_names->view());
  return all;
}

std::int64_t number_or(const Metadata& metadata, const std::string& key, std::int64_t otherwise) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return otherwise;
  const std::string& text = found->second;
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc{} && end == text.data() + text.size() ? value : -1;
}

// Nothing where the file does not say it; an error where it says what is no hash.
Result<std::optional<Hash>> class_names_of(const Metadata& metadata) {
  const auto found = metadata.find("class_names");
  if (found == metadata.end()) return std::optional<Hash>();
  const auto hash = Hash::from_hex(found->second);
  if (!hash) return corrupt_model("its class_names are no hash of 64 hexadecimal digits");
  return hash;
}

const TensorEntry* find(const SafetensorsHeader& header, std::string_view name) {
  const auto found = std::ranges::find(header.tensors, name, &TensorEntry::name);
  return found == header.tensors.end() ? nullptr : &*found;
}

// Whether every parameter of the plan is in the file with its shape.
bool fits(const SafetensorsHeader& header, const ModelPlan& plan) {
  const auto specs = parameter_specs(plan);
  return std::ranges::all_of(specs, [&header](const gossip::TensorSpec& spec) {
    const TensorEntry* entry = find(header, spec.name);
    return entry != nullptr && entry->shape == spec.dims;
  });
}

}  // namespace

Result<void> write_model(const std::filesystem::path& path, const Model& model,
                         const Replica& replica, const Metadata& metadata, Hasher* hasher) {
  STARLING_CHECK_OP(replica.parameters.size(), ==, model.layout.size());
  STARLING_CHECK_OP(replica.bn_mean.size(), ==, model.layout.bn_channels());
  STARLING_CHECK_OP(replica.bn_variance.size(), ==, model.layout.bn_channels());
  std::vector<TensorEntry> entries = parameter_entries(model);
  for (const NormSpec& norm : model.norms) {
    entries.push_back({norm.name + std::string(kMean), DType::f32, {norm.channels}, 0, 0});
    entries.push_back({norm.name + std::string(kVariance), DType::f32, {norm.channels}, 0, 0});
    entries.push_back({norm.name + std::string(kTracked), DType::i64, {}, 0, 0});
  }
  TRY(SafetensorsWriter writer,
      SafetensorsWriter::create(path, std::move(entries), with_model(metadata, model.plan.spec),
                                hasher));
  TRY_VOID(append_parameters(writer, model, replica.parameters));
  // One that counted on from the largest number writes what it can read again.
  const std::int64_t batches = std::min(replica.batches_tracked, kMaxBatchesTracked);
  for (const NormSpec& norm : model.norms) {
    const auto at = static_cast<std::size_t>(norm.offset);
    const auto count = static_cast<std::size_t>(norm.channels);
    TRY_VOID(writer.append(std::as_bytes(std::span(replica.bn_mean).subspan(at, count))));
    TRY_VOID(writer.append(std::as_bytes(std::span(replica.bn_variance).subspan(at, count))));
    TRY_VOID(writer.append(std::as_bytes(std::span(&batches, 1))));
  }
  return writer.finish();
}

Result<Replica> parse_model(const SafetensorsFile& file, const Model& model) {
  TRY_VOID(refuse_unknown(file, model.layout.tensors().size() + 3 * model.norms.size(), model));
  Replica replica;
  replica.parameters.assign(model.layout.size(), 0.0F);
  replica.bn_mean.resize(model.layout.bn_channels());
  replica.bn_variance.resize(model.layout.bn_channels());
  TRY_VOID(read_parameters(file, model, replica.parameters));
  TRY_VOID(read_statistics(file, model, replica));
  return replica;
}

Result<Replica> read_model(const std::filesystem::path& path, const Model& model) {
  TRY(const SafetensorsFile file, SafetensorsFile::read(path, max_file_bytes(model)));
  auto replica = parse_model(file, model);
  if (!replica) return corrupt_model(path.string() + ": " + replica.error().detail);
  return replica;
}

Result<ModelSpec> model_of_file(const std::filesystem::path& path) {
  TRY(const SafetensorsHeader header, read_safetensors_header(path));
  const TensorEntry* stem = find(header, "conv1.weight");
  const TensorEntry* last = find(header, "fc.weight");
  if (stem == nullptr || last == nullptr || stem->shape.size() != 4 || last->shape.size() != 2) {
    return fail(Errc::unsupported, Doing::reading_file,
                path.string() + ": no conv1.weight and fc.weight as a residual net has them");
  }
  const auto class_names = class_names_of(header.metadata);
  if (!class_names) return corrupt_model(path.string() + ": " + class_names.error().detail);
  // Largest first: a resnet34 has all tensors of a resnet18, and a resnet101 those of a resnet50.
  for (const std::string_view name : model_names() | std::views::reverse) {
    ModelSpec spec{std::string(name), last->shape[0], stem->shape[1], 0};
    spec.image_size = number_or(header.metadata, "image_size", 224);
    spec.class_names = *class_names;
    const auto plan = make_plan(spec);
    if (plan && fits(header, *plan)) return spec;
  }
  return fail(Errc::unsupported, Doing::reading_file,
              path.string() + ": its tensors are of no model that this build knows");
}

Result<void> write_vector(const std::filesystem::path& path, const Model& model,
                          std::span<const float> values, const Metadata& metadata, Hasher* hasher) {
  STARLING_CHECK_OP(values.size(), ==, model.layout.size());
  TRY(SafetensorsWriter writer,
      SafetensorsWriter::create(path, parameter_entries(model),
                                with_model(metadata, model.plan.spec), hasher));
  TRY_VOID(append_parameters(writer, model, values));
  return writer.finish();
}

Result<std::vector<float>> parse_vector(const SafetensorsFile& file, const Model& model) {
  TRY_VOID(refuse_unknown(file, model.layout.tensors().size(), model));
  std::vector<float> values(model.layout.size(), 0.0F);
  TRY_VOID(read_parameters(file, model, values));
  return values;
}

Result<std::vector<float>> read_vector(const std::filesystem::path& path, const Model& model) {
  TRY(const SafetensorsFile file, SafetensorsFile::read(path, max_file_bytes(model)));
  auto values = parse_vector(file, model);
  if (!values) return corrupt_model(path.string() + ": " + values.error().detail);
  return values;
}

}  // namespace starling::training
