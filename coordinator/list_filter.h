// Which of many a list is to have, in words, and in which order: a part of AIP-160 and AIP-132.
//
//   state = RUNNING AND priority >= 5 AND (labels.team = "a" OR NOT project = red)
//
// Comparisons are FIELD OPERATOR VALUE, joined by AND, OR and NOT with parentheses; OR binds before AND, as
// the AIP has it. = and != take every kind of field, < <= > >= numbers and times (RFC 3339, or a date), and :
// asks whether a text holds the value, anywhere in it, or with * whether there is anything at all. A field
// that has several values is = where one of them is, and != where none is.
//
// What may be asked for is a table of fields of each kind of list (list_fields.h). Parsing is bounded:
// kMaxFilterBytes, kMaxFilterTerms, kMaxFilterDepth.
//
// Pure. Errors: INVALID_ARGUMENT with words that go on after a field's name, and the offset in bytes.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdpd {

constexpr size_t kMaxFilterBytes = 4096;
constexpr size_t kMaxFilterTerms = 64;
constexpr int kMaxFilterDepth = 16;

struct ListField {
  // Of kName the values are words of a list: an enum's, without what all of them begin with.
  enum class Kind { kText, kNumber, kTruth, kTime, kName };
  std::string name;  // "labels." for a map's, whose key follows.
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // Of kName, by value; "" for those that nobody writes.
};
using ListFields = std::vector<ListField>;

// What one has of a field.
struct ListValue {
  std::vector<std::string> texts = {};  // Of kText. None: it is not there.
  int64_t number = 0;  // Of all other kinds: of a time nanoseconds since 1970, of a name its place.
};
// `key`: of a map's field.
using ListValueOf = std::function<ListValue(size_t field, const std::string& key)>;

class ListFilter {
 public:
  // Of nothing: all.
  static absl::StatusOr<ListFilter> Parse(absl::string_view text, const ListFields& fields);

  bool empty() const { return nodes_.empty(); }
  bool Holds(const ListValueOf& value_of) const { return empty() || Holds(nodes_.size() - 1, value_of); }

 private:
  friend class FilterParser;
  enum class Operator { kIs, kIsNot, kLess, kLessOrIs, kMore, kMoreOrIs, kHas };
  struct Node {
    enum class Kind { kTerm, kNot, kAnd, kOr } kind = Kind::kTerm;
    std::vector<size_t> below = {};  // Nodes before this one.
    size_t field = 0;
    bool is_text = false;
    std::string key, text;
    Operator op = Operator::kIs;
    int64_t number = 0;
  };
  bool Holds(size_t node, const ListValueOf& value_of) const;
  static bool TermHolds(const Node& term, const ListValue& value);

  std::vector<Node> nodes_;  // The last one is the whole.
};

struct ListOrder {
  size_t field = 0;  // Of those that may be asked for.
  bool descending = false;
};

// "FIELD", "FIELD asc" or "FIELD desc"; of nothing, `by_default`.
absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default);

}  // namespace fsdpd
