#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {
namespace {

constexpr int kLeft = 78, kRight = 200, kTop = 34;
constexpr int kWidth = 822;         // Width of the time axis.
constexpr int kMemoryHeight = 260;  // If there is memory data.
constexpr int kTrackHeight = 24, kTrackGap = 8;
constexpr int kLegendRoom = 150;  // Legend height, from the top of the lanes.
constexpr int kColumn = 2;        // Horizontal resolution of memory in pixels.

// Eight colors that also differ in lightness.
const char* const kComponentColors[] = {"#264653", "#2a6f97", "#6a4c93", "#8d99ae",
                                        "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51"};

const char* ColorOf(const std::string& kind) {
  static const auto* colors = new std::map<std::string, const char*>{
      {"Forward", "#4c956c"},     {"Backward", "#2c6e49"},    {"Update", "#bc6c25"}, {"Gather", "#4a90d9"},
      {"Publish", "#90b8e8"},     {"Reduce", "#c1443c"},      {"Norm", "#7a7a7a"},   {"Loss", "#b0b0b0"},
      {"ReduceOuter", "#e08a84"}, {"Snapshot", "#7b5ea7"},    {"Fetch", "#8fb339"},  {"Offload", "#b7a3d0"},
      {"FetchKept", "#8fb339"},   {"OffloadKept", "#b7a3d0"},
  };
  const auto found = colors->find(kind);
  return found == colors->end() ? "#555555" : found->second;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// About five round numbers up to `most`.
double TickOf(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (most / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

class Drawing {
 public:
  explicit Drawing(const Timeline& timeline)
      : t_(timeline),
        memory_height_(t_.components.empty() ? 0 : kMemoryHeight),
        lanes_top_(kTop + (memory_height_ > 0 ? memory_height_ + 24 : 0)) {
    std::set<int> used;
    for (const Timeline::Slice& slice : t_.slices) used.insert(slice.track);
    for (const int track : used) row_.emplace(track, static_cast<int>(row_.size()));
    most_bytes_ = static_cast<double>(t_.peak_bytes);
    for (const Timeline::Sample& sample : t_.samples) most_bytes_ = std::max(most_bytes_, Sum(sample));
    most_bytes_ = std::max(1.0, most_bytes_ * 1.06);
  }

  std::string Draw() {
    const int lanes_bottom = lanes_top_ + static_cast<int>(row_.size()) * (kTrackHeight + kTrackGap);
    const int height = std::max(lanes_bottom + 34, lanes_top_ + kLegendRoom), width = kLeft + kWidth + kRight;
    absl::StrAppendFormat(&out_,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                          "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
                          "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                          width, height, width, height, width, height);
    Text(kLeft, 20, "start", t_.title, "font-size=\"14\" font-weight=\"bold\"");
    if (memory_height_ > 0) MemoryAxis();
    TimeAxis(lanes_bottom);
    Memory();
    Lanes();
    if (memory_height_ > 0) Line(t_.peak_bytes, "planned peak");
    Legend();
    return out_ + "</svg>\n";
  }

 private:
  static double Sum(const Timeline::Sample& sample) {
    double sum = 0;
    for (const int64_t bytes : sample.bytes) sum += static_cast<double>(bytes);
    return sum;
  }

  double X(double seconds) const { return kLeft + std::clamp(seconds / t_.seconds, 0.0, 1.0) * kWidth; }
  double Y(double bytes) const { return kTop + memory_height_ * (1 - bytes / most_bytes_); }

  void Text(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
    absl::StrAppendFormat(&out_, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\" %s>%s</text>\n", x, y,
                          anchor, more, Escaped(text));
  }

  void MemoryAxis() {
    const bool giga = most_bytes_ > 2e9;
    const double unit = giga ? 1024.0 * 1024 * 1024 : 1024.0 * 1024;
    const double tick = TickOf(most_bytes_ / unit);
    for (double at = 0; at * unit <= most_bytes_; at += tick) {
      const double y = Y(at * unit);
      absl::StrAppendFormat(&out_, "<path d=\"M%d %.1fh%d\" stroke=\"#ddd\"/>\n", kLeft, y, kWidth);
      Text(kLeft - 6, y + 4, "end", absl::StrFormat("%g %s", at, giga ? "GiB" : "MiB"));
    }
  }

  void TimeAxis(int bottom) {
    const bool milli = t_.seconds < 2;
    const double unit = milli ? 1e-3 : 1;
    const double tick = TickOf(t_.seconds / unit);
    for (double at = 0; at * unit <= t_.seconds; at += tick) {
      absl::StrAppendFormat(&out_, "<path d=\"M%.1f %dV%d\" stroke=\"#eee\"/>\n", X(at * unit), kTop, bottom);
      Text(X(at * unit), bottom + 16, "middle", absl::StrFormat("%g %s", at, milli ? "ms" : "s"));
    }
  }

  // Maximum sample per pixel column.
  std::vector<const Timeline::Sample*> Columns() const {
    std::vector<const Timeline::Sample*> columns(kWidth / kColumn, nullptr);
    for (size_t n = 0; n < t_.samples.size(); ++n) {
      const Timeline::Sample& sample = t_.samples[n];
      const double end = n + 1 < t_.samples.size() ? t_.samples[n + 1].start : t_.seconds;
      const auto first = static_cast<size_t>((X(sample.start) - kLeft) / kColumn);
      const auto last = static_cast<size_t>((X(end) - kLeft) / kColumn);
      for (size_t c = first; c <= last && c < columns.size(); ++c) {
        if (columns[c] == nullptr || Sum(sample) > Sum(*columns[c])) columns[c] = &sample;
      }
    }
    return columns;
  }

  // Stacked from the bottom; each is drawn down to zero, the topmost first.
  void Memory() {
    const std::vector<const Timeline::Sample*> columns = Columns();
    for (size_t c = t_.components.size(); c-- > 0;) {
      std::string path = absl::StrFormat("M%d %d", kLeft, kTop + memory_height_);
      double last = -1;
      bool any = false;
      for (size_t column = 0; column < columns.size(); ++column) {
        double bytes = 0;
        if (columns[column] == nullptr) continue;
        for (size_t k = 0; k <= c; ++k) bytes += static_cast<double>(columns[column]->bytes[k]);
        any |= columns[column]->bytes[c] > 0;
        if (bytes == last) continue;
        last = bytes;
        absl::StrAppendFormat(&path, "H%dV%.1f", kLeft + static_cast<int>(column) * kColumn, Y(bytes));
      }
      if (!any) continue;
      shown_.push_back(c);
      absl::StrAppendFormat(&out_, "<path d=\"%sH%dV%dz\" fill=\"%s\"/>\n", path, kLeft + kWidth,
                            kTop + memory_height_, kComponentColors[c % std::size(kComponentColors)]);
    }
  }

  // One path per kind and track; slices less than half a pixel apart are merged.
  void Lanes() {
    std::map<std::pair<int, std::string>, std::vector<std::pair<double, double>>> runs;
    for (const Timeline::Slice& slice : t_.slices) {
      const double from = X(slice.start), to = X(slice.start + slice.seconds);
      if (slice.start >= t_.seconds || slice.start + slice.seconds <= 0) continue;
      auto& run = runs[{slice.track, slice.kind}];
      if (!run.empty() && to - from < 1 && from - run.back().second < 0.5) {
        run.back().second = to;
      } else {
        run.emplace_back(from, to);
      }
    }
    for (const auto& [track, row] : row_) {
      Text(kLeft - 6, TrackTop(row) + kTrackHeight - 7, "end", t_.tracks[track]);
    }
    for (const auto& [where, run] : runs) {
      kinds_.insert(where.second);
      std::string path;
      for (const auto& [from, to] : run) {
        absl::StrAppendFormat(&path, "M%.1f %dH%.1fv%dH%.1fz", from, TrackTop(row_.at(where.first)),
                              std::max(to, from + 0.3), kTrackHeight, from);
      }
      absl::StrAppendFormat(&out_, "<path d=\"%s\" fill=\"%s\" stroke=\"#fff\" stroke-width=\"0.3\"/>\n",
                            path, ColorOf(where.second));
    }
  }

  int TrackTop(int row) const { return lanes_top_ + row * (kTrackHeight + kTrackGap); }

  void Line(int64_t bytes, const std::string& name) {
    const double y = Y(static_cast<double>(bytes));
    absl::StrAppendFormat(&out_, "<path d=\"M%d %.1fh%d\" stroke=\"#222\" stroke-dasharray=\"5 4\"/>\n",
                          kLeft, y, kWidth);
    Text(kLeft + kWidth + 8, y + 4, "start", absl::StrCat(name, " ", HumanBytes(bytes)));
  }

  void Legend() {
    double y = kTop + 46;  // Below the peak line.
    const auto entry = [&](const char* color, const std::string& name) {
      absl::StrAppendFormat(&out_, "<rect x=\"%d\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n",
                            kLeft + kWidth + 10, y - 10, color);
      Text(kLeft + kWidth + 28, y, "start", name);
      y += 19;
    };
    for (const size_t c : shown_) {  // In stacking order, from the top.
      entry(kComponentColors[c % std::size(kComponentColors)], t_.components[c]);
    }
    y = memory_height_ > 0 ? std::max(y + 8, static_cast<double>(lanes_top_ - 40)) : kTop + 10;
    for (const std::string& kind : kinds_) entry(ColorOf(kind), kind);
  }

  const Timeline& t_;
  const int memory_height_;
  const int lanes_top_;
  std::map<int, int> row_;  // Row of each track that has slices.
  double most_bytes_ = 1;
  std::vector<size_t> shown_;
  std::set<std::string> kinds_;
  std::string out_;
};

}  // namespace

std::string Picture(const Timeline& timeline) { return Drawing(timeline).Draw(); }

}  // namespace fsdpd
