// Which of many a list is to have, in words, and in which order: a part of AIP-160 and AIP-132.
//
//   state = RUNNING AND priority >= 5 AND (labels.team = "a" OR NOT project = red)
//
// Comparisons are FIELD OPERATOR VALUE, joined by AND, OR and NOT with parentheses; OR binds before AND, as
// the AIP has it. = and != take every kind of field, < <= > >= numbers and times (RFC 3339, or a date), and :
// asks whether a text holds the value, anywhere in it, or with * of every kind whether there is anything at
// all: a text that is not empty, a number but 0, true, a time, a name but UNSPECIFIED, a map's key. A field
// that has several values is = where one of them is, and != where none is. A time that is not there holds for
// no comparison, != neither: what is asked is when something was. Names of a list are taken in any case, and
// with - for _.
//
// What may be asked for is a table of fields of each kind of list (list_fields.h). Parsing is bounded:
// kMaxFilterBytes, kMaxFilterTerms, kMaxFilterDepth.
//
// Pure. Errors: INVALID_ARGUMENT with words that go on after a field's name, and the offset in bytes.
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
  // Of kName the values are words of a list: an enum's, without what all of them begin with.
  enum class Kind { kText, kNumber, kTruth, kTime, kName };
  std::string name;  // "labels." for a map's, whose key follows.
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // Of kName, by value; "" for those that nobody writes.
};
using ListFields = std::vector<ListField>;

// What one has of a field, as long as that is there.
struct ListValue {
  absl::InlinedVector<absl::string_view, 1> texts = {};  // Of kText. None: it is not there.
  // Of all other kinds: of a time nanoseconds since 1970, 0 where it is not there; of a name its place.
  int64_t number = 0;
};
// `key`: of a map's field.
using ListValueOf = absl::FunctionRef<ListValue(size_t field, const std::string& key)>;

class ListFilter {
 public:
  // Of nothing: all.
  static absl::StatusOr<ListFilter> Parse(absl::string_view text, const ListFields& fields);

  bool empty() const { return nodes_.empty(); }
  bool Holds(ListValueOf value_of) const { return empty() || Holds(nodes_.size() - 1, value_of); }

 private:
  friend class FilterParser;
  enum class Operator { kIs, kIsNot, kLess, kLessOrIs, kMore, kMoreOrIs, kHas, kIsThere };
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

  std::vector<Node> nodes_;  // The last one is the whole.
};

struct ListOrder {
  size_t field = 0;  // Of those that may be asked for.
  bool descending = false;
};

// "FIELD", "FIELD asc" or "FIELD desc", these in any case; of nothing, `by_default`.
absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default);

}  // namespace fsdpd
