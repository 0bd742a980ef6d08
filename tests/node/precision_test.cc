#include "node/precision.h"

#include "node/base/log.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <stop_token>
#include <string>

using namespace starling;
using namespace starling::node;

namespace {

PrecisionQuestion small_question() {
  PrecisionQuestion question;
  question.device = {.device = "cpu", .precision = training::Precision::automatic, .threads = 1};
  question.model.name = "small";
  question.model.image_size = 12;
  question.model.channels = 1;
  question.model.classes = 3;
  question.batch = 8;
  return question;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_SUITE("node/precision") {
  TEST_CASE("what a person set is taken, and nothing is measured") {
    const TempFolder folder;
    NullLog log;
    auto question = small_question();
    for (const auto precision : {training::Precision::fp32, training::Precision::bf16}) {
      question.device.precision = precision;
      CHECK(choose_precision(question, folder.path() / "precision", log).precision == precision);
    }
    CHECK_FALSE(std::filesystem::exists(folder.path() / "precision"));
  }

  TEST_CASE("what was measured is kept, and taken again for the same work only") {
    const TempFolder folder;
    NullLog log;
    const auto file = folder.path() / "precision";
    auto question = small_question();
    const auto first = choose_precision(question, file, log);
    CHECK(first.precision != training::Precision::automatic);
    if (!training::cpu_has_bf16()) {
      CHECK(first.precision == training::Precision::fp32);
      return;
    }
    CHECK(first.why.contains("bf16"));
    const auto kept = text_of(file);

    const auto again = choose_precision(question, file, log);
    CHECK(again.precision == first.precision);
    CHECK(again.why == first.why + ", measured before");
    CHECK(text_of(file) == kept);

    question.batch = 9;
    CHECK_FALSE(choose_precision(question, file, log).why.contains("measured before"));
    CHECK(text_of(file).contains("batch 9"));
  }

  TEST_CASE("a kept measurement decides, and one that makes no sense does not") {
    if (!training::cpu_has_bf16()) return;
    const TempFolder folder;
    NullLog log;
    const auto file = folder.path() / "precision";
    const auto question = small_question();
    (void)choose_precision(question, file, log);
    auto text = text_of(file);
    const auto replace = [&text](const std::string& key, const std::string& value) {
      const auto begin = text.find("\"" + key + "\": ") + key.size() + 4;
      text.replace(begin, text.find_first_of(",\n", begin) - begin, value);
    };
    replace("fp32_cpu_ms", "1");
    replace("bf16_cpu_ms", "2");
    folder.write("precision", text);
    CHECK(choose_precision(question, file, log).precision == training::Precision::fp32);

    replace("fp32_cpu_ms", "3");
    folder.write("precision", text);
    CHECK(choose_precision(question, file, log).precision == training::Precision::bf16);

    for (const auto* nonsense : {"", "[]", "{\"schema\": 1}", "{\"schema\": {}, \"subject\": 3}"}) {
      folder.write("precision", std::string_view(nonsense));
      CHECK_FALSE(choose_precision(question, file, log).why.contains("measured before"));
    }
    replace("fp32_cpu_ms", "-3");
    folder.write("precision", text);
    CHECK_FALSE(choose_precision(question, file, log).why.contains("measured before"));
  }

  TEST_CASE("a node that is told to stop does not wait for the measurement") {
    if (!training::cpu_has_bf16()) return;
    const TempFolder folder;
    NullLog log;
    auto question = small_question();
    std::stop_source stop;
    question.stop = stop.get_token();
    stop.request_stop();
    const auto choice = choose_precision(question, folder.path() / "precision", log);
    CHECK(choice.precision == training::Precision::bf16);
    CHECK_FALSE(std::filesystem::exists(folder.path() / "precision"));
  }
}
