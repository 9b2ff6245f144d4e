#include "coordinator/request/list_filter.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/time/time.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "base/text.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxShownBytes = 40;

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", Escaped(CutText(text, kMaxShownBytes)), "'");
}

absl::Status At(size_t offset, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("at offset ", offset, ": ", what));
}

// Characters of names, numbers and dates, which need no quotes.
bool IsOfWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' || c == '/' ||
         c == '+' || c == '*' || static_cast<unsigned char>(c) >= 0x80;
}

struct Token {
  enum class Kind { kEnd, kWord, kText, kOperator, kOpen, kClose } kind = Kind::kEnd;
  std::string text;  // For kText: without the quotes.
  size_t offset = 0;
};

absl::StatusOr<Token> ReadText(absl::string_view all, size_t* at) {
  Token token{Token::Kind::kText, "", *at};
  const char quote = all[(*at)++];
  for (; *at < all.size(); ++*at) {
    if (all[*at] == quote) {
      ++*at;
      return token;
    }
    if (all[*at] == '\\' && *at + 1 < all.size()) ++*at;
    token.text += all[*at];
  }
  return At(token.offset, "unterminated quote");
}

absl::StatusOr<Token> ReadToken(absl::string_view all, size_t* at) {
  while (*at < all.size() && absl::ascii_isspace(static_cast<unsigned char>(all[*at]))) ++*at;
  Token token;
  token.offset = *at;
  if (*at == all.size()) return token;
  const char c = all[*at];
  if (c == '"' || c == '\'') return ReadText(all, at);
  if (c == '(' || c == ')') {
    ++*at;
    token.kind = c == '(' ? Token::Kind::kOpen : Token::Kind::kClose;
    token.text = c;
    return token;
  }
  for (const absl::string_view op : {"<=", ">=", "!=", "=", "<", ">", ":"}) {
    if (!absl::StartsWith(all.substr(*at), op)) continue;
    *at += op.size();
    token.kind = Token::Kind::kOperator;
    token.text = std::string(op);
    return token;
  }
  size_t end = *at;
  while (end < all.size() && IsOfWord(all[end])) ++end;
  if (end == *at) return At(*at, absl::StrCat("unexpected ", Shown(all.substr(*at, 1))));
  token.kind = Token::Kind::kWord;
  token.text = std::string(all.substr(*at, end - *at));
  *at = end;
  return token;
}

// Returns " (...)" with the number of bytes for a size with a unit ("80GiB"), or "".
std::string UnitHint(absl::string_view value) {
  const size_t digits = std::min(value.find_first_not_of("0123456789"), value.size());
  int64_t number = 0;
  if (digits == value.size() || !absl::SimpleAtoi(value.substr(0, digits), &number)) return "";
  for (const auto& [unit, bytes] : {std::pair<const char*, int64_t>{"KiB", 1ll << 10},
                                    {"MiB", 1ll << 20},
                                    {"GiB", 1ll << 30},
                                    {"TiB", 1ll << 40}}) {
    if (!absl::EqualsIgnoreCase(value.substr(digits), unit) || number > INT64_MAX / bytes) continue;
    return absl::StrCat(" (units are not supported: write ", number * bytes, ")");
  }
  return "";
}

std::string NamesOf(const ListFields& fields) {
  return absl::StrJoin(fields, ", ", [](std::string* out, const ListField& field) {
    absl::StrAppend(out, field.name, absl::EndsWith(field.name, ".") ? "KEY" : "");
  });
}

}  // namespace

// Recursive descent parser. OR binds tighter than AND (AIP-160):
//
//   all  = any {"AND" any}
//   any  = one {"OR" one}
//   one  = "NOT" one | "(" all ")" | FIELD OPERATOR VALUE
//
// A node of the tree is added after its children, so the root is last.
class FilterParser {
 public:
  FilterParser(absl::string_view text, const ListFields& fields) : text_(text), fields_(fields) {}

