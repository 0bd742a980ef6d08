#include "node/base/error.h"

#include <array>
#include <cstddef>
#include <exception>
#include <new>

namespace starling {

namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Errc::internal) + 1> kErrcNames{
    "bad_argument",
    "bad_config",
    "bad_message",
    "bad_signature",
    "wrong_identity",
    "wrong_swarm",
    "duplicate_identity",
    "version_mismatch",
    "settings_mismatch",
    "refused",
    "not_enough_peers",
    "timed_out",
    "closed",
    "cancelled",
    "connect_failed",
    "connect_refused",
    "resolve_failed",
    "listen_failed",
    "too_large",
    "too_many",
    "no_memory",
    "io_failed",
    "disk_full",
    "corrupt",
    "not_found",
    "already_exists",
    "permission",
    "unsupported",
    "data_failed",
    "diverged",
    "device_failed",
    "replicas_differ",
    "internal"};

constexpr std::array<std::string_view, static_cast<std::size_t>(Doing::stopping) + 1> kDoingNames{
    "starting",
    "parsing arguments",
    "reading the configuration",
    "resolving a name",
    "listening",
    "connecting",
    "accepting",
    "shaking hands",
    "reading a record",
    "writing a record",
    "reading a message",
    "reading a delta",
    "encoding a delta",
    "opening an edge",
    "exchanging",
    "probing",
    "joining",
    "transferring state",
    "agreeing",
    "reducing",
    "certifying",
    "merging",
    "loading data",
    "building the model",
    "training",
    "evaluating",
    "saving a checkpoint",
    "loading a checkpoint",
    "reading a file",
    "writing a file",
    "signing",
    "controlling",
    "serving HTTP",
    "stopping"};

}  // namespace

Fault fault_of(Errc code) {
  switch (code) {
    case Errc::bad_message:
    case Errc::bad_signature:
    case Errc::wrong_identity:
    case Errc::wrong_swarm:
    case Errc::duplicate_identity:
    case Errc::version_mismatch:
    case Errc::settings_mismatch:
    case Errc::refused:
    case Errc::timed_out:
    case Errc::closed:
    case Errc::too_large:
    case Errc::too_many:
      return Fault::peer;
    case Errc::bad_config:
    case Errc::not_enough_peers:
    case Errc::listen_failed:
    case Errc::not_found:
    case Errc::already_exists:
    case Errc::permission:
    case Errc::unsupported:
    case Errc::data_failed:
      return Fault::config;
    case Errc::cancelled:
      return Fault::stopping;
    case Errc::bad_argument:
    case Errc::connect_failed:
    case Errc::connect_refused:
    case Errc::resolve_failed:
    case Errc::no_memory:
    case Errc::io_failed:
    case Errc::disk_full:
    case Errc::corrupt:
    case Errc::diverged:
    case Errc::device_failed:
    case Errc::replicas_differ:
    case Errc::internal:
      return Fault::self;
  }
  return Fault::self;
}

std::string_view name_of(Errc code) { return kErrcNames[static_cast<std::size_t>(code)]; }
std::string_view name_of(Doing doing) { return kDoingNames[static_cast<std::size_t>(doing)]; }

std::string to_string(const Error& error) {
  std::string text = "while ";
  text += name_of(error.doing);
  text += ": ";
  text += error.detail;
  text += " (";
  text += name_of(error.code);
  text += ')';
  return text;
}

Error current_error(Doing doing, Errc otherwise) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Errc::no_memory, doing, "the machine has no memory left"};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {otherwise, doing, text.substr(0, text.find('\n'))};
  } catch (...) {
    return {otherwise, doing, "an exception that says nothing"};
  }
}

}  // namespace starling
