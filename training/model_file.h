// A replica as a safetensors file with torchvision's names, and back.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"
#include "training/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace starling::training {

using Metadata = std::map<std::string, std::string>;

// The largest num_batches_tracked that is read or written. No run gets there (a step a microsecond
// for 142 years), and a node that counts on from it never overflows its counter.
inline constexpr std::int64_t kMaxBatchesTracked = std::int64_t{1} << 52;

// Writes parameters (O,I,H,W, fp32), running_mean, running_var and num_batches_tracked (int64):
// what `torchvision.models.NAME().load_state_dict(..., strict=True)` takes. Not atomic: write to a
// temporary name. `hasher`, if there is one, gets every byte.
//
// Errors:  disk_full, permission, io_failed.
// Thread:  any.
[[nodiscard]] Result<void> write_model(const std::filesystem::path& path, const Model& model,
                                       const Replica& replica, const Metadata& metadata,
                                       Hasher* hasher = nullptr);

// Reads such a file: ours, or one converted from published weights (F32, F16 or BF16).
//
// Errors:  corrupt if a tensor is missing, has another shape, is unknown, or holds a value that is
//          not finite, a variance below zero, or a count that is negative or above
//          kMaxBatchesTracked; and those of SafetensorsFile::read().
[[nodiscard]] Result<Replica> read_model(const std::filesystem::path& path, const Model& model);

// The same from a file in memory.
[[nodiscard]] Result<Replica> parse_model(const SafetensorsFile& file, const Model& model);

// The model that a file was written for: from its metadata, or else (published weights) from its
// tensors, with `image_size` 224.
//
// Errors:  corrupt if the file is not safetensors; unsupported if it holds no model that we know.
[[nodiscard]] Result<ModelSpec> model_of_file(const std::filesystem::path& path);

// The same for one padded canonical vector (momenta): parameter names and shapes, nothing else.
[[nodiscard]] Result<void> write_vector(const std::filesystem::path& path, const Model& model,
                                        std::span<const float> values, const Metadata& metadata,
                                        Hasher* hasher = nullptr);
[[nodiscard]] Result<std::vector<float>> read_vector(const std::filesystem::path& path,
                                                     const Model& model);
[[nodiscard]] Result<std::vector<float>> parse_vector(const SafetensorsFile& file,
                                                      const Model& model);

}  // namespace starling::training