  absl::StatusOr<ListFilter> Parse() {
    FSDPD_RETURN_IF_ERROR(Advance());
    if (token_.kind == Token::Kind::kEnd) return ListFilter();
    FSDPD_RETURN_IF_ERROR(All(0).status());
    if (token_.kind != Token::Kind::kEnd)
      return Misplaced(absl::StrCat("unexpected ", Shown(token_.text), "; want AND, OR or the end"));
    return std::move(filter_);
  }

 private:
  using Node = ListFilter::Node;
  using Operator = ListFilter::Operator;

  absl::Status Advance() {
    FSDPD_ASSIGN_OR_RETURN(token_, ReadToken(text_, &at_));
    return absl::OkStatus();
  }
  bool Is(absl::string_view word) const { return token_.kind == Token::Kind::kWord && token_.text == word; }

  // An error at the current token. A lower-case `and` in its place usually means AND.
  absl::Status Misplaced(absl::string_view what) const {
    const std::string capitals = absl::AsciiStrToUpper(token_.text);
    const bool joins = capitals == "AND" || capitals == "OR" || capitals == "NOT";
    if (token_.kind != Token::Kind::kWord || !joins || capitals == token_.text)
      return At(token_.offset, what);
    return At(token_.offset, absl::StrCat(Shown(token_.text), " is not an operator; write ", capitals));
  }

  size_t Add(Node node) {
    filter_.nodes_.push_back(std::move(node));
    return filter_.nodes_.size() - 1;
  }
  absl::StatusOr<size_t> All(int depth) {
    return Joined("AND", Node::Kind::kAnd, [this, depth] { return Any(depth); });
  }
  absl::StatusOr<size_t> Any(int depth) {
    return Joined("OR", Node::Kind::kOr, [this, depth] { return One(depth); });
  }
  absl::StatusOr<size_t> Joined(absl::string_view word, Node::Kind kind,
                                const std::function<absl::StatusOr<size_t>()>& part) {
    Node joined;
    joined.kind = kind;
    while (true) {
      FSDPD_ASSIGN_OR_RETURN(const size_t below, part());
      joined.below.push_back(below);
      if (!Is(word)) break;
      FSDPD_RETURN_IF_ERROR(Advance());
    }
    return joined.below.size() == 1 ? joined.below[0] : Add(std::move(joined));
  }
  absl::StatusOr<size_t> One(int depth) {
    if (depth > kMaxFilterDepth) return At(token_.offset, "NOT and parentheses are nested too deep");
    if (Is("NOT")) {
      FSDPD_RETURN_IF_ERROR(Advance());
      Node negated;
      negated.kind = Node::Kind::kNot;
      FSDPD_ASSIGN_OR_RETURN(const size_t below, One(depth + 1));
      negated.below.push_back(below);
      return Add(std::move(negated));
    }
    if (token_.kind != Token::Kind::kOpen) return Term();
    FSDPD_RETURN_IF_ERROR(Advance());
    FSDPD_ASSIGN_OR_RETURN(const size_t inner, All(depth + 1));
    if (token_.kind != Token::Kind::kClose) return Misplaced("missing ')'");
    FSDPD_RETURN_IF_ERROR(Advance());
    return inner;
  }

  absl::StatusOr<size_t> Term() {
    if (++terms_ > kMaxFilterTerms)
      return At(token_.offset, absl::StrCat("too many comparisons (want at most ", kMaxFilterTerms, ")"));
    if (token_.kind != Token::Kind::kWord)
      return At(token_.offset, token_.kind == Token::Kind::kEnd
                                   ? std::string("missing comparison")
                                   : absl::StrCat("unexpected ", Shown(token_.text), "; want a field"));
    Node term;
    FSDPD_RETURN_IF_ERROR(SetField(&term));
    const std::string field = token_.text;
    FSDPD_RETURN_IF_ERROR(Advance());
    if (token_.kind != Token::Kind::kOperator)
      return At(token_.offset,
                absl::StrCat("missing operator after ", Shown(field), "; use one of = != < <= > >= :"));
    FSDPD_RETURN_IF_ERROR(SetOperator(&term));
    FSDPD_RETURN_IF_ERROR(Advance());
    if (token_.kind != Token::Kind::kWord && token_.kind != Token::Kind::kText)
      return At(token_.offset, absl::StrCat("missing value for ", Shown(field)));
    FSDPD_RETURN_IF_ERROR(SetValue(&term));
    FSDPD_RETURN_IF_ERROR(Advance());
    return Add(std::move(term));
  }

