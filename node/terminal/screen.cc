#include "node/terminal/screen.h"

#include "node/base/json_depth.h"
#include "node/observe/fields.h"
#include "node/printable.h"
#include "node/wall_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace starling::node::terminal {

namespace {

using Json = nlohmann::json;
using namespace fields;

constexpr std::size_t kLabel = 7;
constexpr std::size_t kMostWarnings = 3;
constexpr int kMaxEventDepth = 16;  // few of ours are deeper than one list
constexpr std::array<std::string_view, 8> kEighths{"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
constexpr std::array<std::string_view, 8> kHeights{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 8> kAsciiHeights{"_", ".", "-", "~", "=", "+", "*", "#"};

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// The first characters of a text.
std::string_view first_characters(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  while (at < text.size()) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0U) != 0x80U && count-- == 0) break;
    ++at;
  }
  return text.substr(0, at);
}

void clip(Line& line, std::size_t columns) {
  for (auto& span : line) {
    const auto width = width_of(span.text);
    if (width > columns) span.text.resize(first_characters(span.text, columns).size());
    columns -= std::min(width, columns);
  }
}

std::size_t width_of_line(const Line& line) {
  std::size_t width = 0;
  for (const auto& span : line) width += width_of(span.text);
  return width;
}

Line labelled(std::string_view label, std::string text) {
  return {{fmt::format("{:<{}}", label, kLabel), Style::strong}, {std::move(text), Style::plain}};
}

// Of a bar or a course.
std::size_t picture_width(const Look& look) {
  return std::clamp<std::size_t>(look.size.columns / 4, 8, 40);
}

