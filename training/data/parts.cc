#include "training/data/parts.h"

#include <algorithm>

namespace starling::training {

namespace {

// `folder` can be read in two ways, which `why` tells.
std::unexpected<Error> two_readings(const std::string& data, const std::string& folder,
                                    const std::string& why) {
  return fail(Errc::data_failed, Doing::loading_data,
              data + ": its folder '" + folder + "' may be a part of the data or a class: " + why);
}

}  // namespace

bool is_validation_name(std::string_view name) {
  return name == "val" || name == "valid" || name == "validation" || name == "test";
}

bool is_part_name(std::string_view name) { return name == "train" || is_validation_name(name); }

void TopFolders::add(std::string_view name, bool has_folders) {
  if (!is_part_name(name)) {
    others.emplace(name);
  } else if (has_folders) {
    labelled.emplace(name);
    if (const auto found = bare.find(name); found != bare.end()) bare.erase(found);
  } else if (!labelled.contains(name)) {
    bare.emplace(name);
  }
}

Result<Parts> tell_parts(const TopFolders& top, const std::string& data) {
  const bool has_train = top.labelled.contains("train");
  if (top.labelled.empty()) {
    if (!top.others.empty() || top.bare.empty()) return Parts{};
    const std::string name = top.bare.contains("train") ? "train" : *top.bare.begin();
    return two_readings(data, name,
                        "it has images and no class folders, and nothing lies beside it but parts; "
                        "give it one folder for each class, or its class another name");
  }
  Parts parts{
      .classes_on_top = !top.others.empty(), .train = has_train ? "train" : "", .validation = {}};
  for (const std::string& name : top.labelled)
    if (is_validation_name(name)) parts.validation = std::max(parts.validation, name);
  if (parts.classes_on_top && has_train) {
    return two_readings(data, "train",
                        "it has folders of images, and '" + *top.others.begin() +
                            "' with images lies beside it; take that away if `train` is the "
                            "training part, or rename `train` if it is a class");
  }
  // An unlabelled test set beside parts is left out; beside classes it may be one of them.
  const bool bare_train = top.bare.contains("train");
  if (bare_train || (parts.classes_on_top && !top.bare.empty())) {
    return two_readings(data, bare_train ? "train" : *top.bare.begin(),
                        "it has images and no class folders, and '" + *top.labelled.begin() +
                            "' beside it has some; give it one folder for each class or take it "
                            "away if it is a part, or rename it if it is a class");
  }
  return parts;
}

}  // namespace starling::training