  absl::Status SetField(Node* term) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      const std::string& name = fields_[i].name;
      const bool map = absl::EndsWith(name, ".");
      if (map ? !absl::StartsWith(token_.text, name) || token_.text == name : token_.text != name) continue;
      term->field = i;
      term->of = fields_[i].kind;
      if (map) term->key = token_.text.substr(name.size());
      return absl::OkStatus();
    }
    return Misplaced(
        absl::StrCat("unknown field ", Shown(token_.text), "; the fields are ", NamesOf(fields_)));
  }

  absl::Status SetOperator(Node* term) {
    constexpr std::pair<const char*, Operator> kOperators[] = {
        {"=", Operator::kIs},           {"!=", Operator::kIsNot},  {"<", Operator::kLess},
        {"<=", Operator::kLessOrEqual}, {">", Operator::kGreater}, {">=", Operator::kGreaterOrEqual},
        {":", Operator::kHas}};
    for (const auto& [text, op] : kOperators) {
      if (token_.text == text) term->op = op;
    }
    const ListField& field = fields_[term->field];
    const bool sized = field.kind == ListField::Kind::kNumber || field.kind == ListField::Kind::kTime;
    const bool compares =
        term->op != Operator::kIs && term->op != Operator::kIsNot && term->op != Operator::kHas;
    if (compares && !sized)
      return At(token_.offset, absl::StrCat(field.name, " is neither a number nor a time; use = or !="));
    return absl::OkStatus();
  }

  absl::Status SetValue(Node* term) const {
    const ListField& field = fields_[term->field];
    const std::string& value = token_.text;
    term->text = value;
    const auto refuse = [&](absl::string_view what) {
      return At(token_.offset,
                absl::StrCat("invalid value of ", field.name, ": ", Shown(value), " is ", what));
    };
    if (term->op == Operator::kHas && value == "*") {
      term->op = Operator::kExists;
      return absl::OkStatus();
    }
    if (term->op == Operator::kHas && field.kind != ListField::Kind::kText)
      return At(token_.offset, absl::StrCat(field.name, " is not a text field; use = or :*"));
    switch (field.kind) {
      case ListField::Kind::kText:
        return absl::OkStatus();
      case ListField::Kind::kNumber:
        return absl::SimpleAtoi(value, &term->number)
                   ? absl::OkStatus()
                   : refuse(absl::StrCat("not a whole number", UnitHint(value)));
      case ListField::Kind::kBool:
        term->number = value == "true" ? 1 : 0;
        return value == "true" || value == "false" ? absl::OkStatus() : refuse("neither true nor false");
      case ListField::Kind::kTime: {
        absl::Time time;
        const bool read = absl::ParseTime(absl::RFC3339_full, value, &time, nullptr) ||
                          absl::ParseTime("%Y-%m-%d", value, &time, nullptr);
        term->number = absl::ToUnixNanos(time);
        return read ? absl::OkStatus() : refuse("not a time such as \"2026-11-25T10:00:00Z\" or 2026-11-25");
      }
      case ListField::Kind::kName: {
        std::string name = absl::AsciiStrToUpper(value);
        std::replace(name.begin(), name.end(), '-', '_');  // As fsdpctl prints them.
        const auto found = std::find(field.names.begin(), field.names.end(), name);
        if (value.empty() || found == field.names.end()) {
          std::vector<std::string> names;
          std::copy_if(field.names.begin(), field.names.end(), std::back_inserter(names),
                       [](const std::string& name) { return !name.empty(); });
          return refuse(absl::StrCat("not one of ", absl::StrJoin(names, ", ")));
        }
        term->number = found - field.names.begin();
        return absl::OkStatus();
      }
    }
    return absl::OkStatus();
  }

  const absl::string_view text_;
  const ListFields& fields_;
  size_t at_ = 0;
  Token token_;
  size_t terms_ = 0;
  ListFilter filter_;
};

