#include "node/observe/events.h"

#include "node/base/fault.h"
#include "node/base/posix_file.h"
#include "node/wall_time.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

constexpr int kOpenFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

Result<EventLog> EventLog::open(const std::filesystem::path& file, Log& log,
                                EventLogOptions options) {
  const int descriptor = ::open(file.c_str(), kOpenFlags, 0644);
  if (descriptor < 0) {
    const int error = errno;
    return fail(errc_of_errno(error), Doing::writing_file,
                fmt::format("{}: {}", file.string(), reason(error)));
  }
  EventLog events(file, log, options, descriptor);
  struct stat status{};
  if (::fstat(descriptor, &status) == 0) events.bytes_ = static_cast<std::uint64_t>(status.st_size);
  // A line that a crash cut short must not swallow the next event.
  char last = '\n';
  const int reader = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader >= 0) {
    if (events.bytes_ > 0) (void)!::pread(reader, &last, 1, static_cast<off_t>(events.bytes_ - 1));
    ::close(reader);
  }
  if (last != '\n' && ::write(descriptor, "\n", 1) == 1) ++events.bytes_;
  return events;
}

EventLog::EventLog(std::filesystem::path file, Log& log, EventLogOptions options, int descriptor)
    : file_(std::move(file)), log_(log), options_(options), descriptor_(descriptor) {}

EventLog::EventLog(EventLog&& other) noexcept
    : file_(std::move(other.file_)),
      log_(other.log_),
      options_(other.options_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      lost_(other.lost_) {}

EventLog::~EventLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void EventLog::append(std::string_view event, const nlohmann::json& fields) {
  nlohmann::ordered_json object;
  object["time"] = show_milliseconds(wall_now());
  object["event"] = event;
  if (fields.is_object())
    for (const auto& [key, value] : fields.items()) object[key] = value;
  const auto line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";

  if (bytes_ > 0 && bytes_ + line.size() > options_.max_bytes) rotate();
  const bool usable = descriptor_ >= 0 && !fault::maybe("events.write");
  const auto written = usable ? ::write(descriptor_, line.data(), line.size()) : -1;
  if (written == static_cast<ssize_t>(line.size())) {
    bytes_ += line.size();
    return;
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) {  // half a line: take it back, so that the file stays one object a line
    if (::ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0)
      bytes_ += static_cast<std::uint64_t>(written);
  }
  if (lost_++ == 0) log_.warn("events.lost", {{"file", file_.string()}, {"reason", reason(error)}});
}

void EventLog::rotate() {
  const auto older = file_.string() + ".1";
  if (::rename(file_.c_str(), older.c_str()) != 0)
    return;  // it grows on; better than losing events
  const int fresh = ::open(file_.c_str(), kOpenFlags, 0644);
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = fresh;
  bytes_ = 0;
}

}  // namespace starling::node
