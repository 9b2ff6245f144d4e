#include "client/text_table.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string TextTable::Render(int indent, int width) const {
  std::vector<int> widths(rows_.front().size());
  for (const auto& row : rows_) {
    FSDPD_CHECK(row.size() == widths.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - WidthOf(row[i]) + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, width > 0 ? Cut(line, width) : line, "\n");
  }
  return text;
}

int WidthOf(absl::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

std::string Cut(absl::string_view text, int width) {
  if (WidthOf(text) <= width) return std::string(text);
  const int keep = std::max(0, width - 3);
  size_t end = 0;
  for (int characters = 0; end < text.size(); ++end) {
    if (!IsContinuation(text[end]) && characters++ == keep) break;
  }
  return absl::StrCat(text.substr(0, end), std::string(std::min(3, std::max(0, width)), '.'));
}

std::string OneLine(absl::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return line;
}

}  // namespace fsdpd
