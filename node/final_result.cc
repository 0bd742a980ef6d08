#include "node/final_result.h"

#include "gossip/consensus/arithmetic.h"
#include "node/base/fault.h"
#include "node/base/json_depth.h"
#include "node/base/posix_file.h"
#include "node/printable.h"
#include "node/state_dir.h"
#include "training/file_io.h"
#include "training/model_file.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>  // renameat2()

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

namespace starling::node {

namespace {

namespace consensus = gossip::consensus;
using Json = nlohmann::json;

// What is certified is what its file holds.
static_assert(std::int64_t{consensus::kMaxParticipants} * consensus::kMaxCounter <=
              training::kMaxBatchesTracked);

constexpr const char* kCertificateName = "certificate.json";
// 4,096 participants and 65,536 chunks are about 7 MiB of text.
constexpr std::size_t kMaxCertificateFile = std::size_t{16} << 20;
constexpr int kMaxCertificateDepth = 8;  // it has lists of texts today
constexpr int kSchema = 1;

std::unexpected<Error> corrupt(const std::string& what) {
  return fail(Errc::corrupt, Doing::reading_file, "certificate.json: " + what);
}

Result<void> check_schema(const Json& json) {
  const auto schema = json.find("schema");
  if (schema == json.end() || !schema->is_number_unsigned()) return corrupt("schema");
  if (*schema == kSchema) return {};
  return fail(Errc::unsupported, Doing::reading_file,
              "certificate.json: of a newer program: it has schema " +
                  std::to_string(schema->get<std::uint64_t>()) + ", and this program reads " +
                  std::to_string(kSchema));
}

template <class Id>
bool read_hex(const Json& json, const char* key, Id& id) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return false;
  const auto parsed = Id::from_hex(found->get_ref<const std::string&>());
  if (parsed) id = *parsed;
  return parsed.has_value();
}

template <class Id>
bool read_hex_list(const Json& json, const char* key, std::size_t most, std::vector<Id>& ids) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array() || found->size() > most) return false;
  for (const auto& item : *found) {
    if (!item.is_string()) return false;
    const auto bytes = from_hex(item.get_ref<const std::string&>());
    if (!bytes) return false;
    const auto parsed = Id::from(*bytes);
    if (!parsed) return false;
    ids.push_back(*parsed);
  }
  return true;
}

template <class Ids>
Json hex_list(const Ids& ids) {
  Json list = Json::array();
  for (const auto& id : ids) list.push_back(to_hex(id.bytes));
  return list;
}

std::error_code rename_to(const std::filesystem::path& from, const std::filesystem::path& to,
                          unsigned flags) {
  if (fault::maybe("final.before_rename")) return std::make_error_code(std::errc::io_error);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return {};
  return {errno, std::generic_category()};
}

// The model under its name, whole. What could not be finished goes: it would hold the room that a
// full disk needs for the next try.
Result<void> write_model_file(const std::filesystem::path& folder, const training::Model& model,
                              const training::Replica& result,
                              const consensus::CertificateMessage& held) {
  const auto partial = folder / "model.safetensors.partial";
  auto written = training::write_model(partial, model, result,
                                       {{"consensus", to_hex(held.certificate.hash.view())},
                                        {"samples", std::to_string(held.certificate.samples)}});
  std::error_code error;
  if (written) {
    error = rename_to(partial, folder / "model.safetensors", 0);
    if (!error) return {};
    written = fail(errc_of_errno(error.value()), Doing::writing_file,
                   partial.string() + ": " + error.message());
  }
  std::filesystem::remove(partial, error);
  return written;
}

// What people put beside an earlier pair stays beside the new one.
void keep_others(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::vector<std::filesystem::path> names;
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(from, ignored), end; !ignored && it != end;
       it.increment(ignored))
    names.push_back(it->path().filename());
  for (const auto& name : names)
    if (name.extension() != ".partial" && !std::filesystem::exists(to / name, ignored))
      std::filesystem::rename(from / name, to / name, ignored);
}

// Both files into a folder that holds no certificate.
Result<void> write_pair(const std::filesystem::path& folder, const training::Model& model,
                        const training::Replica& result,
                        const consensus::CertificateMessage& held) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return fail(errc_of_errno(error.value()), Doing::writing_file,
                folder.string() + ": " + error.message());
  TRY_VOID(write_model_file(folder, model, result, held));
  // The model's name reaches the disk before the certificate's, and the folder's own before both.
  TRY_VOID(training::flush_folder(folder));
  TRY_VOID(training::flush_folder(folder.parent_path()));
  fault::pass("final.before_certificate");
  return write_whole(folder / kCertificateName, format_certificate(held));
}

}  // namespace

