// A part of kubectl's jsonpath, over the form that -o json prints: what stands in braces is replaced by what
// it names, and the rest stays as it is.
//
//   {.state} {.jobs[*].id}           fields, by the names of -o json; one that is not set prints nothing
//   [0] [-1] [1:3] [*]               elements of a list, from 0 or from its end
//   [?(@.state=="running")]          those for which it holds: == != < <= > >=, or that it is set
//   {range .jobs[*]}...{end}         once for each
//   {"\n"} {'\t'}                    text
//
// Several values of one place stand with a blank between them. What -o json has not, a misspelt field among
// it, is an error. Not taken: recursive descent (..), unions ([a,b]), functions.
//
// Pure.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

namespace fsdpd {

class JsonPath {
 public:
  // INVALID_ARGUMENT says what cannot be read.
  static absl::StatusOr<JsonPath> Parse(absl::string_view text);
  // A path alone, with or without braces and the first point, as --sort-by takes it.
  static absl::StatusOr<JsonPath> ParsePath(absl::string_view text);

  // INVALID_ARGUMENT names a field that `message` cannot have, with the nearest that it can.
  absl::StatusOr<std::string> Render(const google::protobuf::Message& message) const;

 private:
  friend class JsonPathReader;
  friend class JsonPathWalk;

  struct Step {
    enum class Kind { kField, kRange, kFilter };
    Kind kind = Kind::kField;
    std::string name;             // kField
    int64_t first = 0, end = 0;   // kRange: negative from the list's end.
    bool is_open = false;         // kRange: to the end.
    std::vector<Step> condition;  // kFilter: a path from the element.
    std::string relation;         // kFilter: "==", or empty: that it is set.
    std::string value;            // kFilter
    bool is_number = false;       // kFilter: `value`.
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
