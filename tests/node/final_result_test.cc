#include "node/final_result.h"

#include "gossip/consensus/certificate.h"
#include "node/base/fault.h"
#include "node/base/tree_hash.h"
#include "tests/support/temp_folder.h"
#include "training/genesis.h"
#include "training/models/plan.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <span>
#include <string>

using namespace starling;
using namespace starling::node;
namespace consensus = starling::gossip::consensus;

namespace {

training::Model small_model() {
  training::ModelSpec spec;
  spec.name = "small";
  spec.classes = 10;
  spec.channels = 1;
  spec.image_size = 16;
  return *training::make_model(spec);
}

Hash hash_of_values(std::span<const float> values) { return tree_hash_of(std::as_bytes(values)); }

// What a node that finished alone with this replica holds, signatures aside.
consensus::CertificateMessage certificate_of(const training::Model& model,
                                             const training::Replica& replica) {
  const consensus::ChunkPlan plan(shape_of(model));
  consensus::CertificateMessage held;
  for (std::uint32_t chunk = 0; plan.kind(chunk) == consensus::ChunkKind::parameters; ++chunk)
    held.chunks.push_back(hash_of_values(
        std::span(replica.parameters).subspan(plan.first(chunk), plan.values(chunk))));
  held.chunks.push_back(hash_of_values(replica.bn_mean));
  held.chunks.push_back(hash_of_values(replica.bn_variance));
  held.chunks.push_back(tree_hash_of(std::as_bytes(std::span(&replica.batches_tracked, 1))));
  held.manifest = model.layout.manifest();
  held.certificate.epoch = Epoch{1};
  held.certificate.hash = consensus::model_hash(held.manifest, held.chunks);
  held.certificate.participants = {NodeId{}};
  held.certificate.signatures = {Signature{}};
  held.certificate.samples = 1'234;
  held.certificate.model = "small";
  return held;
}

training::Replica trained(const training::Model& model) {
  auto replica = training::make_genesis(model, 7).replica;
  replica.batches_tracked = 55;
  return replica;
}

// A node that finished alone, and the folder of its final files.
struct Finished {
  TempFolder dir;
  std::filesystem::path folder = dir.path() / "final";
  training::Model model = small_model();
  training::Replica replica = trained(model);
  consensus::CertificateMessage held = certificate_of(model, replica);
};

}  // namespace

TEST_SUITE("node/final_result") {
  TEST_CASE("what a finished node wrote it can serve after a restart") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;

    REQUIRE(write_final(folder, model, replica, held));
    const auto read = read_certificate(folder);
    REQUIRE(read.has_value());
    CHECK(read->certificate == held.certificate);
    CHECK(read->chunks == held.chunks);
    const auto memory = restore_final(folder, model, *read);

    REQUIRE(memory.has_value());
    CHECK((*memory)->result().parameters == replica.parameters);
    CHECK((*memory)->result().bn_variance == replica.bn_variance);
    CHECK((*memory)->result().batches_tracked == 55);
    CHECK_FALSE(std::filesystem::exists(folder / "model.safetensors.partial"));
  }

#ifdef STARLING_FAULTS
  TEST_CASE("a model that could not be written whole holds no room on the disk that was full") {
    const Finished node;
    for (const std::string point : {"file.write", "final.before_rename"}) {
      CAPTURE(point);
      const fault::Armed full(*fault::find_point(point));
      CHECK_FALSE(write_final(node.folder, node.model, node.replica, node.held).has_value());
      CHECK(full.reached() > 0);
      CHECK(std::filesystem::is_empty(node.folder));
    }
  }
#endif

  TEST_CASE("a result costs nothing before the first job and is never copied") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;
    CHECK(ConsensusMemory(model, 0).result().parameters.empty());

    REQUIRE(write_final(folder, model, replica, held));
    auto restored = restore_final(folder, model, held);
    REQUIRE(restored.has_value());
    SharedConsensusMemory memory = *std::move(restored);
    const training::SharedReplica result = result_of(memory);
    CHECK(result.get() == &memory->result());
    // Whoever reads it keeps it.
    memory.reset();
    CHECK(result->parameters == replica.parameters);
  }

  TEST_CASE("a model that is not the certified one is never served") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;

    SUBCASE("another model") {
      const auto other = training::make_genesis(model, 8).replica;
      REQUIRE(write_final(folder, model, other, held));
      const auto memory = restore_final(folder, model, held);
      REQUIRE_FALSE(memory.has_value());
      CHECK(memory.error().code == Errc::corrupt);
      CHECK(memory.error().detail.find("model.safetensors") != std::string::npos);
    }
    SUBCASE("a certificate of more chunks than the model has") {
      REQUIRE(write_final(folder, model, replica, held));
      auto longer = held;
      longer.chunks.push_back(Hash{});
      CHECK(restore_final(folder, model, longer).error().code == Errc::corrupt);
    }
    SUBCASE("no model") {
      CHECK(restore_final(folder, model, held).error().code == Errc::not_found);
    }
  }
}