consensus::ModelShape shape_of(const training::Model& model) {
  return {.parameters = model.layout.size(),
          .channels = static_cast<std::uint32_t>(model.layout.bn_channels()),
          .counters = 1};
}

ConsensusMemory::ConsensusMemory(const training::Model& model, double limit)
    : plan_(shape_of(model)) {
  for (const auto& tensor : model.layout.tensors())
    limits_.push_back({.first = tensor.offset,
                       .values = tensor.count,
                       .largest_disagreement = static_cast<float>(limit)});
}

void ConsensusMemory::contribute(training::Replica contribution) {
  contribution_ = std::move(contribution);
}

void ConsensusMemory::restore(training::Replica result) { result_ = std::move(result); }

void ConsensusMemory::make_result() {
  if (!result_.parameters.empty()) return;
  const consensus::ModelShape& shape = plan_.shape();
  // Huge pages: a small one takes its fault in the middle of the first job that writes to it.
  result_.parameters.reserve(shape.parameters);
  prefer_huge_pages(result_.parameters.data(), shape.parameters * sizeof(float));
  result_.parameters.resize(shape.parameters);
  result_.bn_mean.resize(shape.channels);
  result_.bn_variance.resize(shape.channels);
}

consensus::JobOutcome ConsensusMemory::run(const consensus::ConsensusJob& job) {
  make_result();
  const bool contributes = !contribution_.parameters.empty();
  const consensus::JobMemory memory{
      .parameters = contribution_.parameters,
      .mean = contribution_.bn_mean,
      .variance = contribution_.bn_variance,
      .counters = std::span(&contribution_.batches_tracked, contributes ? 1 : 0),
      .result_parameters = result_.parameters,
      .result_mean = result_.bn_mean,
      .result_variance = result_.bn_variance,
      .result_counters = std::span(&result_.batches_tracked, 1),
      .tensors = limits_};
  return consensus::run_job(job, plan_, memory);
}

void add_difference(gossip::MasterPort& master, const training::Replica& result,
                    const training::Replica& contribution) {
  const auto add = [](std::span<float> to, const std::vector<float>& x,
                      const std::vector<float>& y) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += x[i] - y[i];
  };
  master.with_master([&](const gossip::MasterView& view) {
    add(view.parameters, result.parameters, contribution.parameters);
    add(view.bn_mean, result.bn_mean, contribution.bn_mean);
    // A variance must not become negative by a difference of two estimates.
    for (std::size_t i = 0; i < view.bn_variance.size(); ++i)
      view.bn_variance[i] = std::max(
          0.0F, view.bn_variance[i] + (result.bn_variance[i] - contribution.bn_variance[i]));
  });
}

Result<void> write_final(const std::filesystem::path& folder, const training::Model& model,
                         const training::Replica& result,
                         const consensus::CertificateMessage& held) {
  std::error_code error;
  if (!std::filesystem::exists(folder / kCertificateName, error))
    return write_pair(folder, model, result, held);
  // An earlier run's pair stays whole until this one's is: a run that extends it begins with it.
  const std::filesystem::path next = folder.string() + ".partial";
  keep_others(next, folder);  // of a process that died after it had exchanged them
  std::filesystem::remove_all(next, error);
  const auto written = write_pair(next, model, result, held);
  const bool exchanged = written && !rename_to(next, folder, RENAME_EXCHANGE);
  if (exchanged) keep_others(next, folder);
  std::filesystem::remove_all(next, error);
  if (!written) return written;
  if (exchanged) return training::flush_folder(folder.parent_path());
  // The file system cannot do that, or the folder is a mount. One file after the other, then: no
  // certificate may lie beside a model that it does not name.
  if (const int number = remove_durably(folder / kCertificateName); number != 0)
    return fail(errc_of_errno(number), Doing::writing_file,
                (folder / kCertificateName).string() + " cannot be removed, so that the model " +
                    "before stays: " + std::generic_category().message(number));
  return write_pair(folder, model, result, held);
}

