#include "node/observe/events.h"

#include "node/base/fault.h"
#include "node/base/mutex.h"
#include "node/base/posix_file.h"
#include "node/base/start_threads.h"
#include "node/base/thread.h"
#include "node/wall_time.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace starling::node {

namespace {

constexpr std::string_view kCut = "...";
constexpr std::uint64_t kMostGrown = 2;  // times max_bytes
constexpr int kOpenFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;

// A text of at most so many bytes, without half a character at its end.
std::string short_text(std::string_view text) {
  if (text.size() <= RecentEvents::kMaxText) return std::string(text);
  std::size_t end = RecentEvents::kMaxText - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return std::string(text.substr(0, end)).append(kCut);
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

// The file, and the thread that writes it.
class EventLog::Writer {
 public:
  Writer(std::filesystem::path file, Log& log, EventLogOptions options, int descriptor)
      : file_(std::move(file)), log_(log), options_(options), descriptor_(descriptor) {
    mend_last_line();
    thread_ = std::thread([this] { run(); });
  }
  ~Writer() {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void post(std::string line) {
    {
      const MutexLock lock(mutex_);
      if (waiting_bytes_ + line.size() <= options_.max_waiting_bytes) {
        waiting_bytes_ += line.size();
        waiting_.push_back(std::move(line));
        line.clear();
      }
    }
    if (line.empty()) return changed_.notify_one();
    lose("it takes too long to write");
  }
  [[nodiscard]] std::uint64_t lost() const { return lost_; }

 private:
  void mend_last_line();
  void run();
  void write(std::string_view line);
  void begin_anew();
  [[nodiscard]] int rotate();
  void lose(const std::string& reason) {
    if (lost_++ == 0) log_.warn("events.lost", {{"file", file_.string()}, {"reason", reason}});
  }

  const std::filesystem::path file_;
  Log& log_;
  const EventLogOptions options_;
  std::atomic<std::uint64_t> lost_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> waiting_ STARLING_GUARDED_BY(mutex_);
  std::size_t waiting_bytes_ STARLING_GUARDED_BY(mutex_) = 0;  // with the line that is written now
  bool ending_ STARLING_GUARDED_BY(mutex_) = false;
  // The thread's own.
  int descriptor_;
  std::uint64_t bytes_ = 0;
  const SteadyClock clock_;
  std::optional<TimePoint> refused_at_;  // the last rename; nothing: none since one succeeded
  std::thread thread_;
};

// A line that a crash cut short must not swallow the next event.
void EventLog::Writer::mend_last_line() {
  struct stat status{};
  if (::fstat(descriptor_, &status) == 0) bytes_ = static_cast<std::uint64_t>(status.st_size);
  char last = '\n';
  const int reader = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader >= 0) {
    if (bytes_ > 0) (void)!::pread(reader, &last, 1, static_cast<off_t>(bytes_ - 1));
    ::close(reader);
  }
  if (last != '\n' && ::write(descriptor_, "\n", 1) == 1) ++bytes_;
}

void EventLog::Writer::run() {
  name_this_thread("events");
  std::string line;
  while (true) {
    {
      const MutexLock lock(mutex_);
      waiting_bytes_ -= line.size();
      while (waiting_.empty() && !ending_) changed_.wait(mutex_);
      if (waiting_.empty()) return;
      line = std::move(waiting_.front());
      waiting_.pop_front();
    }
    write(line);
  }
}

void EventLog::Writer::write(std::string_view line) {
  if (bytes_ > 0 && bytes_ + line.size() > options_.max_bytes) begin_anew();
  if (bytes_ > 0 && bytes_ + line.size() > kMostGrown * options_.max_bytes)
    return lose("it is full, and cannot be renamed");
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
  lose(reason(error));
}

// A file that cannot be renamed grows on, which is better than losing events, but not for ever.
void EventLog::Writer::begin_anew() {
  const TimePoint now = clock_.now();
  if (refused_at_ && now - *refused_at_ < options_.rename_again) return;
  const bool told = refused_at_.has_value();
  refused_at_ = now;
  const int error = rotate();
  if (error == 0) return refused_at_.reset();
  if (told) return;
  log_.warn(
      "events.not_renamed",
      {{"file", file_.string()},
       {"why", reason(error)},
       {"did", fmt::format("writes on to {} bytes, and tries again each {} s",
                           kMostGrown * options_.max_bytes,
                           std::chrono::ceil<std::chrono::seconds>(options_.rename_again).count())},
       {"remedy", fmt::format("make {}.1 a name that this user may replace: move away what "
                              "is there, and let it write in the folder",
                              file_.string())}});
}

// 0, or why the file is as it was.
int EventLog::Writer::rotate() {
  const auto older = file_.string() + ".1";
  if (::rename(file_.c_str(), older.c_str()) != 0) return errno;
  const int fresh = ::open(file_.c_str(), kOpenFlags, 0644);
  if (fresh < 0) {
    const int error = errno;  // no descriptor, no room for a name
    (void)::rename(older.c_str(), file_.c_str());
    return error;
  }
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = fresh;
  bytes_ = 0;
  return 0;
}

Result<EventLog> EventLog::open(const std::filesystem::path& file, Log& log,
                                EventLogOptions options) {
  // NONBLOCK for the opening alone: a FIFO that nobody reads would keep the node from its start.
  const int descriptor = ::open(file.c_str(), kOpenFlags | O_NONBLOCK, 0644);
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENXIO)
      return fail(Errc::permission, Doing::writing_file,
                  fmt::format("{}: not a regular file, and nobody reads it: remove it, and events "
                              "go to a new one",
                              file.string()));
    return fail(errc_of_errno(error), Doing::writing_file,
                fmt::format("{}: {}", file.string(), reason(error)));
  }
  (void)::fcntl(descriptor, F_SETFL, O_APPEND);
  auto writer = start_threads(
      Doing::starting, [&] { return std::make_unique<Writer>(file, log, options, descriptor); });
  if (!writer) {
    ::close(descriptor);
    return fail(std::move(writer).error());
  }
  return EventLog(std::move(*writer));
}

