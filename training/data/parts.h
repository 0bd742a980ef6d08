// Which folders at the top of a tree of images are parts (training, validation) and which classes.
#pragma once

#include "node/base/result.h"

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace starling::training {

// Whether a folder's name says that it holds the validation part: val, valid, validation, test.
[[nodiscard]] bool is_validation_name(std::string_view name);
// That, or `train`.
[[nodiscard]] bool is_part_name(std::string_view name);

// Names of the folders at the top of a tree that hold an image, at any depth.
struct TopFolders {
  std::set<std::string, std::less<>> others;    // not called like a part
  std::set<std::string, std::less<>> labelled;  // called like a part, with folders of images
  std::set<std::string, std::less<>> bare;      // called like a part, with images only

  // A folder of this name; it may be told more than once.
  void add(std::string_view name, bool has_folders);
};

struct Parts {
  bool classes_on_top = true;  // the other folders are the classes of the training part
  std::string train;           // the folder that is the training part, "" if none is
  std::string validation;      // "" if there is none
};

// What a tree is, on disk and in a tar alike. `data` is what a person calls it.
//
// Rule:    a folder called like a part is one if it has folders of images, and a class like its
//          neighbours if it has none and none of them is a part. Classes beside `val` are the
//          training part. `val` goes before `test`, which is for later.
// Errors:  data_failed where a folder may as well be a part as a class, with what to do.
[[nodiscard]] Result<Parts> tell_parts(const TopFolders& top, const std::string& data);

}  // namespace starling::training