std::string format_certificate(const consensus::CertificateMessage& held) {
  const consensus::Certificate& certificate = held.certificate;
  const Json json{{"schema", kSchema},
                  {"hash", to_hex(certificate.hash.view())},
                  {"epoch", certificate.epoch.value},
                  {"participants", hex_list(certificate.participants)},
                  {"signatures", hex_list(certificate.signatures)},
                  {"samples", certificate.samples},
                  {"model", certificate.model},
                  {"fingerprint", to_hex(certificate.fingerprint.view())},
                  {"set", to_hex(certificate.set.view())},
                  {"manifest", to_hex(held.manifest.view())},
                  {"chunks", hex_list(held.chunks)}};
  return json_text(json, 1) + "\n";
}

Result<consensus::CertificateMessage> parse_certificate(std::string_view text) {
  if (!nests_at_most(text, kMaxCertificateDepth)) return corrupt("nested too deep");
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return corrupt("no JSON object");
  TRY_VOID(check_schema(json));
  consensus::CertificateMessage held;
  consensus::Certificate& certificate = held.certificate;
  if (!read_hex(json, "hash", certificate.hash)) return corrupt("hash");
  if (!read_hex(json, "fingerprint", certificate.fingerprint)) return corrupt("fingerprint");
  if (!read_hex(json, "set", certificate.set)) return corrupt("set");
  if (!read_hex(json, "manifest", held.manifest)) return corrupt("manifest");
  const auto most = consensus::kMaxParticipants;
  if (!read_hex_list(json, "participants", most, certificate.participants))
    return corrupt("participants");
  if (!read_hex_list(json, "signatures", most, certificate.signatures))
    return corrupt("signatures");
  if (!read_hex_list(json, "chunks", consensus::kMaxChunks, held.chunks)) return corrupt("chunks");
  const auto number = [&json](const char* key) -> std::optional<std::uint64_t> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<std::uint64_t>();
  };
  const auto epoch = number("epoch");
  const auto samples = number("samples");
  if (!epoch || !samples) return corrupt("epoch or samples");
  certificate.epoch = Epoch{*epoch};
  certificate.samples = *samples;
  const auto model = json.find("model");
  if (model == json.end() || !model->is_string()) return corrupt("model");
  certificate.model = model->get<std::string>();
  return held;
}

Result<consensus::CertificateMessage> read_certificate(const std::filesystem::path& folder) {
  const auto text = read_whole(folder / kCertificateName, kMaxCertificateFile);
  if (!text) return unusable_final(folder, text.error());
  auto held = parse_certificate(*text);
  if (held) return held;
  Error why = std::move(held).error();
  why.detail.insert(0, (folder / "").string());  // it begins with the file's name
  return unusable_final(folder, std::move(why));
}

std::unexpected<Error> unusable_final(const std::filesystem::path& folder, Error why) {
  const auto remedy = [&]() -> std::string {
    switch (why.code) {
      case Errc::permission:
        return "; let this user read it and enter every folder above it, or mend the link";
      case Errc::io_failed:
        return "; look at the disk (the kernel's log tells): the file may be whole, so leave it "
               "there and start again";
      case Errc::unsupported:
        return "; start the program that wrote it, or a newer one";
      case Errc::not_found:
      case Errc::corrupt:
      case Errc::too_large:
        return "; put the file back, or move or remove the folder " + folder.string() +
               " to fetch or train the model again";
      default:
        return "";
    }
  };
  why.detail += remedy();
  return fail(std::move(why));
}

Result<std::unique_ptr<ConsensusMemory>> restore_final(const std::filesystem::path& folder,
                                                       const training::Model& model,
                                                       const consensus::CertificateMessage& held) {
  const auto file = folder / "model.safetensors";
  auto read = training::read_model(file, model);
  if (!read) return unusable_final(folder, std::move(read).error());
  training::Replica replica = *std::move(read);
  auto memory = std::make_unique<ConsensusMemory>(model, 0);
  memory->restore(std::move(replica));
  const consensus::ChunkPlan plan(shape_of(model));
  bool certified = held.chunks.size() == plan.count();
  for (std::uint32_t chunk = 0; certified && chunk < plan.count(); ++chunk) {
    const consensus::LoadJob load{
        .target = {.round = {}, .chunk = chunk}, .to = {}, .hash = held.chunks[chunk]};
    certified = memory->run(load).result.has_value();
  }
  if (!certified)
    return unusable_final(folder,
                          {Errc::corrupt, Doing::reading_file,
                           file.string() + " is not the model that certificate.json names"});
  return memory;
}

std::string final_line(const consensus::Certificate& certificate) {
  const std::string count = std::to_string(certificate.participants.size());
  return "final consensus: " + count + "/" + count + " replicas identical  blake2b " +
         to_hex(certificate.hash.view());
}

}  // namespace starling::node
