// Plain-text table. Columns are as wide as their widest cell and two spaces apart, without trailing blanks. A
// cell with several lines spans as many lines of output.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

  void Add(std::vector<std::string> row) {
    rows_.push_back(std::move(row));
  }  // REQUIRES: as wide as the header.

  // Lines end with newlines and start with `indent` blanks. `width` > 0 truncates them to that many columns.
  std::string Render(int indent = 0, int width = 0) const;
  // The rows of Render(), with the header first.
  std::vector<std::string> Rows(int indent = 0, int width = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Display width in columns: one for each UTF-8 character.
int WidthOf(absl::string_view text);

// Truncates text wider than `width` to a prefix and "...".
std::string Truncate(absl::string_view text, int width);

// Replaces control characters by blanks, so that text from other processes cannot move the cursor.
std::string OneLine(absl::string_view text);

// Applies OneLine() to each line. Removes empty lines and the final newline.
std::string ManyLines(absl::string_view text);

}  // namespace fsdpd