const Json& items_of(const Json& status, Table table) {
  return at(status, {table == Table::members ? "members" : "neighbours"});
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

std::string rates_text(const std::optional<Rates>& rates) {
  if (!rates) return "up -  down -";
  return fmt::format("up {}/s  down {}/s", show_bytes(rates->sent), show_bytes(rates->received));
}

Style style_of_state(std::string_view state) {
  if (state == "alive") return Style::good;
  if (state == "suspect" || state == "joining") return Style::warning;
  return state == "dead" ? Style::bad : Style::dim;
}

Line title(const Json& status, std::size_t columns) {
  const auto name = fmt::format(" starling  {}  {}", show(status, {"node", "name"}),
                                short_id(at(status, {"node"})));
  const auto where = fmt::format("   swarm {}  {}  {}", short_id(at(status, {"swarm"})),
                                 show(status, {"model", "name"}), show(status, {"phase"}));
  const auto up = fmt::format("up {} ", show_left(number(status, {"node", "uptime_s"})));
  Line line{{name + where, Style::title}};
  const auto taken = width_of_line(line) + width_of(up);
  const auto gap = taken < columns ? columns - taken : 2;
  line.push_back({std::string(gap, ' ') + up, Style::title});
  return line;
}

Line progress_line_of(const Json& status, const Look& look) {
  const double share = number(status, {"progress", "share"});
  auto line = labelled("TRAIN", bar(share, picture_width(look), look.unicode));
  auto text =
      fmt::format(" {}  epoch {:.2f}  step {}", percent(share),
                  number(status, {"progress", "epoch"}), show(status, {"progress", "step"}));
  if (number(status, {"progress", "left_s"}) > 0)
    text += "  left " + show_left(number(status, {"progress", "left_s"}));
  line.push_back({std::move(text), Style::plain});
  return line;
}

// A figure, its course, and what follows.
Line course_line(std::string_view label, std::string figure, std::span<const double> course,
                 std::string after, const Look& look) {
  auto line = labelled(label, std::move(figure) + "  ");
  line.push_back({spark_line(course, picture_width(look), look.unicode), Style::good});
  line.push_back({"  " + std::move(after), Style::plain});
  return line;
}

std::string accuracy_of(const Json& status) {
  if (!at(status, {"eval", "accuracy_ratio"}).is_number()) return "accuracy -";
  return fmt::format("accuracy {:.2f} % ({}, step {})",
                     number(status, {"eval", "accuracy_ratio"}) * 100, show(status, {"eval", "of"}),
                     show(status, {"eval", "step"}));
}

// What a node agrees on at the end; nothing before that.
std::optional<Line> end_line(const Json& status) {
  const auto state = show(status, {"consensus", "state"});
  if (state == "none" || state == "-") return std::nullopt;
  const auto& participants = at(status, {"consensus", "participants"});
  auto line = labelled("END", fmt::format("{}  epoch {}  {} participants, {} identical  ", state,
                                          show(status, {"consensus", "epoch"}),
                                          participants.is_array() ? participants.size() : 0,
                                          show(status, {"consensus", "identical"})));
  line.push_back(
      {show(status, {"consensus", "hash"}), state == "failed" ? Style::bad : Style::strong});
  return line;
}

Frame head_of(const View& view, const Look& look) {
  const auto& status = view.status;
  Frame frame{title(status, look.size.columns), progress_line_of(status, look)};
  const auto& loss = at(status, {"train", "loss"});
  frame.push_back(course_line("LOSS",
                              loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "-",
                              view.trends.losses(), accuracy_of(status), look));
  frame.push_back(course_line(
      "SPEED", fmt::format("{:.0f} img/s", number(status, {"train", "images_per_second"})),
      view.trends.speeds(),
      fmt::format("swarm {:.0f}  waits: gossip {}, data {}",
                  number(status, {"train", "swarm_images_per_second"}),
                  percent(number(status, {"train", "gossip_wait_ratio"})),
                  percent(number(status, {"train", "data_wait_ratio"}))),
      look));
  frame.push_back(labelled(
      "SWARM",
      fmt::format("{}   {} samples   disagreement {}   offers every {} steps",
                  members_by_state(status), show(status, {"progress", "swarm_samples"}),
                  show(status, {"disagreement_ratio"}), show(status, {"period", "steps"}))));
  frame.push_back(
      labelled("NET", fmt::format("{}   {}   sent {}, received {}   queued {}",
                                  show(status, {"address"}), rates_text(view.trends.rates()),
                                  show_bytes(number(status, {"traffic", "bytes_sent"})),
                                  show_bytes(number(status, {"traffic", "bytes_received"})),
                                  show_bytes(number(status, {"traffic", "queued_bytes"})))));
  frame.push_back(labelled(
      "HOST",
      fmt::format("{:.2f} cores   {}   {} {}, batch {}, learning rate {}",
                  number(status, {"host", "cpu_ratio"}),
                  show_bytes(number(status, {"host", "rss_bytes"})),
                  show(status, {"train", "device"}), show(status, {"train", "precision"}),
                  show(status, {"train", "batch"}), show(status, {"train", "learning_rate"}))));
  if (const auto join = join_of(status); !join.empty()) frame.push_back(labelled("JOIN", join));
  if (auto line = end_line(status)) frame.push_back(std::move(*line));
  const auto& warnings = at(status, {"warnings"});
  if (warnings.is_array())
    for (std::size_t i = 0; i < std::min(warnings.size(), kMostWarnings); ++i)
      frame.push_back({{"WARNING ", Style::bad}, {show(warnings[i]), Style::warning}});
  return frame;
}

// The lines of a table: their cells, and the style of the one that says the state.
struct Row {
  std::vector<std::string> cells;
  Style state = Style::dim;
};
constexpr std::size_t kStateCell = 1;

Row neighbour_row(const Json& edge, const Trends& trends) {
  const auto rates = trends.rates_of(show(edge, {"id"}));
  const auto state = show(edge, {"edge"}) == "lost" ? std::string("lost") : show(edge, {"state"});
  const auto refused = show(edge, {"refused_why"});
  const auto& closed = at(edge, {"closed_for_s"});
  const auto note = closed.is_number()
                        ? fmt::format("no edge for {}", show_left(closed.get<double>()))
                    : refused != "-" ? "refused: " + refused
                                     : show(edge, {"level_reason"});
  return {
      {show(edge, {"name"}), state, with_unit(edge, "rtt_ms", "ms"), show(edge, {"level"}),
       with_unit(edge, "last_exchange_s", "s"), show(edge, {"exchanges"}),
       rates ? show_bytes(rates->sent) + "/s" : "-",
       rates ? show_bytes(rates->received) + "/s" : "-", show(edge, {"disagreement_ratio"}), note},
      state == "lost" ? Style::bad : style_of_state(state)};
}

Row member_row(const Json& member) {
  const auto state = show(member, {"state"});
  return {{show(member, {"name"}), state, show(member, {"address"}), show(member, {"samples"}),
           at(member, {"self"}) == true ? "this node" : show(member, {"reason"})},
          style_of_state(state)};
}

std::vector<Row> table_of(const View& view, Table table) {
  std::vector<Row> rows;
  const auto& list = items_of(view.status, table);
  if (!list.is_array()) return rows;
  for (const auto& item : list)
    rows.push_back(table == Table::members ? member_row(item) : neighbour_row(item, view.trends));
  return rows;
}

// The table's head and as many of its rows as there is room for.
Frame table_lines(const View& view, const Look& look, std::size_t room) {
  Row head{look.table == Table::members
               ? std::vector<std::string>{"MEMBER", "STATE", "ADDRESS", "SAMPLES", "NOTE"}
               : std::vector<std::string>{"NEIGHBOUR", "STATE", "RTT", "LEVEL", "LAST", "EXCHANGES",
                                          "UP", "DOWN", "DISAGREEMENT", "NOTE"}};
  auto rows = table_of(view, look.table);
  std::vector<std::size_t> widths(head.cells.size(), 0);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    widths[i] = width_of(head.cells[i]);
    for (const auto& row : rows) widths[i] = std::max(widths[i], width_of(row.cells[i]));
  }
  widths[0] = std::min<std::size_t>(widths[0], 24);  // of names that others chose
  const auto line_of = [&](const Row& row, bool is_head) {
    Line line;
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      std::string cell(first_characters(row.cells[i], i == 0 ? widths[0] : row.cells[i].size()));
      if (i + 1 < row.cells.size()) cell.append(widths[i] - width_of(cell) + 2, ' ');
      line.push_back({std::move(cell), is_head           ? Style::strong
                                       : i == kStateCell ? row.state
                                                         : Style::plain});
    }
    return line;
  };
  Frame frame;
  if (room == 0) return frame;
  frame.push_back(line_of(head, true));
  const auto shown = std::min(rows.size(), room - 1);
  const auto first = std::min(look.first_row, rows.size() - shown);
  for (std::size_t i = first; i < first + shown; ++i) frame.push_back(line_of(rows[i], false));
  if (rows.empty() && room > 1)
    frame.push_back({{look.table == Table::members ? "nobody yet" : "no edge yet", Style::dim}});
  return frame;
}

