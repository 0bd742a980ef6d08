#include "tests/transport/noise_vectors.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>

namespace starling::transport {
namespace {

constexpr std::string_view kSuite = "_25519_ChaChaPoly_BLAKE2b";

Bytes bytes_of(const std::string& hex) { return from_hex(hex).value(); }

void read_json_side(const nlohmann::json& json, const std::string& who, NoiseVectorSide& side) {
  const auto find = [&](const char* key) -> std::optional<Bytes> {
    const auto found = json.find(who + key);
    if (found == json.end()) return std::nullopt;
    return bytes_of(found->get<std::string>());
  };
  side.prologue = find("_prologue").value_or(Bytes{});
  side.own_static = find("_static");
  side.ephemeral = find("_ephemeral");
  side.remote_static = find("_remote_static");
  if (const auto psks = json.find(who + "_psks"); psks != json.end())
    for (const auto& psk : *psks) side.psks.push_back(bytes_of(psk.get<std::string>()));
}

std::vector<NoiseVector> read_json(const std::string& text) {
  std::vector<NoiseVector> vectors;
  const auto document = nlohmann::json::parse(text);
  for (const auto& json : document.at("vectors")) {
    NoiseVector vector;
    vector.protocol = json.value("protocol_name", json.value("name", ""));
    if (!vector.protocol.ends_with(kSuite) || json.value("fallback", false)) continue;
    read_json_side(json, "init", vector.initiator);
    read_json_side(json, "resp", vector.responder);
    if (json.contains("handshake_hash"))
      vector.handshake_hash = bytes_of(json["handshake_hash"].get<std::string>());
    for (const auto& message : json.at("messages"))
      vector.messages.emplace_back(bytes_of(message.at("payload").get<std::string>()),
                                   bytes_of(message.at("ciphertext").get<std::string>()));
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

std::vector<NoiseVector> read_text(const std::string& text) {
  std::vector<NoiseVector> vectors;
  std::map<std::string, std::string> fields;
  const auto find = [&](const std::string& key) -> std::optional<Bytes> {
    const auto found = fields.find(key);
    if (found == fields.end() || found->second.empty()) return std::nullopt;
    return bytes_of(found->second);
  };
  const auto flush = [&] {
    NoiseVector vector;
    vector.protocol = fields["handshake"];
    if (vector.protocol.ends_with(kSuite)) {
      vector.initiator_first_after_handshake = true;
      vector.derive_missing = true;
      vector.initiator.prologue = vector.responder.prologue = find("prologue").value_or(Bytes{});
      vector.initiator.own_static = find("init_static");
      vector.responder.own_static = find("resp_static");
      vector.initiator.ephemeral = find("gen_init_ephemeral");
      vector.responder.ephemeral = find("gen_resp_ephemeral");
      if (const auto psk = find("preshared_key"))
        vector.initiator.psks = vector.responder.psks = {*psk};
      for (int i = 0; fields.contains("msg_" + std::to_string(i) + "_ciphertext"); ++i) {
        const auto prefix = "msg_" + std::to_string(i);
        vector.messages.emplace_back(find(prefix + "_payload").value_or(Bytes{}),
                                     find(prefix + "_ciphertext").value_or(Bytes{}));
      }
      vectors.push_back(std::move(vector));
    }
    fields.clear();
  };
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const auto equals = line.find('=');
    if (equals != std::string::npos)
      fields[line.substr(0, equals)] = line.substr(equals + 1);
    else
      flush();
  }
  flush();
  return vectors;
}

}  // namespace

std::vector<NoiseVector> read_noise_vectors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text[first] == '{' ? read_json(text) : read_text(text);
}

std::vector<std::filesystem::path> find_noise_vectors() {
  std::vector<std::filesystem::path> files;
  const auto add = [&](const std::filesystem::path& path) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) files.push_back(path);
  };
  if (FILE* list = ::popen("dpkg -L golang-github-flynn-noise-dev 2>/dev/null", "r")) {
    std::array<char, 1024> line;
    while (std::fgets(line.data(), line.size(), list) != nullptr) {
      std::string path = line.data();
      while (!path.empty() && path.back() == '\n') path.pop_back();
      if (path.ends_with("/vectors.txt")) add(path);
    }
    ::pclose(list);
  }
  if (const char* data = std::getenv("STARLING_TEST_DATA")) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(data) / "noise", error))
      add(entry.path());
  }
  if (const char* more = std::getenv("STARLING_NOISE_VECTORS")) {
    std::istringstream paths(more);
    std::string path;
    while (std::getline(paths, path, ':')) add(path);
  }
  return files;
}

}  // namespace starling::transport
