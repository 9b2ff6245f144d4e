// Filter and order expressions of list calls: a subset of AIP-160 and AIP-132.
//
//   state = RUNNING AND priority >= 5 AND (labels.team = "a" OR NOT project = red)
//
// A comparison is FIELD OPERATOR VALUE. AND, OR, NOT and parentheses combine comparisons; OR binds tighter
// than AND, as in AIP-160.
//
//   =  !=         any field. A repeated field is = if one of its values is, and != if none is.
//   <  <= >  >=   numbers and times (RFC 3339, or a date)
//   :VALUE        a text contains VALUE
//   :*            any field is present: a non-empty text, a nonzero number, true, a time that is set, an enum
//                 other than UNSPECIFIED, a map that has the key
//
// A time that is not set satisfies no comparison, not even !=. Enum values are case-insensitive, and - is
// accepted for _.
//
// Each kind of list has a table of fields (list_fields.h). kMaxFilterBytes, kMaxFilterTerms and
// kMaxFilterDepth bound the parser.
//
// Pure. Errors: INVALID_ARGUMENT with a text that continues a field's name, and the offset in bytes.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

constexpr size_t kMaxFilterBytes = 4096;
constexpr size_t kMaxFilterTerms = 64;
constexpr int kMaxFilterDepth = 16;

struct ListField {
  // Values of kName are enum values without their common prefix.
  enum class Kind { kText, kNumber, kBool, kTime, kName };
  std::string name;  // "labels." for a map field; the key follows.
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // For kName, by value; "" for values that cannot be written.
};
using ListFields = std::vector<ListField>;

// The value of a field in one object, if present.
struct ListValue {
  absl::InlinedVector<absl::string_view, 1> texts = {};  // For kText; empty: not present.
  // For all other kinds. Times: nanoseconds since 1970, 0 if not set. Enums: the number of the value.
  int64_t number = 0;
};
// `key` is the key of a map field.
using ListValueOf = absl::FunctionRef<ListValue(size_t field, const std::string& key)>;

class ListFilter {
 public:
  // Empty text matches everything.
  static absl::StatusOr<ListFilter> Parse(absl::string_view text, const ListFields& fields);

  bool empty() const { return nodes_.empty(); }
  bool Holds(ListValueOf value_of) const { return empty() || Holds(nodes_.size() - 1, value_of); }

 private:
  friend class FilterParser;
  enum class Operator { kIs, kIsNot, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kHas, kExists };
  struct Node {
    enum class Kind { kTerm, kNot, kAnd, kOr } kind = Kind::kTerm;
    std::vector<size_t> below = {};  // Nodes before this one.
    size_t field = 0;
    ListField::Kind of = ListField::Kind::kText;
    std::string key, text;
    Operator op = Operator::kIs;
    int64_t number = 0;
  };
  bool Holds(size_t node, ListValueOf value_of) const;
  static bool TermHolds(const Node& term, const ListValue& value);

  std::vector<Node> nodes_;  // The last node is the root.
};

struct ListOrder {
  size_t field = 0;  // Index into the fields that a list may be ordered by.
  bool descending = false;
};

// Parses "FIELD", "FIELD asc" or "FIELD desc", case-insensitive. Empty text returns `by_default`.
absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default);

}  // namespace fsdpd
