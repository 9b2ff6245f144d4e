#include "client/text/text_table.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

using Row = std::vector<std::string>;

// Splits a row whose cells have several lines into as many rows as its longest cell has lines.
std::vector<Row> RowsOf(const Row& cells) {
  std::vector<Row> rows(1, Row(cells.size()));
  for (size_t column = 0; column < cells.size(); ++column) {
    const std::vector<std::string> lines = absl::StrSplit(cells[column], '\n');
    rows.resize(std::max(rows.size(), lines.size()), Row(cells.size()));
    for (size_t line = 0; line < lines.size(); ++line) rows[line][column] = lines[line];
  }
  return rows;
}

}  // namespace

std::string TextTable::Render(int indent, int width) const { return absl::StrJoin(Rows(indent, width), ""); }

std::vector<std::string> TextTable::Rows(int indent, int width) const {
  std::vector<int> widths(rows_.front().size());
  std::vector<std::vector<Row>> rows;
  for (const Row& cells : rows_) {
    FSDPD_CHECK(cells.size() == widths.size());
    rows.push_back(RowsOf(cells));
    for (const Row& row : rows.back()) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
    }
  }
  std::vector<std::string> texts;
  for (const std::vector<Row>& lines : rows) {
    std::string& text = texts.emplace_back();
    for (const Row& row : lines) {
      std::string line(indent, ' ');
      for (size_t i = 0; i < row.size(); ++i) {
        absl::StrAppend(&line, row[i], std::string(widths[i] - WidthOf(row[i]) + 2, ' '));
      }
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&text, width > 0 ? Truncate(line, width) : line, "\n");
    }
  }
  return texts;
}

int WidthOf(absl::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

std::string Truncate(absl::string_view text, int width) {
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

std::string ManyLines(absl::string_view text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace()))
    lines.push_back(OneLine(line));
  return absl::StrJoin(lines, "\n");
}

}  // namespace fsdpd
