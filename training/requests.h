// What others ask of the train thread, which serves it between two steps.
#pragma once

#include "training/trainer.h"

#include <variant>

namespace starling::training {

struct Adoption {
  Replica replica;
  OnDone on_adopted;
};
struct Saving {
  CheckpointRequest request;
  OnSaved on_saved;
};
struct Evaluating {
  SharedReplica replica;  // null: the trainer's own when the request is served
  MakeSource make_source;
  OnEvaluated on_evaluated;
};
using Request = std::variant<Adoption, Saving, Evaluating>;

// Tells whoever asked that nothing came of it.
inline void refuse(Request& request, const Error& error) {
  if (auto* adoption = std::get_if<Adoption>(&request)) {
    if (adoption->on_adopted) adoption->on_adopted(fail(error));
  } else if (auto* saving = std::get_if<Saving>(&request)) {
    if (saving->on_saved) saving->on_saved(fail(error));
  } else if (auto* evaluating = std::get_if<Evaluating>(&request)) {
    if (evaluating->on_evaluated) evaluating->on_evaluated(fail(error));
  }
}

}  // namespace starling::training
