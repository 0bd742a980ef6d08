#include "node/final_result.h"

#include "gossip/consensus/certificate.h"
#include "node/base/fault.h"
#include "node/base/tree_hash.h"
#include "node/state_dir.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "training/genesis.h"
#include "training/models/plan.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string>

using namespace starling;
using namespace starling::node;
namespace consensus = starling::gossip::consensus;

namespace {

training::Model model_of_16_pixels() {
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
  training::Model model = model_of_16_pixels();
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

  TEST_CASE("only what is damaged is to be moved away, what cannot be read may be whole") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;
    REQUIRE(write_final(folder, model, replica, held));
    const auto check = [](const auto& outcome, std::string_view remedy, bool move_away) {
      REQUIRE_FALSE(outcome.has_value());
      const std::string& told = outcome.error().detail;
      CAPTURE(told);
      CHECK(testing::contains(told, remedy));
      CHECK(testing::contains(told, "move the folder") == move_away);
    };
    for (const char* name : {"certificate.json", "model.safetensors"}) {
      const auto read = [&]() -> Result<void> {
        TRY(const auto certificate, read_certificate(folder));
        TRY(const auto memory, restore_final(folder, model, certificate));
        return {};
      };
      const auto file = folder / name;
      CAPTURE(name);
      std::filesystem::rename(file, dir.path() / "moved");
      std::filesystem::create_symlink(name, file);  // a circle: no permission, whoever asks
      check(read(), "let this user read it", false);
      std::filesystem::remove(file);
      REQUIRE(write_whole(file, "damaged"));
      check(read(), "put the file back, or move or remove the folder " + folder.string(), true);
      std::filesystem::rename(dir.path() / "moved", file);
    }
    // Reading begins, and fails.
    std::filesystem::remove(folder / "certificate.json");
    std::filesystem::create_symlink("/proc/self/mem", folder / "certificate.json");
    check(read_certificate(folder), "look at the disk", false);
  }

  TEST_CASE("a certificate of a newer program is called so, and nobody is to move it away") {
    const Finished node;
    REQUIRE(write_final(node.folder, node.model, node.replica, node.held));
    const auto file = node.folder / "certificate.json";
    REQUIRE(write_whole(file, std::string_view(R"({"schema": 2, "seals": []})")));

    const auto read = read_certificate(node.folder);

    REQUIRE_FALSE(read.has_value());
    const std::string& told = read.error().detail;
    CAPTURE(told);
    CHECK(read.error().code == Errc::unsupported);
    CHECK(testing::contains(told, file.string() + ": of a newer program"));
    CHECK_FALSE(testing::contains(told, "move the folder"));
    REQUIRE(write_whole(file, std::string_view(R"({"hash": "00"})")));
    CHECK(read_certificate(node.folder).error().code == Errc::corrupt);
  }

  TEST_CASE("a certificate that nests without end is refused, and ends no process") {
    const std::string deep(1'000'000, '[');
    const auto read =
        parse_certificate(R"({"epoch":)" + deep + std::string(deep.size(), ']') + "}");
    REQUIRE_FALSE(read.has_value());
    CHECK(testing::contains(read.error().detail, "nested too deep"));
  }

  TEST_CASE("the pair of another run takes the place of the one before") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;
    const auto other = training::make_genesis(model, 8).replica;
    REQUIRE(write_final(folder, model, other, certificate_of(model, other)));
    REQUIRE(write_whole(folder / "notes.txt", "of a person"));

    REQUIRE(write_final(folder, model, replica, held));

    CHECK(std::filesystem::exists(folder / "notes.txt"));
    CHECK(read_certificate(folder)->chunks == held.chunks);
    CHECK(restore_final(folder, model, held).has_value());
    CHECK_FALSE(std::filesystem::exists(folder.string() + ".partial"));
  }

#ifdef STARLING_FAULTS
  // That it dies at a moment is not an error that anybody sees: so as a process of its own.
  TEST_CASE("whenever a process dies writing its files, model and certificate belong together") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;
    const auto other = training::make_genesis(model, 8).replica;
    const auto before = certificate_of(model, other);
    for (const std::string point :
         {"file.write", "file.flush", "final.before_rename", "final.before_certificate"}) {
      bool died = true;
      for (std::uint64_t passing = 0; died; ++passing) {
        CAPTURE(point);
        CAPTURE(passing);
        std::filesystem::remove_all(folder);
        REQUIRE(write_final(folder, model, other, before));
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
          const fault::Armed armed(*fault::find_point(point),
                                   {.after = passing, .effect = fault::Effect::kill});
          ::_exit(write_final(folder, model, replica, held) ? 0 : 1);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        died = WIFSIGNALED(status);

        // An extended run goes on from what is here.
        const auto read = read_certificate(folder);
        REQUIRE(read.has_value());
        CHECK(restore_final(folder, model, *read).has_value());
        CHECK(read->chunks == (died ? before : held).chunks);
      }
    }
  }

  TEST_CASE(
      "where names cannot be exchanged, the old certificate goes before the new model comes") {
    const Finished node;
    const auto& [dir, folder, model, replica, held] = node;
    const auto other = training::make_genesis(model, 8).replica;
    const auto& rename = *fault::find_point("final.before_rename");
    REQUIRE(write_final(folder, model, other, certificate_of(model, other)));
    {
      // The exchange, and then the model of the pair that is written in place.
      const fault::Armed armed(rename, {.after = 1, .times = 2});
      CHECK_FALSE(write_final(folder, model, replica, held).has_value());
    }
    CHECK(read_certificate(folder).error().code == Errc::not_found);
    CHECK_FALSE(std::filesystem::exists(folder.string() + ".partial"));

    REQUIRE(write_final(folder, model, other, certificate_of(model, other)));
    const fault::Armed armed(rename, {.after = 1, .times = 1});
    REQUIRE(write_final(folder, model, replica, held));
    CHECK(restore_final(folder, model, *read_certificate(folder)).has_value());
  }

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
      const auto memory = restore_final(folder, model, held);
      CHECK(memory.error().code == Errc::not_found);
      CHECK(memory.error().detail.find("move the folder") != std::string::npos);
    }
  }
}