absl::StatusOr<ListFilter> ListFilter::Parse(absl::string_view text, const ListFields& fields) {
  if (text.size() > kMaxFilterBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("is too long (got ", text.size(), " bytes, want at most ", kMaxFilterBytes, ")"));
  return FilterParser(text, fields).Parse();
}

bool ListFilter::Holds(size_t node, ListValueOf value_of) const {
  const Node& what = nodes_[node];
  const auto holds = [&](size_t below) { return Holds(below, value_of); };
  switch (what.kind) {
    case Node::Kind::kAnd:
      return std::all_of(what.below.begin(), what.below.end(), holds);
    case Node::Kind::kOr:
      return std::any_of(what.below.begin(), what.below.end(), holds);
    case Node::Kind::kNot:
      return !holds(what.below[0]);
    case Node::Kind::kTerm:
      break;
  }
  return TermHolds(what, value_of(what.field, what.key));
}

bool ListFilter::TermHolds(const Node& term, const ListValue& value) {
  if (term.of == ListField::Kind::kTime && value.number == 0) return false;
  const bool is_text = term.of == ListField::Kind::kText;
  const auto is = [&](absl::string_view text) { return text == term.text; };
  const bool any = is_text && std::any_of(value.texts.begin(), value.texts.end(), is);
  switch (term.op) {
    case Operator::kIs:
      return is_text ? any : value.number == term.number;
    case Operator::kIsNot:
      return is_text ? !any : value.number != term.number;
    case Operator::kLess:
      return value.number < term.number;
    case Operator::kLessOrEqual:
      return value.number <= term.number;
    case Operator::kGreater:
      return value.number > term.number;
    case Operator::kGreaterOrEqual:
      return value.number >= term.number;
    case Operator::kExists:
      if (!is_text) return value.number != 0;
      return std::any_of(value.texts.begin(), value.texts.end(), [&](absl::string_view text) {
        return !text.empty() || !term.key.empty();  // A map's key is present even if its value is empty.
      });
    case Operator::kHas:
      break;
  }
  return std::any_of(value.texts.begin(), value.texts.end(),
                     [&](absl::string_view text) { return absl::StrContains(text, term.text); });
}

absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default) {
  size_t at = 0;
  FSDPD_ASSIGN_OR_RETURN(const Token field, ReadToken(text, &at));
  if (field.kind == Token::Kind::kEnd) return by_default;
  const auto found = std::find(fields.begin(), fields.end(), field.text);
  if (field.kind != Token::Kind::kWord || found == fields.end())
    return At(field.offset, absl::StrCat("unknown field ", Shown(field.text), "; the fields are ",
                                         absl::StrJoin(fields, ", ")));
  ListOrder order;
  order.field = static_cast<size_t>(found - fields.begin());
  FSDPD_ASSIGN_OR_RETURN(const Token way, ReadToken(text, &at));
  if (way.kind == Token::Kind::kEnd) return order;
  order.descending = absl::EqualsIgnoreCase(way.text, "desc");
  if (way.kind != Token::Kind::kWord || (!order.descending && !absl::EqualsIgnoreCase(way.text, "asc")))
    return At(way.offset, absl::StrCat(Shown(way.text), " is neither asc nor desc"));
  FSDPD_ASSIGN_OR_RETURN(const Token rest, ReadToken(text, &at));
  if (rest.kind != Token::Kind::kEnd)
    return At(rest.offset, absl::StrCat("unexpected ", Shown(rest.text), "; lists are ordered by one field"));
  return order;
}

}  // namespace fsdpd
