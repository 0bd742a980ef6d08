// `starling join`, `leave`, `finish`, `merge`, `log-level`: ask the running node to do something.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/control/caller.h"
#include "node/printable.h"
#include "node/state_dir.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>

namespace starling::node::verbs {

namespace {

// Answers come when the work is done; a node that works shows signs of life between.
constexpr Duration kActionPatience = std::chrono::minutes(10);
static_assert(kActionPatience > 3 * kSignOfLife);

// The sentence of an answer, or its fields where it has none.
std::string sentence_of(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return {};
  if (const auto found = json.find("message"); found != json.end() && found->is_string())
    return printable(found->get_ref<const std::string&>());
  std::string text;
  for (const auto& [key, value] : json.items())
    text += fmt::format("{}{}={}", text.empty() ? "" : "  ", printable(key),
                        printable(value.is_string() ? value.get<std::string>() : json_text(value)));
  return text;
}

// Every object that a verb prints says by which schema it is to be read.
std::string with_schema(const std::string& body) {
  auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return body;
  json["schema"] = 1;
  return json_text(json);
}

int ask(const Arguments& arguments, const Surroundings& surroundings,
        const ControlRequest& request) {
  const auto& terminal = surroundings.terminal;
  const auto on_progress = [&](const std::string& body) {
    terminal.err << sentence_of(body) << '\n' << std::flush;
  };
  const auto answer = ask_node(arguments.config.node.dir, request, kActionPatience, on_progress);
  if (!answer) return report(verb_of(request), answer.error(), terminal);
  terminal.out << (arguments.has("--json") ? with_schema(*answer) : sentence_of(*answer)) << '\n';
  return number_of(ExitCode::good);
}

// The verb's own words go through the parser of requests, so that both sides agree on what is
// right.
int ask_checked(const Arguments& arguments, const Surroundings& surroundings,
                const nlohmann::json& request) {
  const auto parsed = parse_request(json_text(request));
  if (!parsed)
    return report(request.at("verb").get<std::string>(), parsed.error(), surroundings.terminal);
  return ask(arguments, surroundings, *parsed);
}

}  // namespace

int join(const Arguments& arguments, const Surroundings& surroundings) {
  return ask_checked(arguments, surroundings,
                     {{"verb", "join"}, {"args", {{"addresses", arguments.words}}}});
}

int leave(const Arguments& arguments, const Surroundings& surroundings) {
  nlohmann::json args = nlohmann::json::object();
  if (const auto given = arguments.given.find("--timeout"); given != arguments.given.end())
    args["timeout"] = given->second;
  return ask_checked(arguments, surroundings, {{"verb", "leave"}, {"args", args}});
}

// The invite alone goes to standard output, so that a script can pass it on.
int invite(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  nlohmann::json args = nlohmann::json::object();
  if (const auto given = arguments.given.find("--ttl"); given != arguments.given.end())
    args["ttl"] = given->second;
  const nlohmann::json line{{"verb", "invite"}, {"args", args}};
  const auto request = parse_request(json_text(line));
  if (!request) return report("invite", request.error(), terminal);
  const auto answer = ask_node(arguments.config.node.dir, *request, kActionPatience);
  if (!answer) return report("invite", answer.error(), terminal);
  if (arguments.has("--json")) {
    terminal.out << with_schema(*answer) << '\n';
    return number_of(ExitCode::good);
  }
  const auto body = nlohmann::json::parse(*answer, nullptr, false);
  const auto text_of = [&](const char* key) {
    return body.is_object() ? printable(body.value(key, std::string())) : std::string();
  };
  terminal.out << text_of("invite") << '\n' << std::flush;
  terminal.err << fmt::format(
      "good for one machine, until {}, while this node runs; whoever has it can join. There:\n"
      "    starling run --data DATA --invite @FILE      (FILE has the line above; - reads it from "
      "standard input)\n",
      text_of("expires"));
  return number_of(ExitCode::good);
}

int finish(const Arguments& arguments, const Surroundings& surroundings) {
  nlohmann::json args = nlohmann::json::object();
  if (const auto given = arguments.given.find("--order"); given != arguments.given.end()) {
    const auto text = read_whole(given->second == "-" ? "/dev/stdin" : given->second,
                                 transport::kMaxFinishOrderText);
    if (!text) return report("finish", text.error(), surroundings.terminal);
    args["order"] = *text;
  }
  return ask_checked(arguments, surroundings, {{"verb", "finish"}, {"args", args}});
}

int merge(const Arguments& arguments, const Surroundings& surroundings) {
  return ask(arguments, surroundings, MergeRequest{});
}

int log_level(const Arguments& arguments, const Surroundings& surroundings) {
  return ask_checked(arguments, surroundings,
                     {{"verb", "log-level"}, {"args", {{"level", arguments.words.front()}}}});
}

int eval(const Arguments& arguments, const Surroundings& surroundings) {
  if (arguments.words.empty()) {
    // A figure of the node's own data must not pass for one of the data that was named here.
    const auto unused = std::ranges::find_if(
        arguments.keys, [](const FlagValue& flag) { return flag.key != "node.dir"; });
    if (unused != arguments.keys.end())
      return report("eval",
                    {Errc::bad_argument, Doing::parsing_arguments,
                     fmt::format("{} counts for a model file only: name one (starling eval "
                                 "MODEL.safetensors), or leave it out, and the running node "
                                 "evaluates its replica on its own data",
                                 unused->flag)},
                    surroundings.terminal);
    return ask(arguments, surroundings, EvalRequest{});
  }
  if (arguments.config.data.train.empty() && arguments.config.data.val.empty())
    return report("eval",
                  {Errc::bad_argument, Doing::parsing_arguments,
                   "needs --data SPEC: what to evaluate the model on"},
                  surroundings.terminal);
  return surroundings.hooks.eval(
      arguments.config, {arguments.words.front(), arguments.has("--json")}, surroundings.terminal);
}

}  // namespace starling::node::verbs
