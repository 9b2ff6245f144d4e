// Columns for people: as wide as their widest cell, two spaces apart, no trailing blanks. A cell of several
// lines stands in as many rows.
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

  // Lines that end with newlines; each starts with `indent` blanks and, where `width` > 0, is cut to it.
  std::string Render(int indent = 0, int width = 0) const;
  // The same, each row by itself, the header first.
  std::vector<std::string> Rows(int indent = 0, int width = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Columns that the text takes: one for each UTF-8 character.
int WidthOf(absl::string_view text);

// The text, or its beginning and "..." where it is wider.
std::string Cut(absl::string_view text, int width);

// Control characters become blanks: text of other processes cannot move the cursor.
std::string OneLine(absl::string_view text);

// The same of each line; those that are empty are left out, and so is the newline of the last.
std::string ManyLines(absl::string_view text);

}  // namespace fsdpd