// "02:14:07  joined  via=address seconds=1.2"
Line event_line(const std::string& text) {
  if (!nests_at_most(text, kMaxEventDepth)) return {{printable(text), Style::dim}};
  const auto event = Json::parse(text, nullptr, false);
  if (!event.is_object()) return {{printable(text), Style::dim}};
  const auto time = show(event, {"time"});
  std::string rest;
  for (const auto& [key, value] : event.items()) {
    if (key == "time" || key == "event") continue;
    auto shown = value.is_structured() ? printable(json_text(value)) : show(value);
    if (shown.size() == 64 && shown.find_first_not_of("0123456789abcdef") == std::string::npos)
      shown.resize(8);  // an id or a hash
    rest += fmt::format("  {}={}", printable(key), shown);
  }
  return {{time.size() >= 19 ? time.substr(11, 8) : time, Style::dim},
          {"  " + show(event, {"event"}), Style::strong},
          {std::move(rest), Style::plain}};
}

Line foot_of(const View& view, const Look& look) {
  if (!view.trouble.empty()) return {{printable(view.trouble), Style::bad}};
  return {
      {fmt::format("q quit   n neighbours   m members   {} scroll   the node goes on without it",
                   look.unicode ? "↑↓" : "up, down"),
       Style::dim}};
}

