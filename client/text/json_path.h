// JSONPath templates, a subset of kubectl's, over the data that -o json prints. An expression in braces is
// replaced by its value; other text is copied.
//
//   {.state} {.jobs[*].id}           fields, by their names in -o json; an unset field prints nothing
//   [0] [-1] [1:3] [*]               elements of a list, from 0 or from its end
//   [?(@.state=="running")]          filter: == != < <= > >=, or that the field is set
//   {range .jobs[*]}...{end}         repeat for each element
//   {"\n"} {'\t'}                    text
//
// Several values of one expression are separated by a space. A field that -o json does not have, such as a
// misspelled one, is an error. Recursive descent (..), unions ([a,b]) and functions are not supported.
//
// Pure functions.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

namespace fsdpd {

class JsonPath {
 public:
  // Returns INVALID_ARGUMENT with the position of a syntax error.
  static absl::StatusOr<JsonPath> Parse(absl::string_view text);
  // Parses a single path, with or without braces and the leading dot, for --sort-by.
  static absl::StatusOr<JsonPath> ParsePath(absl::string_view text);

  // Returns INVALID_ARGUMENT for a field that the type of `message` does not have, with the most similar
  // name.
  absl::StatusOr<std::string> Render(const google::protobuf::Message& message) const;

 private:
  friend class JsonPathReader;
  friend class JsonPathWalk;

  struct Step {
    enum class Kind { kField, kRange, kFilter };
    Kind kind = Kind::kField;
    std::string name;             // kField
    int64_t first = 0, end = 0;   // kRange: negative values count from the end of the list.
    bool is_open = false;         // kRange: up to the end of the list.
    std::vector<Step> condition;  // kFilter: a path from the element.
    std::string relation;         // kFilter: "==", or empty: the field is set.
    std::string value;            // kFilter
    bool is_number = false;       // kFilter: whether `value` is a number.
  };
  struct Piece {
    enum class Kind { kText, kPath, kLoop };
    Kind kind = Kind::kText;
    std::string text;         // kText
    std::vector<Step> path;   // kPath, kLoop
    std::vector<Piece> body;  // kLoop
  };

  std::vector<Piece> pieces_;
};

}  // namespace fsdpd
