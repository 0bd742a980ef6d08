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

// Each tells whoever asked that nothing came of it.
inline void refuse(const Adoption& asked, const Error& error) {
  if (asked.on_adopted) asked.on_adopted(fail(error));
}
inline void refuse(const Saving& asked, const Error& error) {
  if (asked.on_saved) asked.on_saved(fail(error));
}
inline void refuse(const Evaluating& asked, const Error& error) {
  if (asked.on_evaluated) asked.on_evaluated(fail(error));
}
inline void refuse(const Request& asked, const Error& error) {
  // Not std::visit, which may throw: a trainer's destructor comes here.
  if (const auto* adoption = std::get_if<Adoption>(&asked)) refuse(*adoption, error);
  if (const auto* saving = std::get_if<Saving>(&asked)) refuse(*saving, error);
  if (const auto* evaluating = std::get_if<Evaluating>(&asked)) refuse(*evaluating, error);
}

}  // namespace starling::training