void append(Frame& frame, Frame more) { std::ranges::move(more, std::back_inserter(frame)); }

}  // namespace

std::string bar(double share, std::size_t width, bool unicode) {
  share = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const double cells = share * static_cast<double>(width);
  const auto full = static_cast<std::size_t>(cells);
  if (!unicode)
    return fmt::format("[{}{}]", std::string(full, '#'), std::string(width - full, '.'));
  const auto eighths = static_cast<std::size_t>((cells - static_cast<double>(full)) * 8);
  std::string text = repeated(kEighths.back(), full);
  if (eighths > 0) text += kEighths[eighths - 1];
  return "▕" + text + std::string(width - full - (eighths > 0 ? 1 : 0), ' ') + "▏";
}

std::string spark_line(std::span<const double> values, std::size_t width, bool unicode) {
  const auto columns = std::min(values.size(), width);
  std::vector<double> means;
  for (std::size_t i = 0; i < columns; ++i) {
    const auto from = i * values.size() / columns;
    const auto to = (i + 1) * values.size() / columns;
    double sum = 0;
    for (const auto value : values.subspan(from, to - from)) sum += value;
    means.push_back(sum / static_cast<double>(to - from));
  }
  const bool finite = std::ranges::all_of(means, [](double mean) { return std::isfinite(mean); });
  if (means.empty() || !finite) return "";
  const auto [low, high] = std::ranges::minmax(means);
  const auto& heights = unicode ? kHeights : kAsciiHeights;
  std::string text;
  for (const auto mean : means) {
    const double height = high > low ? (mean - low) / (high - low) : 0.5;
    text += heights[std::min<std::size_t>(static_cast<std::size_t>(height * 8), 7)];
  }
  return text;
}

std::size_t rows_of(const Json& status, Table table) {
  const auto& list = items_of(status, table);
  return list.is_array() ? list.size() : 0;
}

Frame draw(const View& view, const Look& look) {
  const auto rows = look.size.rows;
  const Line rule{{repeated(look.unicode ? "─" : "-", look.size.columns), Style::dim}};
  Frame frame = head_of(view, look);
  // Below the head: a rule, the table, a rule, events, and the foot.
  const auto below = rows > frame.size() + 1 ? rows - frame.size() - 1 : 0;
  const auto wanted = 1 + 1 + std::max<std::size_t>(rows_of(view.status, look.table), 1);
  const auto spare = below > wanted + 1 ? below - wanted - 1 : 0;
  // Events have what the table leaves, and on a small screen a fifth all the same.
  auto events = std::min(view.events.size(), std::max(spare, below / 5));
  if (below < 6) events = 0;
  const auto room = below - (events > 0 ? events + 1 : 0);
  if (room > 2) {
    frame.push_back(rule);
    append(frame, table_lines(view, look, room - 1));
  }
  if (events > 0) {
    frame.push_back(rule);
    for (const auto& text : view.events.last(events)) frame.push_back(event_line(text));
  }
  if (frame.size() >= rows) frame.resize(rows > 0 ? rows - 1 : 0);
  while (frame.size() + 1 < rows) frame.emplace_back();
  if (rows > 0) frame.push_back(foot_of(view, look));
  for (auto& line : frame) clip(line, look.size.columns);
  return frame;
}

}  // namespace starling::node::terminal
