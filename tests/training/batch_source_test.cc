#include "training/batch_source.h"

#include "training/data/dataset.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/batch_source") {
  TEST_CASE("a source that is told of a smaller batch gives no larger one any more") {
    NullLog log;
    const auto sets = open_data("synthetic:classes=3,size=24,train=60", "", log);
    REQUIRE(sets);
    LoaderOptions options = loader_options_for(*sets->train, Pass::training, 16, 3);
    options.batch = 8;
    for (const BatchForm form : {BatchForm::floats, BatchForm::pixels}) {
      options.form = form;
      LoaderSource source(std::make_unique<Loader>(*sets->train, options, log));
      REQUIRE(source.next().has_value());

      source.set_batch(4);

      for (int taken = 0; taken < 20; ++taken) {
        auto batch = taken % 2 == 0 ? source.try_next() : std::nullopt;
        if (!batch) batch = *source.next();
        REQUIRE(batch.has_value());
        CHECK(batch->size == 4);
        source.recycle(*std::move(batch));
      }
    }
  }
}
