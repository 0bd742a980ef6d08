// A folder of class folders (torchvision's ImageFolder).
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"
#include "training/data/dataset.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace starling::training {

// Whether a file name ends like an image that we can decode: jpg, jpeg, png, webp in any case.
[[nodiscard]] bool has_image_extension(std::string_view name);

// Whether an image lies at any depth below `folder`, as open_image_folder() looks for them.
//
// Errors:  data_failed naming the folder: unreadable.
// Cost:    a walk up to the first image.
[[nodiscard]] Result<bool> holds_image(const std::filesystem::path& folder);

using FolderFilter = std::function<bool(std::string_view name)>;

// Opens `folder`: its subfolders but those `left_out` are the classes, sorted bytewise (Python's
// order, so labels agree with torchvision's); images at any depth below them are the samples,
// sorted as well. Names that begin with a dot are passed over.
//
// Errors:  data_failed naming the folder: unreadable, fewer than two classes, no image.
// Cost:    one directory walk, told by OpeningProgress; about 50 bytes a sample stay in memory.
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_image_folder(
    const std::filesystem::path& folder, std::string name, const FolderFilter& left_out, Log& log,
    const Clock& clock);

}  // namespace starling::training