EventLog::EventLog(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
EventLog::EventLog(EventLog&& other) noexcept = default;
EventLog::~EventLog() = default;

void EventLog::append(std::string_view event, const nlohmann::json& fields) {
  nlohmann::ordered_json object;
  object["time"] = show_milliseconds(wall_now());
  object["event"] = event;
  if (fields.is_object())
    for (const auto& [key, value] : fields.items()) object[key] = value;
  writer_->post(
      object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n");
}

std::uint64_t EventLog::lost() const { return writer_->lost(); }

void RecentEvents::add(LogLevel level, std::string_view event, std::string_view text) {
  RecentEvent one{.seq = 0,
                  .time = show_milliseconds(wall_now()),
                  .level = level,
                  .event = std::string(event),
                  .text = short_text(text)};
  const MutexLock lock(mutex_);
  one.seq = ++newest_;
  if (std::cmp_greater_equal(std::ranges::count(kept_, event, &RecentEvent::event), kMostOfOne))
    kept_.erase(std::ranges::find(kept_, event, &RecentEvent::event));
  else if (kept_.size() >= kMost)
    kept_.pop_front();
  kept_.push_back(std::move(one));
}

std::vector<RecentEvent> RecentEvents::after(std::uint64_t seq) const {
  const MutexLock lock(mutex_);
  if (seq > newest_) seq = 0;
  const auto first = std::ranges::upper_bound(kept_, seq, {}, &RecentEvent::seq);
  return {first, kept_.end()};
}

nlohmann::json to_json(const std::vector<RecentEvent>& events) {
  auto list = nlohmann::json::array();
  for (const auto& one : events)
    list.push_back({{"seq", one.seq},
                    {"time", one.time},
                    {"level", kLogLevels[static_cast<std::size_t>(one.level)]},
                    {"event", one.event},
                    {"text", one.text}});
  return {{"schema", 1}, {"events", std::move(list)}};
}

}  // namespace starling::node
